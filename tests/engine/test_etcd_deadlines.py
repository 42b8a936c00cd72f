"""Reads of servers that hang: `timeout=` bounds each of them as a whole, whatever it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from etcd_engines import within
from etcd_server import EtcdProxy, EtcdServer, eventually

import snapkv
from snapkv import ReadTimeoutError
from snapkv.base.waiting import monotonic
from snapkv.errors import EngineUnavailableError

pytestmark = pytest.mark.slow

TIMEOUT_S = 0.4
REQUEST_S = 12.0
"""What a request is given without a timeout: no test here may wait for that."""


@pytest.fixture
def ways(etcd: EtcdServer) -> Iterator[list[EtcdProxy]]:
    """Three ways to one server."""
    ways = [EtcdProxy(etcd) for _ in range(3)]
    yield ways
    for way in ways:
        way.close()


@contextmanager
def hanging(server: EtcdServer) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextmanager
def timing_out(timeout: float = TIMEOUT_S) -> Iterator[None]:
    """The block ends with the typed error, which is each of the builtins that a caller catches."""
    began = monotonic()
    with within(timeout), pytest.raises(ReadTimeoutError) as caught:
        yield
    assert monotonic() - began >= timeout * 0.9, "it gave up too soon"
    assert isinstance(caught.value, EngineUnavailableError | TimeoutError)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.timeout == timeout
    assert f"{timeout:g} s" in str(caught.value)


READS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "load": lambda store, old, how: store.load("a", **how),
    "load at": lambda store, old, how: store.load("a", old, **how),
    "entry": lambda store, old, how: store.entry("a", old, **how),
    "entries_of": lambda store, old, how: store.entries_of(["a", "b"], **how),
    "load_with_prefix": lambda store, old, how: store.load_with_prefix("", **how),
    "at": lambda store, old, how: store.at(**how),
    "at past": lambda store, old, how: store.at(old, **how)["a"],
    "at revision": lambda store, old, how: store.at(revision=3, **how),
    "diff": lambda store, old, how: list(store.diff(old, **how)),
    "history": lambda store, old, how: list(store.history("a", **how)),
    "commits": lambda store, old, how: list(store.commits(**how)),
    "newest first": lambda store, old, how: list(store.commits(newest_first=True, **how)),
    "resolved": lambda store, old, how: store.resolved(**how),
    "info": lambda store, old, how: store.info(**how),
    "sessions": lambda store, old, how: store.sessions(**how),
    "restore": lambda store, old, how: store.restore(old, **how),
    "changes_to_arrow": lambda store, old, how: store.changes_to_arrow(**how),
    "history_to_arrow": lambda store, old, how: store.history_to_arrow(**how),
    "commits_to_arrow": lambda store, old, how: store.commits_to_arrow(**how),
}
OF_SNAPSHOTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "entry": lambda snap, older, how: snap.entry("a", **how),
    "entries_of": lambda snap, older, how: snap.entries_of(["a"], **how),
    "items_of": lambda snap, older, how: snap.items_of([("a", "b")], **how),
    "entries": lambda snap, older, how: list(snap.entries(**how)),
    "items": lambda snap, older, how: list(snap.items(**how)),
    "keys": lambda snap, older, how: list(snap.keys(**how)),
    "values": lambda snap, older, how: list(snap.values(**how)),
    "count": lambda snap, older, how: snap.count(**how),
    "to_arrow": lambda snap, older, how: snap.to_arrow(**how),
    "diff": lambda snap, older, how: list(snap.diff(older, **how)),
}


@pytest.mark.long_after(20)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("default", [False, True], ids=["timeout", "read_timeout"])
def test_a_read_of_a_server_that_hangs(etcd: EtcdServer, read: str, default: bool) -> None:
    how = {} if default else {"timeout": TIMEOUT_S}
    with snapkv.open(etcd.url, read_timeout=None if default else 60.0) as store:
        old = store.save("a", b"1")
        store.save("a", b"2")
        if default:
            store.close()
            store = snapkv.open(etcd.url, read_timeout=TIMEOUT_S)
        with store:
            with hanging(etcd), timing_out():
                READS[read](store, old, how)
            again = eventually(lambda: _answer(lambda: READS[read](store, old, {"timeout": 5.0})))
            assert again is not None, "the server is back, and so is the store"


def _answer(read: Callable[[], Any]) -> tuple[Any] | None:
    try:
        return (read(),)
    except EngineUnavailableError:
        return None


@pytest.mark.parametrize("read", OF_SNAPSHOTS)
def test_a_read_of_a_snapshot(etcd: EtcdServer, read: str) -> None:
    with snapkv.open(etcd.url) as store:
        older = store.at(store.save("a", b"1"))
        store.save("a", b"2")
        plain, bounded = store.at(), store.at(timeout=TIMEOUT_S)
        with hanging(etcd):
            with timing_out():
                OF_SNAPSHOTS[read](plain, older, {"timeout": TIMEOUT_S})
            with timing_out():
                OF_SNAPSHOTS[read](bounded, older, {})
            with timing_out(0.2):
                OF_SNAPSHOTS[read](bounded, older, {"timeout": 0.2})


@pytest.mark.parametrize(
    "read",
    [
        lambda snap: snap["a"],
        lambda snap: "a" in snap,
        lambda snap: len(snap),
        lambda snap: list(snap),
        lambda snap: snap.get("a"),
    ],
    ids=["[]", "in", "len", "iter", "get"],
)
def test_a_snapshot_as_a_mapping(etcd: EtcdServer, read: Callable[[Any], Any]) -> None:
    with snapkv.open(etcd.url) as store:
        store.save("a", b"1")
        snap = store.at(timeout=TIMEOUT_S)
        with hanging(etcd), timing_out():
            read(snap)


def test_what_is_observed(etcd: EtcdServer) -> None:
    with snapkv.open(etcd.url) as ticker:
        etcd.gateway.put(b"/r/a", b"1")
        old = ticker.tick().ts
        ticker.tick()
    with snapkv.observe(etcd.url, prefix="/r/") as observed, hanging(etcd):
        for read in (
            lambda: observed.load("/r/a", timeout=TIMEOUT_S),
            lambda: observed.at(old, timeout=TIMEOUT_S),
            lambda: list(observed.history("/r/a", timeout=TIMEOUT_S)),
            lambda: observed.resolved(timeout=TIMEOUT_S),
            lambda: observed.info(timeout=TIMEOUT_S),
            lambda: observed.changes_to_arrow(timeout=TIMEOUT_S),
        ):
            with timing_out():
                read()


@pytest.mark.parametrize("make", [True, False])
def test_opening(etcd: EtcdServer, make: bool) -> None:
    with hanging(etcd), timing_out():
        snapkv.open(etcd.url, name="new", create=make, read_timeout=TIMEOUT_S)
    with hanging(etcd), timing_out():
        snapkv.observe(etcd.url, prefix="", read_timeout=TIMEOUT_S)


def test_a_watch_is_made_within_the_default(etcd: EtcdServer) -> None:
    """Its own `timeout` is how long it waits for a commit, which is no error."""
    with snapkv.open(etcd.url, read_timeout=TIMEOUT_S) as store:
        with hanging(etcd), timing_out():
            store.watch()
        with eventually(lambda: _answer(store.watch))[0] as watch:
            assert watch.next(TIMEOUT_S * 3) is None, "and goes on for longer than that"


def test_final_commits_its_tick_in_the_time_of_the_read(etcd: EtcdServer) -> None:
    with snapkv.open(etcd.url) as store:
        store.save("a", b"1")
        with hanging(etcd), within(TIMEOUT_S), pytest.raises(TimeoutError):
            store.at("-0s", final=True, timeout=TIMEOUT_S)


def test_all_of_three_endpoints_are_silent(ways: list[EtcdProxy]) -> None:
    with snapkv.open(f"etcd://{','.join(way.endpoint for way in ways)}") as store:
        store.save("a", b"1")
        for way in ways:
            way.pause()
        with timing_out():
            store.load("a", timeout=TIMEOUT_S)


def test_one_of_three_endpoints_is_silent(ways: list[EtcdProxy]) -> None:
    """There is time to ask the next one: no error, and the answer within the bound."""
    with snapkv.open(f"etcd://{','.join(way.endpoint for way in ways)}") as store:
        store.save("a", b"1")
        ways[0].pause()
        assert store.load("a", timeout=3.0) == b"1"
        assert ways[1].requests > 0


def test_two_of_three_endpoints_are_silent(ways: list[EtcdProxy]) -> None:
    with snapkv.open(f"etcd://{','.join(way.endpoint for way in ways)}") as store:
        store.save("a", b"1")
        ways[0].pause()
        ways[1].pause()
        assert store.load("a", timeout=6.0) == b"1"


def test_all_requests_of_one_read_share_its_time(etcd: EtcdServer) -> None:
    """Each is answered soon enough, all of them together are not."""
    names = [f"k{n:04}" for n in range(4_000)]
    with snapkv.open(etcd.url) as store:
        store.commit(puts=dict.fromkeys(names, b"1"))
        assert len(store.entries_of(names, timeout=60.0)) == 4_000
        with stumbling(etcd), timing_out(1.5):  # 32 round trips of some 0.2 s
            store.entries_of(names, timeout=1.5)


@contextmanager
def stumbling(server: EtcdServer) -> Iterator[None]:
    """The server answers, and then hangs for a fifth of a second, and so on."""
    over = threading.Event()

    def stumble() -> None:
        while not over.wait(0.002):
            server.pause()
            over.wait(0.2)
            server.resume()

    stumbler = threading.Thread(target=stumble)
    stumbler.start()
    try:
        yield
    finally:
        over.set()
        stumbler.join(20)


def test_an_iterator_is_bounded_while_it_is_waited_for(etcd: EtcdServer) -> None:
    """What the caller does between two steps does not count."""
    with snapkv.open(etcd.url) as store:
        for n in range(300):
            store.save("a", b"%d" % n)
        versions = store.history("a", timeout=10.0)
        assert next(versions).value == b"0"
        commits = store.commits(newest_first=True, timeout=1.0)
        assert next(commits).note is None
        threading.Event().wait(1.1)
        assert next(commits).note is None, "the caller was slow, not the store"
        with hanging(etcd), within(1.0), pytest.raises(ReadTimeoutError) as caught:
            list(commits)
        assert caught.value.timeout == 1.0
        assert len(list(versions)) == 299


def test_without_a_timeout_a_request_has_a_bound_all_the_same(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapkv.engine.etcd.cluster_client.READ_TIMEOUT_S", TIMEOUT_S)
    with snapkv.open(etcd.url) as store:
        store.save("a", b"1")
        with hanging(etcd), within(TIMEOUT_S), pytest.raises(EngineUnavailableError) as caught:
            store.load("a")
        assert not isinstance(caught.value, ReadTimeoutError)
