"""Histories: the edits of a document, and the moves of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cdcmeta.changes import layout
from cdcmeta.changes.relocation import space_of
from cdcmeta.scheduler.runtime import records
from snapkv import When
from snapkv.model import Version
from snapkv.ui import Source
from snapkv.ui.extending import Budget, Versions, stored_versions_back

EDITS_MAX = 25
MOVES_MAX = 50


@dataclass(frozen=True, slots=True)
class Edit:
    """A document after an edit: its winner, and the edit's writer and note.

    `rev` and `seq` are None where the database was deleted. An edit of a losing branch is one, too.
    `timestamp` is None if that commit was compacted.
    """

    revision: int
    timestamp: int | None
    rev: str | None
    seq: str | None
    deleted: bool
    writer: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Edits:
    """A page of edits, newest first. `following` is the revision from which the next one goes on.

    It is None at the end of what is left. `complete` is False if the time was used up before.
    """

    rows: list[Edit]
    following: int | None
    complete: bool
    compacted: bool


@dataclass(frozen=True, slots=True)
class Move:
    """A table on a capture, from `since` until `until`, in timestamps.

    `capture` is None while no capture had it. `until` is None for the newest one, `since` if that
    commit was compacted. `placed` is False where the placement was removed.
    """

    revision: int
    since: int | None
    until: int | None
    capture: str | None
    why: str
    placed: bool
    writer: str | None


@dataclass(frozen=True, slots=True)
class Moves:
    """A page of the moves of a table, newest first; as `Edits`."""

    table: str
    rows: list[Move]
    following: int | None
    complete: bool
    compacted: bool


def edits_back(
    source: Source,
    name: str,
    id: str,
    until: When | None,
    *,
    limit: int = EDITS_MAX,
    budget: Budget,
) -> Edits:
    """Return the edits of a document up to a moment; costs as `snapkv.ui.versions`."""
    stored = source.reader.layout.space(space_of(name)).encode(layout.winner_key(id))
    high = source.mark(until).revision
    found = stored_versions_back(source, stored, high, limit=limit, budget=budget)
    rows = [_edit(version) for version in found.versions]
    return Edits(rows, found.following, found.complete, found.compacted and not found.created)


def moves_back(
    source: Source,
    cluster: str,
    id: str,
    table: str,
    high: int,
    *,
    low: int = 1,
    limit: int = MOVES_MAX,
    budget: Budget,
) -> Moves:
    """Return which captures a table was on, from a revision down to the one in force at `low`.

    Costs as `snapkv.ui.versions`.
    """
    space = source.reader.layout.space(records.space_of(cluster))
    stored = space.encode(records.place_key(id, table))
    found = stored_versions_back(source, stored, high, low=low, limit=limit, budget=budget)
    return moves_of(id, table, found, low)


def moves_of(id: str, table: str, found: Versions, low: int) -> Moves:
    """Return the moves in the versions of a table's placement, to the one in force at `low`."""
    rows = _moves(records.place_key(id, table), found.versions, low)
    whole = bool(rows) and rows[-1].revision <= low
    following = None if whole else found.following
    compacted = found.compacted and not found.created
    return Moves(table, rows, following, whole or found.complete, compacted)


def _edit(version: Version) -> Edit:
    if version.value is None:
        seq = rev = None
        deleted = True
    else:
        winner = layout.winner_of(version.value)
        seq, rev, deleted = (
            str(winner.sequence),
            str(winner.leaf.revision),
            not winner.leaf.not_deleted,
        )
    return Edit(version.revision, version.ts, rev, seq, deleted, version.writer, version.note)


def _moves(key: bytes, versions: Iterable[Version], low: int) -> list[Move]:
    rows: list[Move] = []
    until: int | None = None
    for version in versions:
        if rows and rows[-1].revision <= low:
            break  # that one was in force at `low`
        if version.revision <= low and version.value is None:
            break  # none was
        placed = version.value is not None
        place = records.place_of(key, version.value) if version.value is not None else None
        rows.append(
            Move(
                version.revision,
                version.ts,
                until,
                place.capture if place else None,
                place.why if place else "removed",
                placed,
                version.writer,
            )
        )
        until = version.ts
    return rows
