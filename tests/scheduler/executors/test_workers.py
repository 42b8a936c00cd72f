"""Calls that hang, and many queues: other tables go on, and memory has a bound."""

import threading
from functools import partial

import pytest

import snapkv
from cdcmeta.scheduler.executors import changefeed_executor
from cdcmeta.scheduler.executors.contracts import CalledWriter
from cdcmeta.scheduler.executors.pipeline import QueueBudget

from .driving import WAIT_S, Driven, Noting

pytestmark = pytest.mark.slow

TABLES = [f"t{n}/" for n in range(12)]


@pytest.fixture
def source():
    with snapkv.open("memory:") as store:
        yield store


def test_more_calls_hang_than_there_are_threads(source, monkeypatch):
    monkeypatch.setattr(changefeed_executor, "HUNG_S", 0.1)
    noting, go_on = Noting(), threading.Event()
    hung = TABLES[:10]
    noting.before = lambda table, checkpoint: table not in hung or go_on.wait(WAIT_S)
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    driven.start(source.resolved())
    ts = source.commit(puts={f"{table}a": b"1" for table in TABLES}).ts
    driven.until(  # an agent asks so at each heartbeat, and nothing else happens
        lambda: driven.executor.laggards() and driven.checkpoint("t11/") >= ts, "t11/"
    )
    assert driven.checkpoint("t10/") >= ts
    go_on.set()
    driven.reach(ts)
    assert len(noting.calls) == len(TABLES)
    threads = driven.executor._workers._threads
    driven.until(
        lambda: source.save("t11/b", b"1") and len(threads) <= changefeed_executor.THREADS + 1,
        "the threads too many to end",
    )
    driven.close()


def test_hung_threads_have_a_bound(source, monkeypatch):
    monkeypatch.setattr(changefeed_executor, "HUNG_S", 0.0)
    monkeypatch.setattr(changefeed_executor, "THREADS_MAX", 6)
    noting, go_on = Noting(), threading.Event()
    noting.before = lambda table, checkpoint: go_on.wait(WAIT_S)
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    driven.start(source.resolved())
    ts = source.commit(puts={f"{table}a": b"1" for table in TABLES}).ts
    threads = driven.executor._workers._threads
    driven.until(lambda: driven.executor.laggards() and len(threads) == 6, "six threads")
    driven.executor.laggards()
    assert len(threads) == 6
    go_on.set()
    driven.reach(ts)
    driven.close()


def test_all_queues_together_have_a_bound(source, monkeypatch):
    """Each table keeps one commit at most once the room is used up, and gets the rest later."""
    noting, go_on = Noting(), threading.Event()
    noting.before = lambda table, checkpoint: go_on.wait(WAIT_S)
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    room = driven.executor._room = QueueBudget(bytes_max=10_000)
    driven.start(source.resolved())
    for n in range(200):
        source.save(f"{TABLES[n % len(TABLES)]}{n}", b"x" * 1_000)
    driven.until(lambda: room.is_full, "the room to be used up")
    assert room._used <= 10_000 + len(TABLES) * (1_000 + len("t11/199"))
    go_on.set()
    driven.reach(source.resolved())
    assert noting.content() == dict(source.at().items())
    assert room._used == 0
    driven.close()


def test_the_room_is_given_back_when_tables_stop(source):
    noting = Noting()
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    driven.start(source.resolved())
    go_on = threading.Event()
    noting.before = lambda table, checkpoint: go_on.wait(WAIT_S)
    for n in range(50):
        source.save(f"t0/{n}", b"x")
    room = driven.executor._room
    driven.until(lambda: room._used, "commits to wait")
    driven.executor.stop()
    go_on.set()
    driven.until(lambda: driven.executor.is_stopped, "the end")
    assert room._used == 0
    driven.close()
