"""The memory engine: the contract at its plainest, and the oracle of the other engines.

Built on sortedcontainers. A transaction sees the newest state through an `Overlay`. `memory:` is a
new engine at each opening; `memory:NAME` is one that all openings of this process share, for as
long as the process lives.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from sortedcontainers import SortedDict

from snapkv.base.clocks import uptime_ns
from snapkv.base.concurrency import ThreadCondition
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.engine.bulk_reads import EngineBase, versions_of
from snapkv.engine.contract import (
    ALL_KEYS_END,
    EngineLimits,
    GetResult,
    Header,
    KeyEvent,
    KeyValue,
    Lease,
    Range,
    RangePiece,
    RangeResult,
    ReadResult,
    Refused,
    Txn,
    TxnResult,
    Versions,
    WatchBatch,
    in_range,
)
from snapkv.engine.embedded import apply
from snapkv.engine.request_checks import check_distinct, check_piece_rows, is_id, new_id, ttl_ns_of
from snapkv.errors import (
    CompactedError,
    EngineBusyError,
    FutureRevisionError,
    InvalidTypeError,
    LeaseNotFoundError,
    StoreClosedError,
)

# --- broken rules of what the memory engine holds ---


def problems_of_log(
    log: Sequence[tuple[KeyEvent, ...]], start: int, revision: int
) -> Iterator[str]:
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

LIMITS = EngineLimits(key_bytes=64 << 10, value_bytes=256 << 20, request_bytes=256 << 20)
SCAN_PAGE_ROWS = 5_000

_shared: dict[str, MemoryEngine] = {}
_shared_lock = threading.Lock()


class MemoryEngine(EngineBase):
    """All versions of all keys in one process's memory; safe for threads."""

    remote = False

    def __init__(self, url: str = "memory:", *, limits: EngineLimits = LIMITS) -> None:
        self.url, self.limits = url, limits
        self._versions: SortedDict[bytes, list[KeyValue]] = SortedDict()  # oldest first
        self._log: list[tuple[KeyEvent, ...]] = []  # one entry a revision, from _log_start on
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

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[RangePiece]:
        """Split a range exactly; O(keys)."""
        check_piece_rows(rows)
        kvs = self.read([Range(key, range_end, revision)]).results[0].kvs
        bounds = [key, *(kv.key for kv in kvs[rows::rows]), range_end]
        sizes = (min(rows, len(kvs) - at) for at in range(0, len(kvs), rows))
        return [RangePiece(*cut) for cut in zip(bounds, bounds[1:], sizes, strict=False)]

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
            tuple(KeyEvent(kv, kv.version == 0) for _, kv in sorted(state.written.items()))
        )
        self._revision = state.revision
        return self._revision

    # --- leases ---

    def grant(self, ttl_s: float, *, timeout: float | None = None) -> Lease:
        """Return a new lease of exactly `ttl_s` seconds; O(log leases). Raises as `ttl_ns_of`."""
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
            at = revision - engine._log_start
            logged = engine._log[at] if at >= 0 else ()
            wanted = self._key, self._range_end
            events = tuple(event for event in logged if in_range(event.kv.key, *wanted))
            if events:
                self._reported = revision
                return WatchBatch(revision, events)
        if self._reported < engine._revision:
            self._reported = engine._revision
            return WatchBatch(engine._revision, ())
        return None

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


# --- a transaction ---


class Overlay:
    """The newest state of an engine, overlaid with what one transaction wrote so far.

    `newest` and `range` are the engine's own answers, `leases` holds the leases that are alive.
    """

    def __init__(
        self,
        newest: Callable[[bytes], KeyValue | None],
        range_: Callable[[Range], RangeResult],
        leases: Container[int],
        revision: int,
    ) -> None:
        self._newest, self._range, self._leases = newest, range_, leases
        self.revision = revision
        self.written: dict[bytes, KeyValue] = {}

    def newest(self, key: bytes) -> KeyValue | None:
        """Return the key's newest version, None when it does not exist."""
        if key in self.written:
            kv = self.written[key]
            return kv if kv.version else None
        return self._newest(key)

    def range(self, wanted: Range) -> RangeResult:
        """Answer a range, at the newest state or an older one."""
        if not self.written or wanted.revision:
            return self._range(wanted)
        before = self._range(Range(wanted.key, wanted.range_end)).kvs
        keys = {kv.key for kv in before} | set(self.written)
        kvs = [
            kv
            for key in sorted(keys)
            if in_range(key, wanted.key, wanted.range_end) and (kv := self.newest(key))
        ]
        return answer(wanted, kvs)

    def put(self, key: bytes, value: bytes, lease: int) -> KeyValue | None:
        """Write a key; return the version before. Raises `LeaseNotFoundError`."""
        if lease and not (is_id(lease) and lease in self._leases):
            raise LeaseNotFoundError(lease)
        prev = self.newest(key)
        created, version = (prev.create_revision, prev.version) if prev else (self.revision, 0)
        self.written[key] = KeyValue(key, value, created, self.revision, version + 1, lease)
        return prev

    def delete(self, key: bytes, range_end: bytes) -> int:
        """Remove a key or range; return how many keys it removed."""
        if range_end:
            found = self.range(Range(key, range_end)).kvs
        else:
            found = [kv] if (kv := self.newest(key)) else []
        for kv in found:
            self.written[kv.key] = KeyValue(kv.key, b"", 0, self.revision, 0)
        return len(found)


