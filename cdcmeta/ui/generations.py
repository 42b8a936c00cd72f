"""Logs of generations as pages show them: what operated when, switches, tables, consumers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, zip_longest

from cdcmeta.errors import GenerationNotFoundError
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.generation_layout import (
    Generation,
    Switch,
    consumers_at,
    generations_at,
    read_state,
)
from cdcmeta.ui.lookups import space_names
from snapkv import Snapshot, SnapshotKV, When

LOGS_MAX = 25
GENERATIONS_MAX = 50
CONSUMERS_MAX = 200
TABLES_MAX = 200


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A generation at a moment: it operates from `time` until `until` (None: no later one)."""

    time: int
    until: int | None
    phase: str
    id: str
    ranges: int
    streams: int
    made: int
    expired: int | None
    refines: bool | None


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """A switch under way: `answers` counts the members that have read it, `refusals` says why not.

    Members reject writes from `not_before` on; after `deadline` any process may end it.
    """

    phase: str
    id: str
    ranges: int
    streams: int
    not_before: int
    deadline: int
    answers: int
    refusals: list[str]


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A worker of a consumer, and the time up to which it has read."""

    table: str | None
    name: str
    part: int
    parts: int
    generation: int
    position: int


@dataclass(frozen=True, slots=True)
class Log:
    """A log of generations at a moment; `rows` are the newest, and `total` counts all.

    `aborted` is why the last switch failed, if it was aborted. `more` says whether tables or
    consumers are left out.
    """

    name: str
    rows: list[GenerationRow]
    total: int
    switch: SwitchRow | None
    aborted: str | None
    tables: list[str]
    consumers: list[ConsumerRow]
    more: bool


@dataclass(frozen=True, slots=True)
class Logs:
    """A page of logs, by name. The next one begins at `start`, None at the end."""

    rows: list[Log]
    start: str | None


def list_logs(
    store: SnapshotKV,
    when: When | None = None,
    *,
    time: int,
    start: str = "",
    limit: int = LOGS_MAX,
    generations: int = GENERATIONS_MAX,
) -> Logs:
    """Return the logs of a store at a moment, from a name on; a few listings for each.

    `time` is the timestamp of the moment: it says which generations operate.
    """
    at: When = f"rev:{store.at(when).revision}"
    found = space_names(store, layout.space_of(""), start, at)
    names = list(islice(found, limit + 1))
    rows = [log_at(store, name, at, time=time, limit=generations) for name in names[:limit]]
    return Logs(rows, names[limit] if len(names) > limit else None)


def log_at(
    store: SnapshotKV,
    name: str,
    when: When | None = None,
    *,
    time: int,
    limit: int = GENERATIONS_MAX,
) -> Log:
    """Return a log at a moment, its newest generations first; `time` is the moment's timestamp.

    Six listings. Raises `GenerationNotFoundError` for a log that the store does not have.
    """
    state = read_state(store.space(layout.space_of(name)), when)
    snapshot = state.snapshot
    found = generations_at(snapshot)
    if not found and next(snapshot.keys(), None) is None:
        raise GenerationNotFoundError(f"the store has no log {name!r} at this moment")
    later = zip_longest(found, found[1:])
    rows = [generation_row(each, after, time) for each, after in later]
    tables = list(islice(snapshot.keys(layout.TABLE_PREFIX), TABLES_MAX + 1))
    consumers = sorted(consumers_at(snapshot).items(), key=lambda each: each[1].position)
    more = len(tables) > TABLES_MAX or len(consumers) > CONSUMERS_MAX
    return Log(
        name,
        rows[::-1][:limit],
        len(found),
        None if state.switch is None else _switch_row(snapshot, state.switch),
        None if state.aborted is None else state.aborted.why,
        [layout.table_of(key) for key in tables[:TABLES_MAX]],
        [
            ConsumerRow(*id, progress.generation, progress.position)
            for id, progress in consumers[:CONSUMERS_MAX]
        ],
        more,
    )


def generation_row(found: Generation, later: Generation | None, time: int) -> GenerationRow:
    """Return a listed generation and what it is at a time; `later` is the next one."""
    return GenerationRow(
        found.time,
        None if later is None else later.time,
        found.phase(time, later),
        found.id.hex(),
        found.ranges,
        found.streams,
        found.made,
        found.expired,
        found.refines,
    )


# --- helpers ---


def _switch_row(snapshot: Snapshot[bytes], switch: Switch) -> SwitchRow:
    refusals = islice(snapshot.values(layout.refusal_prefix(switch.id)), CONSUMERS_MAX)
    return SwitchRow(
        switch.phase,
        switch.id.hex(),
        switch.ranges,
        switch.streams,
        switch.not_before,
        switch.deadline,
        snapshot.count(layout.ack_prefix(switch.id)),
        sorted(why.decode(errors="replace") for why in refusals),
    )
