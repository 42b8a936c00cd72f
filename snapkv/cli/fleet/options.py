"""The options that say which fleet, which of its members, and what if some are behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, NamedTuple, cast

import typer

from snapkv.cli.exits import CommandError
from snapkv.cli.options import grouped, inherited, seconds, warnings_shown
from snapkv.cli.output import Output
from snapkv.cli.progress import patience
from snapkv.clock import HybridClock, SystemClock
from snapkv.fleet.description import members_of
from snapkv.fleet.fleet import Fleet
from snapkv.fleet.late_members import Behind
from snapkv.fleet.member import chosen
from snapkv.fleet.members import Members
from snapkv.fleet.opening import MEMBER_TIMEOUT_S, opened

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
        typer.Option(
            "--fleet",
            metavar="FILE",
            envvar=FLEET_VARIABLE,
            show_envvar=False,
            callback=inherited,
            help=f"The file that lists the members, TOML or JSON; else {FLEET_VARIABLE}.",
        ),
    ] = None
    members: Annotated[
        str | None,
        typer.Option(
            "--members", metavar="PATTERNS", help="Only these members, such as 'eu-*,us-1'."
        ),
    ] = None
    behind: Annotated[
        str | None,
        typer.Option(
            "--behind",
            metavar="POLICY",
            autocompletion=lambda: list(BEHIND),
            help="What to do about members without a final state: error (the default), stale (show "
            "the newest), or leave-out.",
        ),
    ] = None
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help=f"How long each member may take, such as 500ms; else {MEMBER_TIMEOUT_S:g}s.",
        ),
    ] = None

    def policy(self, *without: str) -> Behind:
        """Return what --behind says, for a command that knows no policy of `without`."""
        known = [each for each in BEHIND if each not in without]
        if self.behind is not None and self.behind not in known:
            raise CommandError(f"--behind takes {', '.join(known)}, not {self.behind!r}")
        return cast(Behind, (self.behind or BEHIND[0]).replace("-", " "))

    @contextmanager
    def opened(self, out: Output | None = None, *, connected: bool = True) -> Iterator[OpenFleet]:
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
            make = opened if connected else Members
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
