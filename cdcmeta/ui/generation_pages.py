"""The pages of CDC generations, and a ring as a picture; they need NumPy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import cos, pi, sin

from markupsafe import Markup

from cdcmeta.ui import generation_logs, svg
from cdcmeta.ui.generation_logs import RING, Arc, GenerationRow, TokenRing
from cdcmeta.ui.page_requests import command, integer, needed, span_of, store_of, time_of_moment
from snapkv import format_time
from snapkv.times import physical_ms
from snapkv.ui import Context, Page

GENERATIONS_SHOWN = 10
GENERATIONS_ASKED_MAX = 1_000
RANGES_ASKED_MAX = 500


def generations_page(c: Context) -> Page:
    """Show the logs of generations of the store, or all generations of one, at the moment."""
    store, time = store_of(c), time_of_moment(c)
    span, log = span_of(c), c.state["log"]
    more = {"lane": lambda row: _lane(row, span)}
    if log:
        limit = c.state.limit(generation_logs.GENERATIONS_MAX, GENERATIONS_ASKED_MAX)
        found = generation_logs.log_at(store, log, c.at, time=time, limit=limit)
        line = command(c, "generations", "list", "--log", log) if c.at is None else ""
        return Page("cdcmeta/generation_log.html", f"Generations: {log}", found, more, line)
    logs = generation_logs.list_logs(
        store, c.at, time=time, start=c.state["start"], generations=GENERATIONS_SHOWN
    )
    return Page("cdcmeta/generations.html", "Generations", logs, more)


def generation_page(c: Context) -> Page:
    """Show the ring of one generation, and the stream of a key."""
    log, generation = needed(c, "log"), integer(c, "time")
    found = generation_logs.ring_at(
        store_of(c),
        log,
        0 if generation is None else generation,
        c.at,
        time=time_of_moment(c),
        start=integer(c, "start"),
        limit=c.state.limit(generation_logs.RANGES_MAX, RANGES_ASKED_MAX),
        key=c.state["key"],
    )
    words = ["generations", "show", str(found.generation.time), "--log", log]
    if found.key is not None:
        words = ["streams", "at", str(found.generation.time), found.key.key, "--log", log]
    line = command(c, *words) if c.at is None else ""
    title = f"Generation {svg.printed(log)} {format_time(found.generation.time)}"
    span = span_of(c)
    more = {"picture": ring_picture(found), "lane": lambda row: _lane(row, span)}
    return Page("cdcmeta/generation.html", title, found, more, line)


def _lane(row: GenerationRow, span: svg.LaneSpan) -> Markup:
    end = None if row.until is None else physical_ms(row.until)
    until = "" if row.until is None else f" until {format_time(row.until)}"
    title = f"{row.phase}: from {format_time(row.time)}{until}"
    return svg.lane_picture(
        [svg.LaneBar(physical_ms(row.time), end, row.phase.replace(" ", "-"), title)], span, title
    )


# --- a ring as a picture: its ranges around, and its streams inside, by shard ---

SIZE, CENTRE = 360, 180
ARC_RADIUS = 140
SHARD_RADIUS = 108
KEY_FROM, KEY_TO = 84, 168
DRAWN_STREAMS_MAX = 1_024
"""The most streams that are drawn."""
GAP = 0.0012
"""The gap between two ranges, as a part of the ring."""
STEPS = 5
"""The shades of sectors, by the number of their ranges."""


def ring_picture(ring: TokenRing) -> Markup:
    """Return the ring of a generation: tokens run clockwise, the least one is at the top.

    A range is an arc, and inside of it are as many parts as it has streams, coloured by shard. A
    large ring has sectors instead, darker the more ranges they have.
    """
    generation = ring.generation
    sectors = any(arc.streams is None for arc in ring.arcs)
    parts = [*(_sectors(ring.arcs) if sectors else _ranges(ring.arcs))]
    if not sectors and generation.streams <= DRAWN_STREAMS_MAX:
        parts += _streams(ring.arcs)
    if ring.key is not None:
        turn = _ring_position(ring.key.token)
        where = f"M{_at(turn, KEY_FROM)} L{_at(turn, KEY_TO)}"
        parts.append(svg.shape("path", "key", f"{ring.key.key}: token {ring.key.token}", d=where))
    parts += [
        svg.text(CENTRE, CENTRE - 12, f"{generation.ranges:,} ranges", "middle strong"),
        svg.text(CENTRE, CENTRE + 10, f"{generation.streams:,} streams", "middle"),
        svg.text(CENTRE, CENTRE + 32, generation.phase, "middle dim"),
    ]
    title = f"Ring of {generation.ranges:,} ranges with {generation.streams:,} streams"
    return svg.picture(SIZE, SIZE, title, parts, name="ring")


def _ranges(arcs: list[Arc]) -> Iterator[Markup]:
    for n, arc in enumerate(arcs):
        title = f"({arc.start}, {arc.end}]: {arc.streams} streams"
        odd_end = n % 2 if n < len(arcs) - 1 or len(arcs) % 2 == 0 else 2
        yield svg.shape("path", f"arc r{odd_end}", title, d=_arc(arc.start, arc.end))


def _sectors(arcs: list[Arc]) -> Iterator[Markup]:
    most = max(arc.ranges for arc in arcs)
    for arc in arcs:
        step = -(-arc.ranges * (STEPS - 1) // most)
        title = f"({arc.start}, {arc.end}]: {arc.ranges:,} ranges"
        yield svg.shape("path", f"arc d{step}", title, d=_arc(arc.start, arc.end))


def _streams(arcs: list[Arc]) -> Iterator[Markup]:
    """Yield a path for each colour: equal parts of the ranges, for the shards that have it."""
    paths: dict[int, list[str]] = defaultdict(list)
    shards: dict[int, set[int]] = defaultdict(set)
    for arc in arcs:
        begin, width = _drawn(arc.start, arc.end)
        part = width / (arc.streams or 1)
        for shard in range(arc.streams or 0):
            paths[shard % svg.COLOURS].append(_curve(begin + part * shard, part, SHARD_RADIUS))
            shards[shard % svg.COLOURS].add(shard)
    for colour, found in sorted(paths.items()):
        named = ", ".join(map(str, sorted(shards[colour])))
        yield svg.shape("path", f"shard k{colour}", f"Streams of shard {named}", d=" ".join(found))


def _ring_position(token: int) -> float:
    """Return where a token is on the ring, as a part of a turn."""
    return (token + RING // 2) / RING


def _arc(start: int, end: int) -> str:
    """Return the path of the tokens in (start, end]."""
    return _curve(*_drawn(start, end), ARC_RADIUS)


def _drawn(start: int, end: int) -> tuple[float, float]:
    """Return where the tokens in (start, end] begin, and their width, with a gap between ranges."""
    begin, width = _ring_position(start), ((end - start) % RING or RING) / RING
    return (begin + GAP / 2, width - GAP) if width > 4 * GAP else (begin, width)


def _curve(begin: float, width: float, radius: int) -> str:
    """Return a path along a circle; one that is longer than a half is two."""
    pieces = 2 if width > 0.5 else 1
    path = f"M{_at(begin, radius)}"
    for n in range(1, pieces + 1):
        path += f" A{radius} {radius} 0 0 1 {_at(begin + width * n / pieces, radius)}"
    return path


def _at(turn: float, radius: float) -> str:
    angle = 2 * pi * turn
    x, y = CENTRE + radius * sin(angle), CENTRE - radius * cos(angle)
    return f"{svg.number(x)} {svg.number(y)}"
