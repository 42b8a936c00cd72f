"""Which writes are accepted, and into which generation: at the edges, by both sets of rules."""

import warnings

import numpy as np
import pytest

from cdcmeta.errors import (
    GenerationUnavailableError,
    InvalidArgumentError,
    InvalidWriteTimeError,
    LateGenerationWarning,
)
from cdcmeta.generations import ORIGINAL, TODAY, Generations, Sharding, Topology
from snapkv import ManualClock
from tests.generations.refused import is_invalid_time, is_unavailable
from tests.generations.vectors import cases

RING = {-100: Sharding(2), 100: Sharding(3)}
A, B = Topology.make(RING), Topology.make(RING)
PAST, FUTURE = (InvalidWriteTimeError, "past"), (InvalidWriteTimeError, "future")
NONE = (GenerationUnavailableError, "none")
ANSWERS = {
    "PAST": PAST,
    "FUTURE": FUTURE,
    "NO_STREAM": NONE,
    "A": A,
    "B": B,
}
TOKEN = 7
EDGE = 1


def at(seconds):
    """Return the timestamp of some seconds; microseconds are not lost."""
    return round(seconds * 1_000 * (1 << 18))


def known(now, *, rules=TODAY, times=(100, 200), leeway=5.0):
    clock = ManualClock(round(now * 1_000))
    generations = Generations(rules=rules, clock=clock, leeway=leeway)
    generations.clock = clock
    for time, topology in zip(times, (A, B), strict=False):
        generations.insert(at(time), topology)
    return generations


def answer(generations, ts):
    try:
        found = generations.stream(ts, TOKEN)
    except (InvalidWriteTimeError, GenerationUnavailableError) as e:
        return type(e), e.reason
    return A if found == A.stream_for(TOKEN) else B


@pytest.mark.parametrize(
    ("now", "write", "expect"), cases("write_window", "now", "write", "expect")
)
def test_cdc_write_window(now, write, expect):
    assert answer(known(now), at(write)) == ANSWERS[expect]


def today(now, ts):
    """What facts 3.5 say, in its own words: A from 100 s on, B from 200 s on, 5 s of leeway."""
    old = now - at(5)
    if ts > now + at(5):
        return FUTURE
    if ts <= old:
        if old < at(100):
            return PAST
        current = at(200) if old >= at(200) else at(100)
        if ts < current or (current == at(100) and at(200) <= now):
            return PAST
    if ts < at(100):
        return NONE
    return B if ts >= at(200) else A


def original(now, ts):
    if ts > now + at(5):
        return FUTURE
    if now < at(100):
        return NONE
    current = at(200) if now >= at(200) else at(100)
    if ts < current:
        return PAST
    return B if ts >= at(200) else A


@pytest.mark.parametrize(("rules", "expected"), [(TODAY, today), (ORIGINAL, original)])
def test_every_edge(rules, expected):
    """Clocks and writes at each edge of both generations, of the leeway, and beside them."""
    edges = {95, 100, 105, 150, 195, 200, 205, 210, 900}
    for now in sorted(edges | {edge + by for edge in edges for by in (-1, 1)}):
        generations = known(now, rules=rules)
        for edge in sorted(edges | {now - 5, now, now + 5, 50}):
            for ts in (at(edge) - EDGE, at(edge), at(edge) + EDGE):
                assert answer(generations, ts) == expected(at(now), ts), (now, edge, ts - at(edge))


@pytest.mark.parametrize(("rules", "expected"), [(TODAY, today), (ORIGINAL, original)])
def test_every_edge_of_the_rules_alone(rules, expected):
    """The clock as fine as the writes."""
    edges = [at(each) for each in (95, 100, 105, 150, 195, 200, 205)]
    near = [edge + by for edge in edges for by in (-EDGE, 0, EDGE)]
    for now in near:
        for ts in near + [now + by + e for by in (-at(5), 0, at(5)) for e in (-EDGE, 0, EDGE)]:
            try:
                found = rules.accept([at(100), at(200)], ts, now, at(5))
            except (InvalidWriteTimeError, GenerationUnavailableError) as e:
                found = type(e), e.reason
            wanted = expected(now, ts)
            assert found == (0 if wanted is A else 1 if wanted is B else wanted), (now, ts)


def test_nothing_known():
    generations = Generations(clock=ManualClock(100_000))
    assert not generations.streams_available()
    with is_unavailable("none"):
        generations.stream(at(100), TOKEN)
    with is_unavailable("none"):
        generations.streams(np.array([at(100)]), np.array([TOKEN]))
    assert generations.times == ()


def test_old_writes_are_past_when_nothing_is_known():
    """facts 3.5: no generation operated a leeway ago, so none can be theirs."""
    for times in ((), (300,)):
        generations = known(100, times=times)
        with is_invalid_time("past"):
            generations.stream(at(95), TOKEN)
        with is_unavailable("none"):
            generations.stream(at(95) + EDGE, TOKEN)


def test_streams_available():
    clock = ManualClock(99_999)
    generations = Generations(clock=clock)
    generations.insert(at(100), A)
    assert not generations.streams_available()
    clock.set(100_000)
    assert generations.streams_available()


# --- what is learnt, and when it is not worth it ---


def test_prepare_until_the_data_is_there():
    """Asked again after data could not be read, it still says that they lack (bug 21227)."""
    generations = known(150, times=(100,))
    assert [generations.prepare(at(200)) for _ in "123"] == [True, True, True]
    assert generations.insert(at(200), B)
    assert not generations.prepare(at(200))
    assert not generations.insert(at(200), A)
    generations.clock.set(200_000)
    assert generations.stream(at(200), TOKEN) == B.stream_for(TOKEN)


