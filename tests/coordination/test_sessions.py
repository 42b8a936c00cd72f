"""Sessions: seen by others while they live, lost for good when they end, proven by their guard."""

import gc
import random
import threading

import pytest
from cases import cases
from store.wrapping import LosingOnce, Wrapped, wrap_engines

from snapkv import ConflictError, HeadAt, Ops, SpaceOps
from snapkv.base.waiting import monotonic
from snapkv.coordination.requests import SessionRecord
from snapkv.coordination.session import SessionInfo
from snapkv.engine.contract import OutcomeUnknown, Put, Range, Txn
from snapkv.errors import (
    CommitTooLargeError,
    EngineUnavailableError,
    InvalidOptionError,
    InvalidTypeError,
    LeaseNotFoundError,
    SessionLostError,
    StoreClosedError,
)
from snapkv.model import Held
from snapkv.times import pack

pytestmark = pytest.mark.slow

WAIT_S = 20
LONG_S = 30.0
STEADY_S = 1.5
"""The shortest time to live of sessions that are to live: the machine may pause for a while."""


@pytest.fixture
def ttl_s(place):
    return place.kind.ttl_s


class Unsteady(Wrapped):
    """An engine whose requests about leases can be made to fail or to hang."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.down, self.hang = False, None

    def keep_alive(self, lease, *, timeout=None):
        if self.hang is not None:
            assert self.hang.wait(WAIT_S)
        if self.down:
            raise EngineUnavailableError("no answer")
        return self.inner.keep_alive(lease, timeout=timeout)

    def revoke(self, lease, *, timeout=None):
        if self.down:
            raise EngineUnavailableError("no answer")
        self.inner.revoke(lease, timeout=timeout)


class AnsweringLate(Wrapped):
    """Applies the next request, once `lose` is set, but loses the answer; and the next, and ..."""

    lose = 0

    def transact(self, prepare, peek, *, timeout):
        answer = self.inner.transact(prepare, peek, timeout=timeout)
        if self.lose:
            self.lose -= 1
            raise OutcomeUnknown("the connection was lost", retry=True)
        return answer


def ids(store) -> list[int]:
    return [info.id for info in store.sessions()]


# --- what others see ---


def test_others_see_it_until_it_is_closed(store, place, clock):
    other = place.open(writer="bob@test")
    assert store.sessions() == []
    with store.session(LONG_S, b"10.0.0.7:80") as session:
        assert (session.value, session.alive) == (b"10.0.0.7:80", True)
        assert session.ttl_s >= LONG_S
        started = pack(clock.now_ms())
        facts = b"10.0.0.7:80", "ann@test", session.revision, session.ttl_s, started
        info = SessionInfo(session.id, *facts)
        assert store.sessions() == other.sessions() == [info]
        assert session.revision == place.revision()
        session.check()
    assert not session.alive
    assert store.sessions() == other.sessions() == []
    with pytest.raises(SessionLostError, match="closed"):
        session.check()
    session.close()


def test_they_are_listed_in_the_order_in_which_they_were_made(store):
    """Keys sort by lease, whose ids are random in embedded engines."""
    made = [store.session(LONG_S, b"%d" % n) for n in range(12)]
    assert [info.value for info in store.sessions()] == [b"%d" % n for n in range(12)]
    assert ids(store) == [session.id for session in made]
    revisions = [session.revision for session in made]
    assert revisions == sorted(revisions) == [info.revision for info in store.sessions()]


def test_its_bytes(store, place):
    session = store.session(LONG_S, b"v")
    key = b"default/live/session/%016x" % session.id
    (kv,) = place.engine().read([Range(b"default/live/", b"default/live0")]).results[0].kvs
    assert (kv.key, kv.lease, kv.create_revision) == (key, session.id, session.revision)
    assert kv.value.startswith(b"\x84\xa1w\xa8ann@test\xa1v\xc4\x01v\xa1t\xcb")
    (info,) = store.sessions()
    assert SessionRecord.decode(kv.value) == SessionRecord(
        "ann@test", b"v", session.ttl_s, info.started
    )


def test_stores_of_one_engine_do_not_see_each_others(store, place):
    others = [place.open(name=name) for name in ("other", "default/sub")]
    session = store.session(LONG_S)
    assert [other.sessions() for other in others] == [[], []]
    for other in others:
        with pytest.raises(ConflictError):
            other.commit(puts={"k": b""}, guards=[session.guard])


def test_time_travel_does_not_see_it(store, clock):
    before = store.commit(puts={"k": b"1"})
    with store.watch(timeout=0) as watch, store.session(LONG_S, b"v") as session:
        clock.advance(1_000)
        assert list(watch) == []
        assert list(store.diff(before.ts, None)) == []
        assert store.load_with_prefix("") == (["k"], [b"1"])
        assert [commit.ts for commit in store.commits()] == [before.ts]
        store.commit(puts={"k": b"2"}, guards=[HeadAt(before.revision), session.guard])
        session.close()
        assert watch.next(timeout=LONG_S).changes[0].value == b"2"
        assert list(watch) == []
        after = store.tick()
        assert [x.commit.ts for x in store.watch(since=before.ts, timeout=0)] != [after.ts]
        assert store.check().problems == ()
        assert store.load("k", before.ts) == b"1"


# --- living and ending ---


@pytest.mark.long_on("memory")
def test_it_is_kept_alive_far_beyond_its_ttl(store, ttl_s):
    session = store.session(max(ttl_s, STEADY_S))
    assert not session.wait_lost(2.5 * session.ttl_s)
    assert ids(store) == [session.id]
    store.commit(puts={"k": b"1"}, guards=[session.guard])


def test_a_revoked_lease_is_noticed(store, place, ttl_s):
    session = store.session(ttl_s)
    guard = session.guard
    store.commit(puts={"k": b"held"}, guards=[guard])
    place.engine().revoke(session.id)
    assert session.wait_lost(WAIT_S)
    assert not session.alive
    with pytest.raises(SessionLostError):
        session.check()
    with pytest.raises(ConflictError) as caught:
        store.commit(puts={"k": b"lost"}, guards=[guard])
    assert caught.value.failed == ((guard, 0),)
    assert store.load("k") == b"held"
    assert session.guard == guard
    session._keeper.thread.join(WAIT_S)
    assert not session._keeper.thread.is_alive()
    session.close()


def test_the_guard_counts_before_anybody_noticed(store, place):
    session = store.session(LONG_S)
    place.engine().revoke(session.id)
    assert session.alive, "its thread looks every 10 s"
    for commit in (
        lambda: store.commit(puts={"k": b"1"}, guards=[session.guard]),
        lambda: store.space("s").commit(puts={b"k": b"1"}, guards=[session.guard]),
        lambda: store.commit(
            lambda _: Ops(spaces={"s": SpaceOps(puts={b"k": b"1"}, guards=[session.guard])})
        ),
    ):
        with pytest.raises(ConflictError):
            commit()
    assert store.resolved() == 0


def test_a_guard_is_not_met_by_a_later_session(store, place):
    first = store.session(LONG_S)
    guard = first.guard
    first.close()
    engine, key = place.engine(), b"default/live/" + guard.key
    engine.transact(lambda _: Txn(success=(Put(key, b"made again"),)), key, timeout=10)
    with pytest.raises(ConflictError):
        store.commit(puts={"k": b"1"}, guards=[guard])


@pytest.mark.long_on("memory")
def test_an_engine_that_fails_for_a_while_loses_nothing(place, ttl_s, monkeypatch):
    engines = wrap_engines(monkeypatch, Unsteady)
    store = place.open()
    with store.session(4 * ttl_s) as session:
        engines[0].down = True
        assert not session.wait_lost(2 * ttl_s)
        engines[0].down = False
        assert not session.wait_lost(4 * ttl_s)
        store.commit(puts={"k": b"1"}, guards=[session.guard])


def test_an_engine_that_fails_for_too_long_ends_it_for_good(place, ttl_s, monkeypatch):
    engines = wrap_engines(monkeypatch, Unsteady)
    store = place.open()
    session = store.session(ttl_s)
    engines[0].down = True
    assert session.wait_lost(WAIT_S)
    engines[0].down = False
    session._keeper.thread.join(WAIT_S)
    assert not session._keeper.thread.is_alive()
    assert not session.alive
    assert session.left_s == 0


def test_it_is_never_alive_longer_than_its_lease(place, ttl_s, monkeypatch):
    """The engine's own word ends it at once; here that comes late, and the clock must do."""
    engines = wrap_engines(monkeypatch, Unsteady)
    store = place.open()
    session = store.session(ttl_s)
    engines[0].hang = threading.Event()
    seen, probe = [], place.open()
    deadline = monotonic() + WAIT_S
    while not seen or seen[-1] != (False, False):
        assert monotonic() < deadline
        stands = bool(probe.sessions())  # first: when it is gone, nobody may think it is there
        seen.append((session.alive, stands))
    engines[0].hang.set()
    assert (True, False) not in seen
    assert seen[0] == (True, True)
    assert session.wait_lost(0)


