"""Timestamps: packing, what names a moment, and copying one from a display."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapkv
from snapkv.errors import InvalidTimeError, InvalidTypeError
from snapkv.times import (
    PHYSICAL_MS_MAX,
    TIMESTAMP_MAX,
    check_timestamp,
    duration_ms,
    end_of_ms,
    format_time,
    pack,
    physical_ms,
    resolve,
    to_datetime,
)

NOW_MS = 1_700_000_000_123
END = (1 << 18) - 1


@pytest.mark.parametrize(
    ("ms", "logical", "packed"),
    [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 0x40000),
        (1, 5, 0x40005),
        (NOW_MS, 7, NOW_MS * 262_144 + 7),
        ((1 << 46) - 1, END, (1 << 64) - 1),
    ],
)
def test_pack_is_milliseconds_and_18_logical_bits(ms, logical, packed):
    assert pack(ms, logical) == packed
    assert physical_ms(packed) == ms


@pytest.mark.parametrize(("ms", "logical"), [(-1, 0), (1 << 46, 0), (0, -1), (0, 1 << 18)])
def test_pack_refuses_what_does_not_fit(ms, logical):
    with pytest.raises(InvalidTimeError):
        pack(ms, logical)


@pytest.mark.parametrize(
    "when", ["9999-12-31T00:00:00Z", datetime(9999, 12, 31, tzinfo=UTC)], ids=["text", "datetime"]
)
def test_a_date_that_is_too_far_ahead_is_named(when):
    with pytest.raises(InvalidTimeError) as caught:
        resolve(when, 0)
    said = str(caught.value)
    assert said.startswith(f"{when!s} is too far ahead: timestamps end at 4199-")
    assert "logical" not in said
    assert "2534" not in said


@pytest.mark.parametrize(("ms", "shown"), [(10**300, "more than 38 digits"), (10**15, "not 1000")])
def test_milliseconds_that_do_not_fit_are_named(ms, shown):
    with pytest.raises(InvalidTimeError, match=shown) as caught:
        pack(ms)
    assert str(caught.value).startswith("a timestamp has from 0 to 70368744177663 ms since 1970")
    assert len(str(caught.value)) < 130
    with pytest.raises(InvalidTimeError, match="logical count"):
        pack(0, 1 << 18)


def test_a_date_stands_for_the_end_of_its_millisecond():
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert resolve(moment, 0) == pack(NOW_MS, END) == end_of_ms(NOW_MS)
    assert resolve(moment + timedelta(microseconds=999), 0) == pack(NOW_MS, END)
    assert resolve(moment + timedelta(milliseconds=1), 0) == pack(NOW_MS + 1, END)


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-14T22:13:20.123Z",
        "2023-11-14T22:13:20.123+00:00",
        "2023-11-14T23:13:20.123+01:00",
        "2023-11-14 16:43:20.123-05:30",
        "20231114T221320.123Z",
        "  2023-11-14T22:13:20.123Z\n",
    ],
)
def test_iso_texts_of_one_moment(text):
    assert resolve(text, 0) == pack(NOW_MS, END)


def test_a_datetime_of_any_zone_names_the_same_moment():
    zone = timezone(timedelta(hours=-3, minutes=-30))
    moment = to_datetime(pack(NOW_MS)).astimezone(zone)
    assert resolve(moment, 0) == pack(NOW_MS, END)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("-0s", NOW_MS),
        ("-1ms", NOW_MS - 1),
        ("-5m", NOW_MS - 300_000),
        ("-1.5h", NOW_MS - 5_400_000),
        ("-7d", NOW_MS - 604_800_000),
        ("-1w", NOW_MS - 604_800_000),
        ("+10s", NOW_MS + 10_000),
        (" -5m ", NOW_MS - 300_000),
    ],
)
def test_relative_texts_count_from_now(text, ms):
    assert resolve(text, NOW_MS) == pack(ms, END)


@pytest.mark.parametrize("timestamp", [0, 1, 450, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_an_int_is_a_timestamp_also_as_text(timestamp):
    assert resolve(timestamp, NOW_MS) == timestamp
    assert resolve(str(timestamp), NOW_MS) == timestamp


def test_eight_digits_are_a_date_and_so_naive():
    with pytest.raises(InvalidTimeError, match="has no offset"):
        resolve("20240131", NOW_MS)
    assert resolve("2024013", NOW_MS) == 2_024_013
    assert resolve("202401310", NOW_MS) == 202_401_310
    assert resolve(20_240_131, NOW_MS) == 20_240_131


@pytest.mark.parametrize(
    "when",
    [
        datetime(2024, 1, 31, 14, 5),
        "2024-01-31T14:05:00",
        "2024-01-31",
        "2024-01-31 14:05",
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00+00:01",
        datetime(1969, 12, 31, tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
        "-3000w",
        "+9999999d",
        -1,
        1 << 64,
        str(1 << 64),
        "",
        " ",
        "yesterday",
        "5m",
        "- 5m",
        "-5",
        "-5y",
        "-m",
        "1.5",
        "\uff15\uff10",
        "2024-13-01T00:00:00Z",
    ],
)
def test_what_is_no_time(when):
    with pytest.raises(InvalidTimeError) as caught:
        resolve(when, NOW_MS)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "text", ["9" * 5_000, "-" + "9" * 400 + "d", "+" + "9" * 5_000 + "s"], ids=len
)
def test_absurdly_long_numbers_are_no_times(text):
    with pytest.raises(InvalidTimeError):
        resolve(text, NOW_MS)


@pytest.mark.parametrize("when", [None, True, 1.5, b"2024-01-31T14:05:00Z", timedelta(1), []])
def test_what_is_not_even_the_type_of_a_time(when):
    with pytest.raises(InvalidTypeError):
        resolve(when, NOW_MS)


def test_check_timestamp_tells_type_from_range():
    assert check_timestamp(TIMESTAMP_MAX) == TIMESTAMP_MAX
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(InvalidTypeError):
            check_timestamp(wrong)
    for wrong in (-1, TIMESTAMP_MAX + 1):
        with pytest.raises(InvalidTimeError):
            check_timestamp(wrong)


def test_format_time_is_utc_with_milliseconds():
    assert format_time(0) == "1970-01-01T00:00:00.000Z"
    assert format_time(pack(NOW_MS, 7)) == "2023-11-14T22:13:20.123Z"
    assert format_time(1 << 63) == "3084-12-12T12:41:28.832Z"
    assert format_time(TIMESTAMP_MAX) == "4199-11-24T01:22:57.663Z"


@given(st.integers(0, TIMESTAMP_MAX))
def test_a_time_copied_from_a_display_finds_its_commit(timestamp):
    # whatever the display shows names a moment at or after the commit, in its millisecond
    for shown in (format_time(timestamp), to_datetime(timestamp).isoformat()):
        found = resolve(shown, NOW_MS)
        assert timestamp <= found
        assert physical_ms(found) == physical_ms(timestamp)
    assert resolve(to_datetime(timestamp), NOW_MS) >= timestamp


@given(st.integers(0, PHYSICAL_MS_MAX))
def test_to_datetime_and_back(ms):
    assert resolve(to_datetime(pack(ms)), 0) == end_of_ms(ms)


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("30s", 30_000),
        ("1.5h", 5_400_000),
        (" 7d ", 604_800_000),
        ("250ms", 250),
        (2, 2_000),
        (0.5, 500),
        (0, 0),
        (timedelta(days=1), 86_400_000),
    ],
)
def test_durations(duration, ms):
    assert duration_ms(duration) == ms


@pytest.mark.parametrize(
    ("duration", "error"),
    [
        ("-5m", InvalidTimeError),
        ("+5m", InvalidTimeError),
        ("5", InvalidTimeError),
        ("", InvalidTimeError),
        (-1, InvalidTimeError),
        (timedelta(seconds=-1), InvalidTimeError),
        (float("nan"), InvalidTimeError),
        (float("inf"), InvalidTimeError),
        ("9" * 400 + "d", InvalidTimeError),
        (True, InvalidTypeError),
        (None, InvalidTypeError),
        (b"5m", InvalidTypeError),
    ],
)
def test_what_is_no_duration(duration, error):
    with pytest.raises(error):
        duration_ms(duration)


def test_public_names():
    assert snapkv.pack is pack
    assert snapkv.format_time is format_time
    assert snapkv.to_datetime is to_datetime
