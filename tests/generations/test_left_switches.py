"""Switches that were left half-way, steps that nobody knows of, and requests that are none."""

import contextlib

import pytest

from cdcmeta.errors import InvalidArgumentError, SwitchAbortedError, SwitchPendingError
from cdcmeta.generations import (
    CdcLog,
    GenerationLog,
    Generations,
    Sharding,
)
from cdcmeta.generations import (
    generation_layout as layout,
)
from snapkv.errors import (
    CommitTimeoutError,
    CommitUnknownError,
    CompactedError,
    ConflictError,
)
from snapkv.times import TIMESTAMP_MAX

from .simulated import Died, Dying
from .test_switching import RING, TOKEN, WIDER, Slow, in_background, until, until_pending

pytestmark = pytest.mark.slow

PATIENCE_S = 0.3
TRIES_MAX = 50


@pytest.fixture
def hasty(store):
    """A log whose members soon finish what others left."""
    return GenerationLog(store, propagation_delay=0.0, leeway=5.0, patience=PATIENCE_S)


class Failing:
    """A space in which every commit ends with an error; one that is used too often fails."""

    def __init__(self, space, error):
        self._space, self._error, self._used = space, error, 0

    def __getattr__(self, name):
        return getattr(self._space, name)

    def commit(self, *args, **more):
        self._used += 1
        assert self._used < TRIES_MAX, "this would go on for ever"
        raise self._error


class Overtaken:
    """A space whose watches cannot go on."""

    def __init__(self, space):
        self._space = space

    def __getattr__(self, name):
        return getattr(self._space, name)

    @contextlib.contextmanager
    def watch(self, *args, **more):
        yield self

    def next(self, timeout):
        raise CompactedError(1, 2)


def die_at(log, commits, make, *, after=False):
    coordinator, space = log._coordinator, log._space
    coordinator._space = Dying(space, commits, after=after)
    with pytest.raises(Died):
        make(RING)
    coordinator._space = space


# --- nobody comes ---


def test_members_complete_a_switch_that_all_agreed_to(hasty, clock):
    """Else the writes of all would be refused from its time on, until somebody comes."""
    with hasty.member("one", generations=Generations(clock=clock)) as one:
        die_at(hasty, 2, hasty.make, after=True)
        assert hasty.pending().phase == layout.PREPARED
        until(lambda: hasty.generations() != [])
        (made,) = hasty.generations()
        until(lambda: one.generations.times == (made.time,))
    assert hasty.pending() is None


def test_members_end_a_switch_that_somebody_did_not_answer(hasty, clock):
    first = hasty.make(RING)
    with hasty.member("one", generations=Generations(clock=clock)) as one, Slow(hasty, clock):
        with pytest.raises(SwitchPendingError):
            hasty.make(WIDER, timeout=0.0)
        switch = hasty.pending()
        until(lambda: one.generations._known.undecided_from == switch.not_before)
        assert hasty.pending() == switch, "it is not late yet"
        clock.advance(1_000)
        until(lambda: hasty.pending() is None)
        until(lambda: one.generations._known.undecided_from > switch.not_before)
        assert one.stream(first.time, TOKEN)
    assert hasty.generations() == [first]


def test_members_leave_a_switch_alone_that_has_time(log, clock):
    with log.member("one", generations=Generations(clock=clock)) as one, Slow(log, clock) as slow:
        made = in_background(lambda: log.make(RING, timeout=60))
        until_pending(log)
        until(lambda: one._following.held_s > PATIENCE_S)
        assert one._following.held_s < 20
        slow.catch_up_until(made)
        until(lambda: one._following.held_s == 0)


def test_members_live_on_when_they_cannot_finish_it(hasty, clock, monkeypatch):
    tried = []

    def failing(timeout):
        tried.append(timeout)
        raise ZeroDivisionError

    monkeypatch.setattr(hasty._coordinator, "finish", failing)
    with hasty.member("one", generations=Generations(clock=clock)) as one:
        die_at(hasty, 2, hasty.make, after=True)
        until(lambda: len(tried) > 1)
        assert one.alive


# --- somebody else came before ---


@pytest.mark.parametrize("way", ["make", "regenerate_if_needed"])
@pytest.mark.parametrize(("commits", "after"), [(0, True), (1, False), (1, True), (2, False)])
def test_who_joins_a_switch_whose_coordinator_died_makes_it_anew(log, clock, way, commits, after):
    make = getattr(log, way)
    die_at(log, commits, make, after=after)
    left = log.pending()
    assert left.phase == layout.STORING
    clock.advance(31_000)
    made = make(RING, timeout=5)
    assert log.generations() == [made]
    assert made.id != left.id
    assert list(log._space.at().items(layout.rows_prefix(left.id))) == []


