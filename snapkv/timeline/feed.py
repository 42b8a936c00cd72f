"""The live feed of the timestamp key: what keeps the ring current with other writers."""

from __future__ import annotations

from collections.abc import Iterator

from snapkv.engine.base import Engine, KeyValue, Watcher
from snapkv.records import Mark, stamp_of


def mark_of(kv: KeyValue) -> Mark:
    """Return the mark that a version of the timestamp key is."""
    return Mark(stamp_of(kv.value), kv.mod_revision, kv.version)


class Feed:
    """A watch over the timestamp key, drained by whoever looks something up: it has no thread."""

    def __init__(self, engine: Engine, key: bytes) -> None:
        self._engine, self._key = engine, key
        self._watcher: Watcher | None = None

    @property
    def running(self) -> bool:
        """Whether the watch was started."""
        return self._watcher is not None

    def start(self, revision: int) -> None:
        """Watch from a revision on, inclusive."""
        self.stop()
        self._watcher = self._engine.watch(self._key, b"", start_revision=revision)

    def stop(self) -> None:
        """End the watch."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def drain(self) -> Iterator[Mark]:
        """Yield the marks that have come, without waiting.

        Raises `CompactedError` when compaction overtook the feed.
        """
        while self._watcher is not None:
            batch = self._watcher.next(0)
            if batch is None or not batch.events:
                return
            for event in batch.events:
                if not event.is_delete:
                    yield mark_of(event.kv)
