"""Leased keys of a caller: they vanish unless renewed, and the store's past never shows them."""

import io
import threading

import pytest
from cases import cases
from store.engines import write_raw
from store.wrapping import Intruding, Wrapped, wrap_engines

from snapkv import LiveChange
from snapkv.engine.contract import OutcomeUnknown, Put, Range
from snapkv.errors import (
    CommitTooLargeError,
    EngineBusyError,
    EngineUnavailableError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    LeaseNotFoundError,
    SessionLostError,
    SnapKVError,
    StoreClosedError,
)

WAIT_S, LONG_S = 20, 30.0
ON_MEMORY = pytest.mark.parametrize("place", ["memory"], indirect=True)


def test_a_key_with_a_lease(store, place):
    leased = store.live.put("w/7", b"a:80", ttl=LONG_S)
    other = place.open().live
    store.live.put("w/é", b"", ttl=LONG_S)
    assert store.live.get("w/7") == other.get("w/7") == b"a:80"
    assert (other.get("x"), other.get("x", b"none")) == (None, b"none")
    assert other.items("w/") == other.items() == [("w/7", b"a:80"), ("w/é", b"")]
    assert other.items("w/7").revision == place.revision()
    assert leased.ttl_s >= LONG_S
    assert leased.renew() >= LONG_S
    leased.revoke()
    leased.revoke()
    assert store.live.items() == [("w/é", b"")]
    with pytest.raises(LeaseNotFoundError):
        leased.renew()


def test_its_bytes(store, place):
    leased = store.live.put("a/é", b"v", ttl=LONG_S)
    (kv,) = place.engine().read([Range(b"default/live/", b"default/live0")]).results[0].kvs
    assert (kv.key, kv.value) == ("default/live/key/a/é".encode(), b"v")
    assert (kv.mod_revision, kv.lease > 0) == (leased.revision, True)
    assert repr(leased) == f"<LeasedKey 'a/é' lease={kv.lease:x}>"


def test_it_vanishes_when_nothing_renews_it(store, place):
    known = store.live.items()
    leased = store.live.put("k", b"1", ttl=place.kind.ttl_s)
    with store.live.watch(since=known.revision, timeout=WAIT_S) as watch:
        assert next(watch) == LiveChange("k", b"1", leased.revision)
        gone = next(watch)
        assert (gone.key, gone.value, gone.revision > leased.revision) == ("k", None, True)
    assert store.live.items() == []
    with pytest.raises(LeaseNotFoundError, match="put its key again"):
        leased.renew()


def test_time_travel_never_shows_it(store):
    before = store.save("k", b"1")
    leased = store.live.put("k", b"live", ttl=LONG_S)
    after = store.save("k", b"2")
    leased.revoke()
    last = store.save("k", b"3")
    assert [dict(store.at(ts).items()) for ts in (before, after - 1, after, last)] == [
        {"k": b"1"}, {"k": b"1"}, {"k": b"2"}, {"k": b"3"},
    ]  # fmt: skip
    assert [version.value for version in store.history("k")] == [b"1", b"2", b"3"]
    assert [change.key for change in store.diff(0)] == ["k"]
    with store.watch(since=0, timeout=0) as watch:
        assert [change.value for changes in watch for change in changes] == [b"1", b"2", b"3"]
    store.live.put("x", b"live", ttl=LONG_S)
    file = io.BytesIO()
    assert store.dump(file) == 1
    store.restore(before)
    assert store.live.get("x") == b"live", "a restore leaves it alone"
    assert list(store.spaces()) == []


def test_another_put_replaces_it(store, place):
    first = store.live.put("k", b"1", ttl=LONG_S)
    second = place.open().live.put("k", b"2", ttl=LONG_S)
    assert store.live.get("k") == b"2"
    with pytest.raises(LeaseNotFoundError):
        first.renew()
    first.revoke()
    assert store.live.get("k") == b"2"
    assert second.renew() >= LONG_S
    second.revoke()
    assert store.live.items() == []


def test_with_a_session_it_ends_with_that(store):
    session = store.session(LONG_S)
    first = store.live.put("a", b"1", session=session)
    second = store.live.put("b", b"2", session=session)
    again = store.live.put("a", b"3", session=session)
    assert (first.ttl_s, second.renew() >= LONG_S) == (session.ttl_s, True)
    first.revoke()
    assert store.live.get("a") == b"3"
    with pytest.raises(LeaseNotFoundError):
        first.renew()
    again.revoke()
    again.revoke()
    assert store.live.items() == [("b", b"2")]
    assert session.alive
    session.close()
    assert store.live.items() == []
    with pytest.raises(SessionLostError):
        store.live.put("c", b"", session=session)
    assert store.sessions() == []


def test_a_watch_goes_on_from_a_revision(store):
    live = store.live
    with live.watch("a/", timeout=0) as watch:
        assert list(watch) == []
        leased = live.put("a/1", b"1", ttl=LONG_S)
        live.put("b", b"1", ttl=LONG_S)
        assert watch.next(WAIT_S) == LiveChange("a/1", b"1", leased.revision)
        store.save("k", b"")
        assert watch.next(0) is None
    replaced = live.put("a/1", b"2", ttl=LONG_S)
    with live.watch("a/", since=leased.revision, timeout=WAIT_S) as watch:
        assert next(watch) == LiveChange("a/1", b"2", replaced.revision)


