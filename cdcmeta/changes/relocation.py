"""Relocation: moves a database to another store, where its sequences continue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdcmeta.changes import layout
from cdcmeta.changes.layout import Database
from cdcmeta.changes.writing import Writer
from cdcmeta.errors import DatabaseExistsError, DatabaseRelocatedError
from snapkv import Absent, AtRevision, Commit, ConflictError, Entry, Ops, SnapshotKV, SpaceOps
from snapkv.model import Guard

REGISTRY = "changes"
"""The space whose keys are the names of databases."""
BATCH_BYTES, BATCH_KEYS = 256 << 10, 1_000


def space_of(name: str) -> str:
    """Return the name of a database's space."""
    return f"{REGISTRY}/{name}"


def relocated(store: SnapshotKV, name: str, writer: Writer, to: SnapshotKV | None) -> SnapshotKV:
    """Raise a database's incarnation, here or in another store; return its store.

    Steps of a move, each of which a second call may repeat:

        commit   store    what it writes                            edits            in the target
        1        source   `moved` in the record                     fail             no database
        2        target   deletes all its keys, puts the claim      fail             no database
        3 to n   target   the keys as of commit 1, in batches       fail             no database
        n + 1    target   record and name, deletes the claim        succeed there    all of it

    Commits 3 to n + 1 guard the claim. A second call deletes the keys and puts a claim of its own,
    so of two concurrent calls the later one continues, and the other raises `ConflictError`.
    """
    database, revision = writer.record(fresh=True)
    if to is None:
        while not _raised(store, name, database, revision):
            database, revision = writer.record(fresh=True)
        return store
    target = to.space(space_of(name))
    (existing,) = target.entries_of([layout.DATABASE])
    if _is_done(name, database, existing):
        return to
    if not database.moved:
        _replace(store, name, replace(database, moved=True), revision)
        database, revision = writer.record(fresh=True)
    snapshot = store.space(space_of(name)).at(revision=revision)
    key = layout.DATABASE
    unchanged = Absent(key) if existing is None else AtRevision(key, existing.revision)
    claim = target.commit(puts={layout.CLAIM: b""}, delete_prefixes=[b""], guards=[unchanged])
    guards: list[Guard] = [Absent(key), AtRevision(layout.CLAIM, claim.revision)]
    for batch in _batches(snapshot.items()):
        target.commit(puts=batch, guards=guards)
    eras = (*database.eras, snapshot.timestamp)
    record = {layout.DATABASE: replace(database, eras=eras, moved=False).encode()}
    made = SpaceOps(record, deletes=[layout.CLAIM], guards=guards)
    ops = Ops(spaces={space_of(name): made, REGISTRY: SpaceOps({name.encode(): b""})})
    to.commit(lambda _: ops)
    return to


def _is_done(name: str, database: Database, existing: Entry | None) -> bool:
    """Return whether a database was moved already to the store that has the record `existing`.

    A database that was moved away from there may return. Raises `DatabaseExistsError`.
    """
    if existing is None:
        return False
    found = Database.decode(existing.value)
    if found.uuid != database.uuid:
        raise DatabaseExistsError(f"the other store has another database {name!r} already")
    if database.moved and not found.moved and found.incarnation > database.incarnation:
        return True
    if not found.moved or found.incarnation > database.incarnation:
        raise DatabaseExistsError(f"the other store has a newer copy of database {name!r} already")
    return False


def _raised(store: SnapshotKV, name: str, database: Database, revision: int) -> bool:
    """Begin the next incarnation, with this commit's timestamp; return False on a conflict."""
    if database.moved:
        raise DatabaseRelocatedError(f"database {name!r} was moved to another store")
    guards = [AtRevision(layout.DATABASE, revision)]

    def build(stamp: object) -> SpaceOps:
        ts: int = stamp.ts  # type: ignore[attr-defined]
        record = replace(database, eras=(*database.eras, ts), moved=False)
        return SpaceOps({layout.DATABASE: record.encode()}, guards=guards)

    try:
        store.space(space_of(name)).commit(build)
    except ConflictError:
        return False
    return True


def _replace(store: SnapshotKV, name: str, database: Database, revision: int) -> Commit:
    return store.space(space_of(name)).commit(
        puts={layout.DATABASE: database.encode()}, guards=[AtRevision(layout.DATABASE, revision)]
    )


def _batches(items: Iterator[tuple[bytes, bytes]]) -> Iterator[dict[bytes, bytes]]:
    """Yield all keys but the record, in batches that fit into one commit of any engine."""
    batch: dict[bytes, bytes] = {}
    size = 0
    for key, value in items:
        if key == layout.DATABASE:
            continue
        batch[key] = value
        size += len(key) + len(value)
        if size >= BATCH_BYTES or len(batch) >= BATCH_KEYS:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch
