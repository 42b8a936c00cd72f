"""The views of a whole fleet: each makes a page, or the plain data of its `.json`, of a request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from snapkv.errors import SnapKVError
from snapkv.reading.deadline import within
from snapkv.ui.fleet.member_answers import (
    FleetDifferences,
    MemberDifferences,
    PartialMoment,
    SameValue,
    fleet_differences,
    fleet_page,
    fleet_values,
    moment_at,
    newest_moment,
)
from snapkv.ui.fleet.site import FleetContext
from snapkv.ui.key_differences import CHANGED, ROWS_MAX, Row
from snapkv.ui.page_source import Budget
from snapkv.ui.request_context import Context, word_of
from snapkv.ui.store_views import (
    OPEN_BYTES_MAX,
    OPEN_MAX,
    SEEKING,
    Page,
    VersionRow,
    newest_of,
    open_rows,
    prefix_words,
    way_of,
)
from snapkv.ui.url_state import State

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
    budget = c.budget(SEEKING)
    found = replace(found, members=[_attributed(c, each, after, budget) for each in found.members])
    words = ["diff", word_of(found.since or c.since), word_of(found.until or c.until), *STALE]
    more = {"open": open_keys(c, found), "way": way_of(c)}
    return Page("fleet/changes.html", "Changes", found, more, c.command(*words, *prefix_words(c)))


def _attributed(
    c: FleetContext, found: MemberDifferences, seen: PartialMoment, budget: Budget
) -> MemberDifferences:
    last = newest_in(c, found.member, found.rows, seen, budget)
    return replace(found, rows=[replace(each, last=last.get(each.key)) for each in found.rows])


def newest_in(
    c: FleetContext, member: str, rows: list[Row], seen: PartialMoment, budget: Budget
) -> dict[str, VersionRow]:
    """Return `newest_of` of a member as it was seen; nothing without time, or without answer."""
    assert seen.moment is not None
    at = State("/key", {"at": f"rev:{seen.moment.members[member].revision}"})
    with suppress(SnapKVError), within(c.site.fleet.connection(member).timeout):
        return {} if budget.over else newest_of(Context(c.site.site_of(member), at), rows)
    return {}


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
    seen, budget = make(c.site.fleet, c.shown, c.until), c.budget(SEEKING)
    found = fleet_values(c.site, seen, key, c.following)
    row = Row(key, CHANGED, None, None, None, None)
    for name in (name for each in found.values for name in each.members):
        found.last[name] = newest_in(c, name, [row], seen, budget).get(key)
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
