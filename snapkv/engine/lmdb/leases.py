"""Leases in one transaction: their records, and whether one is due.

Due times are of `clocks.uptime_ns`, which all processes of the machine share, and are valid only
within one boot. The state record names that boot; a writer that finds another boot there restarts
the time of every lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from snapkv.base.clocks import boot_tag, uptime_ns
from snapkv.engine.lmdb import client, records
from snapkv.engine.lmdb.environment import Transaction
from snapkv.engine.lmdb.records import DUE, HELD, LEASE, LeaseRecord, StoredState
from snapkv.errors import CorruptStoreError


def is_due(state: StoredState) -> bool:
    """Return whether a lease has to end, or the leases are of another boot.

    Without leases that is one comparison.
    """
    return state.due != 0 and (state.boot != boot_tag() or uptime_ns() >= state.due)


class Leases:
    """The leases of one transaction; only write transactions may change them."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._txn, self._meta = transaction.txn, transaction.databases.meta

    # --- reading ---

    def find(self, lease: int) -> LeaseRecord | None:
        """Return a lease that is alive, else None."""
        raw = self._txn.get(LEASE + records.be64(lease), db=self._meta)
        return None if raw is None else records.decode_lease(raw)

    def each(self) -> Iterator[tuple[int, LeaseRecord]]:
        """Yield every lease that is alive, by id."""
        for key, value in self._with(LEASE):
            yield records.from_be64(key[1:]), records.decode_lease(value)

    def by_due(self) -> Iterator[tuple[int, int]]:
        """Yield (due time, lease), the earliest first."""
        for key, _ in self._with(DUE):
            yield records.decode_due(key)

    def over(self) -> set[int]:
        """Return the leases whose time is over; none when it is of another boot."""
        state = self._transaction.state
        if not is_due(state) or state.boot != boot_tag():
            return set()
        now = uptime_ns()
        return {lease for due, lease in takewhile(lambda pair: pair[0] <= now, self.by_due())}

    def keys_of(self, lease: int) -> Iterator[bytes]:
        """Yield the keys of a lease, ascending."""
        prefix = HELD + records.be64(lease)
        for key, _ in self._with(prefix):
            yield key[len(prefix) :]

    def held(self) -> Iterator[tuple[int, bytes]]:
        """Yield (lease, key) of every leased key."""
        for key, _ in self._with(HELD):
            yield records.from_be64(key[1:9]), key[9:]

    def holds(self, lease: int, key: bytes) -> bool:
        """Return whether a key is listed as one of a lease's."""
        return self._txn.get(HELD + records.be64(lease) + key, db=self._meta) is not None

    def _with(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor: client.Cursor = self._txn.cursor(self._meta)
        if cursor.set_range(prefix):
            for key, value in cursor.iternext():
                if not key.startswith(prefix):
                    return
                yield key, value

    # --- changing ---

    def put(self, lease: int, ttl_ns: int, *, after: LeaseRecord | None = None) -> None:
        """Write a lease whose time starts now; `after` is what it was before."""
        if after is not None:
            self._txn.delete(records.due_key(after.due, lease), db=self._meta)
        record = LeaseRecord(ttl_ns, uptime_ns() + ttl_ns)
        self._txn.put(LEASE + records.be64(lease), record.encode(), db=self._meta)
        self._txn.put(records.due_key(record.due, lease), b"", db=self._meta)
        self._put_due()

    def remove(self, lease: int) -> None:
        """Delete a lease that has no keys any more."""
        found = self.find(lease)
        if found is None:
            raise CorruptStoreError(f"lease {lease:x} is due and has no record")
        self._txn.delete(LEASE + records.be64(lease), db=self._meta)
        self._txn.delete(records.due_key(found.due, lease), db=self._meta)
        self._put_due()

    def renew_all(self) -> None:
        """Start the time of every lease anew, in this boot."""
        for lease, found in list(self.each()):
            self.put(lease, found.ttl, after=found)

    def attach(self, lease: int, key: bytes) -> None:
        """Add a key to the list of a lease."""
        self._txn.put(HELD + records.be64(lease) + key, b"", db=self._meta)

    def detach(self, lease: int, key: bytes) -> None:
        """Remove a key from the list of a lease."""
        self._txn.delete(HELD + records.be64(lease) + key, db=self._meta)

    def _put_due(self) -> None:
        state = self._transaction.state
        if state.boot == 0:
            self._raise_format()
        due, _ = next(self.by_due(), (0, 0))
        self._transaction.put_state(state._replace(due=due, boot=boot_tag()))

    def _raise_format(self) -> None:
        """Raise the format, so that versions without leases do not take ids for parts of values."""
        raw = self._txn.get(records.FORMAT_KEY, db=self._meta)
        _, cluster = records.decode_format(raw)
        raised = records.encode_format(cluster, records.LEASED_FORMAT)
        self._txn.put(records.FORMAT_KEY, raised, db=self._meta)
