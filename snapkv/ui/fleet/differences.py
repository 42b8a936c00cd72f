"""Differences between two moments of a fleet, by member, within the bounds of a page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from snapkv.errors import SnapKVError
from snapkv.fleet.pin import Pin
from snapkv.reading.deadline import within
from snapkv.ui.differences import VALUES_BYTES_MAX, Row, compared
from snapkv.ui.fleet.member_moments import Cut
from snapkv.ui.fleet.site import FleetSite
from snapkv.ui.source import Budget


@dataclass(frozen=True, slots=True)
class MemberDifferences:
    """What differs in one member: the first rows of it that the page has room for, and how many.

    If `complete` is False, the counts are of the first keys only. `error` says why it could not be
    compared to its end.
    """

    member: str
    rows: list[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    complete: bool = True
    error: str | None = None

    @property
    def total(self) -> int:
        """How many keys differ, as far as they were counted."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class FleetDifferences:
    """The differences of a page of members between two moments, in the order of members and keys.

    `joined`, `left` and `unknown` are as in `FleetDiff`: nothing of these members is compared.
    `behind` are shown at their newest state, which is not final at one of the two. `counts` are of
    the members that were compared, all of them if it is `complete`. The next page goes on with the
    member `following`, behind its key `after`.
    """

    since: int
    until: int
    members: list[MemberDifferences] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    complete: bool = True
    joined: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    behind: list[str] = field(default_factory=list)
    following: str | None = None
    after: str | None = None

    @property
    def total(self) -> int:
        """How many keys differ, as far as they were counted."""
        return sum(self.counts.values())


def fleet_differences(
    site: FleetSite,
    before: Cut,
    after: Cut,
    prefix: str,
    *,
    start: tuple[str, str | None],
    following: str | None,
    limit: int,
    budget: Budget,
) -> FleetDifferences:
    """Return what differs between two cuts of the same members.

    `start` is the member, and its key, behind which the page goes on; `following` the first member
    that is not in the cuts. Each member costs as `differences`. After the first one, members are
    compared as long as there is time, and shown as long as there is room.
    """
    if before.moment is None or after.moment is None:
        return FleetDifferences(
            0, 0, complete=False, unknown=before.failed | after.failed, following=following
        )
    found = before.moment.diff(after.moment, prefix or None)
    a, b = before.moment.pins, after.moment.pins
    members: list[MemberDifferences] = []
    goes_on: tuple[str, str | None] | None = None
    all_compared = following is None
    room, bytes_left = limit, VALUES_BYTES_MAX
    for number, name in enumerate(found.compared):
        if number and budget.over:
            goes_on, all_compared = goes_on or (name, None), False
            break
        key = start[1] if name == start[0] else None
        each, behind = _compared(site, (a[name], b[name]), prefix, key, room, budget)
        room -= len(each.rows)
        bytes_left = _bounded(each.rows, bytes_left)
        members.append(each)
        if goes_on is None and (behind is not None or each.total > len(each.rows)):
            goes_on = name, behind
    if goes_on is None and following is not None:
        goes_on = following, None
    return FleetDifferences(
        found.since,
        found.until,
        [each for each in members if each.total or not each.complete],
        sum((each.counts for each in members), Counter()),
        all_compared and all(each.complete for each in members),
        found.joined,
        found.left,
        found.unknown | before.failed | after.failed,
        sorted({*before.behind, *after.behind}),
        *(goes_on or (None, None)),
    )


def _bounded(rows: list[Row], bytes_left: int) -> int:
    """Take values out of rows that do not fit; return how many bytes are left."""
    for at, row in enumerate(rows):
        bytes_left -= len(row.before or b"") + len(row.after or b"")
        if bytes_left < 0:
            rows[at] = replace(row, before=None, after=None)
    return bytes_left


def _compared(
    site: FleetSite,
    pins: tuple[Pin, Pin],
    prefix: str,
    start: str | None,
    limit: int,
    budget: Budget,
) -> tuple[MemberDifferences, str | None]:
    """Return what differs in one member, and the key behind which its rows go on."""
    before, after = pins
    name = after.connection.name
    assert before.moment is not None
    assert after.moment is not None
    assert after.reads is not None
    try:
        source = site.source_of(name, after.reads)
        with within(after.connection.timeout):
            found = compared(
                source,
                before.moment,
                after.moment,
                prefix,
                start=start,
                limit=limit,
                budget=budget,
            )
    except SnapKVError as e:
        return MemberDifferences(name, complete=False, error=str(e)), None
    return MemberDifferences(name, found.rows, found.counts, found.complete), found.after
