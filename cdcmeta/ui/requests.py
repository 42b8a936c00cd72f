"""What the pages need of a request: the store, the fields of its URL, the time that lanes show."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from cdcmeta.ui.lane_picture import Span
from snapkv import SnapshotKV, When
from snapkv.errors import InvalidOptionError
from snapkv.times import physical_ms
from snapkv.ui import Context

DIGITS_MAX = 20
SHARED_OPTIONS = ("--store", "--name")
"""Options that `snapkv` and `cdcmeta` both have."""


def store_of(c: Context) -> SnapshotKV:
    """Return the store. Raises `InvalidOptionError` for the keys of other programs."""
    if c.source.store is None:
        raise InvalidOptionError(
            "this page shows keys of other programs, and these views are of a store: open it "
            "without --observe"
        )
    return c.source.store


def needed(c: Context, name: str) -> str:
    """Return a field of the URL. Raises `InvalidOptionError` without it."""
    if not c.state[name]:
        raise InvalidOptionError(f"the URL of this page needs {name}=")
    return c.state[name]


def integer(c: Context, name: str) -> int | None:
    """Return a field of the URL as an integer, None without it. Raises `InvalidOptionError`."""
    text = c.state[name]
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX):
        raise InvalidOptionError(f"{name}={text[:40]!r} is not an integer")
    return int(text)


def looks_longer(c: Context) -> bool:
    """Return whether a link asked for what takes longer."""
    return c.state["look"] == "longer"


def live_or_past(c: Context) -> When | None:
    """Return the moment, None for now; of an archive alone its newest one: it has no present."""
    return c.source.timestamp(None) if c.at is None and c.source.frozen else c.at


def time_of_moment(c: Context) -> int:
    """Return the timestamp of the moment, also of now."""
    return c.source.timestamp(c.at)


def span_of(c: Context) -> Span:
    """Return the time of lanes: that of the time bar."""
    return Span(c.bar.start_ms, c.bar.end_ms, physical_ms(time_of_moment(c)))


def command(c: Context, *words: str) -> str:
    """Return the line of the command `cdcmeta` that shows the same; "" if no line can."""
    options: Sequence[str] = c.source.words
    if set(options[::2]) - set(SHARED_OPTIONS):
        return ""
    return shlex.join(["cdcmeta", *words, *options])
