"""Timestamps as people read them, for errors and displays alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

LOGICAL_BITS = 18
TIMESTAMP_MAX = (1 << 64) - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def date_of(timestamp: int) -> datetime:
    """Return the UTC datetime of a timestamp, to the millisecond."""
    return EPOCH + timedelta(milliseconds=timestamp >> LOGICAL_BITS)


def date_text(timestamp: int) -> str:
    """Return ISO text in UTC with milliseconds.

    >>> date_text(445644802596110336)
    '2023-11-14T22:13:29.903Z'
    """
    return date_of(timestamp).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dated(timestamp: int) -> str:
    """Return a timestamp for a message: its date, and the number itself in brackets.

    >>> dated(445644802596110336)
    '2023-11-14T22:13:29.903Z (445644802596110336)'
    """
    if not 0 <= timestamp <= TIMESTAMP_MAX:  # making an error message must not fail
        return str(timestamp)
    return f"{date_text(timestamp)} ({timestamp})"