def test_closing_when_the_engine_does_not_answer(place, ttl_s, monkeypatch):
    engines = wrap_engines(monkeypatch, Unsteady)
    store, other = place.open(), place.open()
    session = store.session(ttl_s)
    engines[0].down = True
    session.close()
    assert not session.alive
    deadline = monotonic() + WAIT_S
    while other.sessions():
        assert monotonic() < deadline, "the lease ends by itself"


def test_closing_that_is_interrupted_ends_it_all_the_same(store, monkeypatch):
    revoke, interrupts = store._core.engine.revoke, [KeyboardInterrupt()]

    def interrupted_once(lease, *, timeout=None):
        if interrupts:
            raise interrupts.pop()
        revoke(lease, timeout=timeout)

    with monkeypatch.context() as patch:
        patch.setattr(store._core.engine, "revoke", interrupted_once)
        session = store.session(LONG_S)
        with pytest.raises(KeyboardInterrupt):
            session.close()
        assert not store.sessions(), "before the error is raised: the store may be closed next"
    session.close()


def test_waiting_for_its_end(store):
    session = store.session(LONG_S)
    assert not session.wait_lost(0)
    assert not session.wait_lost(0.01)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(session.wait_lost(WAIT_S)))
    thread.start()
    session.close()
    thread.join(WAIT_S)
    assert ended == [True]


