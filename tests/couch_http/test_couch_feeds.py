"""Feeds that wait: longpoll, continuous, eventsource; who waits is woken, and nobody is kept."""

import json
import threading
import time

import httpx
import pytest
from anyio import to_thread

from cdcmeta import ChangesDB
from cdcmeta.couch_http import Limits
from cdcmeta.couch_http import wakeup as waking
from cdcmeta.couch_http.wakeup import Wakeup

from .conftest import ENGINES
from .crowd import Crowd
from .served import WAIT_S, error_of

pytestmark = pytest.mark.slow

LONG_MS = 60_000


def until(condition, what: str) -> None:
    """Wait for what another thread brings about."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def waits(db) -> bool:
    """Return whether somebody waits for this database's next change."""
    waker = db.served.wakeups._by_name.get(db.lib.name)
    return waker is not None and waker.waiting > 0 and waker.version > 0


@pytest.mark.parametrize("served", ENGINES, indirect=True)
def test_continuous_tells_what_comes(db):
    db.lib.put({"_id": "before"})
    with db.feed(feed="continuous", timeout=LONG_MS) as feed:
        assert feed.row()["id"] == "before"
        for n in range(3):
            rev = db.lib.put({"_id": f"d{n}"}).rev
            row = feed.row()
            assert (row["id"], row["changes"]) == (f"d{n}", [{"rev": rev}])
        gone = db.lib.remove("d2", rev)
        row = feed.row()
        assert (row["seq"], row["deleted"]) == (str(gone.seq), True)


@pytest.mark.parametrize("served", ENGINES, indirect=True)
def test_longpoll_ends_with_what_comes(db):
    since = str(db.lib.put({"_id": "before"}).seq)
    with db.feed(feed="longpoll", since=since, timeout=LONG_MS) as feed:
        assert feed.line() == '{"results":['  # at once: proxies and clients see that it lives
        until(lambda: waits(db), "it does not wait")
        seq = str(db.lib.put({"_id": "a"}).seq)
        page = json.loads('{"results":[' + "".join(feed.rest()))
    assert [row["id"] for row in page["results"]] == ["a"]
    assert (page["last_seq"], page["pending"]) == (seq, 0)


def test_events_tell_what_comes(db):
    with db.feed(feed="eventsource", since="now", timeout=LONG_MS) as feed:
        until(lambda: waits(db), "it does not wait")
        seq = db.lib.put({"_id": "a"}).seq
        assert json.loads(feed.line().removeprefix("data: "))["id"] == "a"
        assert feed.line() == f'id: "{seq}"'
        assert feed.line() == ""


def test_since_now_is_the_now_of_the_request(db):
    """Not that of each time it wakes: what a filter passes over must not move it."""
    body = {"selector": {"wanted": True}}
    with db.feed(body, feed="continuous", filter="_selector", since="now", timeout=LONG_MS) as feed:
        until(lambda: waits(db), "it does not wait")
        for n in range(20):
            db.lib.bulk([{"_id": f"no{n}"}, {"_id": f"d{n}", "wanted": True}])
        assert [feed.row()["id"] for _ in range(20)] == [f"d{n}" for n in range(20)]


def test_longpoll_does_not_wake_for_what_the_filter_leaves_out(db):
    with db.feed(
        {"doc_ids": ["wanted"]}, feed="longpoll", filter="_doc_ids", since="now", timeout=LONG_MS
    ) as feed:
        assert feed.line() == '{"results":['
        until(lambda: waits(db), "it does not wait")
        db.lib.put({"_id": "other"})
        db.lib.local.put("checkpoint", {})
        db.lib.put({"_id": "wanted"})
        rows = [line for line in feed.rest() if "changes" in line]
    assert [json.loads(row)["id"] for row in rows] == ["wanted"]


def test_longpoll_times_out_with_nothing(db):
    seq = str(db.lib.put({"_id": "a"}).seq)
    began = time.monotonic()
    page = db.changes(feed="longpoll", since="now", timeout=200)
    assert time.monotonic() - began >= 0.2
    assert page == {"results": [], "last_seq": seq, "pending": 0}


