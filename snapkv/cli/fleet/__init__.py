"""The commands of a fleet: many stores, observed prefixes and archives, read at one time.

`chosen_fleet` has the options that select a fleet, opens it, and reports on the error stream which
members are behind, missing or left out, and which round of ticks is shown. Only the module of the
command that runs is imported.
"""

from __future__ import annotations

from snapkv.cli.commands import App, CommandPlace

_PANEL = "Commands"

COMMANDS = {
    "status": CommandPlace("snapkv.cli.fleet.read_commands", _PANEL),
    "ls": CommandPlace("snapkv.cli.fleet.read_commands", _PANEL),
    "get": CommandPlace("snapkv.cli.fleet.read_commands", _PANEL),
    "diff": CommandPlace("snapkv.cli.fleet.read_commands", _PANEL, times=2),
    "log": CommandPlace("snapkv.cli.fleet.read_commands", _PANEL),
    "watch": CommandPlace("snapkv.cli.fleet.watch_members", _PANEL),
    "tick": CommandPlace("snapkv.cli.fleet.tick_members", _PANEL),
}

fleet = App(name="fleet", add_completion=False, rich_markup_mode="rich", table=COMMANDS)


@fleet.callback()
def _fleet() -> None:
    """Read many stores, observed prefixes and archives at one time.

    A file lists the members: --fleet, or the environment's SNAPKV_FLEET.
    Members that are behind, missing or left out are named on the error stream.
    """
