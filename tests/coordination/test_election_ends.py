"""Elections: proclaiming, resigning, sessions, watching, closing, forks, bad arguments."""

import gc
import os
import threading
import warnings

import pytest
from cases import cases
from store.engines import SHARED

from snapkv import Absent, ConflictError
from snapkv.coordination.election import Leader
from snapkv.errors import (
    CommitTooLargeError,
    EngineBusyError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    SessionLostError,
    StoreClosedError,
)

from .campaigns import LONG_S, WAIT_S, Campaign, live_keys, standing, stood

pytestmark = pytest.mark.slow

# --- proclaiming and resigning ---


def test_proclaiming_changes_what_others_see_and_nothing_else(store, waiting, engine):
    leader, _, campaign = waiting
    before = leader.leader()
    leader.proclaim(b"A2")
    assert leader.leader() == Leader(b"A2", before.session, before.revision)
    assert leader.campaign(b"A3") is leader
    assert leader.leader() == Leader(b"A3", before.session, before.revision)
    assert leader.guard.revision == leader.revision == before.revision
    store.commit(puts={"k": b"1"}, guards=[leader.guard])
    assert campaign.is_alive()
    assert standing(engine) == [b"A3", b"B"]
    leader.resign()
    with pytest.raises(SessionLostError):
        leader.proclaim(b"A4")
    campaign.done()
    assert standing(engine) == [b"B"]


def test_who_waits_cannot_proclaim_or_prove_anything(waiting):
    _, second, _ = waiting
    with pytest.raises(SessionLostError):
        second.proclaim(b"me")
    with pytest.raises(SessionLostError):
        _ = second.guard
    assert second.revision == 0


def test_campaigning_from_two_threads_is_refused(waiting):
    _, second, campaign = waiting
    with pytest.raises(EngineBusyError, match="another thread"):
        second.campaign(b"B2")
    assert campaign.is_alive()


def test_a_guard_of_an_earlier_term_is_not_met_by_a_later_one(store):
    with store.session(LONG_S) as session:
        election = store.election("e", session=session).campaign(b"1")
        first = election.guard
        election.resign()
        election.campaign(b"2")
        assert election.guard.key == first.key
        assert election.revision > first.revision
        with pytest.raises(ConflictError):
            store.commit(puts={"k": b"late"}, guards=[first])
        store.commit(puts={"k": b"2"}, guards=[election.guard])


# --- sessions of one's own, and shared ones ---


def test_a_shared_session_outlives_its_elections(store, engine):
    with store.session(LONG_S, b"s") as session:
        a, b = (store.election(name, session=session).campaign(b"x") for name in "ab")
        assert a.leader().session == b.leader().session == session.id
        a.resign()
        assert (a.leading, b.leading, session.alive) == (False, True, True)
        assert standing(engine, b"a") == []
        a.campaign(b"again")
    assert (a.leading, b.leading) == (False, False)
    assert live_keys(engine) == []
    with pytest.raises(SessionLostError):
        a.campaign()


def test_resigning_ends_a_wait_with_a_shared_session(store, place, engine):
    leader = place.open().election("e", ttl=LONG_S).campaign(b"A")
    with store.session(LONG_S) as session:
        second = store.election("e", session=session)
        with stood(engine, 2):
            campaign = Campaign(second, b"B")
        second.resign()
        assert isinstance(campaign.done(), EngineBusyError)
        assert standing(engine) == [b"A"]
        assert session.alive
    leader.resign()


def test_resigning_ends_a_campaign_that_still_makes_its_session(store, engine, monkeypatch):
    election = store.election("e", ttl=LONG_S)
    grant = store._core.engine.grant

    def resigned_meanwhile(*args, **options):
        election.resign()
        return grant(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store._core.engine, "grant", resigned_meanwhile)
        with pytest.raises(EngineBusyError, match="resigned"):
            election.campaign(b"A", timeout=WAIT_S)
    assert not election.leading
    assert (standing(engine), store.sessions()) == ([], [])
    assert election.campaign(b"A", timeout=WAIT_S).leading, "resigning ends one campaign"
    election.resign()


