"""Two stores of one process: a commit that depends on what was read elsewhere is later."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from store.engines import ENGINES, Place

import snapkv
from snapkv import clock as clocks
from snapkv import codecs
from snapkv.clock import SharedFloor, SystemClock
from snapkv.times import pack

from .dependent import Fast, Two

WAIT_S = 20


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test be a process that has seen nothing."""
    monkeypatch.setattr(clocks, "_machine_floor", SharedFloor())


@pytest.fixture
def two(place: Place) -> Two:
    return Two(place)


def watched(a: snapkv.SnapshotKV, write: Callable[[], int]) -> None:
    with a.watch("k") as watch:
        write()
        changes = watch.next(WAIT_S)
        assert changes is not None
        assert changes.changes[0].value == b"7"


def watched_elsewhere(a: snapkv.SnapshotKV, write: Callable[[], int]) -> None:
    with a.space("other").watch(timeout=0.05) as watch:
        ts = write()
        while watch.timestamp < ts:
            assert list(watch) == []


def loaded_typed(a: snapkv.SnapshotKV) -> None:
    assert a.with_codec(codecs.json).load("k") == 7


def at_a_revision(a: snapkv.SnapshotKV, write: Callable[[], int]) -> None:
    moment = a.at(revision=_revision_of(a, write))
    assert moment["k"] == b"7"


def _revision_of(a: snapkv.SnapshotKV, write: Callable[[], int]) -> int:
    """Return the revision of a commit, by a way that leaves the store as it was."""
    write()
    kv = a._core.engine.get(a._core.layout.ts).kv
    assert kv is not None
    return kv.mod_revision


def updated(a: snapkv.SnapshotKV) -> None:
    assert a.update("k", lambda value: value + b"!").value == b"7!"


def conflicted(a: snapkv.SnapshotKV) -> None:
    with pytest.raises(snapkv.ConflictError):
        a.commit(puts={"gone": b""}, guards=[snapkv.AtRevision("gone", 1)])


READS: dict[str, Callable[[snapkv.SnapshotKV], object]] = {
    "load": lambda a: a.load("k"),
    "load with a timeout": lambda a: a.load("k", timeout=9),
    "load by relative time": lambda a: a.load("k", "+1h"),
    "get": lambda a: a.get("k"),
    "get what was removed": lambda a: a.get("gone"),
    "entry": lambda a: a.entry("k"),
    "entries_of one": lambda a: a.entries_of(["k"]),
    "entries_of": lambda a: a.entries_of(["k", "gone"]),
    "entries_of many": lambda a: a.entries_of(["k", *map(str, range(200))]),
    "load of a space": lambda a: a.space("s").load(b"k"),
    "load through a codec": loaded_typed,
    "load_with_prefix": lambda a: a.load_with_prefix("k"),
    "at": lambda a: a.at()["k"],
    "at a time": lambda a: a.at("+1h")["k"],
    "resolved": lambda a: a.resolved(),
    "health": lambda a: a.health(),
    "history": lambda a: list(a.history("k")),
    "newest versions": lambda a: list(a.history("k", newest_first=True, limit=1)),
    "commits": lambda a: list(a.commits()),
    "newest commits": lambda a: list(a.commits(newest_first=True, limit=1)),
    "diff": lambda a: list(a.diff(0)),
    "update": updated,
    "a guard that fails": conflicted,
    "tick": lambda a: a.tick(),
}
WHILE_WRITING: dict[str, Callable[[snapkv.SnapshotKV, Callable[[], int]], None]] = {
    "watch": watched,
    "a watch of other keys": watched_elsewhere,
    "at a revision": at_a_revision,
}


@pytest.mark.parametrize("way", [*READS, *WHILE_WRITING])
def test_whatever_was_read_is_earlier_than_the_next_commit_elsewhere(two: Two, way: str) -> None:
    if way in READS:
        two.write()
        READS[way](two.a)
    else:
        WHILE_WRITING[way](two.a, two.write)
    two.assert_later()


