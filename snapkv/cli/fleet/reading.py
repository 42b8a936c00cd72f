"""The commands fleet ls, fleet get and fleet diff: all members at one time, or at two."""

from __future__ import annotations

import typer

from snapkv.cli.comparing import AfterArgument, BeforeArgument, ExitCodeOption
from snapkv.cli.differences import Renderer
from snapkv.cli.exits import Exit
from snapkv.cli.fleet.notices import tell_moments, tell_names
from snapkv.cli.fleet.options import FleetOptions, OpenFleet, of_fleet
from snapkv.cli.moments import moment
from snapkv.cli.options import (
    AtOption,
    KeyArgument,
    PrefixArgument,
    PrefixOption,
    StoreOptions,
    takes,
)
from snapkv.cli.output import Output
from snapkv.cli.reading import LongOption, entry_fields, write_keys, write_value
from snapkv.cli.rendering_options import Rendering, renders
from snapkv.errors import KeyNotFoundError
from snapkv.fleet.difference import FleetDiff
from snapkv.fleet.late_members import Behind
from snapkv.fleet.moment import FleetMoment
from snapkv.fleet.open_member import Connection
from snapkv.model import Difference, Entry
from snapkv.times import When


def pinned(opened: OpenFleet, when: When | None, policy: Behind) -> FleetMoment:
    """Return the moment of a time, and name the members that are old, behind or missing in it."""
    found = opened.fleet.at(when, behind=policy)
    tell_moments(opened, found, now=when is None, policy=policy)
    return found


@takes("no_pager", store=False)
@of_fleet()
@renders("redact", "kind", "decoder")
def ls(
    options: StoreOptions,
    chosen: FleetOptions,
    rendering: Rendering,
    prefix: PrefixArgument = "",
    at: AtOption = None,
    long: LongOption = False,
) -> None:
    """List members and keys, now or at a time, in the order of members, then of keys.

    Now is the newest time that is final on all members.
    """
    when, renderer, policy = moment(at), Renderer(rendering), chosen.policy()
    with options.long_output() as out, chosen.opened(out) as opened:
        write_keys(out, renderer, pinned(opened, when, policy), prefix, long)


@takes(store=False)
@of_fleet()
@renders("redact", "kind", "decoder")
def get(
    options: StoreOptions,
    chosen: FleetOptions,
    rendering: Rendering,
    key: KeyArgument,
    at: AtOption = None,
) -> None:
    """Print the value of a key in each member that has it, now or at a time.

    Of one member (--members eu-1) the value alone, as snapkv get prints it. A member whose
    observed prefix the key is outside of does not have it.
    """
    when, renderer, policy = moment(at), Renderer(rendering), chosen.policy()
    with options.output.headed("VALUE") as out, chosen.opened(out) as opened:
        found, names = pinned(opened, when, policy), opened.fleet.members
        able = [name for name in names if opened.fleet.member(name).may_have_key(key)]
        if len(able) == len(names) == 1 and out.format == "text":
            write_value(found[names[0], key], renderer)
            return
        entries = opened.members.each(able, lambda each: _entry(found, each, key))
        for out.member, entry in entries.items():
            if entry is not None:
                final = out.member not in found.late
                fields = entry_fields(key, entry, found.timestamp, final, renderer)
                if renderer.covers(key):
                    fields["value"] = renderer.value_json(key, entry.value)
                shown = renderer.preview(key, entry.value)
                out.record(fields, shown)
    if not any(entries.values()):
        raise KeyNotFoundError(key, found.timestamp)


def _entry(found: FleetMoment, each: Connection, key: str) -> Entry | None:
    try:
        return found.entry((each.name, key))
    except KeyNotFoundError:
        return None


@takes("no_pager", store=False)
@of_fleet()
@renders()
def diff(
    options: StoreOptions,
    chosen: FleetOptions,
    rendering: Rendering,
    a: BeforeArgument,
    b: AfterArgument = "now",
    prefix: PrefixOption = "",
    exit_code: ExitCodeOption = False,
) -> None:
    """Print what differs between two times: the member, then + added, - removed, ~ changed.

    Keys of members that joined, left, or are unknown at one of the times are not compared: the
    error stream names these members, and in JSON they are records of their own.
    """
    before, after, renderer, policy = moment(a), moment(b), Renderer(rendering), chosen.policy()
    with options.long_output(*renderer.headings) as out, chosen.opened(out) as opened:
        since, until = (opened.fleet.at(each, behind=policy) for each in (before, after))
        tell_moments(opened, since, until, now=after is None, policy=policy)
        found = since.diff(until, prefix or None)
        _write_members(out, found)
        of_members = (Difference(out.key_of(each.key), each.before, each.after) for each in found)
        renderer.write(out, of_members)
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
