"""The commands fleet ls and fleet get: the keys of all members at one time."""

from __future__ import annotations

from typing import Annotated

import typer

from snapkv.cli.differences import Renderer
from snapkv.cli.fleet.notices import tell_moments
from snapkv.cli.fleet.options import FleetOptions, OpenFleet, of_fleet
from snapkv.cli.formats import key_json, key_text
from snapkv.cli.moments import moment
from snapkv.cli.options import AtOption, KeyArgument, PrefixArgument, StoreOptions, takes
from snapkv.cli.reading import NUMBER_WIDTH, entry_fields, listed_entry, write_value
from snapkv.cli.rendering import Rendering, renders
from snapkv.errors import KeyNotFoundError
from snapkv.fleet.behind import Behind
from snapkv.fleet.connection import Connection
from snapkv.fleet.moment import FleetMoment
from snapkv.model import Entry
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
    long: Annotated[
        bool, typer.Option("-l", "--long", help="With revision, size and value.")
    ] = False,
) -> None:
    """List members and keys, now or at a time, in the order of members, then of keys.

    Now is the newest time that is final on all members.
    """
    when, renderer, policy = moment(at), Renderer(rendering), chosen.policy()
    headings = ("MEMBER", "REVISION", "SIZE", "KEY", "VALUE") if long else ("MEMBER", "KEY")
    with options.long_output(*headings) as out, chosen.opened() as opened:
        found = pinned(opened, when, policy)
        wide, width = (0, 0) if out.format == "table" else (opened.width, NUMBER_WIDTH)
        if not long:
            for name, key in found.keys(prefix or None):
                fields = {"member": name, "key": key_json(key)}
                out.record(fields, name.ljust(wide), key_text(key))
            return
        for (name, key), entry in found.entries(prefix or None):
            fields, *columns = listed_entry(renderer, key, entry, width)
            out.record({"member": name, **fields}, name.ljust(wide), *columns)


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
    with options.output.headed("MEMBER", "VALUE") as out, chosen.opened() as opened:
        found, names = pinned(opened, when, policy), opened.fleet.members
        able = [name for name in names if opened.fleet.member(name).may_have_key(key)]
        if len(able) == len(names) == 1 and out.format == "text":
            write_value(found[names[0], key], renderer)
            return
        entries = opened.members.each(able, lambda each: _entry(found, each, key))
        wide = 0 if out.format == "table" else opened.width
        for name, entry in entries.items():
            if entry is not None:
                final = name not in found.late
                fields = entry_fields(key, entry, found.timestamp, final, renderer)
                if renderer.covers(key):
                    fields["value"] = renderer.value_json(key, entry.value)
                shown = renderer.preview(key, entry.value)
                out.record({"member": name, **fields}, name.ljust(wide), shown)
    if not any(entries.values()):
        raise KeyNotFoundError(key, found.timestamp)


def _entry(found: FleetMoment, each: Connection, key: str) -> Entry | None:
    try:
        return found.entry((each.name, key))
    except KeyNotFoundError:
        return None
