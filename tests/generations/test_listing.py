"""What clients ask of a log: all generations, the one at a time, the next one, its streams."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cdcmeta.errors import GenerationNotFoundError
from cdcmeta.generations import Sharding
from snapkv import pack
from snapkv.errors import InvalidTimeError, InvalidTypeError

RING = {-100: Sharding(2), 100: Sharding(3)}


@pytest.fixture
def two(log, clock):
    first = log.make(RING)
    clock.advance(100_000)
    return first, log.make(RING | {0: Sharding(2)})


def test_the_one_at_a_time_and_the_next(log, two):
    first, second = two
    assert second.time >= first.time + pack(100_000)
    answers = [
        (0, None, first),
        (first.time - 1, None, first),
        (first.time, first, second),
        (second.time - 1, first, second),
        (second.time, second, None),
        (datetime(3000, 1, 1, tzinfo=UTC), second, None),
        ("1970-01-01T00:00:00Z", None, first),
    ]
    for when, operates, follows in answers:
        assert (log.operating_at(when), log.next_after(when)) == (operates, follows), when


def test_all_now_and_at_a_time_before(log, two):
    assert log.generations() == list(two)
    assert log.generations(as_of=two[1].made - 1) == [two[0]]
    assert log.generations(as_of=0) == []


def test_what_each_generation_is_at_a_time(log, two):
    first, second = two
    phases = [
        (first.time - 1, "to come", "to come"),
        (first.time, "operates", "to come"),
        (second.time - 1, "operates", "to come"),
        (second.time, "superseded", "operates"),
    ]
    for time, *expected in phases:
        assert [first.phase(time, second), second.phase(time, None)] == expected, time
    marked = replace(first, expired=second.time + 5)
    assert marked.phase(second.time + 9, second) == "expired"


def test_streams_and_a_switch_as_of_a_time(log, two, clock):
    first, second = two
    before = log.topology(first)
    assert log.topology(first, as_of=first.made) == before
    with pytest.raises(GenerationNotFoundError):
        log.topology(second, as_of=first.made - 1)
    clock.advance(100_000_000)
    log.expire(1.0)
    with pytest.raises(GenerationNotFoundError):
        log.topology(first)
    assert log.topology(first, as_of=second.made) == before
    assert log.pending(as_of=second.made) is None
    switch = log.pending(as_of=second.made - 1)
    assert (switch.phase, switch.id, switch.first) == ("prepared", second.id, False)


def test_the_table_has_the_newest_first_and_streams_in_the_order_of_the_ring(log, two):
    rows = list(log.table())
    assert [row.time for row in rows] == [two[1].time, two[0].time]
    for row, each in zip(rows, reversed(two), strict=True):
        topology = log.topology(each)
        assert row.streams == [stream for part in topology for stream in part.streams]
        assert row.streams == log.streams_of(each)
        assert len(row.streams) == each.streams
        assert row.expired is None


@pytest.mark.parametrize("when", [datetime(2026, 1, 1), "yesterday", -1, 1 << 64])
def test_times_that_cannot_be(log, when):
    for ask in (log.operating_at, log.next_after):
        with pytest.raises(InvalidTimeError):
            ask(when)


@pytest.mark.parametrize("when", [float("nan"), 1.5, None, True])
def test_what_is_no_time(log, when):
    for ask in (log.operating_at, log.next_after):
        with pytest.raises(InvalidTypeError):
            ask(when)