def answer(wanted: Range, kvs: list[KeyValue]) -> RangeResult:
    """Return the requested part of the found keys."""
    count = len(kvs)
    if wanted.count_only:
        return RangeResult([], count)
    if wanted.limit:
        kvs = kvs[: wanted.limit]
    if wanted.keys_only:
        kvs = [kv._replace(value=b"") for kv in kvs]
    return RangeResult(kvs, count, len(kvs) < count)


# --- leases ---

_STALE_DUE_MIN = 64
WAIT_SECONDS_MAX = 3_600.0


class _Held:
    """A lease that is alive: its time to live, its due time, its keys."""

    __slots__ = ("due_ns", "keys", "ttl_ns", "ttl_s")

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s, self.ttl_ns = ttl_s, ttl_ns_of(ttl_s)
        self.due_ns = uptime_ns() + self.ttl_ns
        self.keys: set[bytes] = set()


class LeaseTable:
    """Leases and their keys, for one thread at a time.

    `next_due_ns` is never later than the earliest due time, and 0 without leases: so checking
    whether a lease is due costs one comparison. Each lease has one turn in a heap. `keep_alive`
    leaves the turn where it is; `due` puts it back when it comes too early:

        grant 5 s at 0      due 5   turn (5, lease)
        keep alive at 3     due 8   turn (5, lease)
        `due` at 5          due 8   turn (8, lease): too early, put back
        `due` at 8          the lease has ended
    """

    def __init__(self) -> None:
        self.next_due_ns = 0
        self._held: dict[int, _Held] = {}
        self._due: list[tuple[int, int]] = []  # (due at that time or later, id)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, lease: object) -> bool:
        return lease in self._held

    def grant(self, ttl_s: float) -> Lease:
        """Return a new lease; O(log leases). Raises as `ttl_ns_of`."""
        held, lease = _Held(ttl_s), new_id(self._held.__contains__)
        self._held[lease] = held
        heapq.heappush(self._due, (held.due_ns, lease))
        self._update_next_due()
        return Lease(lease, held.ttl_s)

    def keep_alive(self, lease: int) -> float:
        """Restart its time and return its ttl; raises `LeaseNotFoundError`. O(1)."""
        held = self._held.get(lease) if is_id(lease) else None
        if held is None:
            raise LeaseNotFoundError(lease)
        held.due_ns = uptime_ns() + held.ttl_ns
        return held.ttl_s

    def due(self) -> Iterator[int]:
        """Yield the leases whose time is over; the caller ends each before the next."""
        now = uptime_ns()
        while self._due and self._due[0][0] <= now:
            _, lease = self._due[0]
            held = self._held.get(lease)
            if held is None:
                heapq.heappop(self._due)
            elif held.due_ns > now:
                heapq.heapreplace(self._due, (held.due_ns, lease))
            else:
                yield lease
        self._update_next_due()

    def keys_of(self, lease: int) -> list[bytes]:
        """Return the keys of a lease, ascending; none when it has ended."""
        held = self._held.get(lease)
        return sorted(held.keys) if held else []

    def end(self, lease: int) -> None:
        """Delete a lease, which has no keys any more."""
        held = self._held.pop(lease, None)
        assert not (held and held.keys)
        if len(self._due) > 2 * len(self._held) + _STALE_DUE_MIN:
            self._due = [(each.due_ns, id_) for id_, each in self._held.items()]
            heapq.heapify(self._due)
        self._update_next_due()

    def moved(self, key: bytes, before: int, after: int) -> None:
        """Move a key from one lease to another (0: none)."""
        if before:
            self._held[before].keys.discard(key)
        if after:
            self._held[after].keys.add(key)

    def _update_next_due(self) -> None:
        if self._held:
            self.next_due_ns = self._due[0][0]
        else:
            self.next_due_ns = 0
            self._due.clear()

    def problems(self, newest: Iterable[KeyValue]) -> Iterator[str]:
        """Yield broken rules, given the newest version of every key that exists."""
        leased = {(kv.lease, kv.key) for kv in newest if kv.lease}
        listed = {(id_, key) for id_, held in self._held.items() for key in held.keys}
        # a leased key is listed by a lease that is alive, and no other is
        for lease, key in sorted(leased ^ listed):
            yield f"only one of {key!r} and lease {lease:x} names the other"
        # the queue has every lease, not after its due time
        due_of = {id_: due for due, id_ in self._due}
        for id_, held in self._held.items():
            if due_of.get(id_, held.due_ns + 1) > held.due_ns:
                yield f"lease {id_:x} has no turn at its due time"


def sooner(seconds: float | None, due_ns: int) -> float | None:
    """Return how long to wait: `seconds`, or until a lease is due (0: none)."""
    if not due_ns:
        return seconds
    until = max(0.0, (due_ns - uptime_ns()) / 1e9)
    until = min(until, WAIT_SECONDS_MAX)  # a lease may be longer than a thread can wait
    return until if seconds is None else min(seconds, until)