def test_a_session_that_nobody_has_any_more_ends_at_once(store):
    keeper = store.session(1_000)._keeper.thread
    gc.collect()
    keeper.join(WAIT_S)
    assert not keeper.is_alive()
    assert store.sessions() == []
    gc.collect()
    assert len(store._core.followers) == 0


def test_closing_the_store_ends_what_was_just_forgotten(place, clock):
    store, other = place.open(clock=clock), place.open(clock=clock)
    for _ in range(5):
        store.session(1_000)
    store.close()
    assert other.sessions() == []


def test_closing_the_store_closes_its_sessions(place, clock):
    store, other = place.open(clock=clock), place.open(clock=clock)
    sessions = [store.session(LONG_S) for _ in range(3)]
    kept = other.session(LONG_S)
    store.close()
    assert [session.alive for session in sessions] == [False] * 3
    assert not any(session._keeper.thread.is_alive() for session in sessions)
    assert ids(other) == [kept.id]
    with pytest.raises(StoreClosedError):
        store.session(LONG_S)
    with pytest.raises(StoreClosedError):
        store.sessions()
    sessions[0].close()


def test_many_at_once(store, place, ttl_s):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rngs = [random.Random(seed + n) for n in range(6)]
    failed, kept = [], []

    def live(rng):
        try:
            with place.open() as mine:
                for _ in range(6):
                    session = mine.session(rng.choice((ttl_s, LONG_S)), rng.randbytes(3))
                    assert session.id in ids(mine)
                    mine.commit(puts={f"{session.id}": b"1"}, guards=[session.guard])
                    session.close()
                    assert session.id not in ids(mine)
                    kept.append(session.guard)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=live, args=(rng,)) for rng in rngs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert failed == []
    assert not any(thread.is_alive() for thread in threads)
    assert store.sessions() == []
    assert len(set(kept)) == 36
    assert store.at().count() == 36


