"""Random histories, and what a plain walk over all of them finds."""

import random
from typing import Any

from snapkv import ManualClock
from snapkv.ui.page_source import Budget

KEYS = [
    *("a", "a/1", "a/2", "a/b/1", "a/b/2", "a/b/c/1", "a0", "a//", "b/", "b/x", "c"),
    *("/slash", "zwei/ü", "zwei/日本", "two\nlines", "nul\0key", "<b>"),
]


def plenty() -> Budget:
    """A budget that no test uses up."""
    return Budget(600)


def none() -> Budget:
    """A budget that is over at once."""
    return Budget(0)


def write(store: Any, clock: ManualClock, rng: random.Random, commits: int) -> list[int]:
    """Make commits of all kinds; return their timestamps."""
    made = []
    for number in range(commits):
        clock.advance(rng.choice([0, 1, 700, 60_000, 3_600_000]))
        kind = rng.random()
        if kind < 0.1:
            made.append(store.tick().ts)
        elif kind < 0.2:
            puts = {b"k%d" % rng.randrange(3): rng.randbytes(3)}
            made.append(store.space("s/%").commit(puts=puts).ts)
        elif kind < 0.4:
            made.append(store.commit(deletes=rng.sample(KEYS, rng.randrange(1, 4))).ts)
        else:
            keys = rng.sample(KEYS, rng.randrange(1, 5))
            note = rng.choice([None, f"note {number}"])
            puts = {key: b"%d" % rng.randrange(9) for key in keys}
            made.append(store.commit(puts=puts, note=note).ts)
    return made
