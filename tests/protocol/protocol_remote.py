"""A network engine in miniature: many clients, one shared state, and a network that obeys a script.

A `Network` is one server (a `MemoryEngine`) with everything that ever happened to it (`Journal`);
a `Remote` is one client's engine. Each message meets a *fate*: a function that delivers it, loses
it, loses its answer, keeps it until told, and so on. Unlike an embedded engine a `Remote` cannot
look before it sends: `prepare` gets None, so timestamps are optimistic.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
from chains import check_ends

import snapkv
from snapkv.engine.contract import (
    EngineLimits,
    GetResult,
    KeyValue,
    OutcomeUnknown,
    Pairs,
    Range,
    RangePiece,
    ReadResult,
    Refused,
    Txn,
    TxnResult,
    Versions,
    one_of,
)
from snapkv.engine.memory import LIMITS, MemoryEngine, MemoryWatcher
from snapkv.engine.request_checks import check_distinct
from snapkv.errors import EngineUnavailableError, SnapKVError, StoreClosedError
from snapkv.store import location

TS_KEY = b"default/sys/ts"
DATA = b"default/data/"
WAIT_S = 20.0
"""No wait of these tests is longer: whoever waits so long hangs."""


# --- what happened -----------------------------------------------------------------------


@dataclass(frozen=True)
class Stamped:
    """One version of the timestamp key, read without the library's own code."""

    revision: int
    ts: int
    nonce: bytes
    fence_of: bytes | None


def stamp_in(txn: Txn) -> tuple[int, str, bytes | None]:
    """Return the timestamp that a transaction would write, for whom, and whose fence it is."""
    for op in txn.success:
        if isinstance(op, Txn):
            found = stamp_in(op)
            if found[0]:
                return found
        elif getattr(op, "key", None) == TS_KEY and hasattr(op, "value"):
            fields = msgpack.unpackb(op.value[8:])
            return int.from_bytes(op.value[:8], "big"), fields["w"], fields.get("f")
    return 0, "", None


class Journal:
    """Every revision of a server, kept beside it, so that compaction takes nothing away.

    `arrivals` tells at which revision a commit's request found its timestamp new enough: what
    its guards saw, whether or not anything was written.
    """

    def __init__(self, base: MemoryEngine) -> None:
        self._watcher = base.watch(b"\0", b"\0", start_revision=1)
        self.revisions: dict[int, dict[bytes, bytes | None]] = {}
        self.stamps: list[Stamped] = []
        self.arrivals: dict[tuple[int, str], int] = {}

    def drain(self) -> None:
        """Take in what is new; called after each request that was applied."""
        while (batch := self._watcher.next(0)) is not None:
            if not batch.events:
                return
            changes = {e.kv.key: None if e.is_delete else e.kv.value for e in batch.events}
            self.revisions[batch.revision] = changes
            value = changes.get(TS_KEY)
            if value is not None:
                fields = msgpack.unpackb(value[8:])
                ts = int.from_bytes(value[:8], "big")
                self.stamps.append(Stamped(batch.revision, ts, fields["n"], fields.get("f")))

    def found(self, ts: int) -> Stamped | None:
        """Return the stamp with that timestamp, fence or commit."""
        return next((stamp for stamp in self.stamps if stamp.ts == ts), None)

    def written(self, key: str) -> list[tuple[int, bytes | None]]:
        """Return the revisions that wrote or removed a user's key, and what."""
        stored = DATA + key.encode()
        return [(r, c[stored]) for r, c in self.revisions.items() if stored in c]

    def before(self, revision: int) -> dict[bytes, int]:
        """Return the keys that exist just before a revision, with where each was last written."""
        state: dict[bytes, int] = {}
        for at, changes in self.revisions.items():
            if at >= revision:
                break
            for key, value in changes.items():
                state.pop(key, None)
                if value is not None:
                    state[key] = at
        return state


# --- the network -------------------------------------------------------------------------


@dataclass(eq=False)
class Message:
    """A transaction on its way."""

    network: Network
    client: str
    txn: Txn
    timeout: float

    def deliver(self) -> TxnResult:
        """Apply it now, and return the answer."""
        return self.network.apply(self.txn)


Fate = Callable[[Message], TxnResult]


