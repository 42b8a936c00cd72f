"""Requests of the pages: the store, the fields of the URL, the time that lanes show."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from cdcmeta.ui.svg import picture, shape
from snapkv import SnapshotKV, When
from snapkv.errors import InvalidOptionError
from snapkv.times import physical_ms
from snapkv.ui import Context

# --- a time line of one thing as a picture: what it was when, as bars, with the moment marked ---

WIDTH, HEIGHT = 1_000, 18
WIDTH_MIN = 2.0
"""A bar is at least so wide, or it could not be seen."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time that lanes show, and the moment, in milliseconds since 1970."""

    start_ms: int
    end_ms: int
    moment_ms: int

    def x(self, ms: float) -> float:
        """Return where a time is, from 0 to `WIDTH`; times outside are at the ends."""
        share = (ms - self.start_ms) / max(1, self.end_ms - self.start_ms)
        return min(1.0, max(0.0, share)) * WIDTH


@dataclass(frozen=True, slots=True)
class Bar:
    """What something was, from a time until another (None: still), and its class."""

    start_ms: int
    end_ms: int | None
    kind: str
    title: str


def lane_picture(bars: Iterable[Bar], span: Span, title: str, known_ms: int = 0) -> Markup:
    """Return bars over time; before `known_ms` it was not looked up what was."""
    parts = []
    if known_ms > span.start_ms:
        unknown = span.x(known_ms)
        parts.append(
            shape("rect", "unknown", "not looked up", x=0, y=0, width=unknown, height=HEIGHT)
        )
    for bar in bars:
        end_ms = span.end_ms if bar.end_ms is None else bar.end_ms
        if end_ms < span.start_ms or bar.start_ms > span.end_ms:
            continue
        x, end = span.x(bar.start_ms), span.x(end_ms)
        width = max(WIDTH_MIN, end - x)
        x = min(x, WIDTH - width)
        parts.append(shape("rect", bar.kind, bar.title, x=x, y=2, width=width, height=HEIGHT - 4))
    if span.start_ms <= span.moment_ms <= span.end_ms:
        x = span.x(span.moment_ms)
        parts.append(shape("line", "at", x1=x, x2=x, y1=0, y2=HEIGHT))
    return picture(WIDTH, HEIGHT, title, parts, name="lane", stretched=True)


# --- requests ---

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
