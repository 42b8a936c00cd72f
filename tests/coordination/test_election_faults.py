"""Elections when requests are lost, or arrive late, or the engine fails and compacts."""

import pytest
from store.wrapping import LosingOnce, Wrapped, wrap_engines

from snapkv import CompactedError
from snapkv.coordination.election import Leader
from snapkv.engine.contract import OutcomeUnknown, Put
from snapkv.errors import EngineBusyError, EngineUnavailableError, NoSpaceError

from .campaigns import LONG_S, WAIT_S, Campaign, standing, stood


class Compacting(Wrapped):
    """The first `next` of each watch finds its start compacted, `left` times."""

    left = 0

    def watch(self, key, range_end, *, start_revision):
        watcher = self.inner.watch(key, range_end, start_revision=start_revision)
        if not self.left:
            return watcher
        self.left -= 1
        return Overtaken(watcher)


class Overtaken(Wrapped):
    def next(self, timeout):
        raise CompactedError(1, 2, unit="revision")


def test_compaction_does_not_end_waiting_or_watching(place, engine, monkeypatch):
    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, Compacting)
        store = place.open()
    leader = place.open().election("e", ttl=LONG_S).campaign(b"A")
    engines[0].left = 2
    with stood(engine, 2):
        campaign = Campaign(store.election("e", ttl=LONG_S), b"B")
    leader.resign()
    assert campaign.done().leading
    engines[0].left = 2
    with store.election("e").watch_leader(0) as seen:
        assert seen.next(WAIT_S).value == b"B"
        assert seen.next(0) is None
        campaign.election.proclaim(b"B2")
        assert seen.next(WAIT_S).value == b"B2"
    assert engines[0].left == 0


# --- unknown outcomes ---


class Late(Wrapped):
    """Loses the answer of the next requests; `before` says how many never arrived, or not yet."""

    lose, apply = 0, True

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.sent = []

    def transact(self, prepare, peek, *, timeout):
        if not self.lose:
            return self.inner.transact(prepare, peek, timeout=timeout)
        self.lose -= 1
        self.sent.append(prepare(None))
        if self.apply:
            self.inner.transact(lambda _: self.sent[-1], peek, timeout=timeout)
        raise OutcomeUnknown("the connection was lost", retry=True)

    def arrive(self) -> None:
        """Let the copies that were lost arrive now."""
        for txn in self.sent:
            self.inner.transact(lambda _, txn=txn: txn, b"-", timeout=10)


@pytest.fixture
def late(place, monkeypatch):
    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, Late)
        store = place.open()
    return store, engines[0]


@pytest.mark.parametrize("applied", [True, False])
def test_standing_with_unknown_outcomes(late, engine, applied):
    store, lossy = late
    with store.session(LONG_S) as session:
        lossy.lose, lossy.apply = 3, applied
        election = store.election("e", session=session).campaign(b"A", timeout=WAIT_S)
        assert lossy.lose == 0
        assert election.leader() == Leader(b"A", session.id, election.revision)
        store.commit(puts={"k": b"1"}, guards=[election.guard])
        lossy.arrive()
        assert election.leader() == Leader(b"A", session.id, election.revision)
        election.resign()
        assert standing(engine) == []
        lossy.arrive()
        assert standing(engine) == [], "a late copy makes no candidate that nobody knows of"
        assert session.alive
        store.commit(puts={"k": b"2"}, guards=[session.guard])
        election.campaign(b"A2", timeout=0)
        election.resign()
        assert standing(engine) == []


def test_late_copies_of_a_candidate_that_gave_up(late, place, engine):
    store, lossy = late
    leader = place.open().election("e", ttl=LONG_S).campaign(b"A")
    with store.session(LONG_S) as session:
        lossy.lose, lossy.apply = 1, False
        with pytest.raises(EngineBusyError):
            store.election("e", session=session).campaign(b"B", timeout=0)
        lossy.arrive()
        assert standing(engine) == [b"A"]
    leader.resign()


def test_two_elections_of_one_session_do_not_shut_out_each_other(late, engine):
    store, lossy = late
    with store.session(LONG_S) as session:
        a, b = (store.election(name, session=session) for name in "ab")
        lossy.lose, lossy.apply = 1, False
        a.campaign(b"1", timeout=0)
        b.campaign(b"1", timeout=0)
        a.resign()  # it writes the session's key again
        b.resign()
        assert b.campaign(b"2", timeout=0).leading
        assert a.campaign(b"2", timeout=0).leading
        assert standing(engine, b"a") == standing(engine, b"b") == [b"2"]