@pytest.mark.parametrize(
    ("rules", "now", "answers"),
    [
        (TODAY, 204.99, {150: False, 50: True, 201: False, 100: True, 200: True}),
        (TODAY, 205, {150: True, 50: True, 201: False, 100: True, 200: True}),
        (TODAY, 104.99, {50: False}),
        (TODAY, 105, {50: True}),
        (ORIGINAL, 199.99, {150: False, 50: True, 201: False}),
        (ORIGINAL, 200, {150: True, 50: True, 201: False}),
    ],
)
def test_known_or_obsolete(rules, now, answers):
    generations = known(150, rules=rules)
    generations.clock.set(round(now * 1_000))
    for time, expected in answers.items():
        assert generations.known_or_obsolete(at(time)) == expected, time


def test_a_prepared_one_is_obsolete_when_its_successor_took_over():
    generations = known(150, times=(100,))
    generations.prepare(at(160))
    generations.insert(at(200), B)
    assert not generations.known_or_obsolete(at(160))
    generations.clock.set(205_000)
    assert generations.known_or_obsolete(at(160))
    assert not generations.insert(at(160), A)


def test_writes_of_a_generation_that_was_not_retrieved_are_refused():
    generations = known(150, times=(100,))
    generations.prepare(at(160))
    generations.clock.set(160_000)
    assert generations.stream(at(160) - EDGE, TOKEN) == A.stream_for(TOKEN)
    with is_unavailable("not retrieved") as caught:
        generations.stream(at(160), TOKEN)
    assert caught.value.since == at(160)
    with is_unavailable("not retrieved"):
        generations.streams(np.array([at(160)]), np.array([TOKEN]))


def test_writes_are_refused_while_a_switch_is_undecided():
    generations = known(150, times=(100,))
    generations.hold(at(152))
    assert generations.stream(at(152) - EDGE, TOKEN) == A.stream_for(TOKEN)
    for ask in (
        lambda: generations.stream(at(152), TOKEN),
        lambda: generations.streams(np.array([at(151), at(152)]), np.array([TOKEN, TOKEN])),
    ):
        with is_unavailable("undecided") as caught:
            ask()
        assert (caught.value.ts, caught.value.since) == (at(152), at(152))
    generations.hold(None)
    assert generations.stream(at(152), TOKEN) == A.stream_for(TOKEN)


@pytest.mark.parametrize("learn", [Generations.prepare, lambda g, time: g.insert(time, B)])
def test_one_that_is_learnt_of_too_late_is_told(learn):
    generations = known(150, times=(100,))
    generations.stream(at(151), TOKEN)
    with pytest.warns(LateGenerationWarning, match="too late"):
        learn(generations, at(151))
    early = known(150, times=(100,))
    early.stream(at(151), TOKEN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn(early, at(151) + EDGE)


@pytest.mark.parametrize("learn", [Generations.prepare, lambda g, time: g.insert(time, B)])
def test_one_whose_writes_went_to_its_successor_is_not_late(learn):
    generations = known(199)
    generations.stream(at(200), TOKEN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn(generations, at(198))


def test_those_that_nobody_may_write_into_are_forgotten():
    generations = known(150)
    generations.clock.set(204_999)
    generations.insert(at(300), A)
    assert generations.times == (at(100), at(200), at(300))
    generations.clock.set(205_000)
    generations.insert(at(400), B)
    assert generations.times == (at(200), at(300), at(400))


def test_the_original_rules_forget_what_was_superseded_at_once():
    generations = known(150, rules=ORIGINAL)
    generations.clock.set(199_999)
    generations.insert(at(300), A)
    assert generations.times == (at(100), at(200), at(300))
    generations.clock.set(200_000)
    generations.insert(at(400), B)
    assert generations.times == (at(200), at(300), at(400))


@pytest.mark.parametrize("wrong", [float("nan"), float(at(150)), "150", None, True])
def test_times_that_are_none(wrong):
    for rules in (TODAY, ORIGINAL):
        with pytest.raises(InvalidArgumentError):
            known(150, rules=rules).stream(wrong, TOKEN)


def test_times_and_tokens_of_numpy():
    generations = known(205)
    ts, tokens = np.array([at(200)], np.uint64), np.array([TOKEN])
    assert generations.stream(ts[0], tokens[0]) == B.stream_for(TOKEN)
    assert type(generations.last_stream_timestamp) is int


@pytest.mark.parametrize("wrong", [None, "topology", [A]])
def test_what_is_no_topology(wrong):
    generations = known(150, times=(100,))
    with pytest.raises(InvalidArgumentError):
        generations.insert(at(200), wrong)
    assert generations.times == (at(100),)


@pytest.mark.parametrize("leeway", [-1, "5", None, True, float("nan"), float("inf")])
def test_leeways_that_cannot_be(leeway):
    with pytest.raises(InvalidArgumentError):
        Generations(leeway=leeway)
    with pytest.raises(InvalidArgumentError):
        Generations(rules="today")


@pytest.mark.parametrize("learn", [Generations.prepare, lambda g, time: g.insert(time, B)])
def test_a_write_while_one_is_learnt_of_is_late(learn, monkeypatch):
    """`stream` takes no lock: another thread's write comes just before the new one is known."""
    generations = known(150, times=(100,))
    put = generations._put

    def put_after_a_write(time, topology):
        generations.stream(at(151), TOKEN)
        put(time, topology)

    monkeypatch.setattr(generations, "_put", put_after_a_write)
    with pytest.warns(LateGenerationWarning, match="too late"):
        learn(generations, at(151))
