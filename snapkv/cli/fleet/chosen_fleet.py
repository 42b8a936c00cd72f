"""The options that select a fleet and its members, and the notices on the error stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, NamedTuple, cast

from snapkv.base.clocks import SystemClock
from snapkv.cli.command_output import Output
from snapkv.cli.commands import option
from snapkv.cli.exits import CommandError
from snapkv.cli.formats import counted, time_text
from snapkv.cli.store_options import grouped, seconds, warnings_shown
from snapkv.cli.terminal import patience, report, report_warning
from snapkv.clock import HybridClock
from snapkv.errors import NAMED_MAX, MembersBehindError
from snapkv.fleet.description import members_of
from snapkv.fleet.fleet import MEMBER_TIMEOUT_S, Fleet, open_members
from snapkv.fleet.member import chosen
from snapkv.fleet.members import Behind, Members
from snapkv.fleet.moment import FleetMoment
from snapkv.fleet.pin import Seen
from snapkv.times import physical_ms

FLEET_VARIABLE = "SNAPKV_FLEET"
BEHIND = ("error", "stale", "leave-out")


class OpenFleet(NamedTuple):
    """An open fleet, and its members, for what `Fleet` has no method for."""

    fleet: Fleet
    members: Members


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """The options of commands of a fleet, in the order of the help."""

    file: Annotated[
        str | None,
        option(
            "--fleet FILE",
            f"The file that lists the members, TOML or JSON; else {FLEET_VARIABLE}.",
            envvar=FLEET_VARIABLE,
            show_envvar=False,
        ),
    ] = None
    members: Annotated[
        str | None, option("--members PATTERNS", "Only these members, such as 'eu-*,us-1'.")
    ] = None
    behind: Annotated[
        str | None,
        option(
            "--behind POLICY",
            "What to do about members without a final state: error (the default), stale (show "
            "the newest), or leave-out.",
            autocompletion=lambda: list(BEHIND),
        ),
    ] = None
    timeout: Annotated[
        str | None,
        option(
            "--timeout DURATION",
            f"How long each member may take, such as 500ms; else {MEMBER_TIMEOUT_S:g}s.",
        ),
    ] = None

    def policy(self, *without: str) -> Behind:
        """Return what --behind says, for a command that knows no policy of `without`."""
        known = [each for each in BEHIND if each not in without]
        if self.behind is not None and self.behind not in known:
            raise CommandError(f"--behind takes {', '.join(known)}, not {self.behind!r}")
        return cast(Behind, (self.behind or BEHIND[0]).replace("-", " "))

    @contextmanager
    def open_members(
        self, out: Output | None = None, *, connected: bool = True
    ) -> Iterator[OpenFleet]:
        """Open the members that were chosen, and close them in the end; `out` names members.

        No other member is opened. With `connected` false, none is before it is needed.
        """
        if not self.file:
            raise CommandError(f"which fleet? Give --fleet FILE or set {FLEET_VARIABLE}")
        clock = HybridClock(SystemClock())
        timeout = seconds(self.timeout) if self.timeout else MEMBER_TIMEOUT_S
        with warnings_shown(), patience(f"the fleet of {self.file}"):
            described = {member.name: member for member in members_of(self.file, clock.now_ms())}
            asked = [described[name] for name in chosen(list(described), self.members)]
            make = open_members if connected else Members
            members = make(asked, timeout or 0.0, clock.wall)
        with Fleet(members, clock) as fleet:
            if out is not None:
                out.width = max(map(len, members.by_name))
            yield OpenFleet(fleet, members)


def of_fleet(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that adds the options `names` of `FleetOptions`; without names, all.

    The command gets them as its argument `chosen`.
    """
    return grouped(FleetOptions, "chosen", set(names) or None)


# --- notices on the error stream, beside the answer ---


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


def report_moments(opened: OpenFleet, *moments: FleetMoment, now: bool, policy: Behind) -> None:
    """Say what of the moments that are shown is not as it was asked for, or as one would think.

    `now` is whether the newest final time was asked for. Raises `MembersBehindError` if a moment
    shows nothing at all.
    """
    late: dict[str, Seen] = {}
    for moment in moments:
        check_known(moment.timestamp, moment.late, len(moment.states))
        late |= moment.late
    report_late(late, len(moments[0].states), policy)
    if now:
        report_old(moments[-1].timestamp)
    for moment in moments:
        _report_round(opened, moment)


def _report_round(opened: OpenFleet, moment: FleetMoment) -> None:
    """Say at which round of ticks observed members are shown, or that it is none."""
    observed = [
        name
        for name, state in moment.states.items()
        if state == "live" and opened.fleet.member(name).prefix is not None
    ]
    if len(observed) < 2:
        return
    if moment.spread is None:
        report_warning(
            "no round of ticks is known at that time, so an effect may be shown without its cause "
            "in another member: keep snapkv fleet tick --every 1s running"
        )
    else:
        where = time_text(moment.timestamp)
        report(f"snapkv: shown at the round {where}, within {moment.spread * 1_000:,.1f} ms")


def report_old(newest: int) -> None:
    """Say when the newest final moment was, if that is long ago."""
    if (late := lag_s(newest)) >= OLD_S:
        shown = f"{time_text(newest)}, {duration_text(late)} ago"
        report(f"snapkv: the newest time that is final on all members is {shown}")


def check_known(timestamp: int, late: Mapping[str, Seen], of: int) -> None:
    """Raise `MembersBehindError` if nothing is known of any of so many members at a time."""
    if len(late) == of and not any(seen.timestamp for seen in late.values()):
        raise MembersBehindError(timestamp, {name: why(late[name]) for name in late})


def report_late(late: Mapping[str, Seen], of: int, policy: Behind) -> None:
    """Name members that are behind or missing, and say what was done about them."""
    stale = {name: seen for name, seen in late.items() if seen.state == "behind"}
    if policy == "leave out":
        _report_some(late, of, "left out")
        return
    _report_some(stale, of, "not final at that time, and shown as of the newest")
    _report_some({name: late[name] for name in late if name not in stale}, of, "missing")


def _report_some(some: Mapping[str, Seen], of: int, what: str) -> None:
    if not some:
        return
    verb = "is" if len(some) == 1 else "are"
    names = listed(some)
    if len(some) == 1:
        names += f" ({why(next(iter(some.values())))})"
    report(f"snapkv: {len(some):,} of {counted(of, 'member')} {verb} {what}: {names}")


def why(seen: Seen) -> str:
    """Return why a member is behind or missing."""
    if seen.error is not None:
        return seen.error
    return f"final up to {time_text(seen.newest)}" if seen.newest else "nothing of it is known"


def report_names(names: Collection[str], what: str) -> None:
    """Say something of some members, if there are any."""
    if names:
        report(f"snapkv: {counted(len(names), 'member')} {what}: {listed(names)}")
