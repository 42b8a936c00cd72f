"""The command fleet log: the commits of all members in one order, or the versions of a key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer

from snapkv.cli.commits import LogOptions, write_log
from snapkv.cli.differences import Renderer
from snapkv.cli.exits import CommandError
from snapkv.cli.fleet.notices import check_known, tell_late, tell_old
from snapkv.cli.fleet.options import FleetOptions, OpenFleet, of_fleet
from snapkv.cli.moments import moment, since
from snapkv.cli.options import StoreOptions, grouped, takes
from snapkv.cli.output import Output
from snapkv.cli.reading import write_versions
from snapkv.cli.rendering_options import Rendering, renders
from snapkv.fleet.late_members import Behind, Span, span_of
from snapkv.fleet.merged import versions
from snapkv.fleet.merged_log import MemberLogged, differences_in, logs
from snapkv.times import When, is_number


@takes("no_pager", "raw", store=False)
@of_fleet()
@grouped(LogOptions, "which", None)
@renders()
def log(
    options: StoreOptions,
    chosen: FleetOptions,
    rendering: Rendering,
    which: LogOptions,
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="The versions of this key instead.", show_default=False),
    ] = None,
) -> None:
    """Print the commits of all members, newest first: time, member, revision, writer, note, meta.

    Of observed members it prints the writes of other programs, each with its own revision and the
    time of its tick. With KEY it prints the versions of that key, with their values.
    """
    renderer, policy = Renderer(rendering), chosen.policy()
    after, before_end, read = since(which.since_), moment(which.until), which.read(rendering)
    if key is not None and (which.prefix is not None or read["details"]):
        what = "--prefix" if which.prefix is not None else "options of differences"
        raise CommandError(f"log KEY prints the versions of a key: leave {what} out")
    with options.long_output() as out, chosen.opened(out) as opened:
        span = _span(opened, after, before_end, policy)
        if which.since_ is not None and after is None:  # --since now
            span = span._replace(since=span.until)
        if key is not None:
            shown, until = versions(opened.members, span, key), span.until
            in_order = (which.count, which.oldest_first)
            write_versions(out, renderer, key, shown, which.wanted, *in_order, until)
            return
        found = _of_members(out, logs(opened.members, span, **read))
        changes_of = partial(differences_in, opened.members)
        write_log(out, renderer, found, which, changes_of)


def _of_members(out: Output, found: Iterator[MemberLogged]) -> Iterator[MemberLogged]:
    for each in found:
        out.member = each.member
        yield each


def _span(opened: OpenFleet, since: When | None, until: When | None, policy: Behind) -> Span:
    """Return what is read of which members; name the rest."""
    fleet = opened.fleet
    low, end = (None if each is None else fleet.timestamp_of(each) for each in (since, until))
    is_date = until is not None and not is_number(until)
    found = span_of(opened.members, fleet.members, low, end, policy, is_date=is_date)
    if end is None:
        tell_old(found.until)
    check_known(found.until, found.late, len(fleet.members))
    tell_late(found.late, len(fleet.members), policy)
    return found
