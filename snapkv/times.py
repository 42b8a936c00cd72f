"""Timestamps: `physical milliseconds << 18 | logical`, 64 bits, a plain int in the API.

The layout is that of PD and of Milvus's timestamp oracle. A date stands for the *end* of its
millisecond, so that a time copied from a display finds its commit.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from snapkv.errors import InvalidTimeError, InvalidTypeError

LOGICAL_BITS = 18
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
TIMESTAMP_MAX = (1 << 64) - 1
PHYSICAL_MS_MAX = TIMESTAMP_MAX >> LOGICAL_BITS

When = int | datetime | str
"""A moment: a timestamp, an aware datetime, ISO text with an offset, or a relative text (`-5m`)."""

_DIGITS_MAX = 40  # more than any timestamp has, fewer than Python refuses to convert
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RELATIVE = re.compile(r"([+-])(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def pack(physical_ms: int, logical: int = 0) -> int:
    """Return the timestamp of a millisecond and a logical count.

    >>> pack(1, 5)
    262149
    """
    if not 0 <= physical_ms <= PHYSICAL_MS_MAX or not 0 <= logical <= LOGICAL_MASK:
        raise InvalidTimeError(f"no timestamp: {physical_ms} ms, logical {logical}", physical_ms)
    return physical_ms << LOGICAL_BITS | logical


def physical_ms(timestamp: int) -> int:
    """Return the milliseconds since 1970 of a timestamp."""
    return timestamp >> LOGICAL_BITS


def end_of_ms(ms: int) -> int:
    """Return the largest timestamp of a millisecond, which is what a date stands for."""
    return pack(ms, LOGICAL_MASK)


def to_datetime(timestamp: int) -> datetime:
    """Return the aware UTC datetime of a timestamp, to the millisecond.

    >>> to_datetime(pack(1_700_000_000_123, 7)).isoformat()
    '2023-11-14T22:13:20.123000+00:00'

    64 bits end in the year 4199.
    """
    return _EPOCH + timedelta(milliseconds=physical_ms(check_timestamp(timestamp)))


def format_time(timestamp: int) -> str:
    """Return ISO text in UTC with milliseconds; parsing it again finds the same commit.

    >>> format_time(pack(1_700_000_000_123, 7))
    '2023-11-14T22:13:20.123Z'
    """
    return to_datetime(timestamp).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_timestamp(timestamp: int) -> int:
    """Return the timestamp when it is one; raise `InvalidTypeError` or `InvalidTimeError`."""
    if isinstance(timestamp, bool) or not isinstance(timestamp, int):
        raise InvalidTypeError(f"a timestamp is an int, not {type(timestamp).__name__}")
    if not 0 <= timestamp <= TIMESTAMP_MAX:
        raise InvalidTimeError(f"timestamp {timestamp} is not in 0..2^64-1", timestamp)
    return timestamp


def resolve(when: When, now_ms: int) -> int:
    """Return the timestamp that `when` names; `now_ms` is what relative texts count from.

    >>> resolve(450, now_ms=0)
    450
    >>> resolve("1970-01-01T00:00:00.001Z", now_ms=0) == end_of_ms(1)
    True
    >>> resolve("-5m", now_ms=300_001) == end_of_ms(1)
    True

    Raises `InvalidTimeError` for naive or impossible times, `InvalidTypeError` for other types.
    """
    if isinstance(when, datetime):
        return end_of_ms(_ms_of(when, when))
    if isinstance(when, str):
        return _resolve_text(when.strip(), now_ms)
    if isinstance(when, int):
        return check_timestamp(when)
    raise InvalidTypeError(
        f"a time is an int, an aware datetime or a text, not {type(when).__name__}"
    )


def is_digits(text: str) -> bool:
    """Return whether a text is a timestamp in digits; 8 of them would be a date.

    >>> is_digits("450"), is_digits("20261231")
    (True, False)
    """
    return text.isascii() and text.isdigit() and len(text) != 8


def duration_ms(text: str | timedelta | float) -> int:
    """Return the milliseconds of a duration: seconds, a timedelta, or a text like `7d`.

    >>> duration_ms("1.5h"), duration_ms(2), duration_ms(timedelta(days=1))
    (5400000, 2000, 86400000)

    Raises `InvalidTimeError` when it is none, or negative.
    """
    if isinstance(text, timedelta):
        ms = text / timedelta(milliseconds=1)
    elif isinstance(text, str):
        match = _RELATIVE.fullmatch("+" + text.strip())
        if match is None:
            raise InvalidTimeError(f"no duration: {text!r} (write 30s, 5m, 12h, 7d)", text)
        ms = float(match[2]) * _UNIT_MS[match[3]]
    elif isinstance(text, int | float) and not isinstance(text, bool):
        ms = text * 1_000
    else:
        raise InvalidTypeError(f"a duration is a number, text or timedelta, not {text!r}")
    if not 0 <= ms <= PHYSICAL_MS_MAX:
        raise InvalidTimeError(f"a duration is not negative, and finite: {text!r}", text)
    return round(ms)


def _resolve_text(text: str, now_ms: int) -> int:
    if match := _RELATIVE.fullmatch(text):
        offset = min(float(match[2]) * _UNIT_MS[match[3]], 2.0 * PHYSICAL_MS_MAX)
        ms = now_ms + round(offset if match[1] == "+" else -offset)
        if not 0 <= ms <= PHYSICAL_MS_MAX:
            raise InvalidTimeError(f"{text!r} is before 1970 or too far ahead", text)
        return end_of_ms(ms)
    if is_digits(text):
        return check_timestamp(int(text[:_DIGITS_MAX]))
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTimeError(
            f"no time: {text!r} (write 2026-01-31T14:05:00Z, -5m, -7d, or a timestamp)", text
        ) from None
    return end_of_ms(_ms_of(parsed, text))


def _ms_of(moment: datetime, given: object) -> int:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidTimeError(f"time without an offset: {given!s} (add Z or +01:00)", given)
    ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if ms < 0:
        raise InvalidTimeError(f"{given!s} is before 1970", given)
    return ms
