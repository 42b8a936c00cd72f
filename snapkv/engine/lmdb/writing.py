"""All writes: transactions of callers, of leases and of compaction, one at a time.

The interpreter that all embedded engines share runs the transactions of callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import TypeAlias, TypeVar

from snapkv.base.clocks import boot_tag, uptime_ns
from snapkv.base.waiting import pause
from snapkv.engine.contract import (
    EngineLimits,
    Header,
    KeyValue,
    Lease,
    OutcomeUnknown,
    Put,
    Range,
    RangeResult,
    Refused,
    Txn,
    TxnResult,
)
from snapkv.engine.embedded import apply
from snapkv.engine.lmdb import client, reading, records
from snapkv.engine.lmdb.environment import Environment, Transaction
from snapkv.engine.lmdb.leases import Leases, is_due
from snapkv.engine.lmdb.records import HEADER, REMOVED, REVISION_MAX, StoredState
from snapkv.engine.request_checks import (
    check_distinct,
    check_limits,
    is_id,
    measure,
    new_id,
    ttl_ns_of,
)
from snapkv.errors import (
    CompactedError,
    CorruptStoreError,
    EngineBusyError,
    EngineUnavailableError,
    FutureRevisionError,
    LeaseNotFoundError,
    NoSpaceError,
    SnapKVError,
    StoreClosedError,
)

_new = tuple.__new__  # of a named tuple, without the call of its own constructor
_REMOVAL = HEADER.pack(0, 0, REMOVED)


class WriteView:
    """The newest state inside a write transaction, with what was written so far.

    `seen` caches the versions that were read: compares read keys before they are put.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        txn, self._records = transaction.txn, transaction.databases.records
        self._put, self._cursor = txn.put, txn.cursor(self._records)
        self._state = transaction.state
        self._revision = transaction.state.revision + 1
        self._suffix = records.be64(REVISION_MAX - self._revision)
        self.changed: dict[bytes, bool] = {}
        self.seen: dict[bytes, KeyValue | None] = {}

    def newest(self, key: bytes) -> KeyValue | None:
        """Return the key's newest version, None when it does not exist; for compares."""
        if key not in self.seen:
            self.seen[key] = reading.point(self._cursor, key, REVISION_MAX)
        return self.seen[key]

    def range(self, wanted: Range) -> RangeResult:
        """Answer a range, at the newest state or an older one."""
        revision = reading.revision_in(self._state, wanted)
        return reading.answer(self._cursor, self._state, wanted, revision)

    def put(self, key: bytes, value: bytes, lease: int) -> KeyValue | None:
        """Write a key; return the version before. Raises `LeaseNotFoundError`."""
        if lease and (not is_id(lease) or Leases(self._transaction).find(lease) is None):
            raise LeaseNotFoundError(lease)
        seen, stem = self.seen, records.checked_stem(key)
        prev = seen[key] if key in seen else reading.point(self._cursor, key, REVISION_MAX)
        created, version = (prev.create_revision, prev.version) if prev else (self._revision, 0)
        body = records.encode_value(created, version + 1, value, lease)
        self._put(stem + self._suffix, body, db=self._records)
        self.changed[key] = False
        before = prev.lease if prev else 0
        if before != lease:
            self._move(key, before, lease)
        return prev

    def delete(self, key: bytes, range_end: bytes) -> int:
        """Remove a key or range; return how many keys it removed."""
        first, beyond = records.span_of(key, range_end)
        found = [
            (raw[: -records.SUFFIX_BYTES], records.lease_of(value))
            for raw, value in reading.existing(self._cursor, first, beyond, REVISION_MAX)
        ]
        for stem, lease in found:
            self._put(stem + self._suffix, _REMOVAL, db=self._records)
            removed = records.key_of(stem)
            self.changed[removed] = True
            self._move(removed, lease, 0)
        return len(found)

    def finish(self) -> Header:
        """Write the log entry and the state, if anything changed; return the newest revision."""
        cluster = self._transaction.env.cluster
        if not self.changed:
            return _new(Header, (self._state.revision, cluster))
        entry = records.encode_changes(self.changed)
        self._put(records.be64(self._revision), entry, db=self._transaction.databases.log)
        self._transaction.put_state(_new(StoredState, (self._revision, *self._state[1:])))
        return _new(Header, (self._revision, cluster))

    def _move(self, key: bytes, before: int, after: int) -> None:
        if before:
            Leases(self._transaction).detach(before, key)
        if after:
            Leases(self._transaction).attach(after, key)