@ON_MEMORY
@pytest.mark.parametrize("closed", ["watch", "store"])
def test_closing_ends_the_waiting(place, closed):
    store, ended, begun = place.open(), [], threading.Event()
    watch = store.live.watch()

    def follow():
        begun.set()
        try:
            ended.extend(watch)
            ended.append("the end")
        except StoreClosedError:
            ended.append("closed")

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(WAIT_S)
    (watch if closed == "watch" else store).close()
    thread.join(WAIT_S)
    assert ended == ["the end" if closed == "watch" else "closed"]
    with pytest.raises(StoreClosedError):
        watch.next(0)


class AnsweringLate(Wrapped):
    """Applies requests, but loses the answers of the next ones, `lose` of them."""

    lose = 0

    def transact(self, prepare, peek, *, timeout):
        answer = self.inner.transact(prepare, peek, timeout=timeout)
        if self.lose:
            self.lose -= 1
            raise OutcomeUnknown("the connection was lost", retry=True)
        return answer


@ON_MEMORY
@pytest.mark.parametrize("lost", [1, 3])
def test_a_lost_answer_writes_it_once(place, monkeypatch, lost):
    engines = wrap_engines(monkeypatch, AnsweringLate)
    store = place.open()
    for session in (None, store.session(LONG_S)):
        how = {"session": session} if session else {"ttl": LONG_S}
        before, engines[0].lose = place.revision(), lost
        leased = store.live.put("k", b"1", **how)
        assert leased.revision == place.revision() == before + 1
        assert leased.renew() >= LONG_S
        leased.revoke()


@ON_MEMORY
def test_other_writers_of_the_key(place, monkeypatch):
    engines = wrap_engines(monkeypatch, Intruding)
    store, raw, left = place.open(), place.engine(), [3]

    def intrude():
        if left[0]:
            left[0] -= 1
            write_raw(raw, Put(b"default/live/key/k", b"other %d" % left[0]))

    engines[0].intrude = intrude
    assert store.live.put("k", b"mine", ttl=LONG_S).renew() >= LONG_S
    left[0] = 1_000
    with pytest.raises(EngineBusyError, match=r"'k'.*16 tries"):
        store.live.put("k", b"late", ttl=LONG_S)
    left[0] = 0
    assert store.live.get("k").startswith(b"other")
    assert len(raw._leases) == 1, "the lease of the put that failed has ended"


class Down(Wrapped):
    """An engine whose writes do not arrive, once `down` is set."""

    down = False

    def transact(self, prepare, peek, *, timeout):
        if self.down:
            raise EngineUnavailableError("no answer")
        return self.inner.transact(prepare, peek, timeout=timeout)


@ON_MEMORY
def test_an_engine_that_does_not_answer(place, monkeypatch):
    monkeypatch.setattr("snapkv.coordination.leased_keys.REQUEST_S", 0.1)
    engines = wrap_engines(monkeypatch, Down)
    store = place.open()
    engines[0].down = True
    with pytest.raises(EngineUnavailableError):
        store.live.put("k", b"", ttl=LONG_S)
    engines[0].down = False
    assert store.live.items() == []


@ON_MEMORY
@cases(
    ("error", "call"),
    [
        (InvalidKeyError, lambda s: s.live.put("", b"", ttl=1)),
        (InvalidKeyError, lambda s: s.live.put("\ud800", b"", ttl=1)),
        (InvalidTypeError, lambda s: s.live.put(b"k", b"", ttl=1)),
        (InvalidTypeError, lambda s: s.live.put("k", "text", ttl=1)),
        (InvalidTypeError, lambda s: s.live.put("k", b"", ttl="1s")),
        (InvalidOptionError, lambda s: s.live.put("k", b"", ttl=0)),
        (InvalidOptionError, lambda s: s.live.put("k", b"", ttl=float("nan"))),
        (InvalidOptionError, lambda s: s.live.put("k", b"", ttl=1e9)),
        (InvalidOptionError, lambda s: s.live.put("k", b"")),
        (InvalidTypeError, lambda s: s.live.put("k", b"", session=5)),
        (InvalidTypeError, lambda s: s.live.get(5)),
        (InvalidKeyError, lambda s: s.live.get("")),
        (InvalidTypeError, lambda s: s.live.items(b"")),
        (InvalidTypeError, lambda s: s.live.watch(b"")),
        (InvalidTypeError, lambda s: s.live.watch(since="1")),
        (InvalidOptionError, lambda s: s.live.watch(since=-1)),
        (InvalidOptionError, lambda s: s.live.watch(timeout=-1)),
    ],
)
def test_bad_arguments(store, error, call):
    with pytest.raises(error):
        call(store)
    assert store.live.items() == []


@ON_MEMORY
def test_a_value_that_is_too_large(store):
    value = bytes(store._core.engine.limits.request_bytes)
    with pytest.raises(CommitTooLargeError):
        store.live.put("k", value, ttl=1)
    assert len(store._core.engine._leases) == 0, "no lease was granted"


@ON_MEMORY
def test_sessions_of_other_stores_and_both_ways(store, place):
    session = place.open(name="other").session(LONG_S)
    with pytest.raises(InvalidOptionError, match="another store"):
        store.live.put("k", b"", session=session)
    with pytest.raises(InvalidOptionError, match="one of the two"):
        store.live.put("k", b"", ttl=1, session=store.session(LONG_S))


@ON_MEMORY
def test_of_a_closed_store(store):
    leased = store.live.put("k", b"", ttl=LONG_S)
    live = store.live
    store.close()
    for call in (
        leased.renew,
        leased.revoke,
        live.items,
        live.watch,
        lambda: live.get("k"),
        lambda: live.put("k", b"", ttl=1),
    ):
        with pytest.raises(SnapKVError):
            call()
