"""The command fleet diff: what differs between two times on all members."""

from __future__ import annotations

from typing import Annotated

import typer

from snapkv.cli.differences import Renderer
from snapkv.cli.exits import Exit
from snapkv.cli.fleet.notices import tell_moments, tell_names
from snapkv.cli.fleet.options import FleetOptions, of_fleet
from snapkv.cli.moments import moment
from snapkv.cli.options import PrefixOption, StoreOptions, takes
from snapkv.cli.output import Output
from snapkv.cli.rendering import Rendering, renders
from snapkv.cli.terminal import write_line
from snapkv.fleet.difference import FleetDiff
from snapkv.model import Difference


@takes("no_pager", store=False)
@of_fleet()
@renders()
def diff(
    options: StoreOptions,
    chosen: FleetOptions,
    rendering: Rendering,
    a: Annotated[str, typer.Argument(metavar="TIME", help="The time before.", show_default=False)],
    b: Annotated[
        str, typer.Argument(metavar="TIME", help="The time after; else now.", show_default=False)
    ] = "now",
    prefix: PrefixOption = "",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with 1 when there are differences.")
    ] = False,
) -> None:
    """Print what differs between two times: the member, then + added, - removed, ~ changed.

    Keys of members that joined, left, or are unknown at one of the times are not compared: the
    error stream names these members, and in JSON they are records of their own.
    """
    before, after, renderer, policy = moment(a), moment(b), Renderer(rendering), chosen.policy()
    with options.long_output("MEMBER", *renderer.headings) as out, chosen.opened() as opened:
        since, until = (opened.fleet.at(each, behind=policy) for each in (before, after))
        tell_moments(opened, since, until, now=after is None, policy=policy)
        found, wide = since.diff(until, prefix or None), opened.width
        _write_members(out, found)
        for each in found:
            name, key = each.key
            in_front = name if out.format == "table" else name.ljust(wide)
            one = [Difference(key, each.before, each.after)]
            if out.structured:
                for fields in renderer.fields(one):
                    out.record({"member": name, **fields})
            elif out.format == "table":
                renderer.write(out, one, in_front)
            else:
                for number, line in enumerate(renderer.lines(one)):
                    write_line(line if number else [in_front, "  ", *line])
        renderer.finish(out)
    renderer.tell_ignored()
    differ = any(renderer.counts.values()) or found.joined or found.left or found.unknown
    if exit_code and differ:
        raise typer.Exit(Exit.NO)


def _write_members(out: Output, found: FleetDiff) -> None:
    """Name the members that are not compared."""
    if out.structured:
        changes = {"joined": found.joined, "left": found.left, "unknown": found.unknown}
        for change, names in changes.items():
            for name in names:
                reason = {"error": found.unknown[name]} if change == "unknown" else {}
                out.record({"member": name, "change": change, **reason})
        return
    tell_names(found.joined, "joined between the two times")
    tell_names(found.left, "left between the two times")
    tell_names(found.unknown, "not compared, unknown at one of the two times")
