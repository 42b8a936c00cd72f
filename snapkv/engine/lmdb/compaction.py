"""Compaction: make old revisions unreadable at once, then free their space in small steps.

It follows the log. The log entry of revision L names the keys that L wrote. For each of them, the
record before L is superseded at L, hence at any compacted revision >= L: it is deleted. If L
removed the key, the record of the removal is deleted, too: absent and removed keys read the same.
After all entries up to C, each key has at most one record at or below C, its state at C. A log
entry below C is deleted with its records; the one at C stays, because a watch may start there.

Example: key k is written at 2, 5 and 9, and removed at 12.

    compact(9)    entry 5 deletes k@2, entry 9 deletes k@5; k@9 and k@12 remain
    compact(12)   entry 12 deletes k@9 and k@12; the log entry 12 still names the removal

The state record keeps the progress, a revision (`freed`); it is written in the same transactions.
"""

from __future__ import annotations

from snapkv.base.waiting import pause
from snapkv.engine.lmdb import client, records
from snapkv.engine.lmdb.environment import Environment
from snapkv.engine.lmdb.records import State
from snapkv.engine.lmdb.transaction import Transaction
from snapkv.engine.lmdb.writing import locked
from snapkv.errors import CompactedError, CorruptStoreError, FutureRevisionError

BATCH_LOG_ENTRIES = 1_000
BATCH_KEYS = 5_000
"""Keys after which a batch ends, at the end of a revision."""
BREATH_SECONDS = 4e-3
"""Pause between batches: other processes try the write lock every 2 ms at most."""


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
    """Process some log entries; return whether none are left."""
    with env.writing() as txn:
        now = txn.state
        if now.freed >= now.compacted:
            return True
        freed = _free_entries(txn, now)
        txn.put_state(now._replace(freed=freed))
        txn.commit()
        return freed >= now.compacted


def _free_entries(txn: Transaction, now: State) -> int:
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
