"""Sequences: their text, its order, and what is none."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcmeta import Sequence, Versionstamp
from cdcmeta.changes.sequence import START
from cdcmeta.errors import InvalidSequenceError
from snapkv import ManualClock, pack
from snapkv.errors import InvalidTimeError, InvalidTypeError

shorts = st.integers(0, 2**16 - 1)
stamps = st.builds(Versionstamp, st.integers(0, 2**64 - 1), shorts, shorts)
sequences = st.builds(Sequence, st.integers(0, 70_000) | st.integers(0, 2**32 - 1), stamps)


@given(sequences)
def test_text_is_read_back(sequence):
    assert Sequence.parse(str(sequence)) == sequence
    assert bytes.fromhex(str(sequence)) == bytes(sequence)


@pytest.mark.slow
@given(st.lists(sequences, max_size=8))
def test_texts_sort_as_sequences(some):
    assert sorted(map(str, some)) == [str(each) for each in sorted(some)]
    assert all(str(each) >= "0" for each in some)


@pytest.mark.parametrize(
    ("incarnation", "digits"), [(0, 26), (1, 28), (255, 28), (256, 30), (65_535, 30), (65_536, 32)]
)
def test_how_long_it_is(incarnation, digits):
    """13 bytes, 14 after a few relocations, as the RFC says."""
    assert len(str(Sequence(incarnation, Versionstamp(1)))) == digits


def test_zero_is_before_all():
    assert Sequence.parse("0") == START == Sequence(0, Versionstamp(0))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 digits"),
        ("00", "2 digits"),
        ("14" + "0" * 23, "25 digits"),
        ("14" + "0" * 25, "even number"),
        ("14" + "0" * 22 + "0g", "hexadecimal"),
        ("14" + "A" * 24, "lower-case"),
        ("13" + "00" * 12, "does not begin with an incarnation"),
        ("15" + "00" * 12, "does not begin with an incarnation"),
        ("1500" + "00" * 12, "does not begin with an incarnation"),
        ("13fe" + "00" * 12, "an invalid incarnation: -1"),
        ("1414" + "00" * 12, "does not begin with an incarnation"),
        ("26" + "00" * 12, "an invalid incarnation: False"),
        ("1c" + "ff" * 8 + "00" * 12, "an invalid incarnation"),
        ("ff" * 200, "does not begin with an incarnation"),
        (5, "text, not int"),
        (None, "text, not NoneType"),
    ],
)
def test_errors_say_what_is_wrong(text, why):
    with pytest.raises(InvalidSequenceError, match=why):
        Sequence.parse(text)


@given(st.integers(1, 2**64 - 1), st.integers(0, 300))
def test_the_place_of_a_time(timestamp, incarnation):
    place = Sequence.behind(timestamp, incarnation)
    assert Sequence(incarnation, Versionstamp(timestamp, 65_535, 65_535)) <= place
    if timestamp < 2**64 - 1:
        assert place < Sequence(incarnation, Versionstamp(timestamp + 1))
    assert place < Sequence(incarnation + 1, Versionstamp(0))


@pytest.mark.parametrize(
    "time", ["1970-01-01T00:00:05.000Z", datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), "-2s"]
)
def test_a_time_in_any_form_stands_for_the_end_of_its_millisecond(time):
    place = Sequence.at(time, 3, clock=ManualClock(7_000))
    assert place.incarnation == 3
    assert place.timestamp == pack(5_001) - 1


@pytest.mark.parametrize("time", [-1, 2**64, "yesterday", datetime(2026, 1, 1), None, True])
def test_what_is_no_time_has_no_place(time):
    with pytest.raises((InvalidTimeError, InvalidTypeError)):
        Sequence.at(time)


@pytest.mark.parametrize("number", [4, 1_795_386_000, "1795386000000", 1_795_386_000 * 10**9])
def test_a_number_that_is_no_timestamp_has_no_place(number):
    with pytest.raises(InvalidTimeError, match=f"{number} is not a timestamp: "):
        Sequence.at(number)
    assert Sequence.at(0) == Sequence.at("0")
    assert Sequence.at(4, clock=ManualClock(0)).timestamp == 4


def test_a_revision_has_no_place_without_its_store():
    with pytest.raises(InvalidTimeError, match="only an open store can return its time"):
        Sequence.at("rev:4")
