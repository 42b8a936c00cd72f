"""Rounds: one timestamp for all members at once, and what becomes of it on each."""

import threading

import pytest

import snapkv
from snapkv.errors import InvalidOptionError, InvalidTypeError, StoreClosedError, StoreNotFoundError
from snapkv.fleet import Round, Ticker
from snapkv.fleet.tick_rounds import BEFORE, ROUND, SPREAD, TICKER, WITHOUT
from snapkv.times import pack

from .histories import PREFIX
from .sites import WAIT_S, eventually


def metas_of(store):
    """The metas of the ticks of rounds, by the times of these."""
    found = {each.ts: each.meta for each in store.commits()}
    return {ts: meta for ts, meta in found.items() if meta and TICKER in meta}


@pytest.fixture
def ticked(sites):
    """Two members, and what ticks them."""
    sites.add("a", "b")
    fleet = sites.fleet()
    return fleet, sites.keep(fleet.ticker())


# --- a round ---


def test_all_members_get_the_same_timestamp(sites, ticked):
    fleet, ticker = ticked
    before = None
    for n in range(4):
        now = sites.later()
        made = ticker.tick()
        assert isinstance(made, Round)
        assert made.timestamp == now
        assert (made.ticked, made.refused, made.failed) == (("a", "b"), {}, {})
        assert made.spread >= 0
        assert {store.resolved() for store in sites.stores.values()} == {now}
        assert fleet.resolved() == now
        metas = [metas_of(store)[now] for store in sites.stores.values()]
        assert metas[0] == metas[1]
        assert metas[0][ROUND] == n + 1
        if before is not None:
            assert metas[0][BEFORE] == before.timestamp
            assert metas[0][SPREAD] == round(before.spread * 1e6)
            assert WITHOUT not in metas[0]
        else:
            assert set(metas[0]) == {ROUND, TICKER}
        before = made


def test_rounds_of_one_millisecond_rise(sites, ticked):
    _, ticker = ticked
    stamps = [ticker.tick().timestamp for _ in range(5)]
    assert stamps == [pack((sites.now >> 18) + n) for n in range(5)]


def test_a_round_is_after_all_that_the_fleet_has_ticked(sites):
    sites.add("a", "b")
    fleet = sites.fleet()
    with fleet.ticker() as one, fleet.ticker() as two:
        stamps = [ticker.tick().timestamp for _ in range(3) for ticker in (one, two)]
    assert stamps == sorted(set(stamps))
    assert len(metas_of(sites["a"])) == 6
    assert {meta[ROUND] for meta in metas_of(sites["a"]).values()} == {1, 2, 3}


def test_a_member_that_is_ahead_takes_part_in_the_next_round(sites, ticked):
    _, ticker = ticked
    ticker.tick()
    sites.later()
    ahead = sites["b"].commit(puts={"k": b"1"}).ts
    sites.clock.advance(-5)
    made = ticker.tick()
    assert (made.ticked, made.refused, made.failed) == (("a",), {"b": ahead}, {})
    assert sites["b"].resolved() == ahead, "nothing was written there"
    again = ticker.tick()
    assert again.ticked == ("a", "b")
    assert again.timestamp > ahead
    assert metas_of(sites["a"])[again.timestamp][WITHOUT] == "b"


@pytest.mark.filterwarnings("ignore::snapkv.errors.ClockWarning")
def test_a_member_whose_clock_is_far_ahead_drives_nobody(sites, ticked):
    """Trap 10."""
    fleet, ticker = ticked
    hour = snapkv.ManualClock(sites.clock.now_ms() + 3_600_000)
    ahead = sites.open("b", clock=hour).save("k", b"1")
    for _ in range(3):
        now = sites.later()
        made = ticker.tick()
        assert made.timestamp == now
        assert (made.ticked, list(made.refused)) == (("a",), ["b"])
        assert made.refused["b"] >> 18 == ahead >> 18
    assert fleet.at(now).final
    sites.clock.set(hour.now_ms() + 1_000)
    assert ticker.tick().ticked == ("a", "b")


@pytest.mark.parametrize("mode", ["away", "hung"])
def test_a_member_that_does_not_answer(sites, servers, mode):
    sites.add("a", "b")
    fleet = sites.fleet()
    with fleet.ticker() as ticker:
        first = ticker.tick()
        servers.set(sites.urls["b"], mode)
        for _ in range(2):
            sites.later()
            made = ticker.tick(timeout=0.2)
            assert made.ticked == ("a",)
            assert list(made.failed) == ["b"]
            assert made.spread < 0.2, "of those that have answered"
        assert metas_of(sites["a"])[made.timestamp][WITHOUT] == "b"
        assert sites["b"].resolved() == first.timestamp
        servers.set(sites.urls["b"], "here")
        sites.later()

        def answers():
            sites.later()
            return ticker.tick().ticked == ("a", "b")

        eventually(answers)


