"""Elections: one leader at a time, in order of standing; what a deposed one commits fails."""

import gc
import os
import random
import threading
import warnings

import pytest
from cases import cases

from snapkv import Absent, ConflictError
from snapkv.coordination.leader import Leader
from snapkv.engine.contract import Delete
from snapkv.errors import (
    CommitTooLargeError,
    EngineBusyError,
    EngineUnavailableError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    SessionLostError,
    StoreClosedError,
)
from snapkv.model import Held

from .campaigns import LONG_S, WAIT_S, Campaign, live_keys, standing, stood
from .engines import SHARED, write_raw
from .wrapping import Intruding, Wrapped, wrap_engines


@pytest.fixture
def engine(place):
    return place.engine()


@pytest.fixture
def waiting(store, place, engine):
    """A leader, and one that waits in a thread."""
    leader = store.election("e", ttl=LONG_S).campaign(b"A")
    second = place.open().election("e", ttl=LONG_S)
    with stood(engine, 2):
        campaign = Campaign(second, b"B")
    yield leader, second, campaign
    leader.close()
    second.close()
    campaign.join(WAIT_S)


# --- being elected ---


def test_who_stands_alone_leads(store, place, engine):
    election = store.election("e", ttl=LONG_S)
    assert (election.leading, election.revision, election.leader()) == (False, 0, None)
    with pytest.raises(SessionLostError):
        _ = election.guard
    assert election.campaign(b"me") is election
    assert election.leading
    (info,) = store.sessions()
    seen = place.open().election("e").leader()
    assert seen == election.leader() == Leader(b"me", info.id, election.revision)
    key = b"election/e/%016x" % info.id
    assert election.guard == Held(key, election.revision)
    assert b"default/live/" + key in live_keys(engine)
    done = store.commit(puts={"k": b"1"}, guards=[election.guard])
    assert done.revision > election.revision
    election.resign()
    assert not election.leading
    assert live_keys(engine) == []
    election.resign()


def test_the_next_one_leads_when_the_leader_resigns(waiting, engine):
    leader, second, campaign = waiting
    assert not second.leading
    assert leader.leader() == second.leader()
    assert standing(engine) == [b"A", b"B"]
    leader.resign()
    assert campaign.done() is second
    assert second.leading
    assert not leader.leading
    assert second.revision > leader.revision > 0
    assert second.leader().value == b"B"


def test_in_the_order_of_standing(place, engine):
    """Lease ids, by which keys sort, are random; ten of them are in order in 1 of 3,628,800."""
    elected, campaigns, turn = [], [], threading.Event()

    def lead(election):
        elected.append(election.leader().value)
        assert turn.wait(WAIT_S)
        election.resign()

    for n in range(10):
        with stood(engine, n + 1):
            campaigns.append(Campaign(place.open().election("e"), b"%d" % n, then=lead))
    turn.set()
    for campaign in campaigns:
        assert campaign.done() is campaign.election
    assert elected == [b"%d" % n for n in range(10)]
    revisions = [campaign.election.revision for campaign in campaigns]
    assert revisions == sorted(set(revisions))
    assert live_keys(engine) == []


def test_one_that_waits_in_the_middle_may_leave(waiting, place, engine):
    leader, _, campaign = waiting
    third = place.open().election("e", ttl=LONG_S)
    with stood(engine, 3):
        last = Campaign(third, b"C")
    with stood(engine, 2):
        campaign.election.resign()
    assert isinstance(campaign.done(), EngineBusyError)
    assert last.is_alive(), "A leads still"
    assert not third.leading
    leader.resign()
    assert last.done() is third
    third.resign()


def test_a_timeout_withdraws_the_candidate(store, place, engine):
    leader = store.election("e", ttl=LONG_S).campaign(b"A")
    before = live_keys(engine)
    other = place.open().election("e", ttl=LONG_S)
    for timeout in (0, 0.05):
        with pytest.raises(EngineBusyError):
            other.campaign(b"B", timeout=timeout)
        assert live_keys(engine) == before, "its own session is closed, too"
        assert not other.leading
    leader.resign()
    assert other.campaign(b"B", timeout=0).leading
    assert other.leader().value == b"B"