def test_a_timeout_counts_from_the_last_row(db):
    with db.feed(feed="continuous", timeout=1_500) as feed:
        for n in range(4):
            time.sleep(0.6)
            db.lib.put({"_id": f"d{n}"})
        assert [feed.row()["id"] for _ in range(4)] == [f"d{n}" for n in range(4)]
        assert "last_seq" in feed.row()


@pytest.mark.parametrize(("feed", "beat"), [("longpoll", ""), ("continuous", "")])
def test_heartbeats(db, feed, beat):
    """They go on for longer than the timeout, which does not count beside them."""
    with db.feed(feed=feed, since="now", heartbeat=50, timeout=100) as feed:
        lines = [feed.line() for _ in range(5)]
        assert lines.count(beat) >= 4
        db.lib.put({"_id": "a"})
        assert '"a"' in next(line for line in iter(feed.line, None) if "changes" in line)


def test_heartbeats_of_events(db):
    with db.feed(feed="eventsource", since="now", heartbeat=50) as feed:
        assert [feed.line() for _ in range(3)] == ["event: heartbeat", "data: ", ""]


def test_heartbeats_while_a_filter_leaves_everything_out(own, monkeypatch):
    """Also when reading takes longer than a heartbeat: each step here waits for the test."""
    from cdcmeta.changes.feed import FeedWalk

    db = own().database()
    db.lib.bulk([{"_id": f"d{n}"} for n in range(50)])
    step, go = FeedWalk.step, threading.Semaphore(1)

    def slow(walk, rows_max):
        assert go.acquire(timeout=WAIT_S)
        return step(walk, rows_max)

    monkeypatch.setattr(FeedWalk, "step", slow)
    with db.feed({"selector": {"no": 1}}, feed="normal", filter="_selector", heartbeat=50) as feed:
        assert feed.line() == '{"results":['
        assert [feed.line() for _ in range(4)] == [""] * 4
        go.release(50)
        assert '"pending":0' in feed.rest()[-1]


@pytest.mark.parametrize("feed", ["longpoll", "continuous"])
def test_a_database_that_is_deleted_ends_its_feeds(db, feed):
    with db.feed(feed=feed, since="now", timeout=LONG_MS) as feed:
        until(lambda: waits(db), "it does not wait")
        db.lib.delete()
        assert '"last_seq"' in feed.rest()[-1]
    assert error_of(db.get("_changes", feed="continuous"))[0] == 404


@pytest.mark.parametrize("feed", ["longpoll", "continuous", "eventsource"])
def test_a_database_that_is_deleted_before_its_feed_begins(db, monkeypatch, feed):
    """It was there when the request came."""
    started = Wakeup.started

    async def late(*arguments):
        await to_thread.run_sync(db.lib.delete)
        return await started(*arguments)

    monkeypatch.setattr(Wakeup, "started", late)
    answer = db.get("_changes", feed=feed, timeout=LONG_MS)
    assert error_of(answer) == (404, "not_found", "Database does not exist.")


@pytest.mark.parametrize("feed", ["longpoll", "continuous"])
def test_a_database_that_is_not_there_when_its_waker_begins(db, monkeypatch, feed):
    """It is there again when the feed is read: that is a page, and its end, not half of one."""
    follower = ChangesDB.follower

    def early(changes, *args):
        changes.delete()
        try:
            return follower(changes, *args)
        finally:
            changes.create()

    monkeypatch.setattr(ChangesDB, "follower", early)
    with db.feed(feed=feed, timeout=LONG_MS) as feed:
        assert '"last_seq"' in feed.rest()[-1]


def test_a_recreated_database_is_another_one(db):
    with db.feed(feed="continuous", since="now", timeout=LONG_MS) as feed:
        until(lambda: waits(db), "it does not wait")
        db.lib.delete()
        db.lib.create()
        assert "last_seq" in feed.row()
    with db.feed(feed="continuous", since="now", timeout=LONG_MS) as feed:
        until(lambda: waits(db), "it does not wait")
        db.lib.put({"_id": "a"})
        assert feed.row()["id"] == "a"


