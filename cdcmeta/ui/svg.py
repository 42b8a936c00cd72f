"""Pictures in SVG: their parts, and lanes; every text is escaped, and only classes style them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from snapkv.ui.view_kit import escaped

TEXT_CHARS_MAX = 200
COLOURS = 8
"""The number of classes of colours: `k0`, `k1`, ..."""


def printed(text: object, chars_max: int = TEXT_CHARS_MAX) -> str:
    r"""Return a text without characters that do not print; what is long is cut.

    >>> print(printed("a\u202eb\n"), printed("long", 2))
    a\u202eb\n lo…
    """
    whole = str(text)
    shown = whole[:chars_max]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else escaped(char) for char in shown)
    return shown + "…" * (len(whole) > chars_max)


def picture(
    width: float,
    height: float,
    title: str,
    parts: Iterable[Markup],
    *,
    name: str,
    stretched: bool = False,
) -> Markup:
    """Return a picture that a screen reader reads as its title; `name` is its class.

    A stretched one fills its place, whatever that does to its proportions.
    """
    ratio = Markup(' preserveAspectRatio="none"')
    size = number(width), number(height)
    if not stretched:
        ratio = Markup(' width="{}" height="{}"').format(*size)
    head = Markup('<svg class="{}" viewBox="0 0 {} {}"{} role="img" aria-label="{}">').format(
        name, *size, ratio, printed(title)
    )
    return head + Markup("").join(parts) + Markup("</svg>")


def shape(kind: str, name: str, title: str = "", **attributes: object) -> Markup:
    """Return a shape with a class, attributes, and a title that a pointer shows."""
    pairs = [
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _value(value))
        for key, value in attributes.items()
    ]
    head = Markup('<{} class="{}"').format(kind, name) + Markup("").join(pairs)
    if not title:
        return head + Markup("/>")
    return head + Markup("><title>{}</title></{}>").format(printed(title), kind)


def text(x: float, y: float, content: object, name: str) -> Markup:
    """Return a text in a picture."""
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(
        name, number(x), number(y), printed(content, 60)
    )


def number(value: float) -> str:
    """Return a number for SVG, without needless digits.

    >>> number(1.0), number(0.333333), number(-0.001)
    ('1', '0.33', '0')
    """
    found = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if found == "-0" else found


def _value(value: object) -> str:
    return number(value) if isinstance(value, int | float) else str(value)


# --- a lane: what one thing was over time, as bars, with the moment marked ---

WIDTH, HEIGHT = 1_000, 18
WIDTH_MIN = 2.0
"""The least width of a bar, so that it can be seen."""


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """The time that lanes show, and the moment, in milliseconds since 1970."""

    start_ms: int
    end_ms: int
    moment_ms: int

    def x(self, ms: float) -> float:
        """Return where a time is, from 0 to `WIDTH`; times outside are at the ends."""
        share = (ms - self.start_ms) / max(1, self.end_ms - self.start_ms)
        return min(1.0, max(0.0, share)) * WIDTH


@dataclass(frozen=True, slots=True)
class LaneBar:
    """What something was, from a time until another (None: still), and its class."""

    start_ms: int
    end_ms: int | None
    kind: str
    title: str


def lane_picture(bars: Iterable[LaneBar], span: LaneSpan, title: str, known_ms: int = 0) -> Markup:
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
