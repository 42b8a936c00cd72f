"""The treatment of members that have no final state at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from snapkv.errors import InvalidOptionError, MembersBehindError
from snapkv.fleet.members import Members
from snapkv.fleet.pin import LATE, Pin, Seen
from snapkv.times import physical_ms

Behind = Literal["error", "stale", "leave out"]
BEHIND = ("error", "stale", "leave out")


def check_behind(behind: object) -> None:
    """Raise `InvalidOptionError` for anything but a policy."""
    if behind not in BEHIND:
        listed = ", ".join(f'"{each}"' for each in BEHIND)
        raise InvalidOptionError(f"behind must be one of {listed}, not {behind!r}")


def allowed(timestamp: int, pins: dict[str, Pin], behind: Behind) -> dict[str, Pin]:
    """Return what a policy lets a moment show; raise `MembersBehindError` if it shows none."""
    late = {name: pin for name, pin in pins.items() if pin.state in LATE}
    if not late:
        return pins
    if behind == "error":
        raise MembersBehindError(timestamp, {name: pin.why for name, pin in late.items()})
    if behind == "leave out":
        pins = pins | {name: pin.left_out() for name, pin in late.items()}
    return pins


def in_ms(members: Members, timestamp: int, pins: dict[str, Pin]) -> tuple[int, dict[str, Pin]]:
    """Return a date, or the newest final time of its millisecond, if members are behind it.

    A date means the end of its millisecond. One that was copied from a display names a time
    in it up to which a member is final, and nothing later can be shown.
    """
    known = [pin.seen.newest for pin in pins.values() if pin.state == "behind"]
    newest = [each for each in known if physical_ms(each) == physical_ms(timestamp)]
    if newest:
        return min(newest), members.pins(list(pins), min(newest))
    return timestamp, pins


class Span(NamedTuple):
    """What a history of members is read of: the time in (since, until], for some of them less.

    `ends` has the members that are read, and where each one ends: at `until`, or as far as one
    that is behind is final. `late` has the members that are not final at `until`, and the members
    that had left by then and of which nothing is known.
    """

    since: int | None
    until: int
    ends: dict[str, int]
    late: dict[str, Seen]


def span_of(
    members: Members,
    names: Sequence[str],
    since: int | None,
    until: int | None,
    behind: Behind,
    *,
    is_date: bool = False,
) -> Span:
    """Return what a policy lets a history show, up to a time (None: the newest final one).

    A date ends as a moment of it does. One round trip to each member, and one more without a time;
    a second one to members that have left. Raises `MembersBehindError`.
    """
    if until is None:
        until = members.resolved("all", names, known_only=behind != "error")
    pins = members.pins(list(names), until)
    if is_date:
        until, pins = in_ms(members, until, pins)
    late = {name: pin for name, pin in pins.items() if pin.state in LATE}
    late |= _lost(members, since, until, pins)
    if late and behind == "error":
        raise MembersBehindError(until, {name: pin.why for name, pin in late.items()})
    ends = {name: until for name in pins if name not in late}
    if behind == "stale":
        ends |= {name: pin.seen.newest for name, pin in late.items() if pin.state == "behind"}
    else:
        late = {name: pin.left_out() for name, pin in late.items()}
    return Span(since, until, ends, {name: pin.seen for name, pin in late.items()})


def _lost(members: Members, since: int | None, until: int, pins: dict[str, Pin]) -> dict[str, Pin]:
    """Return the members that left the fleet in a span of time, and of which nothing is known."""
    left = {name: members.by_name[name].member.left for name in pins}
    gone = [
        name
        for name, pin in pins.items()
        if pin.state == "absent" and left[name] < until and (since is None or since < left[name])
    ]
    last = members.each(gone, lambda each: each.pin(left[each.name]))
    return {name: pin for name, pin in last.items() if pin.state == "missing"}