def test_a_tick_that_is_on_its_way_is_not_waited_for(sites, monkeypatch):
    sites.add("a", "b")
    let_go, left, tick = threading.Event(), [], Ticker._tick

    def slow(self, store, member, *round):
        if member.name == "b" and not let_go.wait(WAIT_S):
            left.append("b")
        return tick(self, store, member, *round)

    with sites.fleet().ticker() as ticker:
        monkeypatch.setattr(Ticker, "_tick", slow)
        ticker.tick(timeout=0.05)
        eventually(lambda: any(sent.done() for sent in ticker._sent.values()))
        sites.later()
        made = ticker.tick(timeout=2 * WAIT_S)
        let_go.set()
        assert (made.ticked, made.failed) == (("a",), {"b": "it has not answered yet"})
        assert left == [], "b has stopped waiting first"


def test_a_member_that_was_never_there(sites, servers):
    sites.add("a", "b")
    servers.set(sites.urls["b"], "away")
    with sites.fleet().ticker() as ticker:
        made = ticker.tick()
        assert (made.ticked, made.failed) == (("a",), {"b": "connection refused"})
        servers.set(sites.urls["b"], "here")
        assert ticker.tick().ticked == ("a", "b")


def test_names_that_are_too_long_for_a_tick(sites, servers):
    names = [f"{n}-{'x' * 240}" for n in range(15)]
    sites.add("a", *names)
    for name in names:
        servers.set(sites.urls[name], "away")
    with sites.fleet().ticker() as ticker:
        ticker.tick()
        sites.later()
        ticker.tick()
    assert [meta.get(WITHOUT) for meta in metas_of(sites["a"]).values()] == [None, "*"]


# --- who is ticked ---


def test_stores_that_do_not_exist_are_created(sites):
    fleet = sites.fleet({"a": "memory:site-new-a", "b": "memory:site-new-b"})
    sites.urls |= {"a": "memory:site-new-a", "b": "memory:site-new-b"}
    with pytest.raises(StoreNotFoundError):
        snapkv.open("memory:site-new-a", create=False)
    with fleet.ticker(writer="rounds@test") as ticker:
        made = ticker.tick()
    assert made.ticked == ("a", "b")
    assert fleet.at().timestamp == made.timestamp
    (commit,) = sites.open("a").commits()
    assert commit.writer == "rounds@test"


def test_two_prefixes_of_one_store_get_one_tick(sites):
    sites.add("a", "b")
    fleet = sites.fleet(
        {
            "one": sites.described_as("a", prefix="/one/"),
            "two": sites.described_as("a", prefix="/two/"),
            "b": sites.urls["b"],
        }
    )
    with fleet.ticker() as ticker:
        stamps = []
        for _ in range(3):
            sites.later()
            made = ticker.tick()
            assert made.ticked == ("b", "one", "two")
            stamps.append(made.timestamp)
    assert [commit.ts for commit in sites["a"].commits()] == stamps


def test_archives_and_open_stores_are_not_ticked(sites):
    sites.add("a", "b")
    sites["a"].save("k", b"1")
    archive = f"archive:{sites.archive('a')}"
    fleet = sites.fleet({"kept": archive, "b": sites.urls["b"]})
    with fleet.ticker() as ticker:
        assert ticker.tick().ticked == ("b",)
    with pytest.raises(InvalidOptionError, match="no member has an engine"):
        sites.fleet({"kept": archive}).ticker()
    with pytest.raises(InvalidOptionError, match="by its url") as e:
        sites.fleet({"a": sites["a"], "b": sites.urls["b"]}).ticker()
    assert e.value.member == "a"
    sites.later()
    with sites.fleet({"a": sites["a"], "b": sites.urls["b"]}).ticker(members="b") as ticker:
        assert ticker.tick().ticked == ("b",)


def test_arguments_of_tickers(sites, ticked):
    fleet, ticker = ticked
    with pytest.raises(InvalidOptionError):
        fleet.ticker(members="x")
    for timeout in (-1, "1", None):
        with pytest.raises((InvalidOptionError, InvalidTypeError), match="timeout"):
            ticker.tick(timeout=timeout)
    with pytest.raises(InvalidOptionError, match="512"):
        sites.fleet({f"m{n}": f"memory:site-none-{n}" for n in range(513)}).ticker()


def test_a_closed_ticker_says_so(sites, ticked):
    fleet, ticker = ticked
    ticker.tick()
    ticker.close()
    ticker.close()
    with pytest.raises(StoreClosedError, match="ticker was closed"):
        ticker.tick()
    assert fleet.at().final, "the fleet is still open"


def test_members_of_observed_prefixes_are_final_where_they_were_ticked(sites):
    sites.add("a", "b")
    fleet = sites.fleet(sites.described(prefix=PREFIX))
    with fleet.ticker() as ticker:
        made = ticker.tick()
    moment = fleet.at()
    assert moment.final
    assert moment.timestamp == made.timestamp
