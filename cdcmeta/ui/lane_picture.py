"""A time line of one thing as a picture: what it was when, as bars, with the moment marked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from cdcmeta.ui.svg import picture, shape

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
