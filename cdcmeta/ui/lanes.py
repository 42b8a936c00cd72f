"""The moves of several tables of a changefeed in a span of time, for the lanes of a page."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from cdcmeta.scheduler.runtime import records
from cdcmeta.ui.past import Moves, moves_back, moves_of
from snapkv import CompactedError, Entry, When
from snapkv.ui import Source
from snapkv.ui.extending import Budget, Event, KeyValue, Versions, replayed, stamped

MOVES_MAX = 40
"""The most moves of a table that are shown."""
WINDOW_REVISIONS = 65_536
"""The revisions of the first window of a replay; each window is four times as long as the last."""


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
    """Return the moves of some tables between two moments, at most `MOVES_MAX` of each.

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
        moves_back(source, cluster, id, table, high, low=low, limit=MOVES_MAX, budget=budget)
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
    newest: dict[bytes, list[Event]] = {space.encode(key): [] for key in keys}
    start, end = space.range_of(records.place_key(id, ""))
    reached, window = high, WINDOW_REVISIONS
    while reached > low and not (reached < high and budget.over):
        begin = max(low, reached - window)
        events: dict[bytes, deque[Event]] = {key: deque(maxlen=MOVES_MAX) for key in newest}
        for event in _replayed(source, start, end, begin + 1, reached):
            if event.kv.key in events:
                events[event.kv.key].append(event)
        for key, found in events.items():
            newest[key] += islice(reversed(found), MOVES_MAX - len(newest[key]))
        reached, window = begin, 4 * window
    assert source.store is not None
    entries = source.store.space(name).at(revision=reached).entries_of(keys)
    return [
        moves_of(id, table, _versions(source, events, stored, entry, reached, low), low)
        for table, (stored, events), entry in zip(tables, newest.items(), entries, strict=True)
    ]


def _versions(
    source: Source,
    events: list[Event],
    stored: bytes,
    entry: Entry | None,
    reached: int,
    low: int,
) -> Versions:
    """Return the versions of a placement: what was replayed, and the one in force before that."""
    full = len(events) == MOVES_MAX
    if entry is not None and not full:
        kv = KeyValue(stored, entry.value, entry.created, entry.revision, 1, 0)
        events = [*events, Event(kv, False)]
    complete = reached <= low
    following = events[-1].kv.mod_revision - 1 if full else None if complete else reached
    return Versions(list(stamped(source.reader, events)), following, complete)


def _replayed(source: Source, start: bytes, end: bytes, low: int, high: int) -> Iterator[Event]:
    """Yield what happened to a range of keys between two revisions, oldest first."""
    try:
        for batch in replayed(source.reader.engine, start, end, low, high):
            yield from batch.events
    except CompactedError as e:
        raise CompactedError(low, source.earliest(), unit=e.unit, archive=e.archive) from e
