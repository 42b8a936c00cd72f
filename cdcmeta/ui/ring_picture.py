"""A generation's ring as a picture: its ranges around, and its streams inside, by shard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import cos, pi, sin

from markupsafe import Markup

from cdcmeta.ui.rings import RING, Arc, Ring
from cdcmeta.ui.svg import COLOURS, number, picture, shape, text

SIZE, CENTRE = 360, 180
ARC_RADIUS = 140
SHARD_RADIUS = 108
KEY_FROM, KEY_TO = 84, 168
STREAMS_MAX = 1_024
"""The most streams that are drawn."""
GAP = 0.0012
"""The gap between two ranges, as a part of the ring."""
STEPS = 5
"""Shades of sectors, by how many ranges they have."""


def ring_picture(ring: Ring) -> Markup:
    """Return the ring of a generation: tokens run clockwise, the least one is at the top.

    A range is an arc, and inside of it are as many parts as it has streams, coloured by shard. A
    large ring has sectors instead, darker the more ranges they have.
    """
    generation = ring.generation
    sectors = any(arc.streams is None for arc in ring.arcs)
    parts = [*(_sectors(ring.arcs) if sectors else _ranges(ring.arcs))]
    if not sectors and generation.streams <= STREAMS_MAX:
        parts += _streams(ring.arcs)
    if ring.key is not None:
        where = _line(_turn(ring.key.token), KEY_FROM, KEY_TO)
        parts.append(shape("path", "key", f"{ring.key.key}: token {ring.key.token}", d=where))
    parts += [
        text(CENTRE, CENTRE - 12, f"{generation.ranges:,} ranges", "middle strong"),
        text(CENTRE, CENTRE + 10, f"{generation.streams:,} streams", "middle"),
        text(CENTRE, CENTRE + 32, generation.phase, "middle dim"),
    ]
    title = f"Ring of {generation.ranges:,} ranges with {generation.streams:,} streams"
    return picture(SIZE, SIZE, title, parts, name="ring")


def _ranges(arcs: list[Arc]) -> Iterator[Markup]:
    for n, arc in enumerate(arcs):
        title = f"({arc.start}, {arc.end}]: {arc.streams} streams"
        odd_end = n % 2 if n < len(arcs) - 1 or len(arcs) % 2 == 0 else 2
        yield shape("path", f"arc r{odd_end}", title, d=_arc(arc.start, arc.end))


def _sectors(arcs: list[Arc]) -> Iterator[Markup]:
    most = max(arc.ranges for arc in arcs)
    for arc in arcs:
        step = -(-arc.ranges * (STEPS - 1) // most)
        title = f"({arc.start}, {arc.end}]: {arc.ranges:,} ranges"
        yield shape("path", f"arc d{step}", title, d=_arc(arc.start, arc.end))


def _streams(arcs: list[Arc]) -> Iterator[Markup]:
    """Yield a path for each colour: equal parts of the ranges, for the shards that have it."""
    paths: dict[int, list[str]] = defaultdict(list)
    shards: dict[int, set[int]] = defaultdict(set)
    for arc in arcs:
        begin, width = _drawn(arc.start, arc.end)
        part = width / (arc.streams or 1)
        for shard in range(arc.streams or 0):
            paths[shard % COLOURS].append(_curve(begin + part * shard, part, SHARD_RADIUS))
            shards[shard % COLOURS].add(shard)
    for colour, found in sorted(paths.items()):
        named = ", ".join(map(str, sorted(shards[colour])))
        yield shape("path", f"shard k{colour}", f"Streams of shard {named}", d=" ".join(found))


def _turn(token: int) -> float:
    """Return where a token is on the ring, as a part of a turn."""
    return (token + RING // 2) / RING


def _arc(start: int, end: int) -> str:
    """Return the path of the tokens in (start, end]."""
    return _curve(*_drawn(start, end), ARC_RADIUS)


def _drawn(start: int, end: int) -> tuple[float, float]:
    """Return where the tokens in (start, end] begin, and their width, with a gap between ranges."""
    begin, width = _turn(start), ((end - start) % RING or RING) / RING
    return (begin + GAP / 2, width - GAP) if width > 4 * GAP else (begin, width)


def _curve(begin: float, width: float, radius: int) -> str:
    """Return a path along a circle; one that is longer than a half is two."""
    pieces = 2 if width > 0.5 else 1
    path = f"M{_at(begin, radius)}"
    for n in range(1, pieces + 1):
        path += f" A{radius} {radius} 0 0 1 {_at(begin + width * n / pieces, radius)}"
    return path


def _line(turn: float, low: float, high: float) -> str:
    return f"M{_at(turn, low)} L{_at(turn, high)}"


def _at(turn: float, radius: float) -> str:
    angle = 2 * pi * turn
    x, y = CENTRE + radius * sin(angle), CENTRE - radius * cos(angle)
    return f"{number(x)} {number(y)}"
