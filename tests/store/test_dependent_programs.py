"""Stores of one process in any order: no commit is earlier than what the process has known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import snapkv
from snapkv import clock as clocks
from snapkv.clock import SharedFloor

from .engines import ENGINES, Place
from .test_dependent_commits import Fast


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test be a process that has seen nothing."""
    monkeypatch.setattr(clocks, "_machine_floor", SharedFloor())


def read_somehow(rng: random.Random, store: snapkv.SnapshotKV) -> bytes | None:
    """Read the value of `k` in one of the ways."""
    ways: list[Callable[[], bytes | None]] = [
        lambda: store.get("k"),
        lambda: store.load("k", timeout=9),
        lambda: store.at().get("k"),
        lambda: next(each and each.value for each in store.entries_of(["k", "x"])),
        lambda: store.space("s").get(b"k"),
        lambda: next(store.history("k", newest_first=True, limit=1)).value,
    ]
    return rng.choice(ways)()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Place]]:
    with ExitStack() as stack:
        kinds = ["memory", "lmdb", "memory"]
        yield [
            stack.enter_context(Place(ENGINES[kind], tmp_path / str(n)))
            for n, kind in enumerate(kinds)
        ]


@pytest.mark.parametrize("round_", range(10))
def test_no_commit_is_earlier_than_what_was_known(places: list[Place], round_: int) -> None:
    """Any number of writers with clocks ahead; this process reads and commits on all stores."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    mine = [place.open() for place in places]
    writers = [place.open(clock=Fast(rng.randrange(4_000))) for place in places for _ in range(2)]
    written: dict[bytes, int] = {}
    known = 0

    def write(store: snapkv.SnapshotKV) -> int:
        value = b"%d" % len(written)
        ops = snapkv.Ops(puts={"k": value}, spaces={"s": snapkv.SpaceOps(puts={b"k": value})})
        written[value] = store.commit(lambda _: ops).ts
        return written[value]

    for store in mine:
        known = max(known, write(store))
    for _ in range(150):
        match rng.randrange(3):
            case 0:
                write(rng.choice(writers))
            case 1:
                value = read_somehow(rng, rng.choice(mine))
                assert value is not None
                known = max(known, written[value])
            case _:
                ts = rng.choice((write, lambda store: store.tick().ts))(rng.choice(mine))
                assert ts > known, f"after {len(written)} commits of seed {seed}"
                known = ts
