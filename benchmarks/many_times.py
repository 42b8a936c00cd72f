"""What do the revisions of 100,000 times at once cost beside `numpy.searchsorted`?"""

import tempfile
from bisect import bisect_right
from pathlib import Path

import numpy as np

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.stores import History, fill_snapkv

COMMITS, TIMES = 20_000, 100_000


def main() -> None:
    """Ask for times in the ring, of any commit, and of any commit for the first time."""
    rng = seeded("many_times")
    history = History.make(rng, 1_000, COMMITS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store")
        with fill_snapkv(path, history) as store:
            marks = [(commit.ts, commit.revision) for commit in store.commits()]
        with snapkv.open(f"lmdb:{path}") as store:
            store.revisions_at([marks[0][0], marks[-1][0]])
            of_ring = marks[-snapkv.timeline.RING_SLOTS :]
            tables = {}
            for title, known in (("in the ring of 1,024", of_ring), ("of any commit", marks)):
                wanted = [rng.randint(known[0][0], known[-1][0]) for _ in range(TIMES)]
                tables[f"{TIMES:,} times {title}, an array"] = arrays(store, known, wanted)
                tables[f"{TIMES:,} times {title}, a list"] = lists(store, known, wanted)
            tables[f"{TIMES:,} times of any commit, in a store just opened"] = opened(path, wanted)
    report("many_times", "What do the revisions of many times at once cost?", tables)


def arrays(store: snapkv.SnapshotKV, known: list[tuple[int, int]], wanted: list[int]) -> list[Row]:
    """Beside numpy on arrays that hold all of the marks already."""
    timestamps = np.array([timestamp for timestamp, _ in known], np.uint64)
    revisions = np.array([revision for _, revision in known])
    array = np.array(wanted, np.uint64)

    def searchsorted(i: int) -> object:
        return revisions[np.searchsorted(timestamps, array, side="right") - 1]

    def revisions_at(i: int) -> object:
        return store.revisions_at(array)

    assert (revisions_at(0) == searchsorted(0)).all()  # type: ignore[attr-defined]
    floor = Rival("numpy.searchsorted (floor)", searchsorted)
    return measure([floor, Rival("revisions_at", revisions_at)], rounds=60)


def lists(store: snapkv.SnapshotKV, known: list[tuple[int, int]], wanted: list[int]) -> list[Row]:
    """Beside a bisection for each on lists that hold all of the marks already."""
    timestamps = [timestamp for timestamp, _ in known]
    revisions = [revision for _, revision in known]

    def bisect_each(i: int) -> object:
        return [revisions[bisect_right(timestamps, each) - 1] for each in wanted]

    def revisions_at(i: int) -> object:
        return store.revisions_at(wanted)

    assert revisions_at(0) == bisect_each(0)
    floor = Rival("bisect for each (floor)", bisect_each)
    return measure([floor, Rival("revisions_at", revisions_at)], rounds=20)


def opened(path: Path, wanted: list[int]) -> list[Row]:
    """Beside `at(ts).revision` for each, which remembers what it finds, too."""
    array = np.array(wanted, np.uint64)

    def revisions_at(i: int) -> object:
        with snapkv.open(f"lmdb:{path}") as store:
            return store.revisions_at(array)

    def at_each(i: int) -> object:
        with snapkv.open(f"lmdb:{path}") as store:
            return [store.at(each).revision for each in wanted]

    floor = Rival("at(ts).revision for each (floor)", at_each)
    return measure([floor, Rival("revisions_at", revisions_at)], rounds=5, warmup=1)
