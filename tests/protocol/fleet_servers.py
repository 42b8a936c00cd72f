"""The servers of members: each can be set back to a copy of an earlier state under its clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import protocol_remote
import pytest
from fleet_histories import History, newest_in
from fleet_plan import Streams
from protocol_remote import Journal, Network, Remote, interrupt_before
from sortedcontainers import SortedDict

import snapkv
from snapkv.base import waiting
from snapkv.engine.contract import KeyValue, Pairs, Range, ReadResult, Txn, TxnResult, WatchBatch
from snapkv.engine.memory import MemoryEngine
from snapkv.errors import StoreClosedError
from snapkv.fleet import fleet_watch
from snapkv.fleet.members import Members
from snapkv.store import location

READERS = "fleet"
"""Clients whose names begin so belong to fleets."""
RESTORE_S = 0.08
"""No server can be exchanged in less: see `GAP_S` of the continuity."""


def copied(engine: MemoryEngine, revision: int) -> MemoryEngine:
    """Return an engine as another one was at a revision, of the same cluster."""
    copy = MemoryEngine()
    copy._cluster, copy._revision = engine._cluster, revision
    copy._log = engine._log[: revision - 1]
    copy._versions = SortedDict(
        (key, kept)
        for key, versions in engine._versions.items()
        if (kept := [kv for kv in versions if kv.mod_revision <= revision])
    )
    return copy


class Server(Network):
    """The server of one member. `on_request` is called before each request of a fleet.

    `history` is what it holds, None before the store is created, and `lost` what it held when it
    was set back; clients may have had some of that `lost_in_buffers`. `lately` are the histories
    that it had since `watch_history`.
    """

    def __init__(self, base: MemoryEngine | None, on_request: Callable[[], None]) -> None:
        super().__init__()
        self._on_request = on_request
        self.streams: list[Stream] = []
        self.history: History | None = None
        self.lost: History | None = None
        self.lost_in_buffers = False
        self.lately: list[History | None] = [None]
        if base is not None:
            self._begin(base)

    def _begin(self, base: MemoryEngine) -> None:
        self.base, self.journal = base, Journal(base)
        self.journal.drain()
        self._take_history()

    def apply(self, txn: Txn) -> TxnResult:
        result = super().apply(txn)
        self._take_history()
        return result

    def _take_history(self) -> None:
        if self.journal.stamps:
            newest, history = newest_in(self.journal), self.history or ()
            if newest is not None and newest not in history:
                history = (*history, newest)
            self.history = history
            self.lately.append(history)

    def watch_history(self) -> None:
        """Forget which histories it had before."""
        self.lately = [self.history]

    def open(self, client: str, at_ms: int = 0, **options: Any) -> snapkv.SnapshotKV:
        protocol_remote._networks[id(self)] = self
        return super().open(client, at_ms, **options)

    def url(self, client: str) -> str:
        """Return the URL with which a fleet opens the store."""
        protocol_remote._networks[id(self)] = self
        return f"remote:{id(self)}/{client}"

    def request(self, client: str) -> None:
        """Let others go first, before a request of a fleet."""
        if client.startswith(READERS):
            self._on_request()

    def read(self, client: str, ranges: Sequence[Range]) -> ReadResult:
        self.request(client)
        return super().read(client, ranges)

    def post(self, client: str, txn: Txn, timeout: float) -> TxnResult:
        self.request(client)
        return super().post(client, txn, timeout)

    def send(self, client: str, store: snapkv.SnapshotKV, **commit: Any) -> None:
        """Send a commit that stays on its way; its caller does not wait for the answer."""
        self.plan(client, interrupt_before)
        with pytest.raises(KeyboardInterrupt):
            store.commit(**commit)

    def restore(self, revision: int, streams: Streams) -> None:
        """Set the server back."""
        for stream in self.streams:
            stream.interrupt(streams)
        assert self.history is not None
        self.lost, self.lost_in_buffers = self.history, streams != Streams.EMPTY
        self.history = tuple(each for each in self.lost if each.revision <= revision)
        self._begin(copied(self.base, revision))


class Stream:
    """A watcher as that of etcd: it opens its stream again where it was, whatever is there now.

    What it had received before waits in a buffer; then `reopened` is counted.
    """

    def __init__(self, server: Server, key: bytes, range_end: bytes, start: int) -> None:
        self._server, self._range = server, (key, range_end)
        self.next_revision, self.reopened, self.closed = start, 0, False
        self.buffer: deque[WatchBatch] = deque()
        self.broken = self.is_slow = False
        self._follow()
        server.streams.append(self)

    def _follow(self) -> None:
        self._watcher = self._server.base.watch(*self._range, start_revision=self.next_revision)

    @property
    def has_news(self) -> bool:
        """Whether the server has more, if only that nothing else has happened."""
        return not self.broken and self._watcher._reported < self._server.base._revision

    def interrupt(self, streams: Streams) -> None:
        """Break, before the server is set back."""
        while streams != Streams.EMPTY and not self.broken and not self.closed:
            batch = self._watcher.next(0)
            if batch is None or not batch.events:
                break
            self.buffer.append(batch)
        self.broken, self.is_slow = True, streams == Streams.SLOW

    def next(self, timeout: float | None) -> WatchBatch | None:
        if self.closed:
            raise StoreClosedError("the watch was closed")
        if self.buffer:
            return self._taken(self.buffer.popleft())
        if self.is_slow:
            self.is_slow = False
            return None
        if self.broken:
            self.broken = False
            self.reopened += 1
            self._follow()
        return self._taken(self._watcher.next(0))

    def _taken(self, batch: WatchBatch | None) -> WatchBatch | None:
        if batch is not None:
            self.next_revision = batch.revision + 1
        return batch

    def close(self) -> None:
        self.closed = True
        self._watcher.close()


class MemberEngine(Remote):
    """The engine of one client of a `Server`."""

    network: Server

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> Any:
        self._check_open()
        return Stream(self.network, key, range_end, start_revision)

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        self.network.request(self.client)
        return super().scan(key, range_end, revision=revision, keys_only=keys_only)

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Pairs]:
        self.network.request(self.client)
        return super().pairs(key, range_end, revision=revision, keys_only=keys_only)


def _open_engine(
    url: str, create: bool, home: bytes, environment: bool, **options: Any
) -> MemberEngine:
    network, _, client = url.removeprefix("remote:").partition("/")
    return MemberEngine(protocol_remote._networks[int(network)], client, url)


# --- one thread, and a time that stands still ---


class NoThread:
    """In place of a follower's thread: the explorer calls its steps."""

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass


