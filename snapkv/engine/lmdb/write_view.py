"""The newest state inside a write transaction: what transactions and ends of leases change."""

from __future__ import annotations

from snapkv.base.waiting import boot_tag, uptime_ns
from snapkv.engine.contract import KeyValue, Range, RangeResult
from snapkv.engine.leases import is_id
from snapkv.engine.lmdb import reading, records
from snapkv.engine.lmdb.leases import Leases, is_due
from snapkv.engine.lmdb.records import HEADER, REMOVED, REVISION_MAX, State
from snapkv.engine.lmdb.transaction import Transaction
from snapkv.errors import LeaseNotFoundError

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
        self._suffix = records.suffix_of(self._revision)
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
        prev = seen[key] if key in seen else reading.point_of(self._cursor, key, stem, REVISION_MAX)
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

    def finish(self) -> int:
        """Write the log entry and the state, if anything changed; return the newest revision."""
        if not self.changed:
            return self._state.revision
        entry = records.encode_changes(self.changed)
        self._put(records.be64(self._revision), entry, db=self._transaction.databases.log)
        self._transaction.put_state(_new(State, (self._revision, *self._state[1:])))
        return self._revision

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
