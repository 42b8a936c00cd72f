"""The commands of a fleet: many stores, observed prefixes and archives, read at one time.

`options` says which fleet, and opens it. `notices` says on the error stream which members are
behind, missing or left out, and which round of ticks is shown. Only the module of the command that
runs is imported.
"""

from __future__ import annotations

from snapkv.cli.commands import App, Place

_PANEL = "Commands"

COMMANDS = {
    "status": Place("snapkv.cli.fleet.status", _PANEL),
    "ls": Place("snapkv.cli.fleet.reading", _PANEL),
    "get": Place("snapkv.cli.fleet.reading", _PANEL),
    "diff": Place("snapkv.cli.fleet.reading", _PANEL, times=2),
    "log": Place("snapkv.cli.fleet.commits", _PANEL),
    "watch": Place("snapkv.cli.fleet.watching", _PANEL),
    "tick": Place("snapkv.cli.fleet.ticker", _PANEL),
}

fleet = App(name="fleet", add_completion=False, rich_markup_mode="rich", table=COMMANDS)


@fleet.callback()
def _fleet() -> None:
    """Read many stores, observed prefixes and archives at one time.

    A file lists the members: --fleet, or the environment's SNAPKV_FLEET.
    Members that are behind, missing or left out are named on the error stream.
    """
