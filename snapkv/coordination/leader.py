"""The leader of an election, from the keys of its candidates: read once, or followed.

The candidate whose key has the smallest create revision leads. Keys sort by lease, not by that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from snapkv.base.lifecycle import Closing
from snapkv.base.waiting import monotonic
from snapkv.coordination.requests import lease_of
from snapkv.engine.contract import KeyValue, Range, WatchBatch, Watcher
from snapkv.errors import CompactedError, StoreClosedError
from snapkv.reading.deadline import check_wait
from snapkv.reading.reader import Reader
from snapkv.reading.watch import WAIT_S_MAX


@dataclass(frozen=True, slots=True)
class Leader:
    """A leader: its value, the id of its session, the create revision of its candidate's key."""

    value: bytes
    session: int
    revision: int


def leader_of(kvs: Iterable[KeyValue]) -> Leader | None:
    """Return the leader among the candidates' keys, None if there are none."""
    first = min(kvs, key=lambda kv: kv.create_revision, default=None)
    if first is None:
        return None
    return Leader(first.value, lease_of(first.key), first.create_revision)


class Leaders(Closing):
    """An iterator of the leaders of an election: the present one, then each change of them.

    A change is another leader or another proclaimed value. No leader is returned twice in a row,
    and times without a leader are skipped. No change is missed unless compaction overtakes it.
    Iteration waits for ever, or ends after `timeout` seconds without a change; `next(timeout=...)`
    waits so long once. Use it from one thread. Any thread may call `close()`, which raises
    `StoreClosedError` in the one that waits. One round trip and one watch.
    """

    def __init__(self, core: Reader, wanted: Range, timeout: float | None) -> None:
        check_wait(timeout)
        self._core, self._wanted, self._timeout = core, wanted, timeout
        self._candidates: dict[bytes, KeyValue] = {}
        self._returned: Leader | None = None
        self._closed = False
        self._watcher = self._start()
        core.follow(self)

    def _start(self) -> Watcher:
        """Read the candidates, and watch them from that revision on."""
        answer = self._core.engine.read([self._wanted])
        self._candidates = {kv.key: kv for kv in answer.results[0].kvs}
        start, end = self._wanted.key, self._wanted.range_end
        return self._core.engine.watch(start, end, start_revision=answer.header.revision + 1)

    def __iter__(self) -> Leaders:
        return self

    def __next__(self) -> Leader:
        leader = self.next(self._timeout)
        if leader is None:
            raise StopIteration
        return leader

    def next(self, timeout: float | None = None) -> Leader | None:
        """Return the next leader; None if `timeout` seconds (None: no bound) pass without one."""
        check_wait(timeout)
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if self._closed:
                raise StoreClosedError("the watch was closed")
            leader = leader_of(self._candidates.values())
            if leader is not None and leader != self._returned:
                self._returned = leader
                return leader
            left = None if deadline is None else max(0.0, deadline - monotonic())
            left = None if left is not None and left > WAIT_S_MAX else left
            try:
                batch = self._watcher.next(left)
            except CompactedError:
                self._start_again()
                continue
            if batch is None:
                return None
            self._take(batch)

    def close(self) -> None:
        """End the watch; may be repeated."""
        self._closed = True
        self._watcher.close()

    def _start_again(self) -> None:
        self._watcher.close()
        self._watcher = self._start()
        if self._closed:
            self._watcher.close()

    def _take(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.is_delete:
                self._candidates.pop(event.kv.key, None)
            else:
                self._candidates[event.kv.key] = event.kv
