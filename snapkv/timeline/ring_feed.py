"""The feed: a watch over the timestamp key that brings other writers' commits to the ring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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


# For example, the feed has received 30, with ordinal 4, and no lookup has taken it. Then the engine
# is restored to 20, with ordinal 3. Another process commits 25 and 35. Now the feed is drained:
#
#     newest known     the feed brings   what happens
#     20, ord. 3       30, ord. 4        30 is the witness; the next read finds 25 in its place
#     35, ord. 5       30, ord. 4        it is behind: a read finds 25 in its place; not added
#     25, ord. 4       30, ord. 4        another one in its place: the same
def is_in_question(marks: Sequence[Mark], newest: Mark) -> bool:
    """Return whether marks of the feed may belong to a history that the engine has lost.

    The feed received the marks some time ago, perhaps before a restore that nothing has noticed.
    Marks that end beyond the newest mark become the witness, so the next read checks them.
    """
    is_other = any(mark.ordinal == newest.ordinal and mark != newest for mark in marks)
    return marks[-1].ordinal < newest.ordinal or is_other