def test_as_a_context_manager(store, engine):
    with store.election("e").campaign(b"A") as leader:
        assert leader.leading
    assert live_keys(engine) == []
    with store.election("e") as nobody:
        assert nobody.leader() is None
    assert leader.campaign(b"again").leading, "it can stand again"
    leader.close()


def test_elections_do_not_see_each_other(store, place):
    names = ["e", "e/", "e%2F", "/e", "%", "/", "é\n", " "]
    led = [store.election(name).campaign(name.encode(), timeout=0) for name in names]
    led.append(place.open(name="other").election("e").campaign(b"other", timeout=0))
    led.append(place.open(name="default/sub").election("e").campaign(b"sub", timeout=0))
    assert [e.leader().value for e in led] == [*map(str.encode, names), b"other", b"sub"]
    for n, election in enumerate(led):
        assert election.leading
        election.resign()
        assert [e.leader() is None for e in led] == [True] * (n + 1) + [False] * (len(led) - n - 1)


# --- being deposed ---


def test_a_deposed_leaders_commits_fail(store, waiting, engine):
    """The first does not know yet that it was deposed: its thread looks every 10 s."""
    leader, second, campaign = waiting
    store.commit(puts={"k": b"A"}, guards=[leader.guard])
    engine.revoke(leader.leader().session)
    assert campaign.done() is second
    assert leader.leading, "as far as it knows"
    with pytest.raises(ConflictError) as caught:
        store.commit(puts={"k": b"late"}, guards=[leader.guard])
    assert caught.value.failed == ((leader.guard, 0),)
    done = store.commit(puts={"k": b"B"}, guards=[second.guard])
    assert store.load("k") == b"B"
    assert [commit.ts for commit in store.commits()][-1] == done.ts
    with pytest.raises(SessionLostError):
        leader.proclaim(b"still me")
    assert not leader.leading, "now it knows"
    assert leader.guard.revision == leader.revision
    with pytest.raises(ConflictError):
        store.commit(puts={"k": b"late"}, guards=[leader.guard])


def test_a_leader_that_is_not_kept_alive_is_deposed(place, ttl_s, engine, monkeypatch):
    class Silent(Wrapped):
        def keep_alive(self, lease, *, timeout=None):
            raise EngineUnavailableError("no answer")

    with monkeypatch.context() as patch:
        wrap_engines(patch, Silent)
        lonely = place.open()
    leader = lonely.election("e", ttl=ttl_s).campaign(b"A")
    guard = leader.guard
    second = place.open().election("e", ttl=LONG_S).campaign(b"B", timeout=WAIT_S)
    assert not leader.leading, "it stops before the next one begins"
    with pytest.raises(ConflictError):
        lonely.commit(puts={"k": b"late"}, guards=[guard])
    lonely.commit(puts={"k": b"B"}, guards=[second.guard])
    assert not leader.leading
    with pytest.raises(EngineBusyError):
        leader.campaign(b"C", timeout=0)


@pytest.fixture
def ttl_s(place):
    return place.kind.ttl_s


def test_deposed_while_the_commit_is_on_its_way(place, engine, monkeypatch):
    """The guard is checked in the commit's own transaction, not before."""
    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, Intruding)
        store = place.open()
    (wrapped,) = engines
    leader = store.election("e", ttl=LONG_S).campaign(b"A")
    second = place.open().election("e", ttl=LONG_S)
    with stood(engine, 2):
        campaign = Campaign(second, b"B")

    def depose():
        wrapped.intrude = lambda: None
        engine.revoke(leader.leader().session)
        assert campaign.done() is second

    wrapped.intrude = depose
    assert leader.leading
    with pytest.raises(ConflictError):
        store.commit(puts={"k": b"late"}, guards=[leader.guard])
    assert store.at().count() == 0
    assert list(store.commits()) == [], "nothing of it stands in the log"
    store.commit(puts={"k": b"B"}, guards=[second.guard])


