"""Times of options: ISO text, with an offset or in a named time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from snapkv import times
from snapkv.errors import InvalidTimeError, InvalidTypeError
from snapkv.spark import errors

_OLDEST = times.pack(946_684_800_000)
"""The year 2000."""
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d)(?::?([0-5]\d))?)?", re.ASCII)
# Names that Spark takes besides the time zone database's names: java.time.ZoneId.SHORT_IDS.
_SHORT = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "UT": "UTC",
    "VST": "Asia/Ho_Chi_Minh",
    "Z": "UTC",
}


def zone_of(name: str) -> tzinfo:
    """Return a time zone: Europe/Berlin, PST or +01:00, as in Spark. Raises `SourceError`."""
    name = _SHORT.get(name, name)
    if match := _OFFSET.fullmatch(name):
        away = timedelta(
            hours=int(match[2]), minutes=int(match[3] or 0), seconds=int(match[4] or 0)
        )
        if away < timedelta(days=1):
            return timezone(away if match[1] == "+" else -away)
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as e:  # ZoneInfoNotFoundError is a KeyError
        raise errors.INVALID_OPTION(
            f"{name!r} is not a time zone (write Europe/Berlin, UTC, +01:00)"
        ) from e


def aware(when: times.When, zone: tzinfo | None) -> times.When:
    """Return a time with its zone: naive text gets `zone`; the earlier if clocks went back.

    Raises `SourceError` for naive text without a zone, for a time that clocks skipped, and for
    every naive `datetime`: its zone depends on the code that made it.
    """
    naive = naive_of(when)
    if naive is None:
        return when
    if isinstance(when, datetime):
        raise errors.TIMESTAMP_INVALID(
            f"datetime without a zone: {when!s} (what collect() returns is in the zone of this "
            "process, where .astimezone() adds it; toPandas() returns the session's)"
        )
    if zone is None:
        raise errors.TIMESTAMP_INVALID(
            f"time without an offset: {when!s} (add Z or +01:00, or the option timeZone)"
        )
    moment = naive.replace(tzinfo=zone)
    try:
        there_and_back = moment.astimezone(UTC).astimezone(zone)
    except OverflowError as e:  # of the year 1 or 9999
        raise errors.TIMESTAMP_INVALID(f"{naive} is not a valid time") from e
    if there_and_back.replace(tzinfo=None) != naive:
        raise errors.TIMESTAMP_INVALID(f"{naive} does not exist in {zone}: its clocks skipped it")
    return moment


def naive_of(when: times.When) -> datetime | None:
    """Return a time without a zone as a `datetime`, None for any other value."""
    found = when if isinstance(when, datetime) else _parsed(when)
    if found is None or (found.tzinfo is not None and found.utcoffset() is not None):
        return None
    return found


def timestamp_of(when: times.When, zone: tzinfo | None, now_ms: int, *, start: bool = False) -> int:
    """Return the timestamp of a time: the last of its millisecond, or the first with `start`.

    So a time copied from a display includes its commit at both ends of a range. Raises
    `SourceError`.
    """
    try:
        if times.names_revision(when):
            raise errors.TIMESTAMP_INVALID(
                f"{when} is a version: give versionAsOf, startingVersion or endingVersion"
            )
        timestamp = times.resolve(aware(when, zone), now_ms)
    except (InvalidTimeError, InvalidTypeError) as e:
        raise errors.TIMESTAMP_INVALID(str(e)) from e
    if is_exact(when):
        _check_likely(str(when).strip(), timestamp, now_ms)
        return timestamp
    return timestamp & ~times.LOGICAL_MASK if start else timestamp


def start_of(text: str, zone: tzinfo | None, now_ms: int, newest: int, *, ahead_ms: int = 0) -> int:
    """Return the timestamp of `startingTimestamp`, at which a range or a stream begins.

    Raises `SourceError` if it is in the future: later than the newest commit, and than the clock
    by more than `ahead_ms`.
    """
    start = timestamp_of(text, zone, now_ms, start=True)
    if start > newest and times.physical_ms(start) > now_ms + ahead_ms:
        raise errors.TIMESTAMP_INVALID(f"startingTimestamp {text} is in the future")
    return start


def _check_likely(text: str, timestamp: int, now_ms: int) -> None:
    """Raise `SourceError` for a number that is hardly a timestamp; 0 and texts of `exact` are."""
    now = times.pack(now_ms)
    likely = timestamp >= _OLDEST and times.is_likely(timestamp, now, now)
    if not likely and not text.startswith("0"):
        raise errors.TIMESTAMP_INVALID(str(times.unlikely(timestamp)))


def is_exact(when: times.When) -> bool:
    """Return whether a time is a timestamp, exact to the last bit."""
    return times.is_number(when)


def exact(timestamp: int) -> str:
    """Return a timestamp as the text of an option, exact to the last bit.

    Its leading zeros mark it as computed from a time, which may be long ago.
    """
    return f"{timestamp:020d}"


def _parsed(text: times.When) -> datetime | None:
    if not isinstance(text, str) or is_exact(text):
        return None
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None
