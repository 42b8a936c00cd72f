"""Up to which time the members of a fleet are final, and the newest commit of each at that time."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from snapkv.errors import MembersBehindError
from snapkv.fleet.members import Members, Policy, allowed
from snapkv.fleet.pin import Pin
from snapkv.spark.fleets.offset import At, FleetOffset
from snapkv.spark.fleets.pinned import Described, last_pins, opened

ALL = "all"
LATE = ("behind", "missing")

_log = logging.getLogger(__name__)


class Frontier:
    """Finds the ends of a stream's batches; a pickled copy connects to the members anew.

    `late` are the members that were not final at the newest time that was asked for, with the
    reasons.
    """

    def __init__(self, members: Described, policy: Policy) -> None:
        self._members = {member.name: member for member in members}
        self.policy, self.late = policy, dict[str, str]()
        self._connections: Members | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connections": None}

    @property
    def names(self) -> list[str]:
        """The names of the members, sorted."""
        return list(self._members)

    def close(self) -> None:
        """Close the connections; they are opened again when they are needed."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()

    def resolved(self, policy: Policy | None = None) -> int:
        """Return the newest time at which as many members as the policy wants are final."""
        return self._open().resolved(self.policy if policy is None else policy, self.names)

    def start(self, timestamp: int, *, snapshot: bool) -> FleetOffset:
        """Return the offset from which a new query goes on, perhaps after the state there.

        A member that has left by then is not asked. Raises `MembersBehindError` unless all other
        members are final then.
        """
        here = [name for name in self.names if timestamp < self._members[name].left + snapshot]
        return replace(self._at(timestamp, here), snapshot=snapshot, pinned=False)

    def end(self, timestamp: int) -> FleetOffset:
        """Return the offset up to a time. Raises `MembersBehindError` unless all are final then."""
        return self._at(timestamp, self.names)

    def _at(self, timestamp: int, names: list[str]) -> FleetOffset:
        pins = allowed(timestamp, self._pins(names, timestamp), "error")
        nothing = At.after(timestamp)
        return FleetOffset(
            timestamp, {name: _moved(nothing, pins.get(name), timestamp) for name in self.names}
        )

    def until(self, at: FleetOffset, timestamp: int) -> FleetOffset:
        """Return the offset at a later time; the same one if nothing is new.

        Members that are late keep their place; if the policy is "all", all members do.
        """
        pins = self._pins([name for name in self.names if not self._has_ended(name, at)], timestamp)
        self._note({name: pin.why for name, pin in pins.items() if pin.state in LATE})
        if self.late and self.policy == ALL:
            return at
        found = {name: _moved(at.of(name), pins.get(name), timestamp) for name in self.names}
        is_same = all(each.mark.ordinal == at.of(name).mark.ordinal for name, each in found.items())
        if is_same and not at.snapshot:
            return at
        return replace(at, timestamp=max(timestamp, at.timestamp), members=found, snapshot=False)

    def check_none_late(self, timestamp: int) -> None:
        """Raise `MembersBehindError` if a member holds the stream back."""
        if self.late and self.policy == ALL:
            raise MembersBehindError(timestamp, self.late)

    def _has_ended(self, name: str, at: FleetOffset) -> bool:
        """Return whether all that a member did before it left was delivered."""
        place, left = at.of(name), self._members[name].left
        if not place.has_commit:
            return place.mark.timestamp >= left
        return at.timestamp >= left and self.policy == ALL

    def _pins(self, names: list[str], timestamp: int) -> dict[str, Pin]:
        return last_pins(self._open(), names, timestamp)

    def _open(self) -> Members:
        if self._connections is None:
            self._connections = opened(tuple(self._members.values()))
        return self._connections

    def _note(self, late: dict[str, str]) -> None:
        if late.keys() - self.late.keys():
            _log.warning("members of the fleet are behind: %s", late)
        self.late = late


def _moved(at: At, pin: Pin | None, timestamp: int) -> At:
    """Return the place of a member in the offset of a time; the same one if it is late."""
    if pin is None or pin.state in LATE:
        return at
    if pin.moment is None:  # absent
        return at if at.has_commit else At.after(max(timestamp, at.mark.timestamp))
    mark, store = pin.moment.mark, pin.connection.store_id
    assert store is not None
    return At(store, mark) if mark.ordinal > at.mark.ordinal else at