def test_two_objects_for_one_session_and_name_would_be_one_candidate(store):
    with store.session(LONG_S) as session:
        first = store.election("e", session=session).campaign(b"1")
        second = store.election("e", session=session)
        with pytest.raises(InvalidOptionError, match="already has a candidate"):
            second.campaign(b"2")
        assert first.leading
        assert first.leader().value == b"1"
        first.resign()
        second.campaign(b"2")
        assert (first.leading, second.leading) == (False, True)


def test_a_leader_that_campaigns_again_proclaims_and_goes_on_leading(store):
    with store.election("e", ttl=LONG_S) as election:
        first = election.campaign(b"1").guard
        assert election.campaign(b"2", timeout=0) is election
        assert (election.leading, election.guard) == (True, first)
        assert election.leader().value == b"2"


def test_a_candidate_that_a_forgotten_object_left_is_taken_over(store, engine):
    with store.session(LONG_S) as session:
        revision = store.election("e", session=session).campaign(b"old").revision
        gc.collect()
        again = store.election("e", session=session).campaign(b"new", timeout=0)
        assert again.revision == revision
        assert standing(engine) == [b"new"]


def test_a_forgotten_leader_makes_room(waiting, store, place, engine):
    leader, second, campaign = waiting
    leader.resign()
    assert campaign.done() is second
    Campaign(place.open().election("f", ttl=1_000)).done()
    gc.collect()
    assert store.election("f", ttl=LONG_S).campaign(timeout=WAIT_S).leading


# --- watching ---


def test_watching_the_leaders(waiting, store, place):
    leader, second, campaign = waiting
    with place.open().election("e").watch_leader(0) as seen:
        a = leader.leader()
        assert list(seen) == [a]
        assert list(seen) == []
        leader.proclaim(b"A2")
        leader.proclaim(b"A2")
        leader.proclaim(b"A3")
        leader.resign()
        campaign.done()
        second.proclaim(b"B2")
        b = second.leader()
        second.resign()
        values = [seen.next(WAIT_S) for _ in range(4)]
        assert values == [
            Leader(b"A2", a.session, a.revision),
            Leader(b"A3", a.session, a.revision),
            Leader(b"B", b.session, b.revision),
            b,
        ]
        assert seen.next(0.01) is None
        leader.campaign(b"A4")
        assert seen.next(WAIT_S) == leader.leader()


@pytest.mark.parametrize("who", ["watch", "store"])
def test_closing_ends_the_watching(place, clock, who):
    store = place.open(clock=clock)
    seen, begun, ended = store.election("e").watch_leader(), threading.Event(), []

    def follow():
        begun.set()
        try:
            ended.extend(seen)
        except StoreClosedError:
            ended.append("closed")

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(WAIT_S)
    (seen if who == "watch" else store).close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert ended == ["closed"]
    with pytest.raises(StoreClosedError):
        seen.next(0)


# --- closing and forking ---


def test_closing_the_store_ends_leading_and_waiting(store, place, engine):
    mine = place.open()
    leader = mine.election("a", ttl=LONG_S).campaign(b"A")
    blocker = store.election("e", ttl=LONG_S).campaign(b"X")
    session = mine.session(LONG_S)
    with stood(engine, 3):
        waits = [
            Campaign(mine.election("e", ttl=LONG_S), b"B"),
            Campaign(mine.election("e", session=session), b"C"),
        ]
    mine.close()
    for campaign in waits:
        assert isinstance(campaign.done(), StoreClosedError)
    assert not leader.leading
    assert standing(engine, b"a") == []
    assert standing(engine) == [b"X"]
    leader.resign()
    for call in (leader.campaign, leader.leader, leader.watch_leader):
        with pytest.raises(StoreClosedError):
            call()
    with pytest.raises(StoreClosedError):
        mine.election("e")
    blocker.resign()


@pytest.mark.long_on("memory")
@pytest.mark.forks
def test_in_a_forked_child_nothing_of_it_is_left(waiting, store, place):
    leader, second, campaign = waiting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: what is tested
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            try:
                _ = leader.guard
            except SessionLostError:
                code = 2
            if code == 2 and not leader.leading and not second.leading:
                leader.resign()
                second.resign()
                store.close()
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert leader.leading
    store.commit(puts={"k": b"1"}, guards=[leader.guard])
    leader.resign()
    assert campaign.done() is second


