"""The commands of a fleet that read: ls, get, diff, log, status."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import merge
from operator import attrgetter
from typing import Annotated, Any

import typer

from snapkv.base.clocks import SystemClock
from snapkv.cli.command_output import Output
from snapkv.cli.commands import argument
from snapkv.cli.commit_commands import LoggedChanges, LogOptions, write_log
from snapkv.cli.difference_output import Renderer, RenderingOptions, renders
from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.fleet.chosen_fleet import (
    FleetOptions,
    OpenFleet,
    check_known,
    duration_text,
    lag_s,
    of_fleet,
    report_late,
    report_moments,
    report_names,
    report_old,
)
from snapkv.cli.formats import time_json
from snapkv.cli.key_commands import (
    AfterArgument,
    BeforeArgument,
    ExitCodeOption,
    LongOption,
    entry_fields,
    write_keys,
    write_value,
    write_versions,
)
from snapkv.cli.moments import check_span, moment
from snapkv.cli.named_keys import prefixes_in
from snapkv.cli.store_options import (
    AtOption,
    KeyArgument,
    PrefixesArgument,
    PrefixesOption,
    StoreOptions,
    grouped,
    takes,
)
from snapkv.cli.terminal import Part
from snapkv.errors import KeyNotFoundError
from snapkv.fleet.difference import FleetDiff
from snapkv.fleet.member import Member
from snapkv.fleet.members import Behind, FleetStatus, HistorySpan, MemberStatus, span_of, status_of
from snapkv.fleet.merged_logs import differences_in, logs, versions
from snapkv.fleet.moment import FleetMoment
from snapkv.fleet.open_member import OpenMember
from snapkv.model import Difference, Entry
from snapkv.times import TIMESTAMP_MAX, When, is_number, pack


def moment_of(open_fleet: OpenFleet, when: When | None, policy: Behind) -> FleetMoment:
    """Return the moment of a time, and name the members that are old, behind or missing in it."""
    found = open_fleet.fleet.at(when, behind=policy)
    report_moments(open_fleet, found, now=when is None, policy=policy)
    return found


@takes("no_pager", store=False)
@of_fleet()
@renders("redact", "kind", "decoder")
def ls(
    options: StoreOptions,
    chosen: FleetOptions,
    rendering: RenderingOptions,
    given: PrefixesArgument = None,
    prefix: PrefixesOption = None,
    at: AtOption = None,
    long: LongOption = False,
) -> None:
    """List members and keys, now or at a time, in the order of members, then of keys.

    Now is the newest time that is final on all members.
    """
    when, renderer, policy = moment(at), Renderer(rendering), chosen.policy()
    with options.long_output() as out, chosen.open_members(out) as open_fleet:
        shown = moment_of(open_fleet, when, policy)
        write_keys(out, renderer, shown, prefixes_in(given, prefix), long)


@takes(store=False)
@of_fleet()
@renders("redact", "kind", "decoder")
def get(
    options: StoreOptions,
    chosen: FleetOptions,
    rendering: RenderingOptions,
    key: KeyArgument,
    at: AtOption = None,
) -> None:
    """Print the value of a key in each member that has it, now or at a time.

    Of one member (--members eu-1) the value alone, as snapkv get prints it. A member whose
    observed prefix the key is outside of does not have it.
    """
    when, renderer, policy = moment(at), Renderer(rendering), chosen.policy()
    with options.output.headed("VALUE") as out, chosen.open_members(out) as open_fleet:
        found, names = moment_of(open_fleet, when, policy), open_fleet.fleet.members
        able = [name for name in names if open_fleet.fleet.member(name).may_have_key(key)]
        if len(able) == len(names) == 1 and out.format == "text":
            write_value(found[names[0], key], renderer)
            return
        entries = open_fleet.members.each(able, lambda each: _entry(found, each, key))
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


def _entry(found: FleetMoment, each: OpenMember, key: str) -> Entry | None:
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
    rendering: RenderingOptions,
    a: BeforeArgument,
    b: AfterArgument = "now",
    given: PrefixesArgument = None,
    prefix: PrefixesOption = None,
    exit_code: ExitCodeOption = False,
) -> None:
    """Print what differs between two times: the member, then + added, - removed, ~ changed.

    Keys of members that joined, left, or are unknown at one of the times are not compared: the
    error stream names these members, and in JSON they are records of their own.
    """
    before, after, renderer, policy = moment(a), moment(b), Renderer(rendering), chosen.policy()
    with options.long_output(*renderer.headings) as out, chosen.open_members(out) as open_fleet:
        since, until = (open_fleet.fleet.at(each, behind=policy) for each in (before, after))
        report_moments(open_fleet, since, until, now=after is None, policy=policy)
        parts = [since.diff(until, each or None) for each in prefixes_in(given, prefix)]
        found = parts[0]  # of all, the same members are compared
        _write_members(out, found)
        in_order = merge(*parts, key=attrgetter("key"))
        of_members = (
            Difference(out.key_of(each.key), each.before, each.after) for each in in_order
        )
        renderer.write(out, of_members)
        renderer.finish(out)
    renderer.report_ignored()
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
    report_names(found.joined, "joined between the two times")
    report_names(found.left, "left between the two times")
    report_names(found.unknown, "not compared, unknown at one of the two times")


# --- log ---


@takes("no_pager", "raw", store=False)
@of_fleet()
@grouped(LogOptions, "which", None)
@renders()
def log(
    options: StoreOptions,
    chosen: FleetOptions,
    rendering: RenderingOptions,
    which: LogOptions,
    key: Annotated[str | None, argument("KEY", "The versions of this key instead.")] = None,
) -> None:
    """Print the commits of all members, newest first: time, member, revision, writer, note, meta.

    Of observed members it prints the writes of other programs, each with its own revision and the
    time of its tick. With KEY it prints the versions of that key, with their values.
    """
    renderer, policy = Renderer(rendering), chosen.policy()
    after, before_end = moment(which.since_, "since"), moment(which.until)
    read = which.read(renderer)
    if key is not None and (which.prefix or read["details"]):
        what = "--prefix" if which.prefix else "options of differences"
        raise CommandError(f"log KEY prints the versions of a key: leave {what} out")
    with options.long_output() as out, chosen.open_members(out) as open_fleet:
        span = _history_span(open_fleet, after, before_end, policy)
        if which.since_ is not None and after is None:  # --since now
            span = span._replace(since=span.until)
        if key is not None:
            shown, until = versions(open_fleet.members, span, key), span.until
            in_order = (which.count, which.oldest_first)
            write_versions(out, renderer, key, shown, which.wanted, *in_order, until)
            return
        write_log(out, renderer, _logged(out, open_fleet, span, read), which)
        _check_existed(open_fleet, span, prefixes_in(which.prefix))


def _check_existed(open_fleet: OpenFleet, span: HistorySpan, prefixes: tuple[str, ...]) -> None:
    """Raise `KeyNotFoundError` for a prefix of which no member has a key or a commit."""
    span, head = span._replace(since=None), open_fleet.fleet.at(span.until, behind="stale")
    for each in filter(None, prefixes):
        found = logs(open_fleet.members, span, prefixes=(each,), wanted=1)
        if not head.count(each) and next(found, None) is None:
            raise KeyNotFoundError(each, reason=f"no commit changed a key beginning with {each!r}")


def _logged(
    out: Output, open_fleet: OpenFleet, span: HistorySpan, read: dict[str, Any]
) -> Iterator[LoggedChanges]:
    for each in logs(open_fleet.members, span, **read):
        out.member = each.member
        yield each.logged, partial(differences_in, open_fleet.members, each)


def _history_span(
    open_fleet: OpenFleet, since: When | None, until: When | None, policy: Behind
) -> HistorySpan:
    """Return what is read of which members; name the rest."""
    fleet = open_fleet.fleet
    low, end = (None if each is None else fleet.timestamp_of(each) for each in (since, until))
    check_span(low, end)
    is_date = until is not None and not is_number(until)
    found = span_of(open_fleet.members, fleet.members, low, end, policy, is_date=is_date)
    if end is None:
        report_old(found.until)
    check_known(found.until, found.late, len(fleet.members))
    report_late(found.late, len(fleet.members), policy)
    return found


# --- status ---


_STYLES = {"live": "green", "archive": "green", "behind": "yellow", "missing": "red"}
STATE_WIDTH = 7


@takes("no_pager", "raw", store=False)
@of_fleet("file", "members", "timeout")
def status(options: StoreOptions, chosen: FleetOptions) -> None:
    """Print each member: state, up to when it is final, how long ago that is, where it is, why not.

    And the newest times that are final on all members, and on 99% of them.
    """
    headings = ("MEMBER", "STATE", "FINAL", "LAG", "WHERE", "ERROR")
    with options.long_output(*headings) as out, chosen.open_members() as open_fleet:
        found = status_of(open_fleet.members, pack(SystemClock().now_ms()))
        width = (
            0 if out.format == "table" else max(map(len, [*open_fleet.members.by_name, "(all)"]))
        )
        for each in found.members:
            _write_member(out, each, width)
        _write_resolved(out, found, width)


def _write_member(out: Output, each: MemberStatus, width: int) -> None:
    member, known = each.member, each.final or None
    late = None if known is None else lag_s(known)
    out.record(
        {
            "member": member.name,
            "state": each.state,
            "final": time_json(known),
            "lag_s": None if late is None else round(late, 3),
            "url": member.url,
            "name": member.store_name,
            "prefix": member.prefix,
            "archive": member.archive,
            "joined": time_json(member.joined or None),
            "left": time_json(None if member.left == TIMESTAMP_MAX else member.left),
            "error": each.error,
        },
        member.name.ljust(width),
        (each.state.ljust(STATE_WIDTH if width else 0), _STYLES.get(each.state, "dim")),
        out.time(known),
        "-" if late is None else duration_text(late),
        _place_text(member),
        None if each.error is None else (each.error, "red"),
    )


def _place_text(member: Member) -> str:
    parts = [member.url]
    if member.prefix is not None:
        parts.append(f"keys {member.prefix!r}")
    if member.archive is not None:
        parts.append(f"archive {member.archive}")
    return ", ".join(parts)


def _write_resolved(out: Output, found: FleetStatus, width: int) -> None:
    if out.structured:
        resolved = {
            of: {**time_json(each), "lag_s": None if each is None else round(lag_s(each), 3)}
            for of, each in found.resolved.items()
        }
        out.record({"resolved": resolved})
        return
    for of, newest in found.resolved.items():
        state: Part = ("final", "bold") if width == 0 else ("final".ljust(STATE_WIDTH), "bold")
        late = "-" if newest is None else duration_text(lag_s(newest))
        out.record({}, f"({of})".ljust(width), state, out.time(newest), late)