class FollowerThreads:
    """In place of the module `threading` of followers."""

    Thread = NoThread


class Asked:
    """The answer of a member that was asked at once."""

    def __init__(self, ask: Callable[..., Any], *args: Any) -> None:
        self._value, self._error = None, None
        try:
            self._value = ask(*args)
        except Exception as e:
            self._error = e

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class OneByOne:
    """In place of the pool of a fleet: members are asked in the order of their names."""

    def submit(self, ask: Callable[..., Any], *args: Any) -> Asked:
        return Asked(ask, *args)

    def shutdown(self, **_: Any) -> None:
        pass


class StillTime:
    """A monotonic clock that moves only when it is set."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@contextmanager
def one_thread() -> Iterator[StillTime]:
    """Run fleets in the thread that calls them, with clocks that stand still."""
    time = StillTime()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(location._ENGINES, "remote", (_open_engine, ()))
        patch.setattr(fleet_watch, "threading", FollowerThreads)
        patch.setattr(Members, "_threads", lambda self: OneByOne())
        for module in _modules_with(waiting.monotonic):
            patch.setattr(module, "monotonic", time.monotonic)
        yield time
    protocol_remote._networks.clear()


def _modules_with(monotonic: Callable[[], float]) -> list[Any]:
    import sys

    return [
        module
        for name, module in sys.modules.items()
        if name.startswith("snapkv") and getattr(module, "monotonic", None) is monotonic
    ]
