"""Captures as real processes, under load: killed, stopped, drained, hung, restarted.

What the sink got is checked from its own ledger, which shares no code with the scheduler.
"""

import random
import signal
from contextlib import ExitStack
from functools import partial

import pytest
from etcd_server import EtcdProxy, eventually, shared_pool
from sampling import SOAK

import snapkv
from cdcmeta.scheduler.runtime import Changefeeds

from . import ledger
from .fleet import TTL_S, WAIT_S, Fleet, Load, check_checkpoints, leader, source_content, until_same

pytestmark = pytest.mark.slow

TABLES = [f"t{n:02}/" for n in range(12)]
LABELS = ["c1", "c2", "c3"]


@pytest.fixture
def seed():
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    return seed


def on(*engines):
    """Run on these engines, under `make soak` on both."""
    return pytest.mark.parametrize("url", ["lmdb", "etcd"] if SOAK else engines, indirect=True)


@pytest.fixture
def url(request, tmp_path):
    if request.param == "lmdb":
        yield f"lmdb:{tmp_path / 'meta'}"
        return
    with shared_pool().taken() as server:
        yield server.url


@pytest.fixture
def fleet(url, tmp_path):
    with Fleet(url, tmp_path) as fleet:
        yield fleet


@pytest.fixture
def store(url):
    """The store of the records and of the data."""
    with snapkv.open(url) as store:
        yield store


@pytest.fixture
def feeds(store):
    return Changefeeds(store)


def begin(fleet, store, feeds, labels, **urls):
    """Start captures, then a changefeed of all tables, and wait until they share them."""
    for label in labels:
        fleet.start(label, **({"url": urls[label]} if label in urls else {}))
    eventually(lambda: registered(feeds) == set(labels), "all captures", wait_s=WAIT_S)
    for table in TABLES:
        store.save(f"{table}first", b"1")
    start = store.resolved()
    feeds.create("all", fleet.url, "call:ledger", TABLES, start=start, with_state=True)
    eventually(lambda: settled(feeds, labels), "all tables to be placed", wait_s=WAIT_S)


def registered(feeds):
    return {said.label for said in feeds.captures().values()}


def is_registered(feeds, label):
    return label in registered(feeds)


def is_registered_or_ended(feeds, fleet, label):
    return is_registered(feeds, label) or fleet.processes[label].poll() is not None


def placed(feeds):
    """By table, the label of the capture that is on record."""
    alive = feeds.captures()
    return {
        each.table: alive[each.capture].label
        for each in feeds.places("all")
        if each.capture in alive
    }


def settled(feeds, labels):
    """Whether these captures share all tables evenly."""
    found = list(placed(feeds).values())
    counts = {label: found.count(label) for label in labels}
    return len(found) == len(TABLES) and max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.long
