"""The bounds of a world: what may happen, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Operation = tuple[str, Callable[[], None]]
"""What may happen, and its name in traces."""
NAMES = ("a", "b")


class Step(NamedTuple):
    """A commit or a tick of a member, at a timestamp."""

    timestamp: int
    is_tick: bool = False


class Streams(Enum):
    """What the streams of a server have received when it is set back: nothing new, or everything.

    Slow ones are not open again when that was taken, so for one call they bring nothing.
    """

    EMPTY = ""
    BUFFERED = ", buffered"
    SLOW = ", buffered, slow"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What may happen in a world of two members.

    `before` are the commits that members have from the beginning. `steps` are written to each
    member in order, at any time; `delayed` of them may stay on their way, and arrive at any time.
    The servers of members in `restored` may be set back once, to any earlier revision, with any of
    the `streams`; then as many commits may follow as were lost, and one more. They are `later`
    than those, or between them. Members in `created_late` have no store at first.

    A fleet `asks` for the moments of all `times` in each state: those of the commits, and those
    around them. Calls that teach it something are followed `looks` times; they may also tick
    members that are behind, if it `finishes`. It `holds` one of the moments. `inside` operations
    may happen between two requests of one call of the fleet.

    With `watches` there is a watch since `since`, or since any moment at which it begins. It may
    be left at any place `leaves` times; others go on there up to the end, and if it `resumes`, one
    goes on there while more happens. If it may `leave_out` members, that takes one of its `waits`.
    """

    steps: Mapping[str, tuple[Step, ...]]
    times: tuple[int, ...]
    before: Mapping[str, int] = field(default_factory=dict)
    delayed: int = 0
    restored: tuple[str, ...] = ()
    streams: tuple[Streams, ...] = tuple(Streams)
    later: bool = False
    joined: Mapping[str, int] = field(default_factory=dict)
    created_late: tuple[str, ...] = ()
    asks: bool = True
    looks: int = 0
    finishes: bool = False
    holds: bool = False
    inside: int = 0
    watches: bool = False
    since: int | None = None
    leaves: int = 0
    resumes: bool = False
    leave_out: bool = False
    waits: int = 0
    hold_bytes: int = 1 << 20

    def joined_at(self, name: str) -> int:
        """Return since when a member belongs to the fleet."""
        return self.joined.get(name, 0)
