"""How do load, save, list and lookup grow with 10,000, 100,000 and 1,000,000 commits?

`python -m benchmarks scaling` makes all three stores, which takes a minute or two.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lmdb

import snapkv
from benchmarks.bulk import MAP_BYTES, Bulk
from benchmarks.harness import RESULTS, Rival, Row, measure, report, seeded, show
from benchmarks.stores import BE64

SIZES = (10_000, 100_000, 1_000_000)
VERSIONS, LISTED = 10, 1_000
RECENT, ASKED = 1_000, 5_000
ROUNDS, BLOCK = 300, 10
PLOTTED = ("load in the ring", "load anywhere", "save", "list", "lookup in the ring", "lookup")


def key_of(commit: int) -> str:
    """Return the key of a commit: 1,000 keys with ten versions each, then another 1,000."""
    family, at = divmod(commit, VERSIONS * LISTED)
    return f"family{family:04d}/table{at % LISTED:04d}"


@dataclass
class Place:
    """A history in snapkv and in bare LMDB."""

    commits: int
    store: snapkv.SnapshotKV
    env: lmdb.Environment
    stamps: list[int]

    def close(self) -> None:
        """Close both."""
        self.store.close()
        self.env.close()


def main() -> None:
    """Make the stores once, ask all sizes in the same rounds, and draw one plot."""
    with tempfile.TemporaryDirectory() as folder:
        places = _made(Path(folder))
        tables = {
            "load in the ring": _loads(places, RECENT),
            "load anywhere": _loads(places, None),
            "save": _saves(places),
            "list": _lists(places),
            "lookup in the ring": _lookups(places, RECENT),
            "lookup": _lookups(places, None),
        }
        for place in places:
            place.close()
    notes = (
        "The largest store was written in bulk, by the codecs of snapkv's lmdb engine; the others "
        "are copies of it on its way, and the smallest passed `check()`. A key has "
        f"{VERSIONS} versions: there are ten times as many commits as keys. All sizes take turns "
        f"in the same rounds; `x floor` is by the bare operation on {SIZES[0]:,} commits. Bare: a "
        "py-lmdb seek, a commit of three records, a walk over the versions of the same keys, a "
        "bisection of a list of all timestamps. Saves are durable. "
        f"A list has {LISTED:,} keys, as they were when half "
        f"of their versions were written. A lookup is `at(ts).revision`. In the ring: one of the "
        f"newest {RECENT:,} commits; else any commit, after {ASKED:,} loads at other random times. "
        "![times by commits](scaling.png)"
    )
    report("scaling", "How do costs grow with the number of commits?", tables, notes)
    plot()


# --- the stores ---


def _made(folder: Path) -> list[Place]:
    """Fill one store, and copy it whenever it has the commits of a size."""
    start_ms = snapkv.SystemClock().now_ms() - 2 * SIZES[-1]
    grown = Bulk(folder / "grown", start_ms, key_of)
    for size in SIZES:
        grown.grow(size, bytes(100))
        shutil.copytree(grown.path, folder / f"size{size}")
    with _opened(folder / f"size{SIZES[0]}") as store:
        found = store.check()
        assert not found.problems, found.problems
    return [_place(folder, size, grown.stamps[:size]) for size in SIZES]


def _opened(path: Path) -> snapkv.SnapshotKV:
    return snapkv.open(f"lmdb:{path}")


def _place(folder: Path, size: int, stamps: list[int]) -> Place:
    env = lmdb.open(str(folder / f"bare{size}"), map_size=MAP_BYTES)
    with env.begin(write=True) as txn:
        for commit in range(size):
            txn.put(_bare_key(key_of(commit), stamps[commit]), bytes(117))
            if (commit + 1) % 10_000 == 0:
                show(commit, size)
    return Place(size, _opened(folder / f"size{size}"), env, stamps)


def _bare_key(key: str, stamp: int) -> bytes:
    return key.encode() + b"\0" + BE64.pack(2**64 - 1 - stamp)


# --- the questions ---


def _rivals(
    places: list[Place],
    bare: Callable[[Place], Callable[[int], object]],
    ours: Callable[[Place], Callable[[int], object]],
) -> list[Rival]:
    return [
        *(Rival(f"bare, {place.commits:,} commits", bare(place)) for place in places),
        *(Rival(f"snapkv, {place.commits:,} commits", ours(place)) for place in places),
    ]


def _asked(rng: random.Random, place: Place, newest: int | None) -> list[int]:
    """Return commits to ask for; such whose key was written by then."""
    first = VERSIONS * LISTED // 2 if newest is None else place.commits - newest
    return [rng.randrange(first, place.commits) for _ in range(ASKED)]


def _loads(places: list[Place], newest: int | None) -> list[Row]:
    def pairs(place: Place) -> list[tuple[str, int]]:
        commits = _asked(seeded("scaling/load"), place, newest)
        return [(key_of(commit), place.stamps[commit]) for commit in commits]

    def bare(place: Place) -> Callable[[int], object]:
        seeks = [_bare_key(key, stamp) for key, stamp in pairs(place)]

        def run(i: int) -> object:
            with place.env.begin() as txn:
                cursor = txn.cursor()
                cursor.set_range(seeks[i % ASKED])
                return cursor.value()

        return run

    def ours(place: Place) -> Callable[[int], object]:
        asked = pairs(place)
        for commit in _asked(seeded("scaling/warm"), place, newest):
            place.store.load(key_of(commit), place.stamps[commit])
        return lambda i: place.store.load(*asked[i % ASKED])

    return measure(_rivals(places, bare, ours), rounds=ROUNDS, block=BLOCK)


def _saves(places: list[Place]) -> list[Row]:
    value = bytes(100)

    def bare(place: Place) -> Callable[[int], object]:
        def run(i: int) -> None:
            with place.env.begin(write=True) as txn:
                txn.put(_bare_key(key_of(i), place.stamps[-1] + 1 + i), bytes(117))
                txn.put(b"sys/ts" + BE64.pack(i), bytes(56))
                txn.put(b"sys/log" + BE64.pack(i), bytes(50))

        return run

    def ours(place: Place) -> Callable[[int], object]:
        return lambda i: place.store.save(f"saved/{key_of(i)}", value)

    return measure(_rivals(places, bare, ours), rounds=200, warmup=10)


def _lists(places: list[Place]) -> list[Row]:
    prefix = key_of(0).partition("/")[0] + "/"
    half = VERSIONS * LISTED // 2

    def bare(place: Place) -> Callable[[int], object]:
        limit = BE64.pack(2**64 - 1 - place.stamps[half])

        def run(_: int) -> None:
            found, last = {}, b""
            with place.env.begin() as txn:
                cursor = txn.cursor()
                cursor.set_range(prefix.encode())
                for key, value in cursor:
                    name = key[:-9]
                    if not key.startswith(prefix.encode()):
                        break
                    if name != last and key[-8:] >= limit:
                        found[name] = value
                        last = name
            assert len(found) == LISTED

        return run

    def ours(place: Place) -> Callable[[int], object]:
        def run(_: int) -> None:
            assert len(place.store.load_with_prefix(prefix, place.stamps[half])[0]) == LISTED

        return run

    return measure(_rivals(places, bare, ours), rounds=30)


def _lookups(places: list[Place], newest: int | None) -> list[Row]:
    def times(place: Place) -> list[int]:
        return [place.stamps[n] for n in _asked(seeded("scaling/lookup"), place, newest)]

    def bare(place: Place) -> Callable[[int], object]:
        asked, stamps = times(place), place.stamps
        return lambda i: bisect_right(stamps, asked[i % ASKED])

    def ours(place: Place) -> Callable[[int], object]:
        asked = times(place)
        for commit in _asked(seeded("scaling/warm"), place, newest):
            place.store.load(key_of(commit), place.stamps[commit])
        return lambda i: place.store.at(asked[i % ASKED]).revision

    return measure(_rivals(places, bare, ours), rounds=ROUNDS, block=BLOCK)


# --- the plot ---


def plot() -> None:
    """Draw the results as they are in `results/scaling.json`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tables = json.loads((RESULTS / "scaling.json").read_text())["tables"]
    figure, axes = pyplot.subplots(figsize=(9, 6), layout="constrained")
    for number, title in enumerate(PLOTTED):
        rows = tables[title]
        for kind, style in (("bare", "--"), ("snapkv", "-")):
            medians = [row["median_us"] for row in rows if row["rival"].startswith(kind)]
            label = title if kind == "snapkv" else None
            axes.plot(SIZES, medians, style, color=f"C{number}", marker="o", label=label)
    axes.set(xscale="log", yscale="log", xlabel="commits in the store", xticks=SIZES)
    axes.set_xticklabels([f"{size:,}" for size in SIZES])
    axes.minorticks_off()
    axes.set_ylabel("median time of one operation, µs")
    axes.set_title("snapkv on lmdb; dashed: the same by hand in bare LMDB, or one bisection")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(RESULTS / "scaling.png", dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
