"""Two stores of one process: a commit that depends on what was read elsewhere is later."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

import snapkv
from snapkv import clock as clocks
from snapkv import codecs
from snapkv.clock import SharedFloor, SystemClock, bounded
from snapkv.concurrency import Threads, runtime
from snapkv.errors import EngineUnavailableError
from snapkv.times import pack

from .engines import Place
from .wrapping import Counting, Intruding, wrap_engines

WAIT_S = 20
AHEAD_MS = 1_000
"""How far the other writer's clock is ahead: more than a test takes between two commits."""


class Fast:
    """The clock of another machine."""

    def __init__(self, ahead_ms: int = AHEAD_MS) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_ms


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test be a process that has seen nothing."""
    monkeypatch.setattr(clocks, "_machine_floor", SharedFloor())


class Two:
    """Stores `a` and `b` of this process, and another writer of `a` with a faster clock."""

    def __init__(self, place: Place, **options) -> None:
        self.fast = place.open(name="a", clock=Fast())
        self.fast.multi_save({"k": b"old", "gone": b"old"})
        self.fast.space("s").commit(puts={b"k": b"old"})
        self.a = place.open(name="a", **options)
        self.b = place.open(name="b")
        self.ts = 0

    def write(self) -> int:
        """Commit on `a` in the other process; return the timestamp."""
        spaces = {"s": snapkv.SpaceOps(puts={b"k": b"7"})}
        ops = snapkv.Ops(puts={"k": b"7"}, deletes=["gone"], spaces=spaces)
        self.ts = self.fast.commit(lambda _: ops).ts
        return self.ts

    def assert_later(self, commit: Callable[[], int] | None = None) -> None:
        """Commit on `b`, which has to be later than what was read from `a`."""
        assert self.ts > pack(SystemClock().now_ms()), "else the clock alone would do"
        ts = self.b.save("x", b"1") if commit is None else commit()
        assert ts > self.ts


@pytest.fixture
def two(place: Place, monkeypatch: pytest.MonkeyPatch) -> Two:
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
    two.write()
    two.a.at()
    assert other.save("x", b"1") < two.ts
    other = place.open(name="a", clock=Fast(0))
    two.write()
    other.at()
    assert two.b.save("x", b"1") > two.ts - pack(AHEAD_MS)


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


# --- what it costs ---


class Costs(Two):
    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch, wrapper=Counting) -> None:
        with monkeypatch.context() as patch:
            engines = wrap_engines(patch, wrapper)
            super().__init__(place)
        self.at_a, self.at_b = engines[-2:]

    def during(self, action: Callable[[], object]) -> tuple[dict, dict]:
        """Return the calls on the engines of `a` and of `b`."""
        costs: dict = {}
        of_a = self.at_a.during(lambda: costs.update(self.at_b.during(action)))
        return of_a, costs


@pytest.fixture
def costs(place: Place, monkeypatch: pytest.MonkeyPatch) -> Costs:
    costs = Costs(place, monkeypatch)
    costs.a.load("k")
    costs.b.save("x", b"0")
    return costs


def save(costs: Costs) -> tuple[dict, dict]:
    return costs.during(lambda: costs.b.save("x", b"1"))


def test_a_new_value_costs_the_next_commit_elsewhere_one_read(costs: Costs) -> None:
    costs.write()
    assert costs.during(lambda: costs.a.load("k")) == ({"read": 1}, {})
    assert save(costs) == ({"read": 1}, {"transact": 1})
    assert [save(costs) for _ in range(3)] == [({}, {"transact": 1})] * 3
    for _ in range(3):
        costs.a.load("k")
        assert save(costs) == ({}, {"transact": 1}), "nothing new was read"


def test_reads_with_the_newest_time_cost_nothing(costs: Costs) -> None:
    for read in (lambda a: a.at()["k"], lambda a: a.resolved(), lambda a: list(a.history("k"))):
        costs.write()
        read(costs.a)
        assert save(costs) == ({}, {"transact": 1})


def test_an_old_value_costs_nothing_while_other_keys_change(costs: Costs) -> None:
    for _ in range(3):
        costs.fast.save("other", b"")
        costs.a.entries_of(["k"])
        costs.a.load("k")
        assert save(costs) == ({}, {"transact": 1})


def test_an_absent_key_costs_one_read_after_each_change(costs: Costs) -> None:
    costs.fast.save("other", b"")
    costs.a.get("absent")
    assert save(costs) == ({"read": 1}, {"transact": 1})
    costs.a.get("absent")
    assert save(costs)[1] == {"transact": 1}


def test_the_own_store_is_not_read(costs: Costs) -> None:
    costs.write()
    costs.a.load("k")
    of_a, of_b = costs.during(lambda: costs.a.save("k", b"8"))
    assert (set(of_a), of_b) == ({"transact"}, {}), "on etcd the faster clock costs a round"
    assert not clocks._machine_floor.unmarked
    assert save(costs) == ({}, {"transact": 1}), "its commit is the newest"


def test_a_store_alone_costs_as_always(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = wrap_engines(monkeypatch, Counting)
    fast, alone = place.open(clock=Fast()), place.open()
    for _ in range(3):
        fast.save("k", b"7")
        assert engines[-1].during(lambda: alone.load("k")) == {"read": 1}
        assert set(engines[-1].during(lambda: alone.save("x", b"1"))) == {"transact"}


# --- what can go wrong ---


class Away(Counting):
    """A server that does not answer, once `away` is set; notes how long it is waited for."""

    away = False
    waits: tuple[float, ...] = ()

    def __getattr__(self, name):
        found = super().__getattr__(name)
        if name != "read" or not self.away:
            return found

        def read(*args, **options):
            self.waits += (bounded(60.0),)
            raise EngineUnavailableError("no answer")

        return read


def test_a_store_that_does_not_answer_fails_no_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs(place, monkeypatch, Away)
    for timeout, longest in ((9, 1.0), (0.5, 0.5)):
        costs.write()
        costs.a.load("k")
        costs.at_a.away, costs.at_a.waits = True, ()
        costs.b.commit(puts={"x": b"1"}, timeout=timeout)
        assert costs.at_a.waits
        assert max(costs.at_a.waits) <= longest
        costs.at_a.waits = ()
        assert save(costs) == ({}, {"transact": 1}), "it is not tried at each commit"
        assert costs.at_a.waits == ()
        costs.at_a.away = False


def test_a_store_that_was_closed_fails_no_commit(two: Two) -> None:
    two.write()
    two.a.load("k")
    two.a.close()
    two.b.save("x", b"1")


def test_a_store_that_is_left_is_forgotten(two: Two, place: Place) -> None:
    unmarked = clocks._machine_floor.unmarked
    left = snapkv.open(place.url, name="a", **place.kind.options)
    two.write()
    left.load("k")
    assert len(unmarked) == 1
    left.close()
    assert not unmarked


def test_a_store_that_was_never_closed_is_forgotten(two: Two, place: Place) -> None:
    left = snapkv.open("memory:", name="a")
    with snapkv.open_on(left._core.engine, name="a", clock=Fast()) as fast:
        fast.save("k", b"7")
        left.load("k")
        assert len(clocks._machine_floor.unmarked) == 1
        del left
        gc.collect()
        two.b.save("x", b"1")
        assert not clocks._machine_floor.unmarked


class InALoop(Threads):
    place = "a loop"


def test_a_loop_does_not_read_a_store_of_threads(costs: Costs) -> None:
    costs.write()
    costs.a.load("k")
    token = runtime.set(InALoop())
    try:
        assert save(costs) == ({}, {"transact": 1})
    finally:
        runtime.reset(token)
    assert save(costs) == ({"read": 1}, {"transact": 1})


@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_a_call_that_joins_another_ones_transaction(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's timestamp must be larger than what each of its callers has read."""
    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, Intruding)
        two = Two(place)
    commits: list[snapkv.Commit] = []

    def second() -> None:
        two.write()
        assert two.a.load("k") == b"7"
        commits.append(two.b.commit(puts={"y": b"2"}))

    joins = threading.Thread(target=second)

    def intrude() -> None:
        engines[-1].intrude = lambda: None
        joins.start()
        waited = threading.Event()
        for _ in range(2_000):
            if two.b._core.committer.waiting > 1:
                return
            waited.wait(0.01)

    engines[-1].intrude = intrude
    commits.append(two.b.commit(puts={"x": b"1"}))
    joins.join(WAIT_S)
    assert commits[0].ts == commits[1].ts, "both are in one transaction"
    assert commits[0].ts > two.ts
