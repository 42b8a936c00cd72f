"""The command fleet log: the commits of all members in one order, or the versions of a key."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated

import typer

from snapkv.cli.commits import LogOptions, shown_of, write_detailed
from snapkv.cli.differences import Renderer
from snapkv.cli.exits import CommandError
from snapkv.cli.fleet.notices import check_known, tell_late, tell_old
from snapkv.cli.fleet.options import FleetOptions, OpenFleet, of_fleet
from snapkv.cli.formats import Json, commit_json
from snapkv.cli.moments import moment, since
from snapkv.cli.options import StoreOptions, grouped, takes
from snapkv.cli.output import COMMIT_HEADINGS, Output
from snapkv.cli.reading import version_record
from snapkv.cli.rendering import Rendering, renders
from snapkv.cli.terminal import Part
from snapkv.errors import KeyNotFoundError
from snapkv.fleet.behind import Behind, Span, span_of
from snapkv.fleet.log import differences_in, logs
from snapkv.fleet.merged import versions
from snapkv.model import Commit
from snapkv.times import When, is_number

_TIME, *_REST = COMMIT_HEADINGS


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
    details = read["details"]
    if key is not None and (which.prefix is not None or details):
        what = "--prefix" if which.prefix is not None else "options of differences"
        raise CommandError(f"log KEY prints the versions of a key: leave {what} out")
    headings = (_TIME, "MEMBER", *_REST, *(renderer.headings if details else ()))
    if key is not None:
        headings = (_TIME, "MEMBER", "REVISION", "VALUE", "WRITER", "NOTE", "META")
    with options.long_output(*headings) as out, chosen.opened() as opened:
        span = _span(opened, after, before_end, policy)
        if which.since_ is not None and after is None:  # --since now
            span = span._replace(since=span.until)
        wide = 0 if out.format == "table" else opened.width
        if key is not None:
            _write_versions(out, renderer, opened, span, key, which, wide)
            return
        found = logs(opened.members, span, **read)
        for each in shown_of(found, which):
            time, *rest = out.commit_columns(each.commit)
            fields = {"member": each.member, **commit_json(each.commit)}
            columns: list[Part | None] = [time, each.member.ljust(wide), *rest]
            if details:
                changes = partial(differences_in, opened.members, each)
                write_detailed(out, renderer.from_zero(), changes, fields, columns)
            else:
                out.record(fields, *columns)


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


def _write_versions(
    out: Output,
    renderer: Renderer,
    opened: OpenFleet,
    span: Span,
    key: str,
    which: LogOptions,
    wide: int,
) -> None:
    wanted, newest = which.wanted, dict[str, bytes | None]()

    def records() -> Iterator[tuple[Json, list[Part | None]]]:
        for name, version in versions(opened.members, span, key):
            before, newest[name] = newest.get(name), version.value
            said = Commit(version.ts or 0, 0, version.revision, version.writer, version.note)
            if wanted(said) and not renderer.ignores(key, before, version.value):
                fields, columns = version_record(out, renderer, key, version, before)
                yield {"member": name, **fields}, [*columns[:1], name.ljust(wide), *columns[1:]]

    found = records()
    first = islice(found, which.count)
    for fields, columns in first if which.oldest_first else reversed(deque(found, which.count)):
        out.record(fields, *columns)
    if not newest:
        raise KeyNotFoundError(key, span.until)
    renderer.tell_ignored("version")
