"""The pages of CDC generations; they need NumPy."""

from __future__ import annotations

from markupsafe import Markup

from cdcmeta.ui.generations import GENERATIONS_MAX, GenerationRow, list_logs, log_at
from cdcmeta.ui.page_requests import (
    Bar,
    Span,
    command,
    integer,
    lane_picture,
    needed,
    span_of,
    store_of,
    time_of_moment,
)
from cdcmeta.ui.ring_picture import ring_picture
from cdcmeta.ui.rings import RANGES_MAX, ring_at
from cdcmeta.ui.svg import printed
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
        limit = c.state.limit(GENERATIONS_MAX, GENERATIONS_ASKED_MAX)
        found = log_at(store, log, c.at, time=time, limit=limit)
        line = command(c, "generations", "list", "--log", log) if c.at is None else ""
        return Page("cdcmeta/generation_log.html", f"Generations: {log}", found, more, line)
    logs = list_logs(store, c.at, time=time, start=c.state["start"], generations=GENERATIONS_SHOWN)
    return Page("cdcmeta/generations.html", "Generations", logs, more)


def generation_page(c: Context) -> Page:
    """Show the ring of one generation, and the stream of a key."""
    log, generation = needed(c, "log"), integer(c, "time")
    found = ring_at(
        store_of(c),
        log,
        0 if generation is None else generation,
        c.at,
        time=time_of_moment(c),
        start=integer(c, "start"),
        limit=c.state.limit(RANGES_MAX, RANGES_ASKED_MAX),
        key=c.state["key"],
    )
    words = ["generations", "show", str(found.generation.time), "--log", log]
    if found.key is not None:
        words = ["streams", "at", str(found.generation.time), found.key.key, "--log", log]
    line = command(c, *words) if c.at is None else ""
    title = f"Generation {printed(log)} {format_time(found.generation.time)}"
    span = span_of(c)
    more = {"picture": ring_picture(found), "lane": lambda row: _lane(row, span)}
    return Page("cdcmeta/generation.html", title, found, more, line)


def _lane(row: GenerationRow, span: Span) -> Markup:
    end = None if row.until is None else physical_ms(row.until)
    until = "" if row.until is None else f" until {format_time(row.until)}"
    title = f"{row.phase}: from {format_time(row.time)}{until}"
    return lane_picture(
        [Bar(physical_ms(row.time), end, row.phase.replace(" ", "-"), title)], span, title
    )
