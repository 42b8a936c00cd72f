"""Up to which time the members of a fleet are final, and the newest commit of each at that time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from snapkv.errors import MembersBehindError
from snapkv.fleet.members import Members, Policy, allowed
from snapkv.fleet.pin import Pin
from snapkv.layout import Mark
from snapkv.spark.fleet_members import Described, last_pins, open_members
from snapkv.spark.micro_batches import (
    VERSION,
    boolean,
    checking,
    number,
    store_and_mark,
    store_fields,
)


class At(NamedTuple):
    """The place up to which a member was delivered: a commit of a store.

    Before its first commit that has the number 0, and `timestamp` is the time after which the
    member's changes are still to come.
    """

    store: bytes
    mark: Mark

    @staticmethod
    def after(timestamp: int) -> At:
        """Return the place of a member of which nothing was delivered, nor will be up to a time."""
        return At(b"", Mark(timestamp, 0, 0))

    @property
    def has_commit(self) -> bool:
        """Whether it names a commit."""
        return self.mark.ordinal > 0


@dataclass(frozen=True, slots=True)
class FleetOffset:
    """All changes up to a commit of each member were delivered, and up to `timestamp` in all.

    A member that was behind then has an earlier commit, and its next ones come later. `snapshot` is
    whether the state at these commits is still to be delivered first. `pinned` is as in
    `StreamOffset`.
    """

    timestamp: int
    members: Mapping[str, At]
    snapshot: bool = False
    pinned: bool = True

    # For example, of a fleet of which the second member had no commit yet:
    #
    #     {"v": 1, "ts": 445644800032243719, "snapshot": false, "pinned": true, "members": {
    #         "eu-1": {"store": "5f..", "rev": 42, "ts": 445644800032243000, "commit": 17},
    #         "us-1": {"store": "", "rev": 0, "ts": 445644800032243719, "commit": 0}}}
    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""
        return {
            "v": VERSION,
            "ts": self.timestamp,
            "snapshot": self.snapshot,
            "pinned": self.pinned,
            "members": {name: store_fields(*at) for name, at in sorted(self.members.items())},
        }

    @staticmethod
    def from_json(checkpoint: Mapping[str, Any]) -> FleetOffset:
        """Return the offset in a checkpoint. Raises `SourceError` for anything else."""
        with checking(checkpoint):
            fields = checkpoint["members"]
            if not isinstance(fields, dict):
                raise TypeError(f"not members: {fields!r}")
            members = {name: At(*store_and_mark(each)) for name, each in fields.items()}
            flags = (boolean(checkpoint[name]) for name in ("snapshot", "pinned"))
            return FleetOffset(number(checkpoint["ts"]), members, *flags)

    def started(self) -> FleetOffset:
        """Return the first offset as Spark logs it."""
        return replace(self, pinned=True)

    def of(self, member: str) -> At:
        """Return how far a member was delivered; one that is new begins after this offset."""
        return self.members.get(member) or At.after(self.timestamp)


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
            self._connections = open_members(tuple(self._members.values()))
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
