"""The answers of a fleet's members: their states, their differences, the values of one key."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from hashlib import sha256

from snapkv.errors import InvalidKeyError, MembersBehindError, SnapKVError
from snapkv.fleet.fleet import Fleet
from snapkv.fleet.moment import FleetMoment
from snapkv.fleet.pin import Pin, Seen
from snapkv.reading.deadline import within
from snapkv.times import physical_ms
from snapkv.ui.fleet.site import FleetSite, kind_of
from snapkv.ui.key_differences import VALUES_BYTES_MAX, Attributed, Counted, Row, differences
from snapkv.ui.page_source import Budget


@dataclass(frozen=True, slots=True)
class PartialMoment:
    """A moment of the members that can be asked (None: of none), and the errors of the rest."""

    moment: FleetMoment | None
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def behind(self) -> list[str]:
        """The members that are shown at their newest state, which is not final at the moment."""
        pins = {} if self.moment is None else self.moment.pins
        return [name for name, pin in pins.items() if pin.state == "behind"]


def moment_at(fleet: Fleet, names: list[str], timestamp: int) -> PartialMoment:
    """Return the members at a time; members that are not final there at their newest state.

    Costs as `Fleet.at`, once more for each member that fails otherwise than by being away.
    """
    left, failed = list(names), dict[str, str]()
    while left:
        try:
            return PartialMoment(fleet.at(timestamp, members=left, behind="stale"), failed)
        except SnapKVError as e:
            if e.member not in left:
                raise
            failed[e.member] = str(e)
            left.remove(e.member)
    return PartialMoment(None, failed)


def newest_moment(fleet: Fleet, names: list[str], now: int) -> PartialMoment:
    """Return each member at its newest commit, even if that is ahead of this machine's clock."""
    found = moment_at(fleet, names, now)
    if found.moment is None:
        return found
    newest = max(seen.newest for seen in found.moment.members.values())
    return found if newest <= now else moment_at(fleet, names, newest)


def resolved(fleet: Fleet, names: list[str]) -> tuple[int, dict[str, str]]:
    """Return the newest timestamp that is final on all members for which it is known, 0 for none.

    With it, the reason of each member for which it is not. Costs as `Fleet.resolved`, see
    `moment_at`.
    """
    left, unknown = list(names), dict[str, str]()
    while left:
        wanted = None if left == fleet.members else left
        try:
            return fleet.resolved("all", members=wanted), unknown
        except MembersBehindError as e:
            found = e.members
        except SnapKVError as e:
            if e.member is None:
                return 0, unknown  # all that are left have left the fleet
            found = {e.member: str(e)}
        if not found.keys() & set(left):
            break
        unknown |= found
        left = [name for name in left if name not in found]
    return 0, unknown


# --- the states of the members ---


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member: what it is (`store`, `observed` or `archive`), and what is seen of it.

    `state` is that of the moment: live, archive, behind, missing or absent; of now it says who
    answers, live or archive. `final_up_to` is as far as it is known, `lag_ms` how long ago that is.
    `timestamp` and `revision` are of the newest commit in the moment. `error` says why it is away.
    """

    name: str
    kind: str
    url: str
    state: str
    final: bool
    final_up_to: int | None
    lag_ms: int | None
    timestamp: int | None
    revision: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The members of a page at a moment, of `total`; `following` begins the next page.

    `resolved` is the newest time that is final on all members of the fleet, not of the page alone,
    but for members of which nothing is known; `spread` is of the observed ones in seconds.
    """

    timestamp: int
    final: bool
    spread: float | None
    resolved: int | None
    unknown: dict[str, str]
    total: int
    following: str | None
    members: list[MemberRow] = field(default_factory=list)

    @property
    def elsewhere(self) -> dict[str, str]:
        """The members of which nothing is known, and which are not on the page, with the reason."""
        shown = {each.name for each in self.members}
        return {name: why for name, why in self.unknown.items() if name not in shown}


def fleet_page(
    site: FleetSite, names: list[str], shown: list[str], at: int | None, now: int
) -> FleetPage:
    """Return some members at a moment (None: each at its newest commit).

    Two round trips of the slowest member.
    """
    final_up_to, unknown = resolved(site.fleet, names)
    seen = newest_moment(site.fleet, shown, now) if at is None else moment_at(site.fleet, shown, at)
    rows = [_row(site, name, seen, at is None, now) for name in shown]
    following = next((name for name in names if shown and name > shown[-1]), None)
    moment = seen.moment
    return FleetPage(
        now if moment is None else moment.timestamp,
        moment is not None and moment.final and not seen.failed,
        None if moment is None else moment.spread,
        final_up_to or None,
        unknown,
        len(names),
        following,
        rows,
    )


