"""Times as options give them: ISO text, with an offset or in a time zone that is named."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from snapkv.errors import InvalidTimeError, InvalidTypeError
from snapkv.spark import codes
from snapkv.spark.codes import SourceError
from snapkv.times import LOGICAL_MASK, When, resolve

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name (Europe/Berlin) or offset (+01:00, as Spark writes it, too).

    Raises `SourceError`.
    """
    if match := _OFFSET.fullmatch(name):
        away = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        if away < timedelta(days=1):
            return timezone(away if match[1] == "+" else -away)
    try:
        return UTC if name == "Z" else ZoneInfo(name)
    except (OSError, ValueError, KeyError) as e:  # ZoneInfoNotFoundError is a KeyError
        raise SourceError(
            codes.INVALID_OPTION, f"no time zone: {name!r} (write Europe/Berlin, UTC, +01:00)"
        ) from e


def aware(when: When, zone: tzinfo | None) -> When:
    """Return a time as given, but a naive one in the zone; the earlier where clocks went back.

    Raises `SourceError` for a naive time without a zone, or one that clocks jumped over.
    """
    naive = when if isinstance(when, datetime) else _parsed(when)
    if naive is None or naive.utcoffset() is not None:
        return when
    if zone is None:
        raise SourceError(
            codes.TIMESTAMP_INVALID,
            f"time without an offset: {when!s} (add Z or +01:00, or the option timeZone)",
        )
    moment = naive.replace(tzinfo=zone)
    try:
        there_and_back = moment.astimezone(UTC).astimezone(zone)
    except OverflowError as e:  # of the year 1 or 9999
        raise SourceError(codes.TIMESTAMP_INVALID, f"no time: {naive}") from e
    if there_and_back.replace(tzinfo=None) != naive:
        raise SourceError(
            codes.TIMESTAMP_INVALID, f"{naive} never was in {zone}: its clocks jumped over it"
        )
    return moment


def timestamp_of(when: When, zone: tzinfo | None, now_ms: int, *, start: bool = False) -> int:
    """Return the timestamp that a time names: the end of its millisecond, or its `start`.

    So a time copied from a display finds its commit at either end of a range. Raises
    `SourceError`.
    """
    try:
        timestamp = resolve(aware(when, zone), now_ms)
    except (InvalidTimeError, InvalidTypeError) as e:
        raise SourceError(codes.TIMESTAMP_INVALID, str(e)) from e
    return timestamp & ~LOGICAL_MASK if start and not is_exact(when) else timestamp


def is_exact(when: When) -> bool:
    """Return whether a time is given as a timestamp, to the last bit."""
    if isinstance(when, str):
        text = when.strip()
        return text.isascii() and text.isdigit() and len(text) != len("20261231")
    return isinstance(when, int)


def exact(timestamp: int) -> str:
    """Return a timestamp as the text of an option, which is taken to the last bit."""
    return f"{timestamp:020d}"


def _parsed(text: When) -> datetime | None:
    if not isinstance(text, str) or is_exact(text):
        return None
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None
