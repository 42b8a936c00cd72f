"""What reverts do, on plain dicts: the state without exactly some changes, or a conflict."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

KEYS = ("a", "a/1", "a/2", "b", "b/é", "c")
VALUES = (b"", b"1", b"2", None)

Changed = dict[str, tuple[bytes | None, bytes | None]]


class Wanted(NamedTuple):
    """A revert: of which commits (indexes), which keys, and what to do with conflicts."""

    commits: list[int]
    keys: list[str]
    prefixes: list[str]
    mode: str

    @property
    def options(self):
        """The arguments of `revert`, without the commits."""
        decided = {"theirs": self.mode == "theirs", "force": self.mode == "force"}
        return {"keys": self.keys, "prefixes": self.prefixes, **decided}

    def has(self, key):
        if not (self.keys or self.prefixes):
            return True
        return key in self.keys or any(key.startswith(each) for each in self.prefixes)


@dataclass
class History:
    """Commits as (timestamp, key -> value before and after), for each key that changed."""

    commits: list[tuple[int, Changed]] = field(default_factory=list)
    state: dict[str, bytes] = field(default_factory=dict)

    def add(self, timestamp, values):
        """Add a commit that wrote some values, None for a removal."""
        changed = {}
        for key, value in values.items():
            if self.state.get(key) != value:
                changed[key] = (self.state.get(key), value)
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        self.commits.append((timestamp, changed))

    @property
    def visible(self):
        """The commits that changed something."""
        return [each for each in self.commits if each[1]]

    def reverted(self, wanted):
        """Return the state after a revert, and the conflicts: key -> timestamp of the newest."""
        state, conflicts = dict(self.state), {}
        for key in {key for at in wanted.commits for key in self.commits[at][1] if wanted.has(key)}:
            changes = [(at, *one[key]) for at, (_, one) in enumerate(self.commits) if key in one]
            others = [each for each in changes if each[0] not in wanted.commits]
            first = next(each for each in changes if each[0] in wanted.commits)
            without = others[-1][2] if others else None  # what is left if theirs never happened
            if others and others[-1][0] > first[0] and without != first[1]:
                conflicts[key] = self.commits[others[-1][0]][0]
            value = first[1] if wanted.mode == "force" else without
            state.pop(key, None)
            if value is not None:
                state[key] = value
        return state, conflicts

    def chosen_are_met(self, wanted):
        """Return whether the commits changed each chosen key, and some with each prefix but ""."""
        names = {key for at in wanted.commits for key in self.commits[at][1]}
        return set(wanted.keys) <= names and all(
            any(name.startswith(each) for name in names) for each in wanted.prefixes if each
        )


def written(chance: random.Random) -> dict:
    """Return what a commit writes: some keys, some of them with the value that they have."""
    return {key: chance.choice(VALUES) for key in chance.sample(KEYS, chance.randint(1, 4))}


def arguments(values: dict) -> dict:
    """Return the arguments of `commit` for what it writes."""
    return {
        "puts": {key: value for key, value in values.items() if value is not None},
        "deletes": [key for key, value in values.items() if value is None],
    }


def wanted(chance: random.Random, commits: int) -> Wanted:
    """Return a revert of a few of the newest commits, or of any."""
    some = range(commits) if chance.random() < 0.3 else range(max(0, commits - 4), commits)
    which = chance.sample(some, min(len(some), chance.choice((1, 1, 1, 2, 3))))
    keys, prefixes = [], []
    if chance.random() < 0.3:
        keys = chance.sample(KEYS, chance.randint(0, 2))
        prefixes = chance.sample(("a", "a/", "b", "c", ""), chance.randint(0, 2))
    return Wanted(which, keys, prefixes, chance.choice(("plain", "theirs", "force")))


def read(store) -> History:
    """Return the history of a store, from its watch."""
    history = History()
    with store.watch(since=0, timeout=0) as watch:
        for changes in watch:
            history.add(changes.commit.ts, {each.key: each.value for each in changes})
    return history
