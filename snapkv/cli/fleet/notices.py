"""Notices of a fleet's commands, on the error stream, beside the answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from snapkv.cli.fleet.options import OpenFleet
from snapkv.cli.formats import counted, time_text
from snapkv.cli.terminal import tell, tell_warning
from snapkv.clock import SystemClock
from snapkv.errors import NAMED_MAX, MembersBehindError
from snapkv.fleet.late_members import Behind
from snapkv.fleet.moment import FleetMoment
from snapkv.fleet.pin import Seen
from snapkv.times import physical_ms

OLD_S = 60.0
"""The newest final moment is said to be old if it is older than this."""
_UNITS = ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "min"))


def listed(names: Collection[str]) -> str:
    """Return some names for one line, the first ten of them.

    >>> listed(["a", "b"]), listed([str(n) for n in range(12)])
    ('a, b', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 2 more')
    """
    first, more = list(names)[:NAMED_MAX], len(names) - NAMED_MAX
    return ", ".join(first) + (f", and {more:,} more" if more > 0 else "")


def duration_text(seconds: float) -> str:
    """Return a duration for people.

    >>> duration_text(0.42), duration_text(300), duration_text(9_000), duration_text(500_000)
    ('0.4 s', '5 min', '2 h', '5 d')
    """
    for least, size, unit in _UNITS:
        if seconds >= least:
            return f"{seconds // size:,.0f} {unit}"
    return f"{seconds:,.1f} s"


def lag_s(timestamp: int) -> float:
    """Return how many seconds ago a timestamp was; 0.0 for one that is not over."""
    return max(0.0, (SystemClock().now_ms() - physical_ms(timestamp)) / 1_000)


def tell_moments(opened: OpenFleet, *moments: FleetMoment, now: bool, policy: Behind) -> None:
    """Say what of the moments that are shown is not as it was asked for, or as one would think.

    `now` is whether the newest final time was asked for. Raises `MembersBehindError` if a moment
    shows nothing at all.
    """
    late: dict[str, Seen] = {}
    for moment in moments:
        check_known(moment.timestamp, moment.late, len(moment.states))
        late |= moment.late
    tell_late(late, len(moments[0].states), policy)
    if now:
        tell_old(moments[-1].timestamp)
    for moment in moments:
        _tell_round(opened, moment)


def _tell_round(opened: OpenFleet, moment: FleetMoment) -> None:
    """Say at which round of ticks observed members are shown, or that it is none."""
    observed = [
        name
        for name, state in moment.states.items()
        if state == "live" and opened.fleet.member(name).prefix is not None
    ]
    if len(observed) < 2:
        return
    if moment.spread is None:
        tell_warning(
            "no round of ticks is known at that time, so an effect may be shown without its cause "
            "in another member: keep snapkv fleet tick --every 1s running"
        )
    else:
        where = time_text(moment.timestamp)
        tell(f"snapkv: shown at the round {where}, within {moment.spread * 1_000:,.1f} ms")


def tell_old(newest: int) -> None:
    """Say when the newest final moment was, if that is long ago."""
    if (late := lag_s(newest)) >= OLD_S:
        shown = f"{time_text(newest)}, {duration_text(late)} ago"
        tell(f"snapkv: the newest time that is final on all members is {shown}")


def check_known(timestamp: int, late: Mapping[str, Seen], of: int) -> None:
    """Raise `MembersBehindError` if nothing is known of any of so many members at a time."""
    if len(late) == of and not any(seen.timestamp for seen in late.values()):
        raise MembersBehindError(timestamp, {name: why(late[name]) for name in late})


def tell_late(late: Mapping[str, Seen], of: int, policy: Behind) -> None:
    """Name members that are behind or missing, and say what was done about them."""
    stale = {name: seen for name, seen in late.items() if seen.state == "behind"}
    if policy == "leave out":
        _tell_some(late, of, "left out")
        return
    _tell_some(stale, of, "not final at that time, and shown as of the newest")
    _tell_some({name: late[name] for name in late if name not in stale}, of, "missing")


def _tell_some(some: Mapping[str, Seen], of: int, what: str) -> None:
    if not some:
        return
    verb = "is" if len(some) == 1 else "are"
    names = listed(some)
    if len(some) == 1:
        names += f" ({why(next(iter(some.values())))})"
    tell(f"snapkv: {len(some):,} of {counted(of, 'member')} {verb} {what}: {names}")


def why(seen: Seen) -> str:
    """Return why a member is behind or missing."""
    if seen.error is not None:
        return seen.error
    return f"final up to {time_text(seen.newest)}" if seen.newest else "nothing of it is known"


def tell_names(names: Collection[str], what: str) -> None:
    """Say something of some members, if there are any."""
    if names:
        tell(f"snapkv: {counted(len(names), 'member')} {what}: {listed(names)}")
