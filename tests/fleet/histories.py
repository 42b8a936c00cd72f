"""Random histories on several members, and what each member says of its own moments."""

from __future__ import annotations

import random

import snapkv
from snapkv.errors import NotObservedError

from .sites import Sites

KEYS = ["a", "a/1", "a/2", "b", "b/ü", "c\x01", "z"]
PREFIX = "/r/"
PREFIXES = ["", "a", "a/", "b/ü", "zz", "/", PREFIX, "/r/a", "/r/zz"]
MS = (0, 0, 0, 1, 700, 60_000)


class Writing:
    """Writes to members in a random order, often at the same millisecond."""

    def __init__(self, sites: Sites, rng: random.Random) -> None:
        self.sites, self.rng = sites, rng
        self.stamps: list[int] = []
        """The timestamps of all commits, in the order in which they were made."""

    def steps(self, count: int, *names: str) -> None:
        for _ in range(count):
            self.step(self.rng.choice(names or list(self.sites.stores)))

    def step(self, name: str) -> None:
        rng, store = self.rng, self.sites[name]
        self.sites.clock.advance(rng.choice(MS))
        kind = rng.random()
        if kind < 0.2:
            commit = store.tick()
        elif kind < 0.3:
            commit = store.commit(delete_prefixes=[rng.choice(KEYS)])
        elif kind < 0.4:
            self.sites.write_raw(name, f"{PREFIX}{rng.choice(KEYS)}", rng.choice([b"x", b"y"]))
            return
        else:
            keys = rng.sample(KEYS, rng.randrange(1, 4))
            commit = store.commit(puts={key: b"%d" % rng.randrange(9) for key in keys})
        self.stamps.append(commit.ts)

    def times(self) -> list[int]:
        """Return times at, beside and beyond all commits, in a random order."""
        near = {ts + off for ts in self.stamps for off in (-1, 0, 1)}
        found = sorted({*near, self.sites.now + (5 << 18), min(near) - (1 << 30)})
        self.rng.shuffle(found)
        return found


def own(reads, timestamp: int) -> snapkv.Snapshot | None:
    """Return a member's own moment; None before its first commit or tick."""
    try:
        found = reads.at(timestamp)
    except NotObservedError:
        return None
    return found if reads.reader.timeline.at(timestamp).mark.ordinal > 1 else None


def state(snapshot: snapkv.Snapshot | None, prefix: str = "") -> dict:
    """Return keys and values of a snapshot, in order; nothing of None."""
    items = {} if snapshot is None else dict(snapshot.items())
    return {key: value for key, value in items.items() if key.startswith(prefix)}
