"""What clients ask of a log: all generations, the one at a time, the next one, its streams."""

from datetime import UTC, datetime

import pytest

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
