"""The memory engine: the contract at its plainest, and the oracle of the other engines.

Built on sortedcontainers. `memory:` is a new engine at each opening; `memory:NAME` is one that
all openings of this process share, for as long as the process lives.
"""

from __future__ import annotations

import itertools
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile

from sortedcontainers import SortedDict

from snapkv.base.concurrency import ThreadCondition
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import monotonic, uptime_ns
from snapkv.engine.caller_rules import check_distinct, check_limits, check_piece_rows, one_by_one
from snapkv.engine.contract import (
    ALL_KEYS_END,
    Changes,
    Event,
    GetResult,
    Header,
    KeyValue,
    Lease,
    Limits,
    Piece,
    Range,
    RangeResult,
    ReadResult,
    Replay,
    Txn,
    TxnResult,
    Versions,
    WatchBatch,
    in_range,
)
from snapkv.engine.embedded import apply
from snapkv.engine.errors import Refused
from snapkv.engine.leases import LeaseTable, is_id, sooner
from snapkv.engine.memory.overlay import Overlay, answer
from snapkv.engine.replay import changes
from snapkv.engine.scanned import Scanned, versions_of
from snapkv.errors import (
    CompactedError,
    EngineBusyError,
    FutureRevisionError,
    InvalidTypeError,
    LeaseNotFoundError,
    StoreClosedError,
)

# --- broken rules of what the memory engine holds ---


def problems_of_log(log: Sequence[tuple[Event, ...]], start: int, revision: int) -> Iterator[str]:
    """Yield what is wrong with a log that begins at one revision and ends with another."""
    if len(log) != revision + 1 - start:
        yield f"log has {len(log)} entries up to revision {revision}"
    for at, events in enumerate(log, start):
        for event in events:
            if event.kv.mod_revision != at:
                yield f"log of {at} has an event of {event.kv.mod_revision}"


def problems_of_versions(all_versions: Mapping[bytes, Sequence[KeyValue]]) -> Iterator[str]:
    """Yield what is wrong with the versions of keys, which are given oldest first."""
    for key, versions in all_versions.items():
        for old, new in itertools.pairwise(versions):
            if new.mod_revision <= old.mod_revision:
                yield f"{key!r}: revision {new.mod_revision} after {old.mod_revision}"
            if new.version not in (0, old.version + 1):
                yield f"{key!r}: version {new.version} after {old.version}"


# --- engine ---

LIMITS = Limits(key_bytes=64 << 10, value_bytes=256 << 20, request_bytes=256 << 20)
SCAN_PAGE_ROWS = 5_000

_shared: dict[str, MemoryEngine] = {}
_shared_lock = threading.Lock()