def expire(transaction: Transaction) -> None:
    """End every lease that is due, each in a revision of its own; O(their keys).

    The leases of another boot get their full time again instead.
    """
    if not is_due(transaction.state):
        return
    leases = Leases(transaction)
    if transaction.state.boot != boot_tag():
        leases.renew_all()
        return
    now = uptime_ns()
    while 0 < transaction.state.due <= now:
        _, lease = next(leases.by_due(), (0, 0))
        end(transaction, lease)


def end(transaction: Transaction, lease: int) -> None:
    """End a lease that is alive: remove its keys, in one revision if it has any."""
    leases = Leases(transaction)
    view = WriteView(transaction)
    for key in list(leases.keys_of(lease)):
        view.delete(key, b"")
    view.finish()
    leases.remove(lease)


# --- transactions ---

GROWTHS_MAX = 40
"""The most doublings of the map for one transaction: from 4 KiB to more than any disk."""

SHORT_KEY_BYTES = records.KEY_BYTES_MAX // 2
"""The length of the longest key that fits whatever its bytes: each zero byte counts twice."""

LOCK_SECONDS_MAX = 30.0
"""The longest that a call waits for the write lock without a timeout, in seconds."""

T = TypeVar("T")

Prepare: TypeAlias = Callable[[KeyValue | None], Txn]


def transact(
    env: Environment, limits: EngineLimits, prepare: Prepare, peek: bytes, timeout: float
) -> TxnResult:
    """Run one transaction while holding the write lock.

    `prepare` is called with the lock held but outside any LMDB transaction: it may take long,
    raise, be interrupted, even fork. No other writer can come in between.
    """
    try:
        if env.stale or env.raw is None:
            env.ready()
        lock = env.lock
    except SnapKVError as e:
        raise Refused(e) from e
    if lock.owner == get_ident():
        raise Refused(EngineBusyError("this thread is inside a transaction already"))
    try:
        try:
            lock.acquire(timeout)
            read = reading.get(env, peek, 0)
            peeked, revision = _peek(env, peek) if read is None else (read.kv, read.header.revision)
        except SnapKVError as e:
            raise Refused(e) from e
        txn = prepare(peeked)
        if env.references == 0:
            raise Refused(StoreClosedError("the engine was closed"))
        if lock.closed or env.lock is not lock:
            raise Refused(EngineUnavailableError("this process was forked inside a transaction"))
        check_distinct(txn)
        try:
            needed = check(txn, limits)
            env.check_space(needed)
            work = partial(_applied, txn, peek, peeked, revision)
            return growing(env, needed, partial(_committed, env, work))
        except OutcomeUnknown:
            raise
        except SnapKVError as e:
            raise Refused(e) from e
    finally:
        try:
            env.release()
        except BaseException:  # an interrupt cut it short
            env.release()
            raise


def transact_each(
    env: Environment, limits: EngineLimits, txns: Sequence[Txn], timeout: float
) -> list[TxnResult]:
    """Run transactions in order in one of LMDB, each in a revision of its own.

    So they wait for the disk once. Ends with the first one of which a compare fails.
    """
    needed = 0
    for txn in txns:
        check_distinct(txn)
        needed += check(txn, limits)

    def work(transaction: Transaction) -> list[TxnResult]:
        results = list[TxnResult]()
        for txn in txns:
            view = WriteView(transaction)
            results.append(apply(txn, view, view.finish))
            if not results[-1].succeeded:
                break
        return results

    return _locked(env, timeout, partial(_committed, env, work), needed)


def check(txn: Txn, limits: EngineLimits) -> int:
    """Return the size of `txn`; raise `CommitTooLargeError`, `InvalidKeyError` over `limits`."""
    size, longest = measure(txn)
    if longest <= SHORT_KEY_BYTES and size <= min(limits.value_bytes, limits.request_bytes):
        return size
    for key in _point_keys(txn):
        records.checked_stem(key)
    return check_limits(txn, limits)


def _peek(env: Environment, peek: bytes) -> tuple[KeyValue | None, int]:
    """Return a key's newest version, and the revision of that read; the lock is held."""
    while True:
        with Transaction(env) as txn:
            if not is_due(txn.state):
                kv = reading.point(txn.cursor(), peek, REVISION_MAX)
                return kv, txn.state.revision
        expire_held(env)


