"""The moves of the tables of a changefeed: which capture had a table, and since when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from cdcmeta.scheduler.runtime import changefeed_records as records
from snapkv import CompactedError, Entry, When
from snapkv.model import Version
from snapkv.ui import Source, view_kit
from snapkv.ui.view_kit import Budget, KeyEvent, KeyValue, Versions

MOVES_MAX = 50
LANE_MOVES_MAX = 40
"""The most moves of a table in its lane."""
WINDOW_REVISIONS = 65_536
"""The revisions of the first window of a replay; each window is four times as long as the last."""


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
    """A page of the moves of a table, newest first.

    `following` is the revision from which the next one goes on, None at the end of what is left.
    `complete` is False if the time was used up before.
    """

    table: str
    rows: list[Move]
    following: int | None
    complete: bool
    compacted: bool


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

    Costs as `snapkv.ui.key_versions`.
    """
    space = source.reader.layout.space(records.space_of(cluster))
    stored = space.encode(records.place_key(id, table))
    found = view_kit.stored_versions_back(source, stored, high, low=low, limit=limit, budget=budget)
    return moves_of(id, table, found, low)


def moves_of(id: str, table: str, found: Versions, low: int) -> Moves:
    """Return the moves in the versions of a table's placement, to the one in force at `low`."""
    rows = _moves(records.place_key(id, table), found.versions, low)
    whole = bool(rows) and rows[-1].revision <= low
    following = None if whole else found.following
    compacted = found.compacted and not found.created
    return Moves(table, rows, following, whole or found.complete, compacted)


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


# --- lanes: several tables in a span of time ---


def lanes(
    source: Source,
    cluster: str,
    id: str,
    tables: Sequence[str],
    until: When | None,
    since: When,
    created: int,
    *,
    budget: Budget,
) -> list[Moves]:
    """Return the moves of some tables between two moments, at most `LANE_MOVES_MAX` of each.

    `created` is the revision that created the changefeed: no placement of it is older. All tables
    share the time. An embedded engine reads the versions of each table. Elsewhere the placements of
    all tables are replayed, with one watch for each window: each watch of etcd may wait for 100 ms.
    """
    high = source.mark(until).revision
    low = max(created, source.mark(since).revision, source.reader.engine.compacted_revision())
    low = min(high, low)
    if source.reader.engine.remote:
        return _replayed_lanes(source, cluster, id, tables, low, high, budget)
    return [
        moves_back(source, cluster, id, table, high, low=low, limit=LANE_MOVES_MAX, budget=budget)
        for table in tables
    ]


def _replayed_lanes(
    source: Source,
    cluster: str,
    id: str,
    tables: Sequence[str],
    low: int,
    high: int,
    budget: Budget,
) -> list[Moves]:
    """Return the moves after replaying windows of revisions, as far back as there is time."""
    name = records.space_of(cluster)
    space = source.reader.layout.space(name)
    keys = [records.place_key(id, table) for table in tables]
    newest: dict[bytes, list[KeyEvent]] = {space.encode(key): [] for key in keys}
    start, end = space.range_of(records.place_key(id, ""))
    reached, window = high, WINDOW_REVISIONS
    while reached > low and not (reached < high and budget.over):
        begin = max(low, reached - window)
        events: dict[bytes, deque[KeyEvent]] = {key: deque(maxlen=LANE_MOVES_MAX) for key in newest}
        for event in _replayed(source, start, end, begin + 1, reached):
            if event.kv.key in events:
                events[event.kv.key].append(event)
        for key, found in events.items():
            newest[key] += islice(reversed(found), LANE_MOVES_MAX - len(newest[key]))
        reached, window = begin, 4 * window
    assert source.store is not None
    entries = source.store.space(name).at(revision=reached).entries_of(keys)
    return [
        moves_of(id, table, _versions(source, events, stored, entry, reached, low), low)
        for table, (stored, events), entry in zip(tables, newest.items(), entries, strict=True)
    ]


def _versions(
    source: Source,
    events: list[KeyEvent],
    stored: bytes,
    entry: Entry | None,
    reached: int,
    low: int,
) -> Versions:
    """Return the versions of a placement: what was replayed, and the one in force before that."""
    full = len(events) == LANE_MOVES_MAX
    if entry is not None and not full:
        kv = KeyValue(stored, entry.value, entry.created, entry.revision, 1, 0)
        events = [*events, KeyEvent(kv, False)]
    complete = reached <= low
    following = events[-1].kv.mod_revision - 1 if full else None if complete else reached
    return Versions(list(view_kit.stamped(source.reader, events)), following, complete)


def _replayed(source: Source, start: bytes, end: bytes, low: int, high: int) -> Iterator[KeyEvent]:
    """Yield what happened to a range of keys between two revisions, oldest first."""
    try:
        for batch in view_kit.replayed(source.reader.engine, start, end, low, high):
            yield from batch.events
    except CompactedError as e:
        raise CompactedError(low, source.earliest(), unit=e.unit, archive=e.archive) from e
