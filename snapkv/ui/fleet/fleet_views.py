"""The views of a whole fleet: each makes a page, or the plain data of its `.json`, of a request."""

from __future__ import annotations

from collections.abc import Callable

from snapkv.ui.fleet.member_answers import (
    FleetDifferences,
    SameValue,
    fleet_differences,
    fleet_page,
    fleet_values,
    moment_at,
    newest_moment,
)
from snapkv.ui.fleet.site import FleetContext
from snapkv.ui.key_differences import CHANGED, ROWS_MAX, Row
from snapkv.ui.request_context import word_of
from snapkv.ui.store_views import (
    OPEN_BYTES_MAX,
    OPEN_MAX,
    SEEKING,
    Page,
    open_rows,
    prefix_words,
    way_of,
)

STALE = ("--behind", "stale")
"""The option with which commands treat members that are not final as these pages do."""
FleetView = Callable[[FleetContext], Page]


def members(c: FleetContext) -> Page:
    """Show the members at the moment, and up to when each is final."""
    found = fleet_page(c.site, c.names, c.shown, c.at, c.now)
    command = c.command("status") if c.at is None else ""  # no command has them at another time
    return Page("fleet/members.html", "Members", found, command=command)


def changes(c: FleetContext) -> Page:
    """Show what differs on the members between the beginning of the range and the moment."""
    shown = c.shown
    before = moment_at(c.site.fleet, shown, c.since)
    names = [name for name in shown if name not in before.failed]
    make = newest_moment if c.at is None else moment_at
    after = make(c.site.fleet, names, c.until)
    found = fleet_differences(
        c.site,
        before,
        after,
        c.state["prefix"],
        start=(c.state["start"], c.state["after"] or None),
        following=c.following,
        limit=c.state.limit(ROWS_MAX, 2_000),
        budget=c.budget(SEEKING),
    )
    words = ["diff", word_of(found.since or c.since), word_of(found.until or c.until), *STALE]
    more = {"open": open_keys(c, found), "way": way_of(c)}
    return Page("fleet/changes.html", "Changes", found, more, c.command(*words, *prefix_words(c)))


def open_keys(c: FleetContext, found: FleetDifferences) -> dict[str, set[str]]:
    """Return the keys of each member whose differences are open from the beginning."""
    rows = [(each.member, row) for each in found.members for row in each.rows]
    found_open: dict[str, set[str]] = {each.member: set() for each in found.members}
    for member, row in rows[: open_rows(c, [row for _, row in rows])]:
        found_open[member].add(row.key)
    return found_open


def values(c: FleetContext) -> Page:
    """Show which members have a key, and with what value."""
    key = c.state["key"]
    if not key:
        return Page("fleet/key.html", "One key", None)
    make = newest_moment if c.at is None else moment_at
    found = fleet_values(c.site, make(c.site.fleet, c.shown, c.until), key, c.following)
    words = ["get", key, "--at", word_of(found.timestamp or c.until), *STALE]
    more = {"shown": compared_values(c, key, found.values), "way": way_of(c)}
    return Page("fleet/key.html", key, found, more, c.command(*words))


def compared_values(
    c: FleetContext, key: str, found: list[SameValue]
) -> list[tuple[SameValue, Row | None]]:
    """Return the values, each with what differs from the first one; None if it does not fit."""
    made: list[tuple[SameValue, Row | None]] = []
    left = c.state.part(OPEN_BYTES_MAX)
    for each in found:
        left -= each.size
        row = None
        if len(made) < OPEN_MAX and left >= 0:
            first = found[0]
            sizes = first.size, each.size
            row = Row(key, CHANGED, first.value, each.value, *sizes, each.hidden)
        made.append((each, row))
    return made


FLEET_VIEWS: dict[str, FleetView] = {"/": members, "/changes": changes, "/key": values}
