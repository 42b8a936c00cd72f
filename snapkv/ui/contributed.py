"""Views that other packages add to the page: tables and rings, made for the moment shown.

A package names a function in the entry point group `snapkv.ui.views`. It returns `ExtraView`s. Each
is listed in the page's navigation if the store holds what it shows at the moment.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TypeAlias

from snapkv.layout import prefix_end, space_name
from snapkv.store.store import SnapshotKV
from snapkv.times import When
from snapkv.ui.source import Source

GROUP = "snapkv.ui.views"
SPACES_MAX = 1_000
COLOURS = 8
"""Parts of rings have one of so many colours."""
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to the same view with other `fields` in its URL; None removes one."""

    text: str
    fields: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Time:
    """A cell that is a moment; it leads there."""

    timestamp: int


Cell: TypeAlias = str | int | Link | Time | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title; `empty` is shown without rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    empty: str = "None."


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a ring: where it begins and ends, from 0 to 1, and what it is."""

    start: float
    end: float
    label: str
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Ring:
    """A circle of parts, with a time and a label."""

    label: str
    parts: Sequence[Part]
    timestamp: int | None = None

    def arcs(self, radius: float = 54.0, width: float = 20.0) -> list[tuple[str, Part]]:
        """Return the parts as paths of SVG around (60, 60)."""
        return [(_arc(part, radius, radius - width), part) for part in self.parts]


@dataclass(frozen=True, slots=True)
class Rings:
    """Rings beside each other, the oldest first."""

    title: str
    rings: Sequence[Ring]


Section: TypeAlias = Table | Rings


@dataclass(frozen=True, slots=True)
class Asked:
    """What a view is made of: a store, the moment and the beginning of the range, its URL."""

    store: SnapshotKV
    at: When | None
    since: When | None
    spaces: Sequence[str]
    """The names of the store's spaces at the moment."""
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExtraView:
    """A view of a package: `/views/NAME`, a title, whether it has anything to show, and what."""

    name: str
    title: str
    has: Callable[[Sequence[str]], bool]
    """Whether it shows anything of a store with these spaces."""
    build: Callable[[Asked], Sequence[Section]]


def installed() -> list[ExtraView]:
    """Return the views that installed packages add; one that cannot be loaded is logged."""
    found: list[ExtraView] = []
    for each in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        try:
            found += each.load()()
        except Exception:
            LOGGER.exception("the views of %s cannot be loaded", each.name)
    return found


def spaces(source: Source, when: When | None) -> list[str]:
    """Return the names of a store's spaces at a moment, at most 1,000; one seek for each."""
    if source.observed:
        return []
    moment, root = source.reader.source(when, None, False), source.reader.layout.spaces
    low, end, found = root, prefix_end(root), list[str]()
    while low < end and len(found) < SPACES_MAX:
        page = next(moment.pairs(low, end, keys_only=True), None)
        if page is None or not page.keys:
            break
        relative = page.keys[0][len(root) :]
        found.append(space_name(relative))
        low = prefix_end(root + relative.partition(b"/")[0] + b"/")
    return found


def coloured(names: Iterable[str]) -> dict[str, int]:
    """Return a colour for each name, in order."""
    return {name: number % COLOURS for number, name in enumerate(dict.fromkeys(names))}


def _arc(part: Part, outer: float, inner: float) -> str:
    """Return a part of a ring as a path: out along the start, around, in, and back."""
    start, end = part.start, min(part.end, part.start + 0.9999)
    large = int(end - start > 0.5)
    points = [_point(at, radius) for at, radius in ((start, outer), (end, outer))]
    back = [_point(at, radius) for at, radius in ((end, inner), (start, inner))]
    return (
        f"M{points[0]} A{outer:g} {outer:g} 0 {large} 1 {points[1]} "
        f"L{back[0]} A{inner:g} {inner:g} 0 {large} 0 {back[1]} Z"
    )


def _point(share: float, radius: float) -> str:
    angle = 2 * math.pi * share - math.pi / 2
    return f"{60 + radius * math.cos(angle):.2f} {60 + radius * math.sin(angle):.2f}"
