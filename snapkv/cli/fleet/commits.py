"""The command fleet log: the commits of all members in one order, or the versions of a key."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from snapkv.cli.commits import LogOptions, shown_of, write_detailed
from snapkv.cli.differences import Renderer
from snapkv.cli.exits import CommandError
from snapkv.cli.fleet.notices import check_shown, tell_late, tell_old, why
from snapkv.cli.fleet.options import FleetOptions, OpenFleet, of_fleet
from snapkv.cli.formats import Json, commit_json
from snapkv.cli.moments import moment, since
from snapkv.cli.options import StoreOptions, grouped, takes
from snapkv.cli.output import COMMIT_HEADINGS, Output
from snapkv.cli.reading import version_record
from snapkv.cli.rendering import Rendering, renders
from snapkv.cli.terminal import Part
from snapkv.errors import KeyNotFoundError, MembersBehindError
from snapkv.fleet.fleet import Behind
from snapkv.fleet.log import logs
from snapkv.fleet.moment import FleetMoment
from snapkv.fleet.pin import Seen
from snapkv.model import Commit
from snapkv.times import When

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
        low = None if after is None else opened.fleet.timestamp_of(after)
        names, high = _names_and_end(opened, low, before_end, policy)
        if which.since_ is not None and after is None:  # --since now
            low = high
        wide = 0 if out.format == "table" else opened.width
        if key is not None:
            _write_versions(out, renderer, opened, names, key, (low, high), which, wide)
            return
        found = logs(opened.members, names, low, high, **read)
        for each in shown_of(found, which):
            time, *rest = out.commit_columns(each.commit)
            fields = {"member": each.member, **commit_json(each.commit)}
            columns: list[Part | None] = [time, each.member.ljust(wide), *rest]
            if details:
                shown = renderer.from_zero()
                write_detailed(out, shown, each.reads, each.logged, fields, columns)
            else:
                out.record(fields, *columns)


def _names_and_end(
    opened: OpenFleet, since: int | None, until: When | None, policy: Behind
) -> tuple[list[str], int]:
    """Return the members whose history is read, and up to which timestamp; name the rest."""
    fleet, known_only = opened.fleet, policy != "error"
    if until is None:
        until = opened.members.resolved("all", fleet.members, known_only=known_only)
        tell_old(until)
    found = fleet.at(until, behind=policy)
    # a round may be older than what is asked for
    end = found.timestamp if found.spread is None else fleet.timestamp_of(until)
    check_shown(found)
    late = {**found.late, **_late_before(opened, since, end, found, policy)}
    tell_late(late, len(fleet.members), policy)
    unread = {name for name, seen in late.items() if seen.state == "missing"}
    if policy == "leave out":
        unread = {*late}
    return [name for name in fleet.members if name not in unread], end


def _late_before(
    opened: OpenFleet, since: int | None, end: int, found: FleetMoment, policy: Behind
) -> dict[str, Seen]:
    """Return the members that left the fleet in a span of time, and of which nothing is known."""
    missing: dict[str, Seen] = {}
    for name, state in found.states.items():
        left = opened.fleet.member(name).left
        if state == "absent" and left < end and (since is None or since < left):
            seen = opened.fleet.at(left, members=[name], behind="stale").late.get(name)
            if seen is not None and seen.state == "missing":
                missing[name] = seen
    if missing and policy == "error":
        raise MembersBehindError(end, {name: why(seen) for name, seen in missing.items()})
    return missing


def _write_versions(
    out: Output,
    renderer: Renderer,
    opened: OpenFleet,
    names: list[str],
    key: str,
    span: tuple[int | None, int],
    which: LogOptions,
    wide: int,
) -> None:
    low, high = span
    wanted, newest = which.wanted, dict[str, bytes | None]()

    def records() -> Iterator[tuple[Json, list[Part | None]]]:
        for name, version in opened.fleet.history(key, since=low, until=high, members=names):
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
        raise KeyNotFoundError(key, high)
    renderer.tell_ignored("version")