def _row(site: FleetSite, name: str, shown: PartialMoment, is_now: bool, now: int) -> MemberRow:
    member = site.fleet.member(name)
    pin = None if shown.moment is None else shown.moment.pins.get(name)
    seen = Seen("missing", error=shown.failed.get(name)) if pin is None else pin.seen
    newest = seen.newest or site.fleet.connection(name).known
    lag_ms = physical_ms(now) - physical_ms(newest) if newest else None
    state = seen.state
    if pin is not None and is_now and state == "behind":  # as any member is of now
        archived = pin.reads is not None and pin.reads.reader.url.startswith("archive:")
        state = "archive" if archived else "live"
    return MemberRow(
        name,
        kind_of(member),
        member.url,
        state,
        seen.final,
        newest or None,
        lag_ms,
        seen.timestamp or None,
        seen.revision or None,
        seen.error,
    )


# --- differences between two moments, by member ---


@dataclass(frozen=True, slots=True)
class MemberDifferences(Counted):
    """What differs in one member: the first rows of it that the page has room for, and how many.

    If `complete` is False, the counts are of the first keys only. `error` says why it could not be
    compared to its end.
    """

    member: str
    rows: list[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    complete: bool = True
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FleetDifferences(Counted):
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


def fleet_differences(
    site: FleetSite,
    before: PartialMoment,
    after: PartialMoment,
    prefix: str,
    *,
    start: tuple[str, str | None],
    following: str | None,
    limit: int,
    budget: Budget,
) -> FleetDifferences:
    """Return what differs between two moments of the same members.

    `start` is the member, and its key, behind which the page goes on; `following` the first member
    that is not in the moments. Each member costs as `differences`. After the first one, members are
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
            found = differences(
                source, before.moment, after.moment, prefix, start=start, limit=limit, budget=budget
            )
    except SnapKVError as e:
        return MemberDifferences(name, complete=False, error=str(e)), None
    return MemberDifferences(name, found.rows, found.counts, found.complete), found.after


# --- one key in all members; equal values are together ---


@dataclass(frozen=True, slots=True)
class SameValue:
    """A value and the members that have it; None if it is redacted, or too large for the page.

    Redacted values are together if they have the same size.
    """

    members: list[str]
    value: bytes | None
    size: int
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class FleetValues:
    """The values of a key at a moment, the most common one first.

    `without` has the members without the key, `absent` the members that do not belong to the fleet
    at the moment, `unknown` the members whose value is not known, with the reason. `behind` are
    shown at their newest state, which is not final at the moment. `last` has the newest version of
    each member, if it is known. `following` begins the next page.
    """

    key: str
    timestamp: int
    values: list[SameValue] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    behind: list[str] = field(default_factory=list)
    following: str | None = None
    last: dict[str, Attributed | None] = field(default_factory=dict)


def fleet_values(
    site: FleetSite, partial: PartialMoment, key: str, following: str | None
) -> FleetValues:
    """Return the values of a key in the members of a moment; a read of each.

    Raises `InvalidKeyError` if no member can have such a key.
    """
    if (moment := partial.moment) is None:
        return FleetValues(key, 0, unknown=partial.failed, following=following)
    found = FleetValues(
        key,
        moment.timestamp,
        unknown=dict(partial.failed),
        behind=partial.behind,
        following=following,
    )
    same: dict[object, SameValue] = {}
    invalid: InvalidKeyError | None = None
    hidden, held = site.hides(key), 0
    for name, seen in moment.members.items():
        if seen.state in ("absent", "missing"):
            if seen.state == "absent":
                found.absent.append(name)
            else:
                found.unknown[name] = seen.error or seen.state
            continue
        try:
            value = moment.everywhere(key, [name]).get(name)
        except InvalidKeyError as e:  # outside of the prefix that the member observes
            invalid, value = e, None
        except SnapKVError as e:
            found.unknown[name] = str(e)
            continue
        if value is None:
            found.without.append(name)
            continue
        kind: object = len(value) if hidden else sha256(value).digest()
        if kind not in same:
            held += len(value)
            shown = None if hidden or held > VALUES_BYTES_MAX else value
            same[kind] = SameValue([], shown, len(value), hidden)
        same[kind].members.append(name)
    if invalid is not None and not same:
        raise invalid
    found.values.extend(sorted(same.values(), key=lambda each: (-len(each.members), each.members)))
    return found
