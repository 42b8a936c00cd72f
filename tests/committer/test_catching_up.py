"""What a commit costs whose process has read newer values from another store, and what can fail."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
from store.engines import Place
from store.wrapping import Counting, Intruding, wrap_engines

import snapkv
from snapkv import clock as clocks
from snapkv.base.concurrency import ThreadRuntime, runtime
from snapkv.base.waiting import bounded
from snapkv.clock import SharedFloor
from snapkv.errors import EngineUnavailableError
from snapkv.timeline import continuity

from .dependent import Fast, Two

WAIT_S = 20


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test be a process that has seen nothing."""
    monkeypatch.setattr(clocks, "_machine_floor", SharedFloor())


@pytest.fixture
def two(place: Place) -> Two:
    return Two(place)


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
    monkeypatch.setattr(continuity, "GAP_S", WAIT_S)  # a slow answer would cost one more read
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


class InALoop(ThreadRuntime):
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
