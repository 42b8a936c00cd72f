"""What a fleet has told of its members, and whether one history holds all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_histories import (
    Committed,
    History,
    State,
    Written,
    changes_in,
    floor_of,
    newest_of,
    shown,
    state_at,
)
from fleet_servers import Server

from snapkv.fleet.fleet_watch import FleetChanges, Late
from snapkv.model import Changes

Changed = tuple[tuple[int, Written], ...]
"""Timestamps, and what was written at each."""


def changed(history: History, after: int, until: int) -> Changed:
    """Return what a watch has to give of a history."""
    return tuple((each.timestamp, each.written) for each in changes_in(history, after, until))


@dataclass
class Line:
    """What a watch has given, and what the watches have given that it continues.

    `reached` is how far the watch is, and `until` how far it is on each member: less on those that
    were left out. `given` is what came of each member in (start, until]. `base` is the newest
    commit of members that were final at `start` when it began.
    """

    start: dict[str, int]
    reached: int
    until: dict[str, int]
    given: dict[str, Changed]
    base: dict[str, Committed | None] = field(default_factory=dict)

    @classmethod
    def after(cls, timestamp: int, joined: Mapping[str, int]) -> Line:
        start = {name: max(timestamp, since - 1) for name, since in joined.items()}
        return cls(start, timestamp, dict(start), dict.fromkeys(joined, ()))

    def copy(self) -> Line:
        return Line(self.start, self.reached, dict(self.until), dict(self.given), self.base)

    def take(self, item: FleetChanges) -> None:
        """Add an item: one timestamp, larger than all before."""
        assert item.timestamp > self.reached, f"{item.timestamp} comes after {self.reached}"
        assert item.members, f"an item without changes at {item.timestamp}"
        for name, changes in item.members.items():
            assert changes.commit.ts == item.timestamp, f"{name}: {changes} in {item.timestamp}"
            self._give(name, changes)
        self.reach(item.timestamp, item.missing)

    def take_late(self, item: Late) -> None:
        """Add what a member has changed that was left out."""
        name = item.member
        assert item.since <= self.until[name], f"{item} comes after {self.until[name]}"
        assert item.until <= self.reached, f"{item} comes before {self.reached}"
        for changes in item.changes:
            assert self.until[name] < changes.commit.ts <= item.until, f"{changes} in {item}"
            self._give(name, changes)
        self.until[name] = max(self.until[name], item.until)

    def _give(self, name: str, changes: Changes[str]) -> None:
        written = tuple((each.key, each.value) for each in changes.changes)
        self.given[name] += ((changes.commit.ts, written),)

    def reach(self, timestamp: int, missing: Collection[str]) -> None:
        """Take that nothing at or below a timestamp will come, but of missing members."""
        self.reached = max(self.reached, timestamp)
        for name, until in self.until.items():
            if name not in missing:
                self.until[name] = max(until, timestamp)

    def holds(self, name: str, history: History) -> bool:
        """Return whether it gave exactly what a history has."""
        start, until, newest = self.start[name], self.until[name], newest_of(history)
        if name in self.base and (start > newest or floor_of(history, start) != self.base[name]):
            return False
        if until <= start:
            return not self.given[name]
        return until <= newest and self.given[name] == changed(history, start, until)

    @property
    def key(self) -> object:
        names = self.start
        return self.reached, *(
            (self.start[name], self.until[name], self.given[name], self.base.get(name))
            for name in names
        )


@dataclass
class Claims:
    """What one fleet has told: of each member the newest commit at times that it called final.

    Whatever happens, some history of the member has to hold all of it: the one that it has now,
    or the one that it had before it was restored. Otherwise the fleet has mixed the two, or a
    commit came at or below a time that was final.
    """

    servers: Mapping[str, Server]
    told: dict[str, dict[int, Committed | None]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    continues: bool = False
    """Whether a watch goes on where another process left it."""

    def tell(self, name: str, timestamp: int, floor: Committed | None) -> None:
        """Note the newest commit of a member at or below a time that is final."""
        told = self.told.setdefault(name, {})
        assert told.setdefault(timestamp, floor) == floor, f"{name} at {timestamp} was another one"

    def possible(self, name: str, *, of_moments: bool = True) -> list[History]:
        """Return the histories of a member that hold all that was told of it.

        A watch may give what it had received before a restore, while moments show the restored
        member; and one that continues that of another process was perhaps never of the history that
        this process has opened. Then they are judged on their own.
        """
        server = self.servers[name]
        histories = [each for each in (server.lost, server.history) if each is not None]
        if not server.lost_in_buffers and not self.continues:
            return [h for h in histories if self._told(name, h) and self._given(name, h)]
        return [h for h in histories if (self._told if of_moments else self._given)(name, h)]

    def _told(self, name: str, history: History) -> bool:
        newest = newest_of(history)
        return all(
            timestamp <= newest and floor_of(history, timestamp) == floor
            for timestamp, floor in self.told.get(name, {}).items()
        )

    def _given(self, name: str, history: History) -> bool:
        return all(line.holds(name, history) for line in self.lines)

    def check(self) -> None:
        """Raise AssertionError unless each member has such a history."""
        for name, server in self.servers.items():
            if server.history is None:
                assert not self.told.get(name), f"{name} has no store, but {self.told[name]}"
                continue
            both = [self.possible(name, of_moments=moments) for moments in (True, False)]
            assert all(both), (
                f"{name}: no history holds what was told\n  now {server.history}\n"
                f"  lost {server.lost}\n  told {self.told.get(name)}\n  given "
                f"{[(line.start[name], line.until[name], line.given[name]) for line in self.lines]}"
            )

    def check_items(self, name: str, timestamp: int, items: State) -> None:
        """Raise AssertionError unless a possible history has this state at a time."""
        states = [state_at(each, timestamp) for each in self.possible(name)]
        assert items in states, f"{name} at {timestamp} shows {items}, not one of {states}"

    @property
    def key(self) -> object:
        """What later answers are compared with.

        Of times that a history holds, the newest one counts: a commit that comes at or below an
        older one comes below that, too. A history that does not hold one of them never will.
        """
        told = [
            (name, max(times.items(), default=None), tuple(self.possible(name)))
            for name, times in self.told.items()
        ]
        lines = {line.key for line in self.lines}
        return self.continues, tuple(told), tuple(sorted(lines, key=repr))


def check_shown(server: Server, seen: Any, timestamp: int, joined: int) -> None:
    """Raise AssertionError unless a moment shows a member as it was at some time of the call."""
    histories = server.lately if server.lost is None else [*server.lately, server.lost]
    expected = [shown(each, timestamp, joined) for each in histories]
    found = seen.state, seen.timestamp, seen.revision
    assert found in [each[:3] for each in expected], f"at {timestamp}: {seen}, not of {expected}"
    assert seen.final == (seen.state in ("live", "absent")), seen