def test_a_group_of_commits_loses_only_those_of_the_deposed(store, waiting, engine):
    """Many threads, many guards: each commit stands or falls by its own."""
    leader, second, campaign = waiting
    outcomes, failed, gate = [], [], threading.Barrier(9)

    def commit(n, guards):
        try:
            gate.wait(WAIT_S)
            for i in range(20):
                if n == 0 and i == 10:
                    engine.revoke(leader.leader().session)
                    assert campaign.done() is second
                try:
                    done = store.commit(puts={f"{n}/{i}": b""}, guards=guards)
                    outcomes.append((n, i, done.revision))
                except ConflictError:
                    outcomes.append((n, i, None))
        except BaseException as e:
            failed.append(e)

    threads = [
        threading.Thread(target=commit, args=(n, [leader.guard] if n % 2 else [])) for n in range(9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert failed == []
    assert second.leading
    for n, i, revision in outcomes:
        assert (f"{n}/{i}" in store.at()) == (revision is not None)
        if n % 2 and revision is not None:
            assert leader.revision < revision < engine_end_of(engine, leader)
        if not n % 2:
            assert revision is not None


def engine_end_of(engine, election) -> int:
    """The revision at which the key of a past leadership was removed."""
    key = b"default/live/" + election.guard.key
    watcher = engine.watch(key, b"", start_revision=election.revision)
    while (batch := watcher.next(WAIT_S)) is not None:
        if any(event.is_delete for event in batch.events):
            watcher.close()
            return batch.revision
    raise AssertionError("its key was never removed")


def test_terms_of_many_contenders_never_overlap(place):
    """Each term commits its token under its guard; in the log the tokens only rise."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    terms, failed, lock = [], [], threading.Lock()

    def contend(n):
        rng = random.Random(seed + n)
        try:
            with place.open() as mine, place.open() as other:
                raw = other._core.engine
                for _ in range(4):
                    with mine.election("e", ttl=LONG_S).campaign(b"%d" % n, WAIT_S) as leader:
                        with lock:
                            terms.append(leader.revision)
                        guard, how = leader.guard, rng.random()
                        for i in range(rng.randrange(1, 4)):
                            token = b"%d" % leader.revision
                            mine.commit(puts={"token": token, f"{token}/{i}": b""}, guards=[guard])
                        if how < 0.5:
                            raw.revoke(leader._candidacy.session.id)
                            with pytest.raises(ConflictError):
                                mine.commit(puts={"token": b"late"}, guards=[guard])
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=contend, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * WAIT_S)
    assert failed == []
    assert not any(thread.is_alive() for thread in threads)
    with place.open() as store:
        tokens = [int(version.value) for version in store.history("token")]
        assert tokens == sorted(tokens)
        assert sorted(set(tokens)) == sorted(terms)
        assert terms == sorted(terms), "they were told in this order, too"
        assert len(terms) == 20
        assert store.sessions() == []
        assert store.check().problems == ()


def test_who_waits_learns_that_its_session_is_lost(waiting, engine):
    _, second, campaign = waiting
    engine.revoke(second._candidacy.session.id)
    second._candidacy.session.renew()  # as its thread does every 10 s
    assert isinstance(campaign.done(), SessionLostError)
    assert standing(engine) == [b"A"]
    with stood(engine, 2):
        again = Campaign(second, b"B2")
    second.resign()
    assert isinstance(again.done(), EngineBusyError)


def test_a_candidate_whose_key_was_removed_is_told_so(waiting, engine):
    leader, second, campaign = waiting
    write_raw(engine, Delete(second._candidacy.key))
    leader.resign()
    assert isinstance(campaign.done(), SessionLostError)
    assert not second.leading
    assert live_keys(engine) == []


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


def test_two_objects_for_one_session_and_name_would_be_one_candidate(store):
    with store.session(LONG_S) as session:
        first = store.election("e", session=session).campaign(b"1")
        second = store.election("e", session=session)
        with pytest.raises(EngineBusyError, match="another object"):
            second.campaign(b"2")
        assert first.leading
        first.resign()
        second.campaign(b"2")
        assert (first.leading, second.leading) == (False, True)


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
