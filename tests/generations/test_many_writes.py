"""Writes while a switch is under way, and many writes at once: no other answers than one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcmeta.errors import (
    GenerationUnavailableError,
    InvalidArgumentError,
    InvalidWriteTimeError,
    LateGenerationWarning,
)
from cdcmeta.generations import TODAY, Generations
from cdcmeta.generations.known_generations import Rules
from snapkv import ManualClock, pack
from tests.generations.refused import is_invalid_time, is_unavailable
from tests.generations.test_write_window import EDGE, TOKEN, A, B, at, known


def one(generations, ts):
    return generations.stream(ts, TOKEN)


def many(generations, ts):
    return generations.streams(np.array([ts], np.uint64), np.array([TOKEN]))


# --- holding ---


@pytest.mark.parametrize("write", [one, many])
def test_who_holds_is_told_the_newest_write(write):
    generations = known(150, times=(100,))
    assert generations.hold(at(160)) == 0
    write(generations, at(152))
    write(generations, at(151))
    assert generations.hold(at(160)) == at(152)
    assert generations.hold(None) == at(152)


@pytest.mark.parametrize("write", [one, many])
def test_a_write_during_the_call_of_hold_is_refused_or_told(write):
    """One that was looked up before, but is not told, has to look again."""
    told = []

    def accept(*asked):
        if not told:
            told.append(generations.hold(at(150)))  # as another thread would, in the middle of it
        return TODAY.accept(*asked)

    clock = ManualClock(150_000)
    generations = Generations(rules=Rules("held", accept, patience=1), clock=clock)
    generations.insert(at(100), A)
    with is_unavailable("undecided"):
        write(generations, at(150))
    assert told == [0]


@pytest.mark.parametrize("write", [one, many])
def test_a_write_while_a_generation_comes_goes_to_that(write):
    """As above, but what comes in the middle of the lookup is the generation."""
    came = []

    def accept(*asked):
        found = TODAY.accept(*asked)
        if not came:
            came.append(generations.insert(at(150), B))
        return found

    generations = Generations(rules=Rules("late", accept, patience=1), clock=ManualClock(150_000))
    generations.insert(at(100), A)
    stream = write(generations, at(150))
    assert bytes(stream if write is one else stream[0]) == B.stream_for(TOKEN).raw


@pytest.mark.parametrize("write", [one, many])
def test_writes_are_noted_for_those_that_are_late(write):
    generations = known(150, times=(100,))
    write(generations, at(151))
    with pytest.warns(LateGenerationWarning):
        generations.prepare(at(151))


# --- many at once ---


def test_many_writes_around_the_beginning_of_a_generation():
    generations = known(200)
    stamps = [at(200) - EDGE, at(200), at(200) + EDGE]
    found = generations.streams(np.array(stamps, np.uint64), np.full(3, TOKEN))
    expected = [A.stream_for(TOKEN), B.stream_for(TOKEN), B.stream_for(TOKEN)]
    assert [bytes(each) for each in found] == [each.raw for each in expected]


def test_one_of_many_in_a_generation_that_was_not_retrieved():
    generations = known(200, times=(100,))
    generations.prepare(at(199))
    generations.insert(at(201), B)
    tokens = np.full(3, TOKEN)
    with is_unavailable("not retrieved") as caught:
        generations.streams(np.array([at(198), at(200), at(202)], np.uint64), tokens)
    assert caught.value.since == at(199)
    around = np.array([at(198), at(202), at(198)], np.uint64)
    assert bytes(generations.streams(around, tokens)[1]) == B.stream_for(TOKEN).raw


@given(
    st.integers(90_000, 210_000),
    st.lists(st.tuples(st.integers(80_000, 220_000), st.integers(-200, 200)), max_size=9),
)
def test_many_writes_get_the_streams_that_each_gets(now_ms, writes):
    generations = known(now_ms / 1_000)
    stamps = np.array([pack(ms, 7) for ms, _ in writes], np.uint64)
    tokens = np.array([token for _, token in writes], np.int64)
    try:
        expected = [bytes(generations.stream(pack(ms, 7), token)) for ms, token in writes]
    except (InvalidWriteTimeError, GenerationUnavailableError):
        with pytest.raises((InvalidWriteTimeError, GenerationUnavailableError)):
            generations.streams(stamps, tokens)
        return
    assert [bytes(each) for each in generations.streams(stamps, tokens)] == expected


@pytest.mark.parametrize(
    ("stamps", "tokens"),
    [
        ([1, 2], [1]),
        ([[1]], [[1]]),
        ([1.5], [1]),
        ([float("nan")], [1]),
        ([True], [1]),
        (np.array(["1970-01-01T00:02:30"], "M8[s]"), [1]),
        (np.array(["1970-01-01T00:02:30"], "M8[us]"), [1]),
        ([None], [1]),
        ([1], [1.5]),
        ([1], np.array([1], np.int32)),
        ([1], np.array([1], np.uint64)),
        (["a"], [1]),
        ([1], ["a"]),
        (1, 1),
    ],
)
def test_arrays_that_do_not_fit(stamps, tokens):
    with pytest.raises(InvalidArgumentError):
        known(150).streams(np.array(stamps), np.array(tokens))


def test_no_writes_at_all():
    assert known(150).streams(np.empty(0, np.uint64), np.empty(0, np.int64)).tolist() == []


def test_times_before_1970_are_past_for_one_and_for_many():
    generations = known(150)
    with is_invalid_time("past"):
        generations.stream(-1, TOKEN)
    with is_invalid_time("past"):
        generations.streams(np.array([at(150), -1]), np.array([TOKEN, TOKEN]))