COMMITS: dict[str, Callable[[snapkv.SnapshotKV], int]] = {
    "commit": lambda b: b.commit(puts={"x": b"1"}).ts,
    "tick": lambda b: b.tick().ts,
    "update": lambda b: b.update("x", lambda _: b"1").commit.ts,
    "of a space": lambda b: b.space("s").commit(puts={b"x": b"1"}).ts,
    "with a guard": lambda b: b.commit(puts={"x": b"1"}, guards=[snapkv.Absent("x")]).ts,
    "final": lambda b: (b.at("-0s", final=True), b.resolved())[1],
}


@pytest.mark.parametrize("how", COMMITS)
def test_whatever_commits_is_later(two: Two, how: str) -> None:
    two.write()
    assert two.a.load("k") == b"7"
    two.assert_later(lambda: COMMITS[how](two.b))


@pytest.mark.parametrize(
    "options", [{"stats": True}, {"read_timeout": 9}, {"hooks": snapkv.Hooks()}]
)
def test_with_other_ways_of_reading(place: Place, options: dict) -> None:
    two = Two(place, **options)
    two.write()
    assert two.a.load("k") == b"7"
    two.assert_later()


def test_a_store_that_is_opened_later(two: Two, place: Place) -> None:
    two.write()
    assert two.a.at()["k"] == b"7"
    two.a.close()
    late = place.open(name="late")
    two.assert_later(lambda: late.save("x", b"1"))


def test_opening_is_reading(two: Two, place: Place) -> None:
    two.write()
    place.open(name="a").close()
    two.assert_later()


def test_observed_keys(two: Two, place: Place) -> None:
    two.write()
    with snapkv.observe(place.url, prefix=b"", name="a", **place.kind.options) as observed:
        assert observed.at().timestamp == two.ts
    two.assert_later()


def test_observed_keys_at_a_revision(two: Two, place: Place) -> None:
    with snapkv.observe(place.url, prefix=b"", name="a", **place.kind.options) as observed:
        revision = _revision_of(two.a, two.write)
        assert observed.at(revision=revision).timestamp == two.ts
    two.assert_later()


@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_observing_a_tick(two: Two, place: Place) -> None:
    with (
        snapkv.observe(place.url, prefix="", name="a", **place.kind.options) as observed,
        observed.watch() as watch,
    ):
        two.write()
        while watch.timestamp < two.ts:
            watch.next(WAIT_S)
    two.assert_later()


def test_a_store_with_a_clock_of_its_own_is_alone(two: Two, place: Place) -> None:
    other = place.open(name="other", clock=Fast(0))
    seen = two.write()
    two.a.at()
    assert other.save("x", b"1") < seen, "it follows none"
    other = place.open(name="a", clock=Fast(0))
    two.write()
    other.at()
    assert seen < two.b.save("x", b"1") <= two.ts, "and none follows it"


def test_a_store_far_ahead_drives_no_other_one(place: Place) -> None:
    a, b = place.open(name="a"), place.open(name="b")
    ahead = place.open(name="a", clock=Fast(3_600_000), max_clock_skew=1e6)
    ts = ahead.save("k", b"7")
    assert a.load("k") == b"7"
    assert b.save("x", b"1") <= pack(SystemClock().now_ms() + 1)
    assert b.tick().ts <= pack(SystemClock().now_ms() + 1)
    assert [a.save("k", b"8"), a.save("k", b"9")] == [ts + 1, ts + 2], "it counts on"
    assert b.save("x", b"1") <= pack(SystemClock().now_ms() + 1)


def test_a_token_from_outside(two: Two, place: Place) -> None:
    two.write()
    snapkv.commit_after(two.ts)
    two.assert_later()
    late = place.open(name="late")
    two.assert_later(lambda: late.save("x", b"1"))


# --- any order ---


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