def test_who_joins_a_switch_that_a_member_refuses_hears_of_that(log, store, slow_member):
    with contextlib.suppress(SwitchPendingError):
        log.make(RING, timeout=0.0)
    joined = in_background(lambda: log.regenerate_if_needed(RING, timeout=60))
    switch = log.pending()
    log._space.commit(delete_prefixes=[layout.rows_prefix(switch.id)])
    slow_member.catch_up_until(joined)
    with pytest.raises(SwitchAbortedError, match="no longer has rows"):
        joined.result()


@pytest.fixture
def slow_member(log, clock):
    with Slow(log, clock) as member:
        yield member


def test_a_write_at_the_end_of_all_times_ends_the_switch(log, clock):
    """There is no time behind it at which a generation could begin."""
    first = log.make(RING)
    with Slow(log, clock) as slow:
        slow.generations.last_stream_timestamp = TIMESTAMP_MAX
        made = in_background(lambda: log.make(WIDER, timeout=60))
        slow.catch_up_until(made)
    with pytest.raises(SwitchAbortedError, match="no time"):
        made.result()
    assert (log.generations(), log.pending()) == ([first], None)


# --- steps that fail for ever ---


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CommitUnknownError(1, bytes(16), may_still_land=False), CommitUnknownError),
        (ConflictError([]), CommitTimeoutError),
    ],
    ids=["unknown", "overtaken"],
)
def test_a_claim_that_never_succeeds_ends_with_the_timeout(log, error, told):
    log._coordinator._space = Failing(log._space, error)
    with pytest.raises(told):
        log.make(RING, timeout=0.0)
    assert log.pending() is None


def test_a_decision_that_nobody_ever_knows_of_ends_with_the_timeout(log):
    die_at(log, 2, log.make, after=True)
    error = CommitUnknownError(1, bytes(16), may_still_land=True)
    log._coordinator._space = Failing(log._space, error)
    with pytest.raises(CommitUnknownError):
        log.repair(timeout=0.0)


def test_a_coordinator_needs_no_news(log, clock):
    """What it waits for it reads; a watch that cannot go on costs time, not the switch."""
    log._coordinator._space = Overtaken(log._space)
    with Slow(log, clock) as slow:
        made = in_background(lambda: log.make(RING, timeout=60))
        slow.catch_up_until(made)
    assert log.generations() == [made.result()]


# --- names ---


def test_a_log_whose_name_begins_with_another_ones(store, clock):
    outer, inner = (GenerationLog(store, name, patience=0.5) for name in ("a", "a/b"))
    with Slow(inner, clock, "c"):
        assert outer.make(RING, timeout=0.0)
    with Slow(outer, clock, "b/c"):
        assert inner.make(RING, timeout=0.0)


@pytest.mark.parametrize("name", [b"", b"\xff"])
def test_members_with_odd_names_are_told_apart(log, store, clock, name):
    with store.session(60.0, log._session_prefix + name) as session:
        with pytest.raises(SwitchPendingError):
            log.make(RING, timeout=0.0)
        clock.advance(31_000)
        told = f"{session.id:x}" if not name else "\N{REPLACEMENT CHARACTER}"
        with pytest.raises(SwitchAbortedError, match=f"in time: .*{told}"):
            log.make(RING, timeout=5)


@pytest.mark.parametrize("name", ["", 5, None])
def test_names_of_logs(store, name):
    with pytest.raises(InvalidArgumentError):
        GenerationLog(store, name)
    with pytest.raises(InvalidArgumentError):
        CdcLog(store, Generations(), name)


@pytest.mark.parametrize("name", [5, None, b"x", "\udc80"])
def test_names_of_members(log, store, name):
    with pytest.raises(InvalidArgumentError):
        log.member(name)
    assert store.sessions() == []


@pytest.mark.parametrize("timeout", [None, "1", -1, float("nan"), True])
def test_timeouts_that_are_none(log, store, timeout):
    before = store.resolved()
    with pytest.raises(InvalidArgumentError):
        log.make({5: Sharding(1)}, timeout=timeout)
    with pytest.raises(InvalidArgumentError):
        log.regenerate_if_needed({5: Sharding(1)}, timeout=timeout)
    with pytest.raises(InvalidArgumentError):
        log.repair(timeout=timeout)
    assert store.resolved() == before