@pytest.mark.parametrize("applied", [True, False])
def test_proclaiming_with_unknown_outcomes(late, applied):
    store, lossy = late
    election = store.election("e", ttl=LONG_S).campaign(b"A")
    lossy.lose, lossy.apply = 2, applied
    election.proclaim(b"A2")
    assert election.leader().value == b"A2"
    election.proclaim(b"A3")
    lossy.arrive()
    assert election.leader().value == b"A3", "a late copy does not bring the old value back"
    assert election.leading


@pytest.mark.parametrize("applied", [True, False])
def test_resigning_with_unknown_outcomes(late, engine, applied):
    store, lossy = late
    with store.session(LONG_S) as session:
        election = store.election("e", session=session).campaign(b"A")
        lossy.lose, lossy.apply = 2, applied
        election.resign()
        assert standing(engine) == []
        election.campaign(b"A2")
        lossy.arrive()
        assert standing(engine) == [b"A2"], "a late copy removes no later candidate"
        assert election.leading


# --- out of space ---


class Full(Wrapped):
    """Refuses what writes while `full`; the first so many `applied` are applied all the same.

    Before those, `lose` answers are lost.
    """

    full, applied, lose, late = False, 0, 0, ()

    def transact(self, prepare, peek, *, timeout):
        txn = prepare(None)
        if not self.full or not any(isinstance(op, Put) for op in txn.success):
            return self.inner.transact(lambda _: txn, peek, timeout=timeout)
        if self.lose:
            self.lose -= 1
            self.late = (*self.late, txn)
            raise OutcomeUnknown("the connection was lost", retry=True)
        if self.applied:
            self.applied -= 1
            self.inner.transact(lambda _: txn, peek, timeout=timeout)
        raise OutcomeUnknown("quota", retry=False, cause=NoSpaceError("quota"), answered=True)


@pytest.fixture
def limited(place, monkeypatch):
    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, Full)
        store = place.open()
    return store, engines[0]


def test_standing_when_the_key_is_refused_and_stands(limited, engine):
    store, full = limited
    with store.session(LONG_S) as session:
        full.full, full.applied = True, 1
        election = store.election("e", session=session).campaign(b"A", timeout=0)
        assert election.leader() == Leader(b"A", session.id, election.revision)
        store.election("e").leader()
        with pytest.raises(NoSpaceError):
            election.proclaim(b"A2")
        assert standing(engine) == [b"A"]
        full.applied = 1
        election.proclaim(b"A3")
        assert standing(engine) == [b"A3"]
        election.resign()
        assert standing(engine) == []


def test_standing_when_the_key_is_refused(limited, engine):
    store, full = limited
    with store.session(LONG_S) as session:
        full.full = True
        with pytest.raises(NoSpaceError):
            store.election("e", session=session).campaign(b"A", timeout=0)
        assert standing(engine) == []
        full.full = False
        with store.election("e", session=session) as other:
            assert other.campaign(b"B", timeout=0).leading


def test_copies_on_their_way_when_the_space_ends(limited, engine):
    """They cannot be shut out without writing: the key is removed, and later once more."""
    store, full = limited
    with store.session(LONG_S) as session:
        full.full, full.lose = True, 1
        election = store.election("e", session=session)
        with pytest.raises(NoSpaceError):
            election.campaign(b"A", timeout=0)
        for txn in full.late:
            engine.transact(lambda _, txn=txn: txn, b"-", timeout=WAIT_S)
        assert standing(engine) == [b"A"]
        with pytest.raises(NoSpaceError):
            election.resign()
        assert standing(engine) == []
        full.full = False
        election.resign()
        for txn in full.late:
            engine.transact(lambda _, txn=txn: txn, b"-", timeout=WAIT_S)
        assert standing(engine) == [], "a late copy makes no candidate that nobody knows of"
        assert election.campaign(b"B", timeout=0).leading


@pytest.mark.parametrize("applied", [0, 1])
def test_a_session_when_its_key_is_refused(limited, engine, applied):
    store, full = limited
    full.full, full.applied = True, applied
    if applied:
        with store.session(LONG_S) as session:
            assert [seen.revision for seen in store.sessions()] == [session.revision]
    else:
        with pytest.raises(NoSpaceError):
            store.session(LONG_S)
    assert store.sessions() == []


def test_an_engine_that_fails_for_a_while_does_not_end_the_waiting(place, engine, monkeypatch):
    class Failing(Wrapped):
        left = 0

        def read(self, *args, **keywords):
            if self.left:
                self.left -= 1
                raise EngineUnavailableError("no answer")
            return self.inner.read(*args, **keywords)

    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, Failing)
        store = place.open()
    engines[0].left = 2
    assert store.election("e", ttl=LONG_S).campaign(timeout=WAIT_S).leading
    assert engines[0].left == 0


def test_a_lost_request_is_sent_again(place, monkeypatch):
    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, LosingOnce)
        store = place.open()
    with store.session(LONG_S) as session:
        engines[0].lose = True
        assert store.election("e", session=session).campaign(timeout=0).leading
