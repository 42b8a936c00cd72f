"""The members of a fleet at a moment: what each shows, and up to when it is final."""

from __future__ import annotations

from dataclasses import dataclass, field

from snapkv.fleet.pin import Pin, Seen
from snapkv.times import physical_ms
from snapkv.ui.fleet.member_moments import Cut, cut, newest_cut, resolved
from snapkv.ui.fleet.site import FleetSite, kind_of


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
    found = resolved(site.fleet, names)
    seen = newest_cut(site.fleet, shown, now) if at is None else cut(site.fleet, shown, at)
    rows = [_row(site, name, seen, at is None, now) for name in shown]
    following = next((name for name in names if shown and name > shown[-1]), None)
    moment = seen.moment
    return FleetPage(
        now if moment is None else moment.timestamp,
        moment is not None and moment.final and not seen.failed,
        None if moment is None else moment.spread,
        found.timestamp or None,
        found.unknown,
        len(names),
        following,
        rows,
    )


def _row(site: FleetSite, name: str, cut: Cut, is_now: bool, now: int) -> MemberRow:
    member = site.fleet.member(name)
    pin = None if cut.moment is None else cut.moment.pins.get(name)
    seen = Seen("missing", error=cut.failed.get(name)) if pin is None else pin.seen
    newest = seen.newest or site.fleet.connection(name).known
    lag_ms = physical_ms(now) - physical_ms(newest) if newest else None
    state = seen.state
    if pin is not None and is_now and state == "behind":  # as any member is of now
        state = "archive" if from_archive(pin) else "live"
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


def from_archive(pin: Pin) -> bool:
    """Return whether an archive answers for a member."""
    return pin.reads is not None and pin.reads.reader.url.startswith("archive:")
