"""Times as people type them: what they mean, in which zone, and what is shown of them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv import format_time
from snapkv.errors import InvalidTimeError
from snapkv.times import end_of_ms, understood

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 22, 18, 30, 5, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "state", "since"),
    [
        ("2026-11-22", "2026-11-21T23:00", "2026-11-21T22:59:59.999"),
        ("20261122", "2026-11-21T23:00", "2026-11-21T22:59:59.999"),
        ("2026-11-22 14:00", "2026-11-22T13:00", "2026-11-22T12:59:59.999"),
        ("2026-11-22T14:00", "2026-11-22T13:00", "2026-11-22T12:59:59.999"),
        ("2026-07-01 14:00", "2026-07-01T12:00", "2026-07-01T11:59:59.999"),
        ("14:05", "2026-11-22T13:05", "2026-11-22T13:04:59.999"),
        ("9:05", "2026-11-22T08:05", "2026-11-22T08:04:59.999"),
        ("14:05:30", "2026-11-22T13:05:30.999", "2026-11-22T13:05:29.999"),
        ("14:05:30.25", "2026-11-22T13:05:30.250", "2026-11-22T13:05:30.250"),
        ("today", "2026-11-21T23:00", "2026-11-21T22:59:59.999"),
        (" Yesterday ", "2026-11-20T23:00", "2026-11-20T22:59:59.999"),
        ("yesterday 14:05", "2026-11-21T13:05", "2026-11-21T13:04:59.999"),
        ("1h ago", "2026-11-22T17:30:05", "2026-11-22T17:30:05"),
        ("2 days 3 hours ago", "2026-11-20T15:30:05", "2026-11-20T15:30:05"),
        ("1h", "2026-11-22T17:30:05", "2026-11-22T17:30:05"),
        ("-1h30m", "2026-11-22T17:00:05", "2026-11-22T17:00:05"),
        ("-1 h", "2026-11-22T17:30:05", "2026-11-22T17:30:05"),
        ("now-6h", "2026-11-22T12:30:05", "2026-11-22T12:30:05"),
        ("+5m", "2026-11-22T18:35:05", "2026-11-22T18:35:05"),
        ("2026-11-22T14:05:00Z", "2026-11-22T14:05:00.999", "2026-11-22T14:04:59.999"),
        ("2026-11-22T14:05:00-0500", "2026-11-22T19:05:00.999", "2026-11-22T19:04:59.999"),
        ("2026-11-22 14:05:00.001+01:00", "2026-11-22T13:05:00.001", "2026-11-22T13:05:00.001"),
        ("20231114T221320.123Z", "2023-11-14T22:13:20.123", "2023-11-14T22:13:20.123"),
        ("2026-11-22Z", "2026-11-22T00:00", "2026-11-21T23:59:59.999"),
        ("14:05 UTC", "2026-11-22T14:05", "2026-11-22T14:04:59.999"),
        ("3am", "2026-11-22T02:00", "2026-11-22T01:59:59.999"),
        ("noon", "2026-11-22T11:00", "2026-11-22T10:59:59.999"),
        ("yesterday at 12 am", "2026-11-20T23:00", "2026-11-20T22:59:59.999"),
        ("3:30pm yesterday", "2026-11-21T14:30", "2026-11-21T14:29:59.999"),
        ("Sunday", "2026-11-21T23:00", "2026-11-21T22:59:59.999"),
        ("last sunday", "2026-11-14T23:00", "2026-11-14T22:59:59.999"),
        ("mon 9:05", "2026-11-16T08:05", "2026-11-16T08:04:59.999"),
        ("noon on thursday", "2026-11-19T11:00", "2026-11-19T10:59:59.999"),
        ("28 Nov 2025", "2025-11-27T23:00", "2025-11-27T22:59:59.999"),
        ("28-Nov-2025 3pm", "2025-11-28T14:00", "2025-11-28T13:59:59.999"),
        ("November 3rd, 2025", "2025-11-02T23:00", "2025-11-02T22:59:59.999"),
        ("3 nov", "2026-11-02T23:00", "2026-11-02T22:59:59.999"),
        ("dec 3", "2025-12-02T23:00", "2025-12-02T22:59:59.999"),
        ("Fri Nov 20 14:05:33 2026", "2026-11-20T13:05:33.999", "2026-11-20T13:05:32.999"),
        ("Fri, 20 Nov 2026 14:05:33 -0500", "2026-11-20T19:05:33.999", "2026-11-20T19:05:32.999"),
        ("Fri Nov 20 14:05:33 UTC 2026", "2026-11-20T14:05:33.999", "2026-11-20T14:05:32.999"),
        ("last week", "2026-11-15T18:30:05", "2026-11-15T18:30:05"),
        ("a week ago", "2026-11-15T18:30:05", "2026-11-15T18:30:05"),
        ("an hour ago", "2026-11-22T17:30:05", "2026-11-22T17:30:05"),
        ("last month", "2026-10-22T17:30:05", "2026-10-22T17:30:05"),
        ("1 month ago", "2026-10-22T17:30:05", "2026-10-22T17:30:05"),
        ("2 months ago", "2026-09-22T17:30:05", "2026-09-22T17:30:05"),
        ("1 month 2 days ago", "2026-10-20T17:30:05", "2026-10-20T17:30:05"),
        ("last year", "2025-11-22T18:30:05", "2025-11-22T18:30:05"),
        ("+11 months", "2027-10-22T17:30:05", "2027-10-22T17:30:05"),
        ("0.5 years ago", "2026-05-22T17:30:05", "2026-05-22T17:30:05"),
        ("29 feb", "2024-02-28T23:00", "2024-02-28T22:59:59.999"),
        ("nov 21-05:00", "2026-11-21T05:00", "2026-11-21T04:59:59.999"),
        ("21 nov-05:00", "2026-11-21T05:00", "2026-11-21T04:59:59.999"),
        ("21-nov-2026-05:00", "2026-11-21T05:00", "2026-11-21T04:59:59.999"),
        ("nov 21 05:00-05:00", "2026-11-21T10:00", "2026-11-21T09:59:59.999"),
        ("@1769868300", "2026-01-31T14:05:00.999", "2026-01-31T14:04:59.999"),
        ("@1769868300.25", "2026-01-31T14:05:00.250", "2026-01-31T14:05:00.250"),
        ("1970-01-01Z", "1970-01-01T00:00", "1970-01-01T00:00"),
    ],
)
def test_what_a_typed_time_means(text, state, since):
    found = understood(text, NOW_MS, BERLIN)
    assert (found.state, found.since) == (utc(state), utc(since))


def test_what_is_exact_already():
    for text, meant in [("now", None), ("450", 450), (" REV:4 ", "rev:4")]:
        found = understood(text, NOW_MS, BERLIN)
        assert (found.state, found.since, found.start) == (meant, meant, meant)
        assert found.echo(found.state, NOW_MS) is None


@pytest.mark.parametrize(
    ("text", "echo"),
    [
        ("2026-11-22", "2026-11-22 = 2026-11-21T23:00:00.000Z"),
        ("14:05:30", "14:05:30 = 2026-11-22T13:05:30.999Z"),
        ("23:50", "23:50 = 2026-11-22T22:50:00.000Z, in the future"),
        ("2026-11-22T14:05:00Z", "2026-11-22T14:05:00Z = 2026-11-22T14:05:00.999Z"),
        ("2026-11-22T14:05:00.999Z", None),
    ],
)
def test_what_was_understood_is_shown(text, echo):
    found = understood(text, NOW_MS, BERLIN)
    assert found.echo(found.state, NOW_MS) == echo


def test_what_was_understood_is_shown_in_the_zone_that_was_asked_for():
    found = understood("last sunday", NOW_MS, BERLIN)
    shown = found.echo(found.state, NOW_MS, BERLIN)
    assert shown == "last sunday = 2026-11-15T00:00:00.000+01:00"
    assert found.is_local
    assert not understood("3pm utc", NOW_MS, BERLIN).is_local


def test_of_a_range_its_first_instant_is_shown():
    found = understood("2026-11-21 14:05:30", NOW_MS, BERLIN)
    shown = "2026-11-21 14:05:30 = 2026-11-21T13:05:30.000Z"
    assert found.echo(found.since, NOW_MS) == found.echo(found.start, NOW_MS) == shown


def test_a_local_time_that_came_twice_is_the_first():
    found = understood("2026-10-25 02:30", NOW_MS, BERLIN)
    assert found.state == utc("2026-10-25T00:30")
    assert found.echo(found.state, NOW_MS).endswith(
        ", the first of two: clocks went back; the second is 2026-10-25T01:30:00Z"
    )
    assert understood("2026-10-25 02:30+01:00", NOW_MS, BERLIN).state == utc("2026-10-25T01:30")


def test_a_local_time_that_was_skipped_is_an_error_that_says_how_to_write_it():
    with pytest.raises(InvalidTimeError, match="as in 2026-03-29T01:30:00Z") as caught:
        understood("2026-03-29 02:30", NOW_MS, BERLIN)
    assert "never was in local time" in str(caught.value)


def test_a_month_ago_is_an_error_if_that_month_lacks_the_day():
    on_31 = int(utc("2026-03-31T12:00").timestamp() * 1_000)
    for text, lacking in {"last month": "2026-02", "4 months ago": "2025-11"}.items():
        with pytest.raises(InvalidTimeError, match=f"{lacking} has no day 31: give a date"):
            understood(text, on_31, UTC)
    on_29_feb = int(utc("2024-02-29T12:00").timestamp() * 1_000)
    with pytest.raises(InvalidTimeError, match="2023-02 has no day 29: give a date"):
        understood("last year", on_29_feb, UTC)
    assert understood("4 years ago", on_29_feb, UTC).state == utc("2020-02-29T12:00")


def test_months_are_whole_and_of_the_calendar_of_the_time_zone():
    with pytest.raises(InvalidTimeError, match="months are whole: give days"):
        understood("1.5 months ago", NOW_MS, BERLIN)
    with pytest.raises(InvalidTimeError, match="is before 1970 or too far ahead"):
        understood("99999 years ago", NOW_MS, BERLIN)
    new_year = int(utc("2026-12-31T23:30").timestamp() * 1_000)  # 00:30 in Berlin
    assert understood("last month", new_year, BERLIN).state == utc("2026-11-30T23:30")
    after_summer = int(utc("2026-11-25T01:30").timestamp() * 1_000)
    found = understood("last month", after_summer, BERLIN)
    assert found.is_local
    assert "the first of two: clocks went back" in str(found.echo(found.state, NOW_MS))


def test_a_day_without_a_year_that_this_year_lacks_is_shown_with_its_year():
    found = understood("29 feb", NOW_MS, UTC)
    assert found.echo(found.state, NOW_MS) == "29 feb = 2024-02-29T00:00:00.000Z"
    with pytest.raises(InvalidTimeError, match="that day does not exist"):
        understood("29 feb 2026", NOW_MS, UTC)


def test_a_day_begins_when_its_clocks_begin():
    found = understood("2018-11-04", NOW_MS, ZoneInfo("America/Sao_Paulo"))  # no 00:00 that day
    assert found.state == utc("2018-11-04T03:00")
    with pytest.raises(InvalidTimeError, match="never was"):
        understood("2011-12-30", NOW_MS, ZoneInfo("Pacific/Apia"))  # nor that day at all


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "soon",
            "deploy monday",
            "monday tuesday",
            "next friday",
            "last",
            "last 28 nov",
            "yesterday monday",
            "sat 29 nov 2026",
            "30 feb 2026",
            "13pm",
            "3am 4pm",
            "3pm EST",
            "@",
            "@17698683000000",
            "-5",
            "-1y",
            "-1mo",
            "-1h ago",
            "5m ago Z",
            "5 ago",
            "3d 5 ago",
            "2026-13-01",
        ),
        *("25:00", "1969-12-31Z", "9999-12-31", "2026-1-1", "12-05", "9" * 400 + "d", "-9999999w"),
        *(
            "rev:",
            "rev:0",
            "rev:x",
            "\uff11\uff14:05",
            "14:05+99:00",
            "1h\x1b[31m",
            "5h" * 99_999 + "!",
        ),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_time(text):
    with pytest.raises(InvalidTimeError):
        understood(text, NOW_MS, BERLIN)


@pytest.mark.parametrize("text", ["9999-12-31", "0001-01-01", "31 dec 9999", "0001-01-01Z"])
def test_a_day_that_exists_but_has_no_timestamp(text):
    with pytest.raises(InvalidTimeError, match="is before 1970 or too far ahead"):
        understood(text, NOW_MS, BERLIN)


@pytest.mark.parametrize("offset", ["+25:00", "+24", "-01:60", "+9900", "-0099"])
def test_an_offset_that_is_none_is_named_and_told_how_to_write_one(offset):
    for text in (f"14:05{offset}", f"2026-11-22T14:05:00 {offset}"):
        with pytest.raises(InvalidTimeError) as caught:
            understood(text, NOW_MS, BERLIN)
        assert str(caught.value) == (
            f"{text!r} is not a valid time: {offset} is not an offset from UTC "
            "(write +02:00, -05:30 or Z, at most 23 hours)"
        )


@pytest.mark.parametrize("text", ["2026-13-01", "2026-02-30", "25:00", "14:60", "14:05:61"])
def test_a_day_or_time_that_is_none_is_told_in_our_words(text):
    with pytest.raises(InvalidTimeError) as caught:
        understood(text, NOW_MS, BERLIN)
    assert str(caught.value).startswith(
        f"{text!r} is not a valid time: that day or time of day does not exist "
        "(write 2026-01-31 14:05, "
    )


@pytest.mark.parametrize(
    "text", ["01/02/03", "1/2", "28.11.2026", "2026-1-2", "21 nov 26", "nov", "nov 2026", "fri 13"]
)
def test_an_ambiguous_date_is_an_error_that_says_what_to_write(text):
    with pytest.raises(InvalidTimeError) as caught:
        understood(text, NOW_MS, BERLIN)
    assert str(caught.value).startswith(
        f"{text!r} is not a valid time: day, month and year are not clear (write 2026-01-31 14:05, "
    )


@given(st.datetimes(datetime(1972, 1, 1), datetime(2100, 1, 1)), st.integers(0, 363 * 24 * 60))
def test_a_day_in_words_is_the_newest_of_that_name(now, minutes):
    now_ms = int(now.replace(tzinfo=UTC).timestamp() * 1_000)
    then = (now - timedelta(minutes=minutes)).replace(second=0, microsecond=0)
    day, noon = then.replace(hour=0, minute=0), then.replace(hour=12, minute=0)
    date = f"{then:%d %b}"

    def start(text):
        return understood(text, now_ms, UTC).start.replace(tzinfo=None)

    assert start(date) == start(f"{then:%b %d, %Y}") == start(f"{then:%a %d-%b-%Y}") == day
    assert start(f"{then:%Y %B %d %H:%M}") == start(f"{then:%I:%M %p on %d %B %Y}") == then
    weekday = start(f"{then:%A}")
    assert weekday.weekday() == then.weekday()
    assert now - timedelta(days=7) < weekday <= now
    today = now.date() == weekday.date()
    assert start(f"last {then:%a}") == weekday - timedelta(days=7 * today)
    assert start(f"noon {then:%a}") == start(f"{then:%a} 12pm") == weekday + (noon - day)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)), st.sampled_from([BERLIN, UTC]))
def test_a_time_copied_from_a_display_means_that_time(moment, zone):
    moment = (moment - timedelta(microseconds=moment.microsecond % 1_000)).replace(tzinfo=UTC)
    ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    shown = format_time(end_of_ms(ms))
    exact = understood(shown, NOW_MS, zone)
    assert exact.state == exact.since == moment
    assert exact.echo(exact.state, NOW_MS) is None
    cut = understood(shown[:19] + "Z", NOW_MS, zone)  # without its milliseconds
    assert cut.since < moment <= cut.state