def test_who_hangs_up_is_forgotten(db, monkeypatch):
    monkeypatch.setattr(waking, "LINGER_S", 0.1)
    wakeups = db.served.wakeups
    before = threading.active_count()
    with db.feed(feed="continuous", since="now", timeout=LONG_MS):
        until(lambda: waits(db), "it does not wait")
        waker = wakeups._by_name[db.lib.name]
    until(lambda: waker.waiting == 0, "it is still waited for")
    until(lambda: db.lib.name not in wakeups._by_name, "the waker is still there")
    until(lambda: not waker.thread.is_alive(), "its thread is still there")
    assert threading.active_count() <= before + 8  # threads that wait for calls


def test_a_waker_is_shared_and_used_again(db, monkeypatch):
    with db.feed(feed="continuous", since="now", timeout=LONG_MS) as one:
        until(lambda: waits(db), "it does not wait")
        waker = db.served.wakeups._by_name[db.lib.name]
        with db.feed(feed="continuous", since="now", timeout=LONG_MS) as two:
            until(lambda: waker.waiting == 2, "the second does not wait")
            db.lib.put({"_id": "a"})
            assert one.row()["id"] == two.row()["id"] == "a"
    db.changes(feed="longpoll", since="now", timeout=1)
    assert db.served.wakeups._by_name[db.lib.name] is waker


def test_a_store_that_fails_breaks_feeds_off(own, monkeypatch):
    """Half a page is never taken for a whole one."""
    from cdcmeta.changes.feed import DatabaseFollower
    from snapkv.errors import EngineUnavailableError

    db = own().database()
    failing = threading.Event()
    wait = DatabaseFollower.next_within

    def fails(follower, timeout):
        if failing.is_set():
            raise EngineUnavailableError("no etcd at hand")
        return wait(follower, 0.02)

    monkeypatch.setattr(DatabaseFollower, "next_within", fails)
    url = f"{db.served.server.url}{db.lib.name}/_changes?feed=longpoll&since=now"
    with httpx.Client(timeout=WAIT_S) as http, http.stream("GET", url) as answer:
        lines = answer.iter_lines()
        assert next(lines) == '{"results":['
        failing.set()
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    failing.clear()
    with db.feed(feed="continuous", since="now", timeout=LONG_MS) as feed:  # and comes again
        until(lambda: waits(db), "it does not wait")
        db.lib.put({"_id": "a"})
        assert feed.row()["id"] == "a"


def test_two_hundred_who_wait_are_all_woken(own):
    """By one thread for all of them; each is told of each of three commits."""
    served = own()
    db = served.database()
    since = str(db.lib.put({"_id": "before"}).seq)
    threads = threading.active_count()
    crowd = Crowd(served.server.port, f"/{db.lib.name}/_changes?feed=longpoll", 200, rounds=3)

    def write() -> None:
        for n in range(3):
            crowd.all_wait()
            db.lib.put({"_id": f"d{n}"})

    writer = threading.Thread(target=write)
    writer.start()
    seen = crowd.run(since)
    writer.join(WAIT_S)
    assert seen == [["d0", "d1", "d2"]] * 200
    limits = Limits()
    assert threading.active_count() <= threads + 1 + limits.readers + limits.callers


def test_a_server_that_stops_ends_its_feeds(own):
    db = own().database()
    with (
        db.feed(feed="continuous", since="now", heartbeat="true") as lines,
        db.feed(feed="longpoll", since="now", heartbeat="true") as page,
    ):
        until(lambda: waits(db), "it does not wait")
        began = time.monotonic()
        db.served.stop()
        assert time.monotonic() - began < Limits().stop_s
        assert "last_seq" in lines.row()
        assert '"last_seq"' in page.rest()[-1]
