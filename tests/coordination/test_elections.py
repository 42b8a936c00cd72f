"""Elections: being elected, being deposed."""

import random
import threading

import pytest
from store.engines import write_raw
from store.wrapping import Intruding, Wrapped, wrap_engines

from snapkv import ConflictError
from snapkv.coordination.election import Leader
from snapkv.engine.contract import Delete
from snapkv.errors import (
    EngineBusyError,
    EngineUnavailableError,
    SessionLostError,
)
from snapkv.model import Held

from .campaigns import LONG_S, WAIT_S, Campaign, live_keys, standing, stood

pytestmark = pytest.mark.slow

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


def test_the_leaders_of_all_elections(store, place):
    assert store.leaders() == {}
    names = ["a", "a/b", "a%2Fb", "jobs/50%/"]
    led = {name: store.election(name, ttl=LONG_S).campaign(name.encode()) for name in names}
    second = Campaign(place.open().election("a", ttl=LONG_S), b"second")
    other = place.open(name="other").election("a", ttl=LONG_S).campaign(b"of another store")
    assert store.leaders() == {name: each.leader() for name, each in led.items()}
    led["a"].resign()
    second.done()
    assert store.leaders()["a"].value == b"second"
    led["a/b"].resign()
    assert sorted(store.leaders()) == sorted({*names} - {"a/b"})
    assert place.open(name="other").leaders() == {"a": other.leader()}


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
