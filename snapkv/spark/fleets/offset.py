"""The offsets of a fleet's stream: a time, and how far each member was delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from snapkv.layout import Mark
from snapkv.spark.offset import VERSION, boolean, checking, number, store_and_mark, store_fields


class At(NamedTuple):
    """How far a member was delivered: up to a commit of a store.

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
    whether the state at these commits is still to be delivered first. `pinned` is as in `Offset`.
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
            "members": {name: _fields(at) for name, at in sorted(self.members.items())},
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


def _fields(at: At) -> dict[str, Any]:
    fields = store_fields(*at)
    del fields["v"]  # the whole offset has it
    return fields