@pytest.mark.parametrize("place", SHARED, indirect=True)
@pytest.mark.forks
def test_a_child_can_stand_itself(store, place, engine):
    leader = store.election("e", ttl=LONG_S).campaign(b"parent")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: what is tested
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            leader.campaign(b"child", timeout=WAIT_S)
            store.commit(puts={"child": b"1"}, guards=[leader.guard])
            leader.resign()
            code = 0
        finally:
            os._exit(code)
    leaders = leader.watch_leader(WAIT_S)
    assert next(leaders).value == b"parent"
    leader.resign()
    assert next(leaders).value == b"child"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.load("child") == b"1"
    leaders.close()


def test_time_travel_does_not_see_it(store, clock, waiting):
    leader, second, campaign = waiting
    first = store.commit(puts={"k": b"1"}, guards=[leader.guard])
    clock.advance(1_000)
    leader.proclaim(b"A2")
    leader.resign()
    campaign.done()
    assert list(store.diff(first.ts, None)) == []
    assert store.load_with_prefix("") == (["k"], [b"1"])
    assert [commit.ts for commit in store.commits()] == [first.ts]
    second.resign()
    assert store.check().problems == ()


# --- what cannot be used ---


@cases(
    ("name", "error"),
    [
        ("", InvalidKeyError),
        ("a\ud800", InvalidKeyError),
        ("x" * 100_000, InvalidKeyError),
        (b"e", InvalidTypeError),
        (None, InvalidTypeError),
        (5, InvalidTypeError),
    ],
)
def test_bad_names(store, name, error):
    with pytest.raises(error):
        store.election(name)


def test_other_bad_arguments(store, place):
    before = place.revision()
    election = store.election("e", ttl=LONG_S)
    with pytest.raises(InvalidTypeError):
        store.election("e", session="s")
    for value in (None, "text", bytearray(b"")):
        with pytest.raises(InvalidTypeError):
            election.campaign(value)
        with pytest.raises(InvalidTypeError):
            election.proclaim(value)
    for timeout, error in (("1", InvalidTypeError), (-1, InvalidOptionError)):
        with pytest.raises(error):
            election.campaign(b"", timeout)
        with pytest.raises(error):
            election.watch_leader(timeout)
    with pytest.raises(SessionLostError):
        election.proclaim(b"")
    assert place.revision() == before
    foreign = place.open().session(LONG_S)
    with pytest.raises(InvalidOptionError):
        store.election("e", session=foreign)
    foreign.close()
    too_large = bytes(store._core.engine.limits.request_bytes)
    with pytest.raises(CommitTooLargeError):
        election.campaign(too_large)
    assert election.leader() is None
    assert store.sessions() == []
    election.campaign(b"A")
    with pytest.raises(CommitTooLargeError):
        election.proclaim(too_large)
    assert election.leading


def test_guards_combine(store):
    with store.election("e", ttl=LONG_S).campaign() as leader, store.session(LONG_S) as session:
        guards = [leader.guard, session.guard, Absent("k")]
        store.commit(puts={"k": b"1"}, guards=guards)
        with pytest.raises(ConflictError) as caught:
            store.commit(puts={"k": b"2"}, guards=guards)
        assert [guard for guard, _ in caught.value.failed] == [Absent("k")]


# --- ending another process's session ---


def test_a_leader_ends_another_session(store, place):
    leader = store.election("e", ttl=LONG_S).campaign()
    other = place.open().session(LONG_S, b"other")
    (seen,) = [info for info in store.sessions() if info.value == b"other"]
    assert store.sessions().revision >= seen.revision
    assert leader.end_session(seen)
    assert [info for info in store.sessions() if info.value == b"other"] == []
    assert not leader.end_session(seen)
    with pytest.raises(ConflictError):
        store.commit(puts={"k": b"1"}, guards=[other.guard])
    other.renew()
    assert not other.alive


def test_a_deposed_leader_ends_no_session(store, place):
    leader = store.election("e", ttl=LONG_S).campaign()
    other = place.open().session(LONG_S, b"other")
    (seen,) = [info for info in store.sessions() if info.value == b"other"]
    leader.resign()
    assert not leader.end_session(seen)
    assert seen in store.sessions()
    assert other.renew() is not None
    with pytest.raises(SessionLostError):
        store.election("e").end_session(seen)
