"""`_db_updates`: databases that were created, updated and deleted."""

import threading

import httpx
import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.couch_http import database_routes
from snapkv.errors import EngineUnavailableError

from .served import WAIT_S, error_of

pytestmark = pytest.mark.slow


@pytest.fixture
def http(own):
    return own()


def page(served, **query) -> dict:
    answer = served.http.get("/_db_updates", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def rows(found: dict) -> list[tuple[str, str]]:
    return [(row["db_name"], row["type"]) for row in found["results"]]


def test_what_became_of_databases(http):
    a, b, c = (ChangesDB(http.store, name).create() for name in "abc")
    start = page(http)
    assert sorted(rows(start)) == [("a", "created"), ("b", "created"), ("c", "created")]
    assert rows(page(http, since=start["last_seq"])) == []
    b.put({"_id": "x"})
    a.put({"_id": "x"})
    c.delete()
    ChangesDB(http.store, "d").create()
    found = page(http, since=start["last_seq"])
    assert rows(found)[:2] == [("b", "updated"), ("a", "updated")]
    assert sorted(rows(found)[2:]) == [("c", "deleted"), ("d", "created")]
    assert rows(page(http, since=found["last_seq"])) == []
    first = page(http, since=start["last_seq"], limit=1)
    assert rows(first) == [("b", "updated")]
    assert first["last_seq"] == first["results"][0]["seq"]
    assert rows(page(http, since=first["last_seq"]))[0] == ("a", "updated")
    assert rows(page(http, since="now")) == []
    assert page(http, limit=0)["results"] == []


def test_a_limit_never_parts_what_one_moment_brought(http):
    """Deletions that one question finds have one timestamp: a part of them would be lost."""
    databases = [ChangesDB(http.store, name).create() for name in "abc"]
    start = page(http)["last_seq"]
    for db in databases:
        db.delete()
    found = page(http, since=start, limit=1)
    assert sorted(rows(found)) == [(name, "deleted") for name in "abc"]
    assert rows(page(http, since=found["last_seq"])) == []


def test_an_empty_database_keeps_its_place(http):
    assert http.http.put("/a%2Fb").status_code == 201
    (first,) = page(http)["results"]
    other = ChangesDB(http.store, "a").create()
    other.put({})
    found = page(http)
    assert rows(found) == [("a/b", "created"), ("a", "created")]
    assert found["results"][0] == first
    other.put({})
    assert page(http)["results"][0] == first
    assert rows(page(http, since=first["seq"])) == [("a", "created")]


def test_pages_of_a_follower_have_each_update_once(http):
    """Other databases are written between two pages."""
    busy = ChangesDB(http.store, "busy").create()
    for name in "cba":
        ChangesDB(http.store, name).create()
    busy.put({})
    since, seen = "0", []
    while found := page(http, since=since, limit=1):
        if not found["results"]:
            break
        assert len(found["results"]) == 1
        assert found["last_seq"] == found["results"][0]["seq"]
        seen, since = seen + rows(found), found["last_seq"]
        if len(seen) < 3:
            busy.put({})
    assert seen == [("c", "created"), ("b", "created"), ("a", "created"), ("busy", "updated")]


def test_a_database_that_was_created_again(http):
    db = ChangesDB(http.store, "a").create()
    since = page(http)["last_seq"]
    db.delete()
    db.create()
    found = page(http, since=since)
    assert rows(found) == [("a", "created")]
    assert int(since) < int(found["results"][0]["seq"]) <= int(found["last_seq"])
    assert rows(page(http, since=found["results"][0]["seq"])) == []


def test_a_database_that_was_moved_here_comes_after_what_was_before(http):
    """Its rows are older than its creation here."""
    with snapkv.open("memory:") as source:
        db = ChangesDB(source, "moved").create()
        db.put({})
        ChangesDB(http.store, "a").create()
        since = page(http)["last_seq"]
        db.relocate(http.store)
    found = page(http, since=since, limit=1)
    assert rows(found) == [("moved", "created")]
    assert int(found["last_seq"]) > int(since)
    assert rows(page(http, since=found["last_seq"])) == []


def test_a_creation_that_was_compacted_has_the_oldest_place(own):
    clock = snapkv.ManualClock(1_700_000_000_000)
    http = own(clock=clock)
    ChangesDB(http.store, "b").create()
    ChangesDB(http.store, "a").create()
    clock.advance(600_000)
    done = http.store.compact(http.store.tick().ts)
    for _ in range(2):
        found = page(http)
        assert [row["seq"] for row in found["results"]] == [str(done.earliest)] * 2
        assert rows(found) == [("a", "created"), ("b", "created")]
        ChangesDB(http.store, "c").create().put({})
        ChangesDB(http.store, "c").delete()
    assert rows(page(http, since=done.earliest)) == []


def test_a_change_during_a_request_is_reported_once(http, monkeypatch):
    """It comes after the moment of which the answer is, and before the database is read."""
    db = ChangesDB(http.store, "a").create()
    since = page(http)["last_seq"]
    real = database_routes.databases

    def changes(*args, **more):
        monkeypatch.setattr(database_routes, "databases", real)
        db.put({})
        return real(*args, **more)

    monkeypatch.setattr(database_routes, "databases", changes)
    first = page(http, since=since)
    second = page(http, since=first["last_seq"])
    assert rows(first) + rows(second) == [("a", "updated")]


def test_a_feed_waits_for_the_next(http):
    db = ChangesDB(http.store, "a").create()
    found: list[dict] = []
    asked = threading.Thread(
        target=lambda: found.append(page(http, feed="longpoll", since="now", timeout=20_000))
    )
    asked.start()
    with httpx.stream(
        "GET",
        f"{http.server.url}_db_updates?feed=continuous&since=now&heartbeat=50",
        timeout=WAIT_S,
    ) as feed:
        lines = feed.iter_lines()
        assert next(lines) == ""  # it waits
        while not found:
            db.put({})
            asked.join(0.1)
        told = next(line for line in lines if line)
        assert '"db_name":"a","type":"updated"' in told
    assert rows(found[0]) == [("a", "updated")]


def test_a_feed_ends_after_its_timeout_and_with_the_server(http):
    assert page(http, feed="longpoll", since="now", timeout=10)["results"] == []
    answer = http.http.get("/_db_updates?feed=continuous&since=now&timeout=10")
    assert answer.json().keys() == {"last_seq"}
    with httpx.stream(
        "GET", f"{http.server.url}_db_updates?feed=longpoll&since=now&heartbeat=50", timeout=WAIT_S
    ) as feed:
        raw = feed.iter_raw()
        next(raw)
        http.server.stop()
        assert b'"last_seq"' in b"".join(raw)


@pytest.mark.parametrize("feed", ["normal", "longpoll", "continuous"])
def test_an_error_before_the_answer_begins(http, monkeypatch, feed):
    ChangesDB(http.store, "a").create()

    def fails(*args, **more):
        raise EngineUnavailableError("no etcd")

    monkeypatch.setattr(database_routes, "databases", fails)
    answer = http.http.get(f"/_db_updates?feed={feed}&heartbeat=50")
    assert error_of(answer) == (503, "service_unavailable", "no etcd")


@pytest.mark.long_after(2)
@pytest.mark.parametrize("heartbeat", ["", "&heartbeat=50"])
@pytest.mark.parametrize("feed", ["longpoll", "continuous"])
def test_an_error_behind_the_beginning_breaks_the_answer_off(http, monkeypatch, feed, heartbeat):
    """No client takes the half for the whole."""
    db = ChangesDB(http.store, "a").create()

    def fails(*args, **more):
        raise EngineUnavailableError("no etcd")

    url = f"{http.server.url}_db_updates?feed={feed}&since=now{heartbeat}"
    with httpx.stream("GET", url, timeout=WAIT_S) as answer:
        assert answer.status_code == 200
        monkeypatch.setattr(database_routes, "databases", fails)
        db.put({})
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()
    monkeypatch.undo()
    assert rows(page(http)) == [("a", "created")]


@pytest.mark.parametrize(
    "query",
    ["feed=x", "feed=eventsource", "since=x", "since=12", "since=" + "9" * 5_000, "limit=-1"],
    ids=lambda query: query[:20],
)
def test_updates_that_cannot_be_understood(http, query):
    assert error_of(http.http.get(f"/_db_updates?{query}"))[:2] == (400, "bad_request")