def growing(env: Environment, needed_bytes: int, attempt: Callable[[], T]) -> T:
    """Run `attempt`; repeat it with a larger map whenever the map was full."""
    for _ in range(GROWTHS_MAX):
        try:
            return attempt()
        except client.MapFullError:
            env.grow(needed_bytes)
    raise NoSpaceError(f"{env.path}: the map cannot grow any more")


def _committed(env: Environment, work: Callable[[Transaction], T]) -> T:
    """Do some work in a write transaction in which nothing is due, and commit it."""
    with Transaction(env, write=True) as transaction:
        before = transaction.state.revision
        if transaction.state.due:
            expire(transaction)
        result = work(transaction)
        transaction.commit(changed=transaction.state.revision > before)
        return result


def _applied(
    txn: Txn, peek: bytes, peeked: KeyValue | None, revision: int, transaction: Transaction
) -> TxnResult:
    """Apply a transaction; `peeked` is the version of the key `peek` that was read at `revision`.

    It may not be the newest, although the lock is held: a lease may have ended since, and a writer
    that was killed in its commit may have left a revision that readers do not see yet.
    """
    view = WriteView(transaction)
    if revision == transaction.state.revision:
        view.seen[peek] = peeked
    return apply(txn, view, view.finish)


def locked(env: Environment, wait_s: float, work: Callable[[], T]) -> T:
    """Do some work under the write lock; repeat it with a larger map if the map was full.

    The work must be repeatable: the outcome of a failed commit stays unknown.
    """
    try:
        return _locked(env, wait_s, work, 0)  # copies of tree pages: freeing needs space, too
    except OutcomeUnknown as e:
        e.reraise()


def _locked(env: Environment, wait_s: float, work: Callable[[], T], needed_bytes: int) -> T:
    if env.ready().lock.held():
        raise EngineBusyError("this thread is inside a transaction already")
    try:
        env.acquire(wait_s)
        if needed_bytes:
            env.check_space(needed_bytes)
        return growing(env, needed_bytes, work)
    finally:
        try:
            env.release()
        except BaseException:  # an interrupt cut it short
            env.release()
            raise


def expire_held(env: Environment) -> None:
    """End the leases that are due, while holding the write lock."""
    try:
        growing(env, 0, partial(_committed, env, lambda _: None))
    except OutcomeUnknown as e:  # whether or not it happened: the next call checks again
        e.reraise()


def _point_keys(txn: Txn) -> list[bytes]:
    """Return all single keys that a transaction names, nested ones included."""
    keys = []
    for compare in txn.compare:
        keys.append(compare.key)
    for op in txn.success + txn.failure:
        if isinstance(op, Txn):
            keys += _point_keys(op)
        elif isinstance(op, Put) or not op.range_end:
            keys.append(op.key)
    return keys


# --- leases ---

_NS = 1_000_000_000


def grant(env: Environment, ttl_s: float, wait_s: float) -> Lease:
    """Write a new lease; its time starts once the lock is held."""
    ttl_ns = ttl_ns_of(ttl_s)

    def work(transaction: Transaction) -> Lease:
        leases = Leases(transaction)
        lease = new_id(leases.find)
        leases.put(lease, ttl_ns)
        return Lease(lease, ttl_s)

    return locked(env, wait_s, partial(_committed, env, work))


def keep_alive(env: Environment, lease: int, wait_s: float) -> float:
    """Start a lease's time anew and return that in seconds."""

    def work(transaction: Transaction) -> float | None:
        leases = Leases(transaction)
        found = leases.find(lease)
        if found is None:
            return None
        leases.put(lease, found.ttl, after=found)
        return found.ttl / _NS

    left = locked(env, wait_s, partial(_committed, env, work)) if is_id(lease) else None
    if left is None:  # raised outside the transaction, which ended the leases that were due
        raise LeaseNotFoundError(lease)
    return left


def revoke(env: Environment, lease: int, wait_s: float) -> None:
    """End a lease, if it is alive."""

    def work(transaction: Transaction) -> None:
        if Leases(transaction).find(lease) is not None:
            end(transaction, lease)

    if is_id(lease):
        locked(env, wait_s, partial(_committed, env, work))