@on("lmdb")
def test_killed_stopped_drained_and_restarted(fleet, store, feeds, seed):
    begin(fleet, store, feeds, LABELS)
    with Load(store, TABLES, seed) as load:
        # the owner dies
        first = leader(store)
        fleet.kill(first)
        rest = [label for label in LABELS if label != first]
        eventually(lambda: leader(store) in rest, "another owner", wait_s=WAIT_S)
        eventually(
            lambda: set(placed(feeds).values()) == set(rest) and len(placed(feeds)) == len(TABLES),
            "the others to take over",
            wait_s=WAIT_S,
        )
        fleet.start(first)
        # one sleeps past the end of its session, and wakes up in the middle of what it did
        sleeper = next(label for label in rest if label != leader(store))
        fleet.signal(sleeper, signal.SIGSTOP)
        eventually(lambda: sleeper not in registered(feeds), "its session to end", wait_s=WAIT_S)
        eventually(
            lambda: sleeper not in placed(feeds).values() and len(placed(feeds)) == len(TABLES),
            "its tables to move",
            wait_s=WAIT_S,
        )
        fleet.signal(sleeper, signal.SIGCONT)
        if fleet.processes[sleeper].poll() is None:
            eventually(
                lambda: sleeper in registered(feeds) or fleet.processes[sleeper].poll() is not None,
                "it to register again, or to end because a write hung",
                wait_s=WAIT_S,
            )
        # a drain, then a rolling restart
        drained = next(label for label in registered(feeds) if label != leader(store))
        feeds.drain(drained)
        eventually(lambda: drained not in placed(feeds).values(), "the drain", wait_s=WAIT_S)
        for label in sorted(fleet.processes):
            has_started = partial(is_registered_or_ended, feeds, fleet, label)
            eventually(has_started, "the start", wait_s=WAIT_S)
            if fleet.processes[label].poll() is None:
                assert fleet.end(label) == 0
            fleet.start(label)
            has_restarted = partial(is_registered, feeds, label)
            eventually(has_restarted, "the restart", wait_s=WAIT_S)
    until_same(fleet, store, TABLES, "the sink to have what the source has")
    ledger.check(fleet.ledger, TABLES)
    for table, commits in load.commits.items():
        assert commits
        assert not ledger.missing(fleet.ledger, table, commits)
    assert len(check_checkpoints(store, "all")) > 3
    reasons = {each.why for table in TABLES for each in feeds.history("all", table)}
    assert any(why.endswith("is gone") for why in reasons)
    assert any(why.endswith("is drained") for why in reasons)


@pytest.mark.long
@on("lmdb")
def test_a_sink_that_hangs_ends_its_process_and_nothing_else(fleet, store, feeds, seed):
    begin(fleet, store, feeds, LABELS[:2])
    holder = placed(feeds)["t00/"]
    (other,) = set(LABELS[:2]) - {holder}
    ledger.hang(fleet.ledger, "t00/")
    store.save("t00/hangs", b"1")
    ts = store.save("t01/lives", b"1")
    eventually(
        lambda: not ledger.missing(fleet.ledger, "t01/", [ts]), "other tables", wait_s=WAIT_S
    )
    # its session ends while the call hangs: the process must end before another one writes
    fleet.signal(holder, signal.SIGTERM)
    assert fleet.processes.pop(holder).wait(WAIT_S) == 75
    ledger.unhang(fleet.ledger, "t00/")
    until_same(fleet, store, TABLES, "the other capture to take over")
    assert set(placed(feeds).values()) == {other}
    ledger.check(fleet.ledger, TABLES)


def test_a_capture_cut_off_from_its_store_stops_writing(tmp_path, seed):
    with ExitStack() as stack:
        server = stack.enter_context(shared_pool().taken())
        proxy = stack.enter_context(EtcdProxy(server))
        fleet = stack.enter_context(Fleet(server.url, tmp_path))
        store = stack.enter_context(snapkv.open(server.url))
        feeds = Changefeeds(store)
        begin(fleet, store, feeds, LABELS[:2], c2=proxy.url)
        with Load(store, TABLES, seed):
            proxy.pause()
            eventually(lambda: set(placed(feeds).values()) == {"c1"}, "one to go on", wait_s=WAIT_S)
            proxy.resume()
            eventually(lambda: registered(feeds) == {"c1", "c2"}, "the other again", wait_s=WAIT_S)
        until_same(fleet, store, TABLES, "the sink to have what the source has")
        ledger.check(fleet.ledger, TABLES)
        check_checkpoints(store, "all")


@pytest.mark.long
@on("etcd")
def test_the_recovery_of_a_lost_capture_is_bounded(fleet, store, feeds):
    begin(fleet, store, feeds, LABELS[:2])
    (victim,) = set(LABELS[:2]) - {leader(store)}
    before = source_content(store)
    fleet.kill(victim)
    for table in TABLES:
        store.save(f"{table}after", b"2")
    assert source_content(store) != before
    # session, grace, a look at the sessions, and slack for a busy machine
    until_same(fleet, store, TABLES, "all tables again", wait_s=TTL_S + 1 + 10)
    ledger.check(fleet.ledger, TABLES)
