"""The status of each member of a fleet: whether it answers, and up to when it is final."""

from __future__ import annotations

from dataclasses import dataclass

from snapkv.errors import SnapKVError
from snapkv.fleet.member import Member
from snapkv.fleet.members import Members
from snapkv.fleet.open_member import Connection
from snapkv.fleet.pin import State
from snapkv.times import TIMESTAMP_MAX

POLICIES = ("all", "99%")


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member now. `final` is the timestamp up to which it is, as far as known; 0 for unknown.

    `state` is as in `Seen`; "behind" is one that does not answer now, but did before. `error` says
    why a member does not answer.
    """

    member: Member
    state: State
    final: int
    error: str | None


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The members now, and the newest timestamps that are final on "all" and "99%" of them.

    None where that is not known.
    """

    members: list[MemberStatus]
    resolved: dict[str, int | None]


def status_of(members: Members, now: int) -> FleetStatus:
    """Return how all members are; `now` is the clock's timestamp. Costs as `Fleet.resolved`."""
    found = members.final_up_to(list(members.by_name))
    resolved = {of: members.newest(of, found) for of in POLICIES}
    return FleetStatus(
        [_status(members.by_name[name], found[name], now) for name in members.by_name],
        {of: newest if 0 < newest < TIMESTAMP_MAX else None for of, newest in resolved.items()},
    )


def _status(connection: Connection, final: int | SnapKVError, now: int) -> MemberStatus:
    member, away = connection.member, connection.away
    if not member.has(now):
        return MemberStatus(member, "absent", 0, None)
    if isinstance(final, SnapKVError):
        return MemberStatus(member, "missing", 0, str(final))
    if away is not None:
        kept = member.archive is not None and connection.archive_or_none() is not None
        return MemberStatus(member, "archive" if kept else "behind", final, str(away))
    return MemberStatus(member, "archive" if member.is_archive else "live", final, None)
