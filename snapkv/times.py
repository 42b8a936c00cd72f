"""Timestamps: `physical milliseconds << 18 | logical`, 64 bits, a plain int in the API.

The layout is that of PD and of Milvus's timestamp oracle. A date means the *end* of its
millisecond, so that a time copied from a display finds its commit.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from snapkv.arguments import check_int
from snapkv.dates import EPOCH, date_of, date_text
from snapkv.dates import LOGICAL_BITS as LOGICAL_BITS
from snapkv.dates import TIMESTAMP_MAX as TIMESTAMP_MAX
from snapkv.dates import dated as dated
from snapkv.errors import InvalidTimeError, InvalidTypeError

LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
PHYSICAL_MS_MAX = TIMESTAMP_MAX >> LOGICAL_BITS

When = int | datetime | str
"""A moment: a timestamp, an aware datetime, ISO text with an offset, relative text, or `rev:4`."""

_DIGITS_MAX = 40  # more than any timestamp has, fewer than Python refuses to convert
_EXAMPLE = "2026-01-31T14:05:00Z"
_REVISION = "rev:"
_YEAR_2000_MS, _YEAR_2100_MS = 946_684_800_000, 4_102_444_800_000
_CENTURY = 3_155_760_000_000 << LOGICAL_BITS
_UNIX_UNITS = {"seconds": 1, "milliseconds": 1_000, "microseconds": 10**6, "nanoseconds": 10**9}
_RELATIVE = re.compile(r"([+-])(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def pack(physical_ms: int, logical: int = 0) -> int:
    """Return the timestamp of a millisecond and a logical count.

    >>> pack(1, 5)
    262149
    """
    if not 0 <= physical_ms <= PHYSICAL_MS_MAX:
        raise InvalidTimeError(
            f"a timestamp has from 0 to {PHYSICAL_MS_MAX} ms since 1970 (the year 4199), "
            f"not {_number_text(physical_ms)}",
            physical_ms,
        )
    if not 0 <= logical <= LOGICAL_MASK:
        raise InvalidTimeError(
            f"the logical count of a timestamp is from 0 to {LOGICAL_MASK}, "
            f"not {_number_text(logical)}",
            logical,
        )
    return physical_ms << LOGICAL_BITS | logical


def physical_ms(timestamp: int) -> int:
    """Return the milliseconds since 1970 of a timestamp."""
    return timestamp >> LOGICAL_BITS


def end_of_ms(ms: int) -> int:
    """Return the largest timestamp of a millisecond, which is what a date means."""
    return pack(ms, LOGICAL_MASK)


def to_datetime(timestamp: int) -> datetime:
    """Return the aware UTC datetime of a timestamp, to the millisecond.

    >>> to_datetime(pack(1_700_000_000_123, 7)).isoformat()
    '2023-11-14T22:13:20.123000+00:00'

    64 bits end in the year 4199.
    """
    return date_of(check_timestamp(timestamp))


def format_time(timestamp: int) -> str:
    """Return ISO text in UTC with milliseconds; parsing it again finds the same commit.

    >>> format_time(pack(1_700_000_000_123, 7))
    '2023-11-14T22:13:20.123Z'
    """
    return date_text(check_timestamp(timestamp))


def check_timestamp(timestamp: int) -> int:
    """Return a valid timestamp; raise `InvalidTypeError` or `InvalidTimeError` if it is not one."""
    if type(timestamp) is not int:
        check_int("timestamp", timestamp)
    if not 0 <= timestamp <= TIMESTAMP_MAX:
        raise InvalidTimeError(f"timestamp must be from 0 to 2^64 - 1, not {timestamp}", timestamp)
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


def is_number(when: When) -> bool:
    """Return whether a time is a timestamp, not a date or a relative text."""
    return is_digits(when.strip()) if isinstance(when, str) else isinstance(when, int)


def revision_of(when: When | None) -> int | None:
    """Return the revision that a text such as `rev:4` names, None for all other times.

    >>> revision_of("rev:4"), revision_of("-5m")
    (4, None)

    Raises `InvalidTimeError` if the text after `rev:` is not a revision.
    """
    if not isinstance(when, str) or not (text := when.strip()).startswith(_REVISION):
        return None
    digits = text.removeprefix(_REVISION)
    if not (digits.isascii() and digits.isdigit()) or not 0 < int(digits[:_DIGITS_MAX]) < 1 << 63:
        raise InvalidTimeError(f"{text!r} is not a revision: write rev:4, from 1 on", when)
    return int(digits[:_DIGITS_MAX])


def is_likely(number: int, newest: int, now: int) -> bool:
    """Return whether a number can be a timestamp of a store whose newest is `newest`.

    0 always can: the beginning. Other numbers must be at least a thousandth of the newest, or, if
    that is after the year 2000, a hundredth (unix microseconds are 1/262 of the timestamp of their
    time), and at most a century above both it and the clock, whose timestamp is `now`.

    >>> newest = pack(1_795_386_000_000)
    >>> [is_likely(number, newest, newest) for number in (newest, 0, 4, newest // 262, 4 * newest)]
    [True, True, False, False, False]
    """
    lowest = newest // (100 if newest >= _YEAR_2000_MS << LOGICAL_BITS else 1_000)
    return number == 0 or lowest <= number <= max(newest, now) + _CENTURY


def unlikely(number: int, newest: int | None = None, revision: int = 0) -> InvalidTimeError:
    """Return the error for a number that is unlikely a timestamp; it suggests what it may be.

    `newest` and `revision` are the store's newest, where there is one.
    """
    likely = [f"a revision, write 'rev:{number}'"] if 0 < number <= revision else []
    for unit, per_second in _UNIX_UNITS.items():
        ms = number * 1_000 // per_second
        if _YEAR_2000_MS <= ms < _YEAR_2100_MS:
            likely.append(f"unix {unit}, write '{_iso(ms)}'")
    advice = "if it is " + "; if ".join(likely) if likely else f"write a date, as in '{_EXAMPLE}'"
    here = "" if newest is None else f" of this store, whose newest is {dated(newest)}"
    return InvalidTimeError(f"{number} is not a timestamp{here}: {advice}", number)


def duration_ms(text: str | timedelta | float) -> int:
    """Return the milliseconds of a duration: seconds, a timedelta, or a text like `7d`.

    >>> duration_ms("1.5h"), duration_ms(2), duration_ms(timedelta(days=1))
    (5400000, 2000, 86400000)

    Raises `InvalidTimeError` if it is not a duration, or negative.
    """
    if isinstance(text, timedelta):
        ms = text / timedelta(milliseconds=1)
    elif isinstance(text, str):
        match = _RELATIVE.fullmatch("+" + text.strip())
        if match is None:
            raise InvalidTimeError(f"{text!r} is not a duration: write 30s, 5m, 12h, 7d", text)
        ms = float(match[2]) * _UNIT_MS[match[3]]
    elif isinstance(text, int | float) and not isinstance(text, bool):
        ms = text * 1_000
    else:
        raise InvalidTypeError(f"a duration is a number, text or timedelta, not {text!r}")
    if not 0 <= ms <= PHYSICAL_MS_MAX:
        raise InvalidTimeError(f"a duration must be finite and not negative: {text!r}", text)
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
    if revision_of(text) is not None:
        raise InvalidTimeError(
            f"{text!r} is a revision: only an open store can return its time", text
        )
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTimeError(
            f"{text!r} is not a time: write {_EXAMPLE}, -5m, -7d, rev:4, or a timestamp", text
        ) from None
    return end_of_ms(_ms_of(parsed, text))


def _ms_of(moment: datetime, given: object) -> int:
    if moment.tzinfo is None or moment.utcoffset() is None:
        text = moment.replace(tzinfo=None).isoformat()
        raise InvalidTimeError(
            f"{given!s} has no offset: write {text}Z for UTC, or {text}+01:00"
            if isinstance(given, str)
            else f"datetime {given!s} has no zone: add tzinfo=UTC, or call .astimezone()",
            given,
        )
    ms = (moment - EPOCH) // timedelta(milliseconds=1)
    if ms < 0:
        raise InvalidTimeError(f"{given!s} is before 1970", given)
    if ms > PHYSICAL_MS_MAX:
        raise InvalidTimeError(
            f"{given!s} is too far ahead: timestamps end at {date_text(TIMESTAMP_MAX)}", given
        )
    return ms


def _number_text(number: object) -> str:
    """Return a number for a message; Python refuses to write a very long one."""
    if isinstance(number, int) and number.bit_length() > 128:
        return "a number of more than 38 digits"
    return str(number)


def _iso(ms: int) -> str:
    """Return the shortest ISO text of a millisecond."""
    text = (EPOCH + timedelta(milliseconds=ms)).replace(tzinfo=None)
    return text.isoformat(timespec="milliseconds" if ms % 1_000 else "seconds") + "Z"