class Network:
    """One server and the way to it; `plan` scripts the next messages of a client."""

    def __init__(self, limits: EngineLimits = LIMITS) -> None:
        self.base = MemoryEngine(limits=limits)
        self.journal = Journal(self.base)
        self.late: list[Message] = []
        self.seen: list[tuple[str, Txn]] = []
        self.server_time: tuple[int, int] | None = None
        self.unreadable: dict[str, int] = defaultdict(int)
        self.before_read: Callable[[str, Sequence[Range]], None] = lambda client, ranges: None
        self._plans: dict[str, deque[Fate]] = defaultdict(deque)
        self._down: set[str] = set()
        self._lock = threading.Lock()

    def open(self, client: str, at_ms: int = 0, **options: Any) -> snapkv.SnapshotKV:
        """Open a store of this network, as another process would, with a clock of its own."""
        options.setdefault("clock", snapkv.ManualClock(at_ms))
        options.setdefault("max_clock_skew", 10_000_000)
        _networks[id(self)] = self
        return snapkv.open(f"remote:{id(self)}/{client}", writer=client, **options)

    def plan(self, client: str, *fates: Fate) -> None:
        """Say what happens to the client's next messages; those after them arrive."""
        self._plans[client].extend(fates)

    def cut(self, client: str) -> None:
        """Lose this client's reads and what it sends beyond its plan, until `mend`."""
        self._down.add(client)

    def mend(self, client: str) -> None:
        """End `cut`."""
        self._down.discard(client)

    def left(self, client: str) -> int:
        """Return how many planned fates nobody has met yet."""
        return len(self._plans[client])

    def post(self, client: str, txn: Txn, timeout: float) -> TxnResult:
        """Send a transaction into its fate."""
        with self._lock:
            self.seen.append((client, txn))
            plan = self._plans[client]
            fate = plan.popleft() if plan else lose if client in self._down else deliver
        return fate(Message(self, client, txn, timeout))

    def apply(self, txn: Txn) -> TxnResult:
        """Run a transaction on the server."""
        with self._lock:
            head = self.base.read([]).header.revision
            result = self.base.transact(lambda _: txn, b"", timeout=WAIT_S)
            self.journal.drain()
            ts, writer, fence_of = stamp_in(txn)
            if result.succeeded and fence_of is None:
                self.journal.arrivals[ts, writer] = head
            return result

    def arrive(self) -> list[TxnResult]:
        """Let everything arrive that was kept back."""
        late, self.late = self.late, []
        return [message.deliver() for message in late]

    def read(self, client: str, ranges: Sequence[Range]) -> ReadResult:
        """Answer a read, unless this client's reads are planned to fail."""
        self.before_read(client, ranges)
        if client in self._down:
            raise EngineUnavailableError("no endpoint answers")
        if self.unreadable[client] > 0:
            self.unreadable[client] -= 1
            raise EngineUnavailableError("no endpoint answers")
        return self.base.read(ranges)


_networks: dict[int, Network] = {}


class Remote:
    """The engine of one client of a `Network`."""

    remote = True

    def __init__(self, network: Network, client: str, url: str) -> None:
        self.network, self.client, self.url = network, client, url
        self.limits = network.base.limits
        self._closed = threading.Event()
        self._watchers: list[MemoryWatcher] = []

    def transact(
        self, prepare: Callable[[KeyValue | None], Txn], peek: bytes, *, timeout: float
    ) -> TxnResult:
        self._check_open()
        txn = prepare(None)
        try:
            self.check_limits(txn)
        except SnapKVError as e:
            check_ends(e)
            raise Refused(e) from e
        check_distinct(txn)
        return self.network.post(self.client, txn, timeout)

    def check_limits(self, txn: Txn) -> int:
        return self.network.base.check_limits(txn)

    def get(self, key: bytes, revision: int = 0) -> GetResult:
        return one_of(self.read([Range(key, revision=revision)]))

    def versions(self, key: bytes, revision: int, limit: int) -> Versions:
        self.read([Range(key, revision=revision)])  # fails as any read does
        return self.network.base.versions(key, revision, limit)

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        self._check_open()
        return self.network.read(self.client, ranges)

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        self._check_open()
        return self.network.base.scan(key, range_end, revision=revision, keys_only=keys_only)

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Pairs]:
        self._check_open()
        return self.network.base.pairs(key, range_end, revision=revision, keys_only=keys_only)

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[RangePiece]:
        self._check_open()
        return self.network.base.pieces(key, range_end, revision=revision, rows=rows)

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> MemoryWatcher:
        self._check_open()
        watcher = self.network.base.watch(key, range_end, start_revision=start_revision)
        self._watchers.append(watcher)
        return watcher

    def compact(self, revision: int, *, batches: int | None = None) -> None:
        self.network.base.compact(revision, batches=batches)

    def compacted_revision(self) -> int:
        self._check_open()
        return self.network.base.compacted_revision()

    def server_time_ms(self, *, fresh: bool = False) -> tuple[int, int] | None:
        return self.network.server_time

    def info(self) -> dict[str, int | str]:
        return self.network.base.info()

    def check(self) -> list[str]:
        return self.network.base.check()

    def close(self) -> None:
        self._closed.set()
        for watcher in self._watchers:
            watcher.close()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreClosedError("the engine was closed")


