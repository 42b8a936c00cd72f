"""Fleets in a forked child: they go on there, with threads of their own, and watches end."""

import os
import sys
import time

import pytest

from snapkv.errors import StoreClosedError

from .following import taken
from .sites import WAIT_S

pytestmark = pytest.mark.forks


def in_child(body) -> str:
    """Return what a forked child returned; a child that hangs is killed."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            said = str(body())
        except BaseException as e:
            said = f"{type(e).__name__}: {e}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + WAIT_S
    try:
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
                raise AssertionError("the child hangs")
            time.sleep(0.02)
        return os.read(reading, 10_000).decode()
    finally:
        os.close(reading)


@pytest.fixture
def pair(sites):
    sites.add("a", "b", kind="lmdb")
    for store in sites.stores.values():
        store.save("k", b"1")
    fleet = sites.fleet()
    assert fleet.at().final  # the parent's connections and threads
    return fleet


@pytest.mark.slow
def test_a_child_reads_the_fleet_of_its_parent(sites, pair):
    moment = pair.at()
    ts = moment.timestamp

    def reads():
        assert dict(moment) == {("a", "k"): b"1", ("b", "k"): b"1"}
        assert pair.at(ts).token == moment.token
        assert len(list(pair.commits())) == 2
        with pair.watch(since=0) as watch:
            return len(taken(watch, 1)[0][1])

    assert in_child(reads) == "2"
    assert in_child(lambda: pair.resolved()) == str(ts)
    assert dict(moment) == {("a", "k"): b"1", ("b", "k"): b"1"}


@pytest.mark.slow
def test_a_watch_belongs_to_the_process_that_made_it(sites, pair):
    with pair.watch() as watch:

        def uses():
            try:
                watch.next(0)
            except StoreClosedError as e:
                return str(e)

        assert "make a new one in this process" in in_child(uses)
        assert in_child(watch.close) == "None"
        sites.later()
        ts = min(store.save("k", b"2") for store in sites.stores.values())
        assert [item[0] for item in taken(watch, 1)] == [ts], "the parent's goes on"


@pytest.mark.slow
def test_a_ticker_becomes_another_one(sites, pair):
    """Trap 11: rounds of a parent and its child are never taken for one."""
    with pair.ticker() as ticker:
        sites.later()
        first = ticker.tick()
        assert first.ticked == ("a", "b")
        sites.later()
        said = in_child(lambda: ticker.tick().ticked)
        assert said == "('a', 'b')"
        sites.later()
        assert ticker.tick().ticked == ("a", "b")
    metas = [c.meta for c in sites["a"].commits() if c.meta]
    assert [meta["fleet_round"] for meta in metas] == [1, 1, 2]
    tickers = [meta["fleet_ticker"] for meta in metas]
    assert tickers[0] == tickers[2] != tickers[1]
    assert "fleet_before" not in metas[1], "it knows no bounds of the parent's rounds"
    assert metas[2]["fleet_before"] == first.timestamp
