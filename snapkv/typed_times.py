"""Times as people type them: in local time, in words, and by how long ago.

Programs write times with an offset (`snapkv.times`); only what a person types is guessed at, and
a command line prints how it understood it. The page takes UTC, or the zone that it shows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from snapkv.dates import EPOCH, date_text
from snapkv.errors import InvalidTimeError
from snapkv.times import PHYSICAL_MS_MAX, When, end_of_ms, is_digits, resolve, revision_of

FORMS = "2026-01-31 14:05, 14:05, yesterday, 1h ago, -5m, rev:4, 2026-01-31T14:05:00Z"
OFFSET_HOURS_MAX = 23
_UNITS = {
    "ms": ("ms", "millisecond", "milliseconds"),
    "seconds": ("s", "sec", "secs", "second", "seconds"),
    "minutes": ("m", "min", "mins", "minute", "minutes"),
    "hours": ("h", "hr", "hrs", "hour", "hours"),
    "days": ("d", "day", "days"),
    "weeks": ("w", "week", "weeks"),
}
_UNIT = {
    name: timedelta(**{"milliseconds" if unit == "ms" else unit: 1})
    for unit, names in _UNITS.items()
    for name in names
}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*((?!ago\b)[a-z]+)\s*", re.ASCII)
_RELATIVE = re.compile(rf"(?:now\s*(?=[+-]))?([+-]?)\s*((?:{_PART.pattern})+?)(ago)?", re.ASCII)
_MOMENT = re.compile(
    r"(?:(?P<date>\d{4}-\d\d-\d\d|\d{8}|today|yesterday)"
    r"(?:t\s*(?=\d)|\s+(?=\d)|(?=\s*(?:z|utc|[+-]\d|$))))?"
    r"(?P<time>\d\d?:?\d\d(?::?\d\d(?P<fraction>[.,]\d+)?)?)?"
    r"\s*(?P<offset>z|utc|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class TypedTime:
    """What a text means: as a state, as what a range begins after, and as its first instant.

    Each is a time that a store takes, None for now. A text to the second means all of it: the
    state at its end, a range from its start on. A date, or a minute, means its first instant.
    """

    text: str
    state: When | None
    since: When | None
    start: When | None
    remark: str = ""

    def echo(self, when: When | None, now_ms: int) -> str | None:
        """Return what was understood, in UTC; None if the text is already that exact.

        `when` is the one of the three that is meant; of a range its first instant is shown.
        """
        when = self.start if when is self.since else when
        if not isinstance(when, datetime):
            return None
        shown = date_text(end_of_ms(_ms_of(when)))
        if shown == self.text.upper():
            return None
        future = ", in the future" if _ms_of(when) > now_ms else ""
        return f"{self.text} = {shown}{future}{self.remark}"


def understood(text: str, now_ms: int, zone: tzinfo | None = None) -> TypedTime:
    """Return what a typed time means; `zone` is what times without an offset are in, else local.

    >>> found = understood("2026-11-22 14:00", 0, UTC)
    >>> found.echo(found.state, now_ms=1_800_000_000_000)
    '2026-11-22 14:00 = 2026-11-22T14:00:00.000Z'

    A local time that occurred twice, when clocks went back, is the first of the two, and the echo
    says so. Raises `InvalidTimeError` for text that is not a time, and for a local time that clocks
    skipped.
    """
    text = " ".join(text.split())
    words = text.lower()
    if words == "now":
        return TypedTime(text, None, None, None)
    if is_digits(text) or revision_of(words) is not None:
        exact = int(resolve(text, now_ms)) if is_digits(text) else words
        return TypedTime(text, exact, exact, exact)
    now = EPOCH + timedelta(milliseconds=now_ms)
    match = _MOMENT.fullmatch(words)
    if match is None or not (match["date"] or match["time"]):
        if match := _RELATIVE.fullmatch(words):
            moment = _relative(text, match, now)
            return TypedTime(text, moment, moment, moment)
        raise InvalidTimeError(
            f"{text!r} is not a valid time (write {FORMS}, or a timestamp)", text
        )
    moment, remark = _moment(text, match, now, zone)
    if match["fraction"]:
        return TypedTime(text, moment, moment, moment, remark)
    to_the_second = (match["time"] or "").count(":") == 2 or len(match["time"] or "") == 6
    last = moment + timedelta(milliseconds=999 if to_the_second else 0)
    before = max(EPOCH, moment - timedelta(milliseconds=1))
    return TypedTime(text, last, before, moment, remark)


def _relative(text: str, match: re.Match[str], now: datetime) -> datetime:
    sign, amounts, ago = match[1], match[2], match[match.re.groups]
    total = timedelta()
    for amount, unit in _PART.findall(amounts.removesuffix("ago")):
        if unit not in _UNIT:
            raise InvalidTimeError(
                f"{text!r} is not a valid time: units are ms, s, m, h, d and w "
                "(write 30d, or a date)",
                text,
            )
        try:
            total += float(amount) * _UNIT[unit]
        except OverflowError:
            raise InvalidTimeError(f"{text!r} is before 1970 or too far ahead", text) from None
    if ago and sign:
        raise InvalidTimeError(f"{text!r} is not a valid time: write either a sign or 'ago'", text)
    try:
        return _checked(now + total if sign == "+" else now - total, text)
    except OverflowError:
        raise InvalidTimeError(f"{text!r} is before 1970 or too far ahead", text) from None


def _moment(
    text: str, match: re.Match[str], now: datetime, zone: tzinfo | None
) -> tuple[datetime, str]:
    """Return the instant of a date and a time of day, and a remark on it."""
    time = match["time"] or "00:00"
    if match["offset"]:
        zone = _zone(text, match["offset"])
    try:
        today = now.astimezone(zone).date()
        date = match["date"] or "today"
        day = {"today": today, "yesterday": today - timedelta(days=1)}.get(date)
        time = time.replace(",", ".")
        time = f"0{time}" if time.partition(":")[0] in set("0123456789") else time
        naive = datetime.fromisoformat(f"{day.isoformat() if day else date}T{time}")
        instant, remark = _instant(text, naive, zone, whole_day=match["time"] is None)
    except InvalidTimeError:
        raise
    except (OverflowError, ValueError):
        raise InvalidTimeError(
            f"{text!r} is not a valid time: that day or time of day does not exist (write {FORMS})",
            text,
        ) from None
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
    if not 0 <= _ms_of(moment) <= PHYSICAL_MS_MAX:
        raise InvalidTimeError(f"{text!r} is before 1970 or too far ahead", text)
    return moment


def _ms_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)
