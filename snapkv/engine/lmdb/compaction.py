"""Forgetting: make old revisions unreadable at once, then free their space in small steps.

The log drives it. Its entry at L names the keys that L wrote; for each of them
the record before L is superseded at L, hence at any compacted revision >= L, and goes. If L
removed the key, the record of the removal goes too: absent and removed read the same. When all
entries up to C are worked off in order, each key has at most one record at or below C, its
state at C. Entries below C go with their work; the one at C stays, since a watch may start there.

Example, key k written at 2, 5 and 9, removed at 12; compact(9) frees k@2 (entry 5) and k@5
(entry 9); compact(12) frees k@9 and k@12 (entry 12), whose log entry still tells of the removal.

Progress is a revision in the state record (`freed`), written with the work itself.
"""

from __future__ import annotations

from snapkv.clock import pause
from snapkv.engine.lmdb import client as mdb
from snapkv.engine.lmdb import format as records
from snapkv.engine.lmdb.environment import Environment
from snapkv.engine.lmdb.format import State
from snapkv.engine.lmdb.transaction import Transaction
from snapkv.engine.lmdb.writing import locked
from snapkv.errors import CompactedError, CorruptStoreError, FutureRevisionError

BATCH_LOG_ENTRIES = 1_000
BATCH_KEYS = 5_000
"""Keys after which a batch ends, at the end of a revision."""
BREATH_SECONDS = 4e-3
"""Pause between batches: other processes look for the write lock every 2 ms at most."""


def compact(env: Environment, revision: int, batches: int | None, wait_s: float) -> None:
    """Set the compacted revision, then free up to `batches` batches (None: all)."""
    locked(env, wait_s, lambda: _set_compacted(env, revision))
    done = 0
    while batches is None or done < batches:
        if locked(env, wait_s, lambda: _free_batch(env)):
            return
        done += 1
        pause(BREATH_SECONDS)


def _set_compacted(env: Environment, revision: int) -> bool:
    with env.writing() as txn:
        now = txn.state
        if revision > now.revision:
            raise FutureRevisionError(revision, now.revision)
        if revision < now.compacted:
            raise CompactedError(revision, now.compacted, unit="revision")
        if revision > now.compacted:
            txn.put_state(now._replace(compacted=revision))
            txn.commit()
    return True


def _free_batch(env: Environment) -> bool:
    """Work off some log entries; return whether nothing is left."""
    with env.writing() as txn:
        now = txn.state
        if now.freed >= now.compacted:
            return True
        freed = _work_off(txn, now)
        txn.put_state(now._replace(freed=freed))
        txn.commit()
        return freed >= now.compacted


def _work_off(txn: Transaction, now: State) -> int:
    """Free what some log entries superseded; return the revision up to which all is freed."""
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
        at = log.delete()  # goes on to the next entry
    else:
        if at:
            return records.from_be64(log.key()) - 1
    return now.compacted


def _free_superseded(found: mdb.Cursor, key: bytes, revision: int) -> None:
    """Free the record of `key` before `revision`, and its own one when that is a removal."""
    stem = records.stem_of(key)
    raw = stem + records.suffix_of(revision)
    if not found.set_key(raw):
        raise CorruptStoreError(f"the log tells of {key!r} at {revision}, there is no record")
    removed = records.is_removal(found.value())
    at = found.delete() if removed else found.next()
    if at and found.key().startswith(stem):
        found.delete()