# --- unknown outcomes ---


@pytest.mark.parametrize("lost", ["the request", "the answer", "three answers"])
def test_an_unknown_outcome_of_making_it_is_found_out(place, monkeypatch, lost):
    engines = wrap_engines(monkeypatch, LosingOnce if lost == "the request" else AnsweringLate)
    store = place.open()
    engines[0].lose = 3 if lost == "three answers" else 1
    with store.session(LONG_S, b"v") as session:
        assert not engines[0].lose
        (info,) = store.sessions()
        assert (info.id, info.value, info.revision) == (session.id, b"v", session.revision)
        store.commit(puts={"k": b"1"}, guards=[session.guard])


def test_a_lease_that_ends_before_the_key_is_there(place, monkeypatch):
    class Hasty(Wrapped):
        armed = False

        def transact(self, prepare, peek, *, timeout):
            if self.armed:
                self.armed = False
                self.inner.revoke(self.granted)
            return self.inner.transact(prepare, peek, timeout=timeout)

        def grant(self, ttl_s, *, timeout=None):
            lease = self.inner.grant(ttl_s, timeout=timeout)
            self.granted, self.armed = lease.id, True
            return lease

    engines = wrap_engines(monkeypatch, Hasty)
    store = place.open()
    with pytest.raises(SessionLostError) as caught:
        store.session(LONG_S)
    assert isinstance(caught.value.__cause__, Exception)
    assert store.sessions() == []
    assert engines[0].granted not in ids(store)
    assert f"snapkv-session-{engines[0].granted:x}" not in {t.name for t in threading.enumerate()}


# --- what cannot be used ---


@cases(
    ("ttl", "error"),
    [
        (None, InvalidTypeError),
        ("5", InvalidTypeError),
        (True, InvalidTypeError),
        (0, InvalidOptionError),
        (-1.5, InvalidOptionError),
        (float("nan"), InvalidOptionError),
        (float("inf"), InvalidOptionError),
    ],
)
def test_bad_ttls(store, place, ttl, error):
    before = place.revision()
    with pytest.raises(error):
        store.session(ttl)
    with pytest.raises(error):
        store.election("e", ttl=ttl)
    assert place.revision() == before


@cases("value", [None, "text", bytearray(b"x"), 5])
def test_bad_values(store, place, value):
    before = place.revision()
    with pytest.raises(InvalidTypeError):
        store.session(LONG_S, value)
    assert place.revision() == before


def test_a_value_too_large_is_refused_before_anything_is_sent(place, monkeypatch):
    class Granting(Wrapped):
        granted = 0

        def grant(self, ttl_s, *, timeout=None):
            self.granted += 1
            return self.inner.grant(ttl_s, timeout=timeout)

    engines = wrap_engines(monkeypatch, Granting)
    store = place.open()
    with pytest.raises(CommitTooLargeError):
        store.session(LONG_S, bytes(store._core.engine.limits.request_bytes))
    assert engines[0].granted == 0


def test_bad_waits(store):
    session = store.session(LONG_S)
    with pytest.raises(InvalidTypeError):
        session.wait_lost("1")
    with pytest.raises(InvalidOptionError):
        session.wait_lost(-1)


def test_guards_of_nonsense(store):
    for guard in (Held("text", 5), Held(b"", 5), Held(b"session/x", 0), Held(b"session/x", True)):
        with pytest.raises((TypeError, ValueError)):
            store.commit(puts={"k": b"1"}, guards=[guard])
    with pytest.raises(ConflictError):
        store.commit(puts={"k": b"1"}, guards=[Held(b"session/x", 5)])
    assert store.at().count() == 0


def test_the_engines_own_error_for_an_ended_lease(store, place):
    session = store.session(LONG_S)
    session.close()
    with pytest.raises(LeaseNotFoundError):
        place.engine().keep_alive(session.id)
