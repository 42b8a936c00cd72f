"""The live feed of the timestamp key: what keeps the ring current with other writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from snapkv.clock import bounded, check_in_time
from snapkv.engine.contract import Engine, KeyValue, WatchBatch
from snapkv.errors import EngineUnavailableError, StoreClosedError
from snapkv.layout import Mark, stamp_of
from snapkv.timeline.unbroken import Unbroken

REPLAY_WAIT_S = 30.0
"""How long a replay of known history may wait for its next event."""
FEED_LAG_RINGS_MAX = 4
"""The feed is started anew when it is more commits than this many rings behind."""
FEED_LAG_REVISIONS_MAX = 65_536
"""The same for revisions, most of which are then other stores'."""


def mark_of(kv: KeyValue) -> Mark:
    """Return the mark that a version of the timestamp key is."""
    return Mark(stamp_of(kv.value), kv.mod_revision, kv.version)


def replayed(
    engine: Engine, key: bytes, range_end: bytes, first: int, until: int
) -> Iterator[WatchBatch]:
    """Yield what was written to a range from revision `first` to `until`, from one watch.

    Raises `CompactedError` (unit "revision") when compaction overtakes it, and
    `EngineUnavailableError` when nothing comes for `REPLAY_WAIT_S`.
    """
    if first > until:
        return
    watcher = engine.watch(key, range_end, start_revision=first)
    try:
        while (batch := watcher.next(bounded(REPLAY_WAIT_S))) is not None:
            check_in_time()
            if batch.revision <= until and batch.events:
                yield batch
            if batch.revision >= until:
                return
        raise EngineUnavailableError("no event in time")
    finally:
        watcher.close()


class Feed:
    """A watch over the timestamp key, drained by whoever looks something up: it has no thread.

    `watch` opens it at a revision.
    """

    def __init__(self, watch: Callable[[int], Unbroken]) -> None:
        self._watch = watch
        self._watcher: Unbroken | None = None
        self._ordinal = self._revision = 0  # how far it was drained

    @property
    def running(self) -> bool:
        """Whether the watch was started."""
        return self._watcher is not None

    def is_far_behind(self, newest: Mark, slots: int) -> bool:
        """Return whether catching up costs more than starting anew at the newest marks."""
        return (
            newest.ordinal - self._ordinal > FEED_LAG_RINGS_MAX * slots
            or newest.revision - self._revision > FEED_LAG_REVISIONS_MAX
        )

    def start(self, revision: int, ordinal: int) -> None:
        """Watch from a revision on, inclusive, where the mark with that ordinal stands."""
        self.stop()
        self._ordinal, self._revision = ordinal, revision
        self._watcher = self._watch(revision)

    def stop(self) -> None:
        """End the watch."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    def drain(self) -> Iterator[Mark]:
        """Yield the marks that have come, without waiting.

        Raises `CompactedError` when compaction overtook the feed, `StoreRestoredError`, and what
        else ended the watch.
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
                    self._ordinal = mark.ordinal
                    yield mark
            if not batch.events:
                return
