"""Timestamps: `physical milliseconds << 18 | logical`, 64 bits, a plain int in the API.

The layout is that of PD and of Milvus's timestamp oracle. A date means the *end* of its
millisecond, so that a time copied from a display finds its commit.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, date, datetime, timedelta, timezone, tzinfo

from snapkv.base.arguments import check_int
from snapkv.errors import EPOCH, InvalidTimeError, InvalidTypeError, date_of
from snapkv.errors import LOGICAL_BITS as LOGICAL_BITS
from snapkv.errors import TIMESTAMP_MAX as TIMESTAMP_MAX
from snapkv.errors import date_text as date_text
from snapkv.errors import dated as dated

LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
PHYSICAL_MS_MAX = TIMESTAMP_MAX >> LOGICAL_BITS

When = int | datetime | str
"""A moment: a timestamp, an aware datetime, ISO text with an offset, relative text, `rev:4`, or
`rv:4`."""

_DIGITS_MAX = 40  # more than any timestamp has, fewer than Python refuses to convert
_EXAMPLE = "2026-01-31T14:05:00Z"
_REVISION, _SOURCE = "rev:", "rv:"
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


def format_time(timestamp: int, zone: tzinfo | None = UTC) -> str:
    """Return ISO text in UTC with milliseconds; parsing it again finds the same commit.

    >>> format_time(pack(1_700_000_000_123, 7))
    '2023-11-14T22:13:20.123Z'

    In another `zone` (None: this machine's) it ends with the offset.
    """
    if zone is UTC:
        return date_text(check_timestamp(timestamp))
    return to_datetime(timestamp).astimezone(zone).isoformat(timespec="milliseconds")


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
    return _numbered(when, _REVISION)


def source_revision_of(when: When | None) -> int | None:
    """Return the revision of a record's source that a text such as `rv:4` names, else None.

    Of a recorded Kubernetes cluster it is a resourceVersion.

    >>> source_revision_of("rv:4"), source_revision_of("rev:4")
    (4, None)

    Raises `InvalidTimeError` if the text after `rv:` is not a revision.
    """
    return _numbered(when, _SOURCE)


def names_revision(when: When | None) -> bool:
    """Return whether a time is a revision, of the store (`rev:4`) or of its source (`rv:4`).

    Raises `InvalidTimeError` if the text after `rev:` or `rv:` is not a revision.
    """
    return revision_of(when) is not None or source_revision_of(when) is not None


def _numbered(when: When | None, word: str) -> int | None:
    if not isinstance(when, str) or not (text := when.strip()).startswith(word):
        return None
    digits = text.removeprefix(word)
    if not (digits.isascii() and digits.isdigit()) or not 0 < int(digits[:_DIGITS_MAX]) < 1 << 63:
        raise InvalidTimeError(f"{text!r} is not a revision: write {word}4, from 1 on", when)
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
    text = _unix(text)
    if names_revision(text):
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


def _unix(text: str) -> str:
    """Return the date of unix seconds such as `@1769868300`; any other text unchanged."""
    seconds = re.fullmatch(r"@(\d{1,10})(\.\d{1,9})?", text, re.ASCII)
    return _iso(int(float(seconds[1] + (seconds[2] or "")) * 1_000)) if seconds else text


def _number_text(number: object) -> str:
    """Return a number for a message; Python refuses to write a very long one."""
    if isinstance(number, int) and number.bit_length() > 128:
        return "a number of more than 38 digits"
    return str(number)


def _iso(ms: int) -> str:
    """Return the shortest ISO text of a millisecond."""
    text = (EPOCH + timedelta(milliseconds=ms)).replace(tzinfo=None)
    return text.isoformat(timespec="milliseconds" if ms % 1_000 else "seconds") + "Z"


# --- times as people type them: in local time, in words, and by how long ago ---

FORMS = "2026-01-31 14:05, 14:05, 3am, monday, 28 Nov 2026, 1h ago, rev:4, 2026-01-31T14:05:00Z"
OFFSET_HOURS_MAX = 23
_UNIT_NAMES = (
    ("ms", "millisecond", "milliseconds"),
    ("s", "sec", "secs", "second", "seconds"),
    ("m", "min", "mins", "minute", "minutes"),
    ("h", "hr", "hrs", "hour", "hours"),
    ("d", "day", "days"),
    ("w", "week", "weeks"),
)
_UNIT_SPANS = {
    name: timedelta(milliseconds=_UNIT_MS[names[0]]) for names in _UNIT_NAMES for name in names
}
_UNIT_MONTHS = {"month": 1, "months": 1, "year": 12, "years": 12}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*((?!ago\b)[a-z]+)\s*", re.ASCII)
_TYPED = re.compile(rf"(?:now\s*(?=[+-]))?([+-]?)\s*((?:{_PART.pattern})+?)(ago)?", re.ASCII)
_MOMENT = re.compile(
    r"(?:(?P<date>\d{4}-\d\d-\d\d|\d{8}|today|yesterday)"
    r"(?:t\s*(?=\d)|\s+(?=\d)|(?=\s*(?:z|utc|[+-]\d|$))))?"
    r"(?P<time>\d\d?:?\d\d(?::?\d\d(?P<fraction>[.,]\d+)?)?)?"
    r"\s*(?P<offset>z|utc|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sep(?:t|tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b"
)
_UNCLEAR = "day, month and year are not clear"
_NOT_A_UNIT = re.compile(rf"\b{_MONTH}|[ap]m\b")
_ONE = re.compile(r"(?:an?|last) (?=(?:second|minute|hour|day|week|month|year)\b)")
_WORD = re.compile(  # the groups may occur once each, in any order; -05:00 is an offset
    r"(?:(?P<weekday>mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:rs|rsday)?|fri(?:day)?|"
    rf"sat(?:urday)?|sun(?:day)?)\b|(?P<month>{_MONTH})(?:-(?!\d\d:))?|(?P<last>last)\b|"
    r"(?P<day>today|yesterday)\b|(?P<clock>(?:noon|midnight|\d\d?(?::\d\d)? ?[ap]m)\b|"
    r"\d\d?:\d\d(?::\d\d(?:\.\d+)?)?)|(?P<year>\d{4})\b(?:(?!-\d\d:)[-/])?|"
    r"(?P<number>\d\d?)(?:st|nd|rd|th)?(?!\d)(?:(?!-\d\d:)[-/.])?|(?P<offset>z|utc|[+-]\d\d:?\d\d)\b|"
    r"(?:at|on|of|the)\b)[ ,]*",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class TypedTime:
    """What a text means: as a state, as what a range begins after, and as its first instant.

    Each is a time that a store takes, None for now. A text to the second means all of it: the
    state at its end, a range from its start on. A date, or a minute, means its first instant.
    `is_local` says whether another time zone would give it another meaning.
    """

    text: str
    state: When | None
    since: When | None
    start: When | None
    remark: str = ""
    is_local: bool = False

    def echo(self, when: When | None, now_ms: int, zone: tzinfo | None = UTC) -> str | None:
        """Return what was understood, as `format_time`; None if the text is already that exact.

        `when` is the one of the three that is meant; of a range its first instant is shown.
        """
        when = self.start if when is self.since else when
        if not isinstance(when, datetime):
            return None
        shown = format_time(end_of_ms(_typed_ms(when)), zone)
        if shown == self.text.upper():
            return None
        future = ", in the future" if _typed_ms(when) > now_ms else ""
        return f"{self.text} = {shown}{future}{self.remark}"


def understood(text: str, now_ms: int, zone: tzinfo | None = None) -> TypedTime:
    """Return what a typed time means; `zone` is what times without an offset are in, else local.

    >>> found = understood("2026-11-22 14:00", 0, UTC)
    >>> found.echo(found.state, now_ms=1_800_000_000_000)
    '2026-11-22 14:00 = 2026-11-22T14:00:00.000Z'

    A local time that occurred twice, when clocks went back, is the first of the two, and the echo
    says so. Raises `InvalidTimeError` for text that is not a time, for what is ambiguous (`01/02`),
    and for a local time that clocks skipped.
    """
    text = " ".join(text.split())
    words = _unix(text).lower()
    if words == "now":
        return TypedTime(text, None, None, None)
    if is_digits(text):
        exact: When = check_timestamp(int(text[:_DIGITS_MAX]))
        return TypedTime(text, exact, exact, exact)
    if names_revision(words):
        return TypedTime(text, words, words, words)
    now = EPOCH + timedelta(milliseconds=now_ms)
    match = _MOMENT.fullmatch(words)
    if match is None or not (match["date"] or match["time"]):
        match = _TYPED.fullmatch(_ONE.sub("1 ", words, count=1))
        if match and not _NOT_A_UNIT.search(words):
            moment, remark, is_local = _relative(text, match, now, zone)
            return TypedTime(text, moment, moment, moment, remark, is_local)
        match = _MOMENT.fullmatch(_spelled(text, words, now.astimezone(zone).date()))
        if match is None:
            raise _not_valid(text)
    moment, remark = _moment(text, match, now, zone)
    is_local = not match["offset"]
    if match["fraction"]:
        return TypedTime(text, moment, moment, moment, remark, is_local)
    to_the_second = (match["time"] or "").count(":") == 2 or len(match["time"] or "") == 6
    last = moment + timedelta(milliseconds=999 if to_the_second else 0)
    before = max(EPOCH, moment - timedelta(milliseconds=1))
    return TypedTime(text, last, before, moment, remark, is_local)


def _spelled(text: str, words: str, today: date) -> str:
    """Return what a time in words means, as `_MOMENT` reads it.

    Every word counts, and each kind of word once: what is left out or ambiguous is an error.
    """
    found, at = dict[str, str](), 0
    while match := _WORD.match(words, at):
        if (kind := match.lastgroup) in found:
            why = "" if kind == "number" else f"it has two: {found[kind]} and {match[kind]}"
            raise _not_valid(text, why or _UNCLEAR)
        found |= {kind: match[kind]} if kind else {}
        at = match.end()
    if at < len(words) or not found:
        raise _not_valid(text)
    weekday, month, last = (found.get(kind) for kind in ("weekday", "month", "last"))
    if (month is None) != ("number" not in found) or (month is None and "year" in found):
        raise _not_valid(text, _UNCLEAR)
    if ("day" in found and (weekday or month)) or (last and (month or not weekday)):
        raise _not_valid(text)
    day = found.get("day", "today")
    if month is not None:
        day = _date(text, found, today)
    elif weekday is not None:
        back = (today.weekday() - _WEEKDAYS.index(weekday[:3])) % 7
        day = (today - timedelta(days=back or 7 * bool(last))).isoformat()
    return f"{day} {_clock(text, found.get('clock', ''))}{found.get('offset', '')}".strip()


def _date(text: str, found: dict[str, str], today: date) -> str:
    """Return the date of a day and a month; without a year the newest that is not after today."""
    years = [int(found["year"])] if "year" in found else range(today.year, today.year - 9, -1)
    month, number, days = _MONTHS.index(found["month"][:3]) + 1, int(found["number"]), list[date]()
    for year in years:  # 29 Feb is missing in up to seven of them
        with suppress(ValueError):
            days.append(date(year, month, number))
    day = next((day for day in days if day <= today or "year" in found), None)
    if day is None:
        raise _not_valid(text, "that day does not exist")
    weekday = found.get("weekday", "")[:3]
    if weekday and weekday != (falls := _WEEKDAYS[day.weekday()]):
        raise _not_valid(text, f"{day} is a {falls}, not a {weekday}")
    return day.isoformat()


def _clock(text: str, clock: str) -> str:
    """Return a time of day with 24 hours."""
    if clock in ("noon", "midnight"):
        return "12:00" if clock == "noon" else "00:00"
    if not clock.endswith("m"):
        return clock
    hour, _, minute = clock[:-2].strip().partition(":")
    if not 1 <= int(hour) <= 12:
        raise _not_valid(text, "am and pm have 12 hours")
    return f"{int(hour) % 12 + 12 * (clock[-2] == 'p'):02}:{minute or '00'}"


def _not_valid(text: str, why: str = "") -> InvalidTimeError:
    why = f": {why}" if why else ""
    return InvalidTimeError(
        f"{text!r} is not a valid time{why} (write {FORMS}, or a timestamp)", text
    )


def _relative(
    text: str, match: re.Match[str], now: datetime, zone: tzinfo | None
) -> tuple[datetime, str, bool]:
    """Return the instant so long ago, a remark on it, and whether it depends on the time zone."""
    sign, amounts, ago = match[1], match[2], match[match.re.groups]
    parts, total, months = _PART.findall(amounts.removesuffix("ago")), timedelta(), 0.0
    if any(unit not in _UNIT_SPANS and unit not in _UNIT_MONTHS for _, unit in parts):
        raise _not_valid(text, "units are ms, s, m, h, d, w, month and year")
    if ago and sign:
        raise _not_valid(text, "a sign and 'ago' exclude each other")
    direction, remark = 1 if sign == "+" else -1, ""
    try:
        for amount, unit in parts:
            total += direction * float(amount) * _UNIT_SPANS.get(unit, timedelta())
            months += direction * float(amount) * _UNIT_MONTHS.get(unit, 0)
        if months:
            now, remark = _by_months(text, now, months, zone)
        return _checked(now + total, text), remark, bool(months)
    except OverflowError:
        raise InvalidTimeError(f"{text!r} is before 1970 or too far ahead", text) from None


def _by_months(
    text: str, now: datetime, months: float, zone: tzinfo | None
) -> tuple[datetime, str]:
    """Return the same day and time of another month in a time zone, and a remark on it."""
    local = now.astimezone(zone).replace(tzinfo=None, fold=0)
    year, month = divmod(local.year * 12 + local.month - 1 + int(months), 12)
    if months % 1:
        raise _not_valid(text, "months are whole: give days")
    if not EPOCH.year <= year <= MAXYEAR:
        raise OverflowError
    try:
        there = local.replace(year=year, month=month + 1)
    except ValueError:
        why = f"{year}-{month + 1:02} has no day {local.day}: give a date"
        raise _not_valid(text, why) from None
    return _instant(text, there, zone, whole_day=False)


def _moment(
    text: str, match: re.Match[str], now: datetime, zone: tzinfo | None
) -> tuple[datetime, str]:
    """Return the instant of a date and a time of day, and a remark on it."""
    time = match["time"] or "00:00"
    if match["offset"]:
        zone = _zone(text, match["offset"])
    today = now.astimezone(zone).date()
    named = match["date"] or "today"
    day = {"today": today, "yesterday": today - timedelta(days=1)}.get(named)
    time = time.replace(",", ".")
    time = f"0{time}" if time.partition(":")[0] in set("0123456789") else time
    try:
        naive = datetime.fromisoformat(f"{day.isoformat() if day else named}T{time}")
    except ValueError:
        raise _not_valid(text, "that day or time of day does not exist") from None
    if not EPOCH.year - 1 <= naive.year < MAXYEAR:  # its neighbours have to be dates, too
        raise InvalidTimeError(f"{text!r} is before 1970 or too far ahead", text)
    instant, remark = _instant(text, naive, zone, whole_day=match["time"] is None)
    ms = instant.microsecond // 1_000
    return _checked(instant.replace(microsecond=ms * 1_000), text), remark


def _zone(text: str, offset: str) -> tzinfo:
    """Return the time zone of an offset as people type it."""
    if offset in ("z", "utc"):
        return UTC
    hours, minutes = int(offset[1:3]), int(offset[-2:] if len(offset) > 3 else 0)
    if hours > OFFSET_HOURS_MAX or minutes > 59:
        raise InvalidTimeError(
            f"{text!r} is not a valid time: {offset} is not an offset from UTC "
            f"(write +02:00, -05:30 or Z, at most {OFFSET_HOURS_MAX} hours)",
            text,
        )
    away = timedelta(hours=hours, minutes=minutes)
    return timezone(-away if offset[0] == "-" else away)


def _instant(
    text: str, naive: datetime, zone: tzinfo | None, *, whole_day: bool
) -> tuple[datetime, str]:
    """Return the UTC instant of a local time: the first of two; none is an error."""
    early, late = sorted(
        (naive.replace(fold=fold) if zone is None else naive.replace(fold=fold, tzinfo=zone))
        .astimezone(UTC)
        .replace(fold=0)
        for fold in (0, 1)
    )
    if early.astimezone(zone).replace(tzinfo=None, fold=0) == naive:
        twice = f", the first of two: clocks went back; the second is {late:%Y-%m-%dT%H:%M:%SZ}"
        return early, "" if early == late else twice
    if whole_day and late.astimezone(zone).date() == naive.date():  # it began later that night
        return late, ""
    raise InvalidTimeError(
        f"{text!r} never was in local time: clocks skipped it; write an offset, as in "
        f"{late:%Y-%m-%dT%H:%M:%SZ}",
        text,
    )


def _checked(moment: datetime, text: str) -> datetime:
    if not 0 <= _typed_ms(moment) <= PHYSICAL_MS_MAX:
        raise InvalidTimeError(f"{text!r} is before 1970 or too far ahead", text)
    return moment


def _typed_ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)