class MemoryEngine(Scanned):
    """All versions of all keys in one process's memory; safe for threads."""

    remote = False

    def __init__(self, url: str = "memory:", *, limits: Limits = LIMITS) -> None:
        self.url, self.limits = url, limits
        self._versions: SortedDict[bytes, list[KeyValue]] = SortedDict()  # oldest first
        self._log: list[tuple[Event, ...]] = []  # one entry a revision, from _log_start on
        self._log_start = 2
        self._revision = 1
        self._compacted = 0
        self._leases = LeaseTable()
        self._cluster = random.SystemRandom().getrandbits(63)
        # held while a transaction is prepared and applied; it knows its thread, so an interrupt as
        # it was taken does not leave it taken
        self._writing = threading.RLock()
        self._changed = ThreadCondition()  # its lock guards the data, and is held only briefly
        self._closed = False
        renew_in_children(self)

    # --- reading ---

    def get(self, key: bytes, revision: int = 0) -> GetResult:
        """Answer one key at a revision; O(log versions)."""
        with self._changed:
            self._begin_call()
            revision = self._checked(revision)
            kv = self._at(key, revision) if key in self._versions else None
            return GetResult(Header(self._revision, self._cluster), kv)

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        """Answer all ranges from one state; O(log keys + log versions) a key."""
        with self._changed:
            self._begin_call()
            results = [self._range(r) for r in ranges]
            return ReadResult(Header(self._revision, self._cluster), results)

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield pages of `SCAN_PAGE_ROWS` keys at one revision."""
        while True:
            wanted = Range(key, range_end, revision, SCAN_PAGE_ROWS, keys_only)
            page = self.read([wanted]).results[0]
            if page.kvs:
                yield page.kvs
            if not page.more:
                return
            key = page.kvs[-1].key + b"\0"

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[Piece]:
        """Split a range exactly; O(keys)."""
        check_piece_rows(rows)
        kvs = self.read([Range(key, range_end, revision)]).results[0].kvs
        bounds = [key, *(kv.key for kv in kvs[rows::rows]), range_end]
        sizes = (min(rows, len(kvs) - at) for at in range(0, len(kvs), rows))
        return [Piece(*cut) for cut in zip(bounds, bounds[1:], sizes, strict=False)]

    def _range(self, wanted: Range) -> RangeResult:
        revision = self._checked(wanted.revision)
        return answer(wanted, [kv for key in self._keys(wanted) if (kv := self._at(key, revision))])

    def versions(self, key: bytes, revision: int, limit: int) -> Versions:
        """Return versions of a key from a revision down; O(log versions + limit)."""
        with self._changed:
            self._begin_call()
            kvs: list[KeyValue] = self._versions.get(key, [])
            at = bisect_right(kvs, self._checked(revision), key=lambda kv: kv.mod_revision)
            newest_first = reversed(kvs[max(0, at - limit) : at])
            return versions_of(list(takewhile(lambda kv: kv.version, newest_first)))

    def _checked(self, revision: int) -> int:
        """Return the revision that is read, for 0 the newest; raises when it cannot be read."""
        if revision > self._revision:
            raise FutureRevisionError(revision, self._revision)
        if 0 < revision < self._compacted:
            raise CompactedError(revision, self._compacted, unit="revision")
        return revision or self._revision

    def _keys(self, wanted: Range) -> Iterator[bytes]:
        if not wanted.range_end:
            return iter((wanted.key,) if wanted.key in self._versions else ())
        end = None if wanted.range_end == ALL_KEYS_END else wanted.range_end
        if end is not None and end <= wanted.key:
            return iter(())
        return self._versions.irange(wanted.key, end, inclusive=(True, False))  # type: ignore[no-any-return]

    def _at(self, key: bytes, revision: int) -> KeyValue | None:
        versions: list[KeyValue] = self._versions[key]
        at = bisect_right(versions, revision, key=lambda kv: kv.mod_revision)
        if at == 0 or versions[at - 1].version == 0:
            return None
        return versions[at - 1]

    # --- writing ---

    def transact(
        self, prepare: Callable[[KeyValue | None], Txn], peek: bytes, *, timeout: float
    ) -> TxnResult:
        """Apply one transaction; readers do not wait for `prepare`."""
        if self._writing._is_owned():  # type: ignore[attr-defined]
            raise Refused(EngineBusyError("this thread is inside a transaction already"))
        try:
            if not self._writing.acquire(timeout=max(0.0, timeout)):
                raise Refused(EngineBusyError("another thread holds the write lock"))
            txn = prepare(self._peek(peek))
            self.check_limits(txn)
            check_distinct(txn)
            with self._changed:
                self._begin_call()
                result = self._apply(txn)
        except BaseException:
            if self._writing._is_owned():  # type: ignore[attr-defined]
                self._writing.release()
            raise
        self._writing.release()  # no call comes before, so no interrupt does
        return result

    def _apply(self, txn: Txn) -> TxnResult:
        state = self._overlay()
        try:
            result = apply(txn, state, lambda: Header(self._install(state), self._cluster))
        except (InvalidTypeError, LeaseNotFoundError) as e:
            raise Refused(e) from e
        self._changed.notify_all()
        return result

    def _overlay(self) -> Overlay:
        return Overlay(self._newest, self._range, self._leases, self._revision + 1)

    def _peek(self, key: bytes) -> KeyValue | None:
        with self._changed:
            self._begin_call()
            return self._newest(key)

    def after_fork(self) -> None:
        """Renew the locks: other threads of the parent may have held them."""
        self._writing = threading.RLock()
        self._changed = ThreadCondition()

    def transact_each(self, txns: Sequence[Txn], *, timeout: float) -> list[TxnResult]:
        """Send transactions in order, one after the other's answer."""
        return one_by_one(self, txns, timeout)

    def check_limits(self, txn: Txn) -> int:
        """Return the size of `txn`; raise `CommitTooLargeError` when it is over `limits`."""
        return check_limits(txn, self.limits)

    def _newest(self, key: bytes) -> KeyValue | None:
        return self._at(key, self._revision) if key in self._versions else None

    def _install(self, state: Overlay) -> int:
        if not state.written:
            return self._revision
        for kv in state.written.values():
            if self._leases:
                before = self._newest(kv.key)
                self._leases.moved(kv.key, before.lease if before else 0, kv.lease)
            self._versions.setdefault(kv.key, []).append(kv)
        self._log.append(
            tuple(Event(kv, kv.version == 0) for _, kv in sorted(state.written.items()))
        )
        self._revision = state.revision
        return self._revision

    # --- leases ---

    def grant(self, ttl_s: float, *, timeout: float | None = None) -> Lease:
        """Return a new lease of exactly `ttl_s` seconds, at most 9,000,000,000.

        O(log leases). Raises `InvalidTypeError` or `InvalidOptionError` for a bad `ttl_s`.
        """
        with self._changed:
            self._begin_call()
            lease = self._leases.grant(ttl_s)
            self._changed.notify_all()  # watchers may have to wake up earlier
            return lease

    def keep_alive(self, lease: int, *, timeout: float | None = None) -> float:
        """Restart a lease's time; O(1)."""
        with self._changed:
            self._begin_call()
            return self._leases.keep_alive(lease)

    def revoke(self, lease: int, *, timeout: float | None = None) -> None:
        """End a lease and remove its keys, in one revision if it has any; O(keys)."""
        with self._changed:
            self._begin_call()
            if is_id(lease):
                self._end(lease)

    def _begin_call(self) -> None:
        """Begin a call: raise if the engine is closed, and end the leases that are due."""
        self._check_open()
        if self._leases.next_due_ns and uptime_ns() >= self._leases.next_due_ns:
            for lease in self._leases.due():
                self._end(lease)

    def _end(self, lease: int) -> None:
        state = self._overlay()
        for key in self._leases.keys_of(lease):
            state.delete(key, b"")
        self._install(state)
        self._leases.end(lease)
        self._changed.notify_all()

    # --- watching ---

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> MemoryWatcher:
        """Return a watcher of a range from a revision on."""
        self._check_open()
        return MemoryWatcher(self, key, range_end, start_revision)

    def changes(self, wanted: Replay) -> Iterator[Changes]:
        """Yield the events of a watch as columns."""
        return changes(self, wanted)

    # --- compaction ---

    def compact(
        self, revision: int, *, batches: int | None = None, timeout: float | None = None
    ) -> None:
        """Delete versions that are not part of the state at `revision` or newer; O(versions)."""
        with self._changed:
            self._begin_call()
            if revision > self._revision:
                raise FutureRevisionError(revision, self._revision)
            if revision < self._compacted:
                raise CompactedError(revision, self._compacted, unit="revision")
            self._compacted = revision
            for key in list(self._versions):
                kept = self._kept(self._versions[key], revision)
                if kept:
                    self._versions[key] = kept
                else:
                    del self._versions[key]
            del self._log[: max(0, revision - self._log_start)]
            self._log_start = max(self._log_start, revision)

    @staticmethod
    def _kept(versions: list[KeyValue], revision: int) -> list[KeyValue]:
        """Return the newest version at `revision`, unless a removal, and everything newer."""
        at = bisect_right(versions, revision, key=lambda kv: kv.mod_revision)
        first = at - 1 if at and versions[at - 1].version else at
        return versions[first:]

    def compacted_revision(self) -> int:
        """Return the oldest readable revision, 0 before any compaction."""
        return self._compacted

    # --- the rest ---

    def server_time_ms(self, *, fresh: bool = False) -> tuple[int, int] | None:
        """Return None: the engine has no clock but the process's."""
        return None

    def info(self) -> dict[str, int | str]:
        """Return sizes and revisions."""
        with self._changed:
            versions = sum(map(len, self._versions.values()))
            return {
                "engine": "memory",
                "revision": self._revision,
                "compacted_revision": self._compacted,
                "keys": len(self._versions),
                "leases": len(self._leases),
                "versions": versions,
            }

    def check(self) -> list[str]:
        """Return broken rules: of versions and their chains, of the log, of leases."""
        with self._changed:
            log = list(problems_of_log(self._log, self._log_start, self._revision))
            newest = [versions[-1] for versions in self._versions.values()]
            return [*log, *problems_of_versions(self._versions), *self._leases.problems(newest)]

    def close(self) -> None:
        """End watchers; a shared engine (`memory:NAME`) stays for its other users."""
        if self.url != "memory:":
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the engine was closed")


