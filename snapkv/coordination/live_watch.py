"""Following leased keys: every write, removal and end of a lease, by revision."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from snapkv.base.lifecycle import Closing
from snapkv.engine.contract import WatchBatch
from snapkv.errors import StoreClosedError
from snapkv.layout import Keyspace
from snapkv.reading.deadline import check_wait
from snapkv.reading.reader import Reader
from snapkv.reading.watch import deadline_of, left_of


class LiveChange(NamedTuple):
    """What happened to a live key: its new value, None if it was removed or its lease ended."""

    key: str
    value: bytes | None
    revision: int


class LiveWatch(Closing):
    """An iterator of `LiveChange`s, in the order of their revisions, none missing, none twice.

    `next(timeout=...)` waits so long once. Use it from one thread. Any thread may call `close()`,
    which ends the iteration; `next` then raises `StoreClosedError`. If the store is closed instead,
    the iteration raises it, too.
    """

    def __init__(
        self,
        core: Reader,
        space: Keyspace,
        prefix: str,
        since: int | None,
        timeout: float | None,
    ) -> None:
        check_wait(timeout)
        start, end = space.range_of(prefix)
        since = core.engine.read([]).header.revision if since is None else since
        self._core, self._space, self._timeout = core, space, timeout
        self._waiting: deque[LiveChange] = deque()
        self._ended = False  # by close(), while the store was open
        self._watcher = core.engine.watch(start, end, start_revision=since + 1)
        core.follow(self)

    def __iter__(self) -> Iterator[LiveChange]:
        return self

    def __next__(self) -> LiveChange:
        try:
            found = self.next(self._timeout)
        except StoreClosedError:
            if not self._ended:
                raise
            found = None
        if found is None:
            raise StopIteration
        return found

    def next(self, timeout: float | None = None) -> LiveChange | None:
        """Return the next change; None if `timeout` seconds (None: no bound) bring none."""
        check_wait(timeout)
        deadline = deadline_of(timeout)
        while not self._waiting:
            batch = self._watcher.next(left_of(deadline))
            if batch is None:
                return None
            self._take(batch)
        return self._waiting.popleft()

    def close(self) -> None:
        """End the watch; may be repeated."""
        self._ended = self._ended or not self._core.closed
        self._watcher.close()

    def _take(self, batch: WatchBatch) -> None:
        for event in batch.events:
            key, value = self._space.decode(event.kv.key), event.kv.value
            self._waiting.append(
                LiveChange(key, None if event.is_delete else value, event.kv.mod_revision)
            )
