"""The feed: a watch over the timestamp key that brings other writers' commits to the ring."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from snapkv.errors import StoreClosedError
from snapkv.layout import Mark
from snapkv.timeline.continuity import ContinuousWatcher
from snapkv.timeline.search import mark_of

FEED_LAG_RINGS_MAX = 4
"""The feed is started anew when it is more commits than this many rings behind."""
FEED_LAG_REVISIONS_MAX = 65_536
"""The same for revisions, most of which then belong to other stores."""


class Feed:
    """A watch over the timestamp key, drained by the lookups that need it: it has no thread.

    `watch` opens it at a revision.
    """

    def __init__(self, watch: Callable[[int], ContinuousWatcher]) -> None:
        self._watch = watch
        self._watcher: ContinuousWatcher | None = None
        self._ordinal = self._revision = 0  # how far it was drained
        self.last: Mark | None = None
        """The newest mark that it has brought."""

    @property
    def running(self) -> bool:
        """Whether the watch was started."""
        return self._watcher is not None

    def is_far_behind(self, newest: Mark, slots: int) -> bool:
        """Return whether catching up costs more than starting again at the newest marks."""
        return (
            newest.ordinal - self._ordinal > FEED_LAG_RINGS_MAX * slots
            or newest.revision - self._revision > FEED_LAG_REVISIONS_MAX
        )

    def start(self, revision: int, ordinal: int) -> None:
        """Watch from a revision on, inclusive, which is that of the mark with that ordinal."""
        self.stop()
        self._ordinal, self._revision, self.last = ordinal, revision, None
        self._watcher = self._watch(revision)

    def stop(self) -> None:
        """End the watch."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    def drain(self) -> Iterator[Mark]:
        """Yield the marks that have come, without waiting.

        Raises `CompactedError` if compaction overtook the feed, `StoreRestoredError`, and any other
        error that ended the watch.
        """
        watcher = self._watcher
        while watcher is not None:
            try:
                batch = watcher.next(0)
            except StoreClosedError:
                if self._watcher is watcher:
                    raise
                return  # it was stopped meanwhile
            if batch is None:
                return
            self._revision = batch.revision
            for event in batch.events:
                if not event.is_delete:
                    mark = mark_of(event.kv)
                    self._ordinal, self.last = mark.ordinal, mark
                    yield mark
            if not batch.events:
                return