class MemoryWatcher:
    """Replays the engine's log from a revision, then waits for new entries."""

    reopened = 0

    def __init__(self, engine: MemoryEngine, key: bytes, range_end: bytes, start: int) -> None:
        self._engine, self._key, self._range_end = engine, key, range_end
        self._next = max(1, start)
        self._reported = self._next - 1  # progress reported so far
        self._closed = False

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch, progress, or None after `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        engine = self._engine
        with engine._changed:
            while True:
                if self._closed:
                    raise StoreClosedError("the watch was closed")
                engine._begin_call()
                if (batch := self._step()) is not None:
                    return batch
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    return None
                engine._changed.wait(sooner(left, engine._leases.next_due_ns))

    def _step(self) -> WatchBatch | None:
        engine = self._engine
        if self._next < engine._compacted:
            raise CompactedError(self._next, engine._compacted, unit="revision")
        while self._next <= engine._revision:
            revision, self._next = self._next, self._next + 1
            events = tuple(
                event
                for event in self._events_of(revision)
                if in_range(event.kv.key, self._key, self._range_end)
            )
            if events:
                self._reported = revision
                return WatchBatch(revision, events)
        if self._reported < engine._revision:
            self._reported = engine._revision
            return WatchBatch(engine._revision, ())
        return None

    def _events_of(self, revision: int) -> tuple[Event, ...]:
        at = revision - self._engine._log_start
        return self._engine._log[at] if at >= 0 else ()

    def close(self) -> None:
        """End the watch, also for a thread that waits in `next`."""
        with self._engine._changed:
            self._closed = True
            self._engine._changed.notify_all()


def open_memory(url: str) -> MemoryEngine:
    """Return the engine of a `memory:` URL; named ones are shared within the process."""
    if url == "memory:":
        return MemoryEngine()
    with _shared_lock:
        return _shared.setdefault(url, MemoryEngine(url))
