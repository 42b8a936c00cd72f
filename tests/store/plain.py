"""The plainest possible time line, to compare with: a list of what each commit changed.

It shares nothing with the library, and does everything by walking.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A commit: what it changed by (space, key), None for a removal; the space "" is data."""

    ts: int
    revision: int
    changes: dict
    note: str | None = None
    writer: str | None = None
    meta: dict | None = None


class Plain:
    """All commits in order, from `gone` on still on record."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.gone = -1  # the last row whose moment is forgotten, counting the creation as row -1
        self.compacted = False

    def add(self, ts, revision, changes, note=None, writer=None, meta=None):
        self.rows.append(Row(ts, revision, dict(changes), note, writer, meta))

    def row_at(self, ts) -> int:
        """Index of the commit in force, -1 before the first."""
        found = -1
        for at, row in enumerate(self.rows):
            if row.ts <= ts:
                found = at
        return found

    def state_after(self, at, space="") -> dict:
        state = {}
        for row in self.rows[: at + 1]:
            for (where, key), value in row.changes.items():
                if where == space:
                    state[key] = value
        return {key: state[key] for key in sorted(state) if state[key] is not None}

    def state(self, ts=None, space="") -> dict:
        return self.state_after(len(self.rows) - 1 if ts is None else self.row_at(ts), space)

    def history(self, key, space="") -> list:
        """(ts, revision, value) of each version."""
        return [
            (row.ts, row.revision, row.changes[space, key])
            for row in self.rows
            if (space, key) in row.changes
        ]

    def since(self, ts, prefix="", space="") -> list:
        """(ts, [(key, value)]) of each commit after a time that touched the prefix."""
        found = []
        for row in self.rows:
            touched = sorted(
                (key, value)
                for (where, key), value in row.changes.items()
                if where == space and key.startswith(prefix)
            )
            if row.ts > ts and touched:
                found.append((row.ts, touched))
        return found

    def effect(self, puts=(), deletes=(), prefixes=(), space="") -> dict:
        """What a commit of these operations changes now: only what is there can be removed."""
        puts, changes = dict(puts), {}
        for key in self.state(space=space):
            if key in deletes or any(key.startswith(prefix) for prefix in prefixes):
                changes[space, key] = None
        for key, value in puts.items():
            changes[space, key] = value
        return changes