def _open_remote(url: str, create: bool, home: bytes, environment: bool, **options: Any) -> Remote:
    network, _, client = url.removeprefix("remote:").partition("/")
    return Remote(_networks[int(network)], client, url)


@contextmanager
def remote_scheme() -> Iterator[None]:
    """Make `snapkv.open` know URLs of the form `remote:NETWORK/CLIENT`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(location._ENGINES, "remote", (_open_remote, ()))
        yield
    _networks.clear()


# --- fates -------------------------------------------------------------------------------


def deliver(message: Message) -> TxnResult:
    """It arrives, and so does the answer."""
    return message.deliver()


def lose(message: Message) -> TxnResult:
    """It never arrives, and the client does not know."""
    raise OutcomeUnknown("connection reset", retry=True)


def lose_answer(message: Message) -> TxnResult:
    """It is applied, and the client does not know."""
    message.deliver()
    raise OutcomeUnknown("connection reset", retry=True)


def delay(message: Message) -> TxnResult:
    """The client gives up; it arrives when `Network.arrive` says so."""
    message.network.late.append(message)
    raise OutcomeUnknown("connection reset", retry=True)


def writes_anyway(message: Message) -> bool:
    """Whether its timestamp is used up even if its guards do not hold: a copy of it is dead then.

    A guarded part that rides alone writes nothing when it is skipped, so a copy of it could land
    later: what repeats requests is not supported.
    """
    return not isinstance(message.txn.success[0], Txn)


def twice(message: Message) -> TxnResult:
    """It arrives two times; the answer is the first one's."""
    answer = message.deliver()
    message.deliver()
    return answer


def twice_and_late(message: Message) -> TxnResult:
    """It arrives, is answered, and a copy of it arrives later."""
    message.network.late.append(message)
    return message.deliver()


def interrupt_before(message: Message) -> TxnResult:
    """Ctrl-C while it is still on its way: it arrives later."""
    message.network.late.append(message)
    raise KeyboardInterrupt


def interrupt_after(message: Message) -> TxnResult:
    """Ctrl-C just after it was applied."""
    message.deliver()
    raise KeyboardInterrupt


def refuse(error: SnapKVError) -> Fate:
    """The server says definitely no, for a reason of its own."""

    def fate(message: Message) -> TxnResult:
        raise Refused(error)

    return fate


def give_up(cause: SnapKVError, *, applied: bool, answered: bool = False) -> Fate:
    """The client cannot read the answer, and trying again would not help.

    Or, `answered`, it is an error that does not say whether the request was applied.
    """

    def fate(message: Message) -> TxnResult:
        if applied:
            message.deliver()
        raise OutcomeUnknown(str(cause), retry=False, cause=cause, answered=answered)

    return fate


def meanwhile(action: Callable[[], object], then: Fate = deliver) -> Fate:
    """Something happens elsewhere before it arrives."""

    def fate(message: Message) -> TxnResult:
        action()
        return then(message)

    return fate


def before_the_answer(action: Callable[[], object]) -> Fate:
    """Something happens between its arrival and the answer."""

    def fate(message: Message) -> TxnResult:
        answer = message.deliver()
        action()
        return answer

    return fate


@dataclass
class Gate:
    """A fate that holds a message until `open` (or for ever, which fails)."""

    then: Fate = deliver

    def __post_init__(self) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, message: Message) -> TxnResult:
        self.reached.set()
        assert self._opened.wait(WAIT_S), "nobody opened the gate"
        return self.then(message)

    def open(self) -> None:
        self._opened.set()


# --- time --------------------------------------------------------------------------------


class VirtualTime:
    """Deadlines and pauses of the committer without waiting: time passes when somebody pauses."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += max(seconds, 1e-4)

    def times_out(self, then: Fate = lose) -> Fate:
        """A message whose answer is waited for until the client's patience ends."""

        def fate(message: Message) -> TxnResult:
            self.now += message.timeout
            return then(message)

        return fate


@contextmanager
def patched_time(time: Any) -> Iterator[None]:
    """Let committer and time line see another time than the machine's."""
    from snapkv.committer import backoff, committer, queue, recovery
    from snapkv.timeline import continuity, tracker

    with pytest.MonkeyPatch.context() as patch:
        for module in (committer, backoff, recovery, queue, tracker, continuity):
            patch.setattr(module, "monotonic", time.monotonic)
            if hasattr(module, "pause"):
                patch.setattr(module, "pause", time.pause)
        yield
