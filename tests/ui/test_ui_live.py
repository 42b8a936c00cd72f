"""Following by server-sent events: resumed, told of gaps, fanned out from one watch."""

import json
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlencode

import pytest

from snapkv.ui.live_commits import LiveCommits
from snapkv.ui.page_source import Source

from .served import WAIT_S, Served

pytestmark = pytest.mark.slow

FOLLOWERS = 50


class Follower:
    """A connection that reads events in a thread."""

    def __init__(self, served: Served, last: int | None = None, **params: str) -> None:
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        self._connection = HTTPConnection("127.0.0.1", served.server.port, timeout=WAIT_S)
        self._connection.request("GET", f"/live/events?{urlencode(params)}", headers=headers)
        assert self._connection.sock is not None
        self._socket = self._connection.sock
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200
        self._found: queue.Queue[tuple[str, dict, str | None]] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, HTTPException):
            for event in _events(line.decode().rstrip("\n") for line in self.answer):
                self._found.put(event)

    def next(self) -> tuple[str, dict, str | None]:
        return self._found.get(timeout=WAIT_S)

    def nothing(self) -> bool:
        return self._found.empty()

    def ended(self) -> bool:
        """Wait until the server has ended the answer."""
        self._thread.join(WAIT_S)
        return not self._thread.is_alive()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        assert self.ended()
        self._connection.close()


def _events(lines: Iterator[str]) -> Iterator[tuple[str, dict, str | None]]:
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                yield fields.get("event", "message"), json.loads(fields["data"]), fields.get("id")
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


@pytest.fixture
def served(store):
    store.save("before", b"1")
    with Served(store) as served:
        yield served


@pytest.fixture
def follow(served):
    """Open followers that are closed with the test; `follow()` returns one that has begun."""
    opened = []

    def begun(last: int | None = None, **params: str) -> Follower:
        follower = Follower(served, last, **params)
        opened.append(follower)
        return follower

    yield begun
    for follower in opened:
        follower.close()


def test_a_follower_gets_each_commit_once_and_resumes(store, served, follow):
    since = store.resolved()
    first = follow(since)
    made = [store.commit(puts={"a/x": b"1"}, note="one"), store.commit(deletes=["before"])]
    found = [first.next() for _ in made]
    assert [(kind, int(number)) for kind, _, number in found] == [
        ("commit", each.ts) for each in made
    ]
    assert found[0][1]["note"] == "one"
    first_, second = (each.revision for each in made)
    assert found[0][1]["keys"] == [{"key": "a/x", "size": 1, "revision": first_}]
    assert found[1][1]["keys"] == [{"key": "before", "size": None, "revision": second}]
    again = follow(made[0].ts)
    assert again.next()[1]["timestamp"] == str(made[1].ts)
    third = store.save("b", b"2")
    assert int(first.next()[2]) == int(again.next()[2]) == third
    assert first.nothing()
    assert again.nothing()


def test_a_follower_of_a_prefix_gets_what_is_there(store, served, follow):
    since = store.resolved()
    follower = follow(since, prefix="a/")
    store.save("b", b"1")
    wanted = store.save("a/1", b"1")
    assert int(follower.next()[2]) == wanted


def test_a_follower_of_a_prefix_gets_the_keys_there_of_large_commits(store, served, follow):
    follower = follow(store.resolved(), prefix="svc/")
    store.commit(puts={f"other/{n:02}": b"1" for n in range(30)})
    wanted = store.commit(puts={f"a{n:02}": b"1" for n in range(25)} | {"svc/zz": b"12"})
    _, fields, number = follower.next()
    assert int(number) == wanted.ts
    assert [(each["key"], each["size"]) for each in fields["keys"]] == [("svc/zz", 2)]
    assert fields["more"] == 0
    store.commit(puts={f"svc/{n:02}": b"1" for n in range(25)} | {"a": b"1"})
    _, fields, _ = follower.next()
    assert [each["key"] for each in fields["keys"]] == [f"svc/{n:02}" for n in range(20)]
    assert fields["more"] == 5


def test_the_keys_that_are_kept_are_bounded(store):
    live, woken = LiveCommits(Source(store), keys_max=10), threading.Semaphore(0)
    number, _ = live.join(woken.release, store.resolved())
    try:
        made = [store.commit(puts={f"{n}/{k}": b"1" for k in range(4)}).ts for n in range(5)]
        events = []
        while not events or events[-1].timestamp < made[-1]:
            assert woken.acquire(timeout=WAIT_S)
            events, _, lost = live.after(number)
        assert lost
        assert [each.timestamp for each in events] == made[-2:]
        large = store.commit(puts={f"{k}": b"1" for k in range(20)}).ts
        while events[-1].timestamp < large:
            assert woken.acquire(timeout=WAIT_S)
            events, _, _ = live.after(number)
        assert [len(each.keys) for each in events] == [20]
    finally:
        live.close()


def test_many_followers_share_one_watch(store, served, follow):
    since = store.resolved()
    followers = [follow(since) for _ in range(FOLLOWERS)]
    made = [store.save("k", b"%d" % number) for number in range(20)]
    for follower in followers:
        assert [int(follower.next()[2]) for _ in made] == made
    assert served.site.hub.watches == 1


def test_a_follower_that_is_too_far_behind_learns_of_the_gap(store):
    live = LiveCommits(Source(store), events_max=4)
    woken = threading.Semaphore(0)
    number, gap = live.join(woken.release, store.resolved())
    try:
        assert gap is None
        made = [store.save("k", b"%d" % n) for n in range(10)]
        events = []
        while not events or events[-1].timestamp < made[-1]:
            assert woken.acquire(timeout=WAIT_S)
            events, _, lost = live.after(number)
        assert lost
        assert [each.timestamp for each in events] == made[-4:]
        assert live.join(lambda: None, made[0])[1] is not None
        number, gap = live.join(lambda: None, made[-2])
        assert (gap, [each.timestamp for each in live.after(number)[0]]) == (None, made[-1:])
    finally:
        live.close()


def test_commits_that_were_compacted_are_a_gap(store, clock, served, follow):
    old = store.save("k", b"1")
    clock.advance(3_600_000)
    kept = store.save("k", b"2")
    clock.advance(3_600_000)
    store.tick()
    store.compact(kept)
    follower = follow(old - 1)
    kind, fields, _ = follower.next()
    assert kind == "gap"
    assert "compacted" in fields["reason"]
    new = store.save("k", b"3")
    assert int(follower.next()[2]) == new


def test_the_server_ends_while_followers_wait(store):
    with Served(store) as served:
        follower = Follower(served)
    assert follower.ended()
    follower.close()


def test_the_watch_ends_after_its_last_follower(store):
    live = LiveCommits(Source(store), linger_s=0.0)
    woken = threading.Event()
    live.join(woken.set, None)
    thread = live._thread
    live.leave(woken.set)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    number, _ = live.join(woken.set, None)
    made = store.save("k", b"1")
    assert woken.wait(WAIT_S)
    assert [each.timestamp for each in live.after(number)[0]] == [made]
    live.close()
