"""Very many commits into an lmdb store at once, without asking snapkv for each.

What a `save` writes is written here by the same codecs, but many commits in one LMDB transaction:
a million take half a minute. A store may not be open meanwhile. `SnapshotKV.check` finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb

import snapkv
from benchmarks.harness import show
from snapkv.engine.lmdb import records
from snapkv.layout import StampRecord

TS, DATA = b"default/sys/ts", b"default/data/"
MAP_BYTES = 8 << 30
PART = 50_000
"""Commits in one transaction of LMDB."""


class Bulk:
    """An lmdb store that grows by commits of one key each, a millisecond apart."""

    def __init__(self, path: Path, start_ms: int, key_of: Callable[[int], str]) -> None:
        self.path, self.stamps, self._key_of = path, list[int](), key_of
        self._start_ms = start_ms
        self._versions: dict[bytes, tuple[int, int]] = {}
        with snapkv.open(f"lmdb:{path}", clock=snapkv.ManualClock(start_ms)) as store:
            self._revision = store.tick().revision
            self._ordinal = 2  # the store's creation, and the tick

    def grow(self, commits: int, value: bytes) -> None:
        """Commit until there are so many."""
        with lmdb.open(str(self.path), map_size=MAP_BYTES, max_dbs=4, sync=False) as env:
            databases = [env.open_db(name) for name in (records.META, records.RECORDS, records.LOG)]
            while len(self.stamps) < commits:
                with env.begin(write=True) as txn:
                    for _ in range(min(PART, commits - len(self.stamps))):
                        self._commit(txn, databases, value)
                    state = records.StoredState(self._revision, 0, 0).encode()
                    txn.put(records.STATE_KEY, state, db=databases[0])
                show(len(self.stamps) - 1, commits)
            env.sync(True)

    def _commit(self, txn: lmdb.Transaction, databases: list[object], value: bytes) -> None:
        number = len(self.stamps)
        stamp = snapkv.pack(self._start_ms + 1 + number)
        key = DATA + self._key_of(number).encode()
        self.stamps.append(stamp)
        self._revision += 1
        self._ordinal += 1
        created, version = self._versions.get(key, (self._revision, 0))
        self._versions[key] = created, version + 1
        suffix = records.suffix_of(self._revision)
        record = StampRecord(stamp, number.to_bytes(16, "big"), "bulk").encode()
        _, at, log = databases
        txn.put(
            records.stem_of(key) + suffix, records.encode_value(created, version + 1, value), db=at
        )
        marked = records.encode_value(2, self._ordinal, record)
        txn.put(records.stem_of(TS) + suffix, marked, db=at)
        changes = records.encode_changes({key: False, TS: False})
        txn.put(records.be64(self._revision), changes, db=log)
