"""Moments of some members; a member that fails is named, and stops nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from snapkv.errors import MembersBehindError, SnapKVError
from snapkv.fleet.fleet import Fleet
from snapkv.fleet.moment import FleetMoment


@dataclass(frozen=True, slots=True)
class Cut:
    """A moment of the members that can be asked (None: of none), and the errors of the rest."""

    moment: FleetMoment | None
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def behind(self) -> list[str]:
        """The members that are shown at their newest state, which is not final at the moment."""
        pins = {} if self.moment is None else self.moment.pins
        return [name for name, pin in pins.items() if pin.state == "behind"]


def cut(fleet: Fleet, names: list[str], timestamp: int) -> Cut:
    """Return the members at a time; members that are not final there at their newest state.

    Costs as `Fleet.at`, once more for each member that fails otherwise than by being away.
    """
    left, failed = list(names), dict[str, str]()
    while left:
        try:
            return Cut(fleet.at(timestamp, members=left, behind="stale"), failed)
        except SnapKVError as e:
            if e.member not in left:
                raise
            failed[e.member] = str(e)
            left.remove(e.member)
    return Cut(None, failed)


def newest_cut(fleet: Fleet, names: list[str], now: int) -> Cut:
    """Return each member at its newest commit, even if that is ahead of this machine's clock."""
    found = cut(fleet, names, now)
    if found.moment is None:
        return found
    newest = max(seen.newest for seen in found.moment.members.values())
    return found if newest <= now else cut(fleet, names, newest)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The newest timestamp that is final on all members of which that is known, 0 for none.

    `unknown` are the other ones, with the reason.
    """

    timestamp: int
    unknown: dict[str, str] = field(default_factory=dict)


def resolved(fleet: Fleet, names: list[str]) -> Resolved:
    """Return up to when the members are final; costs as `Fleet.resolved`, see `cut`."""
    left, unknown = list(names), dict[str, str]()
    while left:
        wanted = None if left == fleet.members else left
        try:
            return Resolved(fleet.resolved("all", members=wanted), unknown)
        except MembersBehindError as e:
            found = e.members
        except SnapKVError as e:
            if e.member is None:
                return Resolved(0, unknown)  # all that are left have left the fleet
            found = {e.member: str(e)}
        if not found.keys() & set(left):
            break
        unknown |= found
        left = [name for name in left if name not in found]
    return Resolved(0, unknown)