def expire_due(env: Environment, wait_s: float) -> None:
    """End the leases that are due, unless another process just did.

    Inside a transaction of this thread the lock is held already; then they end before that
    transaction.
    """
    if env.ready().lock.held():
        expire_held(env)
    else:
        locked(env, wait_s, lambda: expire_held(env))


# --- compaction: make old revisions unreadable at once, then free their space in small steps ---
# It follows the log. The log entry of revision L names the keys that L wrote. For each of them, the
# record before L is superseded at L, hence at any compacted revision >= L: it is deleted. If L
# removed the key, the record of the removal is deleted, too: absent and removed keys read the same.
# After all entries up to C, each key has at most one record at or below C, its state at C. A log
# entry below C is deleted with its records; the one at C stays, because a watch may start there.
#
# Example: key k is written at 2, 5 and 9, and removed at 12.
#
#     compact(9)    entry 5 deletes k@2, entry 9 deletes k@5; k@9 and k@12 remain
#     compact(12)   entry 12 deletes k@9 and k@12; the log entry 12 still names the removal
#
# The state record keeps the progress, a revision (`freed`); it is written in the same transactions.

BATCH_LOG_ENTRIES = 1_000
BATCH_KEYS = 5_000
"""The number of keys after which a batch ends, at the end of a revision."""
BREATH_SECONDS = 4e-3
"""The pause between batches, in seconds: other processes try the write lock every 2 ms at most."""


def compact(env: Environment, revision: int, batches: int | None, wait_s: float) -> None:
    """Set the compacted revision, then free up to `batches` batches (None: all)."""
    locked(env, wait_s, lambda: _set_compacted(env, revision))
    done = 0
    while batches is None or done < batches:
        if locked(env, wait_s, lambda: _free_batch(env)):
            return
        done += 1
        pause(BREATH_SECONDS)


def _set_compacted(env: Environment, revision: int) -> None:
    with Transaction(env, write=True) as txn:
        now = txn.state
        if revision > now.revision:
            raise FutureRevisionError(revision, now.revision)
        if revision < now.compacted:
            raise CompactedError(revision, now.compacted, unit="revision")
        if revision > now.compacted:
            txn.put_state(now._replace(compacted=revision))
            txn.commit()


def _free_batch(env: Environment) -> bool:
    """Process some log entries; return whether none are left."""
    with Transaction(env, write=True) as txn:
        now = txn.state
        if now.freed >= now.compacted:
            return True
        freed = _free_entries(txn, now)
        txn.put_state(now._replace(freed=freed))
        txn.commit()
        return freed >= now.compacted


def _free_entries(txn: Transaction, now: StoredState) -> int:
    """Free what some log entries superseded; return the revision up to which all is freed."""
    # For example, the compacted revision is 9, and the log has the entries 2, 5, 9 and 12:
    #
    #     2 and 5 are freed and deleted; 9 is freed and stays: returns 9
    #     the batch is full after 2: returns 4, and the next batch begins at 5
    #
    # Revision 1, the empty engine, has no entry. If 1 is the compacted revision, the loop ends by
    # `break` at entry 2, or at once, if the log is empty: returns 1. The `else` is for all ends
    # without `break`: there `at` is true if the batch is full, and false if the log has ended.
    log, found = txn.txn.cursor(txn.databases.log), txn.cursor()
    entries = keys = 0
    at = log.first()
    while at and entries < BATCH_LOG_ENTRIES and keys < BATCH_KEYS:
        revision = records.from_be64(log.key())
        if revision > now.compacted:
            break
        entries += 1
        if revision > now.freed:
            for key, _ in records.decode_changes(log.value()):
                _free_superseded(found, key, revision)
                keys += 1
        if revision == now.compacted:
            return revision
        at = log.delete()  # moves on to the next entry
    else:
        if at:
            return records.from_be64(log.key()) - 1
    return now.compacted


def _free_superseded(found: client.Cursor, key: bytes, revision: int) -> None:
    """Free the record of `key` before `revision`, and its own one when that is a removal."""
    stem = records.stem_of(key)
    raw = stem + records.suffix_of(revision)
    if not found.set_key(raw):
        raise CorruptStoreError(f"the log has {key!r} at {revision}, but no record exists")
    removed = records.is_removal(found.value())
    at = found.delete() if removed else found.next()
    if at and found.key().startswith(stem):
        found.delete()
