"""The commands that read keys: get, ls, history, diff, blame."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated

import typer

from snapkv.base.text import LongerNames
from snapkv.cli.command_output import Output, who_and_why
from snapkv.cli.commands import argument, option
from snapkv.cli.difference_output import Renderer, RenderingOptions, renders
from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.formats import (
    Json,
    counted,
    entry_json,
    key_json,
    key_text,
    quoted,
    revision_text,
    text_of,
    time_json,
    tree_json,
    value_json,
    version_json,
)
from snapkv.cli.moments import moment, settled, settled_range, up_to
from snapkv.cli.named_keys import explained, prefixes_in, why_absent
from snapkv.cli.store_options import (
    ONE_SLOT,
    AtOption,
    CountOption,
    IgnoreCaseOption,
    KeyArgument,
    OldestFirst,
    PrefixesArgument,
    PrefixesOption,
    SinceOption,
    StoreOptions,
    UntilOption,
    takes,
)
from snapkv.cli.terminal import Part, report, report_longer_names, write_line
from snapkv.copying.store_target import with_long_keys
from snapkv.errors import KeyNotFoundError
from snapkv.model import Commit, Difference, Entry, Version
from snapkv.reading.history import bounds as history_bounds
from snapkv.reading.observed_prefix import Observed
from snapkv.reading.snapshot import Snapshot
from snapkv.reading.text_search import TextSearch
from snapkv.rendering import Blame
from snapkv.rendering import blame as blamed
from snapkv.rendering.audit_log import Who
from snapkv.store.store import SnapshotKV
from snapkv.timeline import READS_MAX
from snapkv.times import When

if TYPE_CHECKING:
    from snapkv.fleet.moment import FleetMoment

NUMBER_WIDTH = 8
"""The width of a revision and of a size in `ls --long`, in characters."""


@takes("observe", "archive", "timeout")
@renders("kind", "decoder")
def get(
    options: StoreOptions, rendering: RenderingOptions, key: KeyArgument, at: AtOption = None
) -> None:
    """Print the value of a key, now or at a time.

    Into a pipe or a file: the exact bytes, nothing added, unless --as or --decoder says how to read
    them. On a terminal: text as it is, other values as what they are.
    """
    when, renderer, out = moment(at), Renderer(rendering), options.output
    with options.readable(ring_slots=ONE_SLOT) as kv:
        when, key = settled(kv, when), renderer.name_keys(kv).key(key)
        view, name = with_long_keys(kv, key)
        with explained(kv, key, when):  # of a long key, the error has the short one
            if out.format == "text":
                write_value(view.load(name, when), renderer)
                return
            snapshot = view.at(when)
            entry = snapshot.entry(name)
    out.record(entry_fields(key, entry, snapshot.timestamp, snapshot.final, renderer))


def entry_fields(key: str, entry: Entry, timestamp: int, final: bool, renderer: Renderer) -> Json:
    """Return a key at a moment for programs, with what its value says if options ask for it."""
    fields = entry_json(key, entry)
    fields["at"] = {**time_json(timestamp), "final": final}
    if renderer.rendering.decodes:
        decoded = renderer.decoded(entry.value)
        fields |= {"kind": decoded.kind, "decoded": tree_json(decoded.data)}
    return fields


def write_value(value: bytes, renderer: Renderer) -> None:
    """Write a value alone: into a pipe its bytes, on a terminal what it is."""
    decodes, terminal = renderer.rendering.decodes, sys.stdout.isatty()
    if not (decodes or terminal):
        sys.stdout.flush()
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()
        return
    text = None if decodes else text_of(value)
    if text is not None:
        write_line([text.removesuffix("\n")])
        return
    decoded = renderer.decoded(value)
    if not terminal:
        sys.stdout.write(decoded.text.removesuffix("\n") + "\n")
        return
    for line in decoded.lines():
        write_line([part.text for part in line])
    if not decodes:
        report(f"({decoded.kind}, {len(value):,} bytes; into a pipe or file they go as they are)")


@takes("observe", "archive", "timeout", "no_pager", "raw")
@renders("redact", "name_only")
def grep(
    options: StoreOptions,
    rendering: RenderingOptions,
    text: Annotated[str, argument("TEXT")],
    given: PrefixesArgument = None,
    prefix: PrefixesOption = None,
    at: AtOption = None,
    ignore_case: IgnoreCaseOption = False,
) -> None:
    """Print the keys whose values have a text, now or at a time, and the part around it.

    It reads all values with the prefixes, as they are stored. Code 1 if none has the text.
    Redacted values are left out.
    """
    when, renderer, hits = moment(at), Renderer(rendering), 0
    search = TextSearch.of(text, ignore_case)
    names = ("KEY",) if rendering.name_only else ("KEY", "VALUE")
    with options.long_output(*names) as out, options.readable(ring_slots=ONE_SLOT) as kv:
        snapshot = kv.at(settled(kv, when))
        for each in prefixes_in(given, prefix, key=renderer.name_keys(kv, raw=options.raw).key):
            for key, value in snapshot.search(text, each or None, ignore_case=ignore_case):
                if renderer.covers(key):
                    continue
                hits += 1
                part = quoted(b"".join(search.around(value)).decode(errors="replace"))
                columns = [renderer.shown_key(key), part][: len(names)]
                out.record({"key": key_json(key), "value": value_json(value)}, *columns)
    if not hits:
        raise CommandError(f"no value has {text!r}", Exit.NO)


LongOption = Annotated[bool, option("-l --long", "With revision, size and value.")]


@takes("observe", "archive", "timeout", "no_pager", "raw")
@renders("redact", "kind", "decoder")
def ls(
    options: StoreOptions,
    rendering: RenderingOptions,
    given: PrefixesArgument = None,
    prefix: PrefixesOption = None,
    at: AtOption = None,
    long: LongOption = False,
) -> None:
    """List keys, now or at a time, in order."""
    when, renderer = moment(at), Renderer(rendering)
    with options.long_output() as out, options.readable(ring_slots=ONE_SLOT) as kv:
        prefixes = prefixes_in(given, prefix, key=renderer.name_keys(kv, raw=options.raw).key)
        recorded = _recorded(kv) if long else None
        snapshot = kv.at(settled(kv, when))
        write_keys(out, renderer, snapshot, prefixes, long, recorded)
        for each in prefixes:
            if each and not snapshot.count(each):
                why = why_absent(kv, each, when, is_prefix=True)
                report(f"snapkv: no key begins with {each!r}{why}")


Name = str | tuple[str, str]
"""A key, of a fleet with its member."""
Recorded = Callable[[Sequence[int]], Sequence[int | None]]
"""Returns the revisions that a record's commits recorded."""


def _recorded(kv: SnapshotKV | Observed[str]) -> Recorded | None:
    return None if kv.reader.recorded is None else kv.reader.source_revisions


def write_keys(
    out: Output,
    renderer: Renderer,
    shown: Snapshot[str] | FleetMoment,
    prefixes: Sequence[str],
    long: bool,
    recorded: Recorded | None = None,
) -> None:
    """Write the keys of a moment, of a fleet with their members."""
    out.headed(*(("REVISION", "SIZE", "KEY", "VALUE") if long else ("KEY",)))
    if not long:
        names: Iterable[Name] = merge(*(shown.keys(each or None) for each in prefixes))
        for key in map(out.key_of, names):
            out.record({"key": key_json(key)}, renderer.shown_key(key))
        return
    width = 0 if out.format == "table" else NUMBER_WIDTH
    parts = (shown.entries(each or None) for each in prefixes)
    entries: Iterable[tuple[Name, Entry]] = merge(*parts, key=itemgetter(0))
    for name, entry, source in _with_sources(entries, recorded):
        key = out.key_of(name)
        fields = {**entry_json(key, entry), "value": renderer.value_json(key, entry.value)}
        if source is not None:
            fields["source_revision"] = source
        out.record(
            fields,
            (f"{revision_text(entry.revision, source):>{width}}", "cyan"),
            f"{len(entry.value):>{width}}",
            renderer.shown_key(key),
            renderer.preview(key, entry.value),
        )


def _with_sources(
    entries: Iterable[tuple[Name, Entry]], recorded: Recorded | None
) -> Iterator[tuple[Name, Entry, int | None]]:
    """Yield entries, of a record with the revisions that it recorded; a round trip for 128."""
    if recorded is None:
        yield from ((name, entry, None) for name, entry in entries)
        return
    found = iter(entries)
    while page := list(islice(found, READS_MAX)):
        sources = recorded([entry.revision for _, entry in page])
        yield from ((*each, source) for each, source in zip(page, sources, strict=True))


@takes("observe", "archive", "audit", "timeout", "no_pager", "raw")
@renders("ignore", "redact", "kind", "decoder")
def history(
    options: StoreOptions,
    rendering: RenderingOptions,
    key: KeyArgument,
    since_: SinceOption = None,
    until: UntilOption = None,
    count: CountOption = None,
    oldest_first: OldestFirst = False,
) -> None:
    """Print the versions of a key, newest first: time, revision, value, writer, note, meta.

    Of a long value, the line shows what differs from the version before. --ignore leaves out
    versions in which only such paths differ.
    """
    after, before_end = moment(since_, "since"), moment(until)
    renderer = Renderer(rendering, audit=options.audit_log([key]))
    with options.long_output() as out, options.readable() as kv:
        within = _is_between(kv, *settled_range(kv, since_, after, before_end))
        key = renderer.name_keys(kv).key(key)
        view, name = with_long_keys(kv, key)
        found = (("", version) for version in view.history(name))
        with explained(kv, key):
            write_versions(out, renderer, key, found, within, count, oldest_first)


def write_versions(
    out: Output,
    renderer: Renderer,
    key: str,
    found: Iterable[tuple[str, Version]],
    wanted: Callable[[Version], bool],
    count: int | None,
    oldest_first: bool,
    until: int | None = None,
) -> None:
    """Write `count` of the versions of a key, each with its member: the first, or the last ones.

    Raises `KeyNotFoundError` if there are none up to `until`.
    """
    newest = dict[str, bytes | None]()
    out.headed("TIME", "REVISION", "VALUE", "WRITER", "NOTE", "META", aligned=True)

    def records() -> Iterator[tuple[str, Json, list[Part | None]]]:
        for member, version in found:
            before, newest[member] = newest.get(member), version.value
            if wanted(version) and not renderer.ignores(key, before, version.value):
                yield member, *_version_record(out, renderer, key, version, before)
        if not newest:
            raise KeyNotFoundError(key, until)

    shown = records()
    in_order = islice(shown, count) if oldest_first else reversed(deque(shown, count))
    for out.member, fields, columns in in_order:
        out.record(fields, *columns)
    out.flush()
    renderer.report_ignored("version")


def _is_between(
    kv: SnapshotKV | Observed[str], since: When | None, until: When | None
) -> Callable[[Version], bool]:
    """Return whether a version is in (since, until]; one without a time is before all history."""
    if since is None and until is None:
        return lambda version: True
    history_bounds(kv.reader, since, until)
    is_old = None if since is None else up_to(kv, since)
    is_in_time = None if until is None else up_to(kv, until)
    return lambda version: (
        (is_old is None or (version.ts is not None and not is_old(version)))
        and (is_in_time is None or is_in_time(version))
    )


def _version_record(
    out: Output, renderer: Renderer, key: str, version: Version, before: bytes | None
) -> tuple[Json, list[Part | None]]:
    """Return a version's fields for programs, or its columns for people."""
    removed = version.value is None
    who = renderer.who(version, key, before, version.value, removed=removed)
    if out.structured:
        value = renderer.value_json(key, version.value)
        return {**version_json(version), **who.as_json(), "value": value}, []
    shown: Part = ("removed", "red")
    if version.value is not None:
        shown = renderer.changed_preview(key, before, version.value)
    revision = revision_text(version.revision, version.source_revision)
    columns: list[Part | None] = [out.time(version.ts), revision, shown]
    if version.ts is not None:
        why, meta = version.note, version.meta
        columns += who_and_why(Commit(version.ts, 0, version.revision, who.text, why, meta=meta))
    return {}, columns


# --- differences and origins ---


BeforeArgument = Annotated[str, argument("TIME", "The time before.")]
AfterArgument = Annotated[str, argument("TIME", "The time after; else now.")]
ExitCodeOption = Annotated[bool, option("--exit-code", "End with 1 when there are differences.")]


@takes("observe", "archive", "timeout", "no_pager", "raw")
@renders()
def diff(
    options: StoreOptions,
    rendering: RenderingOptions,
    a: BeforeArgument,
    b: AfterArgument = "now",
    given: PrefixesArgument = None,
    prefix: PrefixesOption = None,
    exit_code: ExitCodeOption = False,
) -> None:
    """Print what differs between two times: + added, - removed, ~ changed.

    Below a key whose value is structured (JSON, YAML, Kubernetes) are the paths that differ, below
    a longer text its lines. -o json has the whole values.
    """
    before, after, renderer = moment(a), moment(b), Renderer(rendering)
    longer: list[LongerNames] = []
    with (
        options.long_output(*renderer.headings) as out,
        options.readable(ring_slots=ONE_SLOT) as kv,
    ):
        before, after = settled(kv, before), settled(kv, after)
        for each in prefixes_in(given, prefix, key=renderer.name_keys(kv, raw=options.raw).key):
            found = kv.diff(before, after, each or None)
            if each:
                longer.append(LongerNames(each))
                found = _seen(found, longer[-1])
            renderer.write(out, found)
        renderer.finish(out)
    renderer.report_ignored()
    for names in longer:
        report_longer_names(names)
    if exit_code and any(renderer.counts.values()):
        raise typer.Exit(Exit.NO)


def _seen(differences: Iterable[Difference[str]], longer: LongerNames) -> Iterator[Difference[str]]:
    for each in differences:
        longer.add(each.key)
        yield each


@takes("observe", "archive", "audit", "timeout", "no_pager", "raw")
@renders("ignore", "redact", "kind", "decoder")
def blame(
    options: StoreOptions, rendering: RenderingOptions, key: KeyArgument, at: AtOption = None
) -> None:
    """Print which commit last changed each path, or each line, of a value.

    Each row has the time, revision and writer of the commit; then a path of a structured value with
    what it has, or the number of a line with the line. Ignored paths are left out. Where history
    was compacted, what the oldest version has may be older than it.
    """
    when, renderer = moment(at), Renderer(rendering, audit=options.audit_log([key]))
    headings = ("TIME", "REVISION", "WRITER", "PLACE", "VALUE")
    with options.long_output() as out:
        out.headed(*headings, aligned=True)
        with options.readable() as kv:
            when, key = settled(kv, when), renderer.name_keys(kv).key(key)
            if renderer.covers(key):
                what = f"the values of {key_text(key)} are redacted"
                raise CommandError(f"{what}: blame would show them")
            until = None if when is None else kv.timestamp_of(when)
            view, name = with_long_keys(kv, key)
            versions: Iterable[Version] = view.history(name)
            if when is not None:
                versions = filter(up_to(kv, when), versions)
            reads = rendering.kind, renderer.read_decoder
            rows = blamed(versions, *reads, ignore=renderer.ignore)
            with explained(kv, key, when):
                if not rows:
                    raise KeyNotFoundError(key, until)
        shown = [row for row in rows if not row.is_ignored]
        if shown:
            _write(out, renderer, key, shown)
    if ignored := len(rows) - len(shown):
        report(f"snapkv: {counted(ignored, 'ignored path')} left out: --ignore none shows them")


def _write(out: Output, renderer: Renderer, key: str, rows: list[Blame]) -> None:
    """Write the rows; as text the place and its value are one column."""
    is_line, digits = isinstance(rows[0].place, int), len(str(len(rows)))
    for row in rows:
        version = row.version
        who = Who(version.writer, row.managers, renderer.audited(version, key))
        value = [str(row.place), row.text]
        if out.format == "text":
            place = f"{row.place:>{digits}}  " if is_line else f"{row.place}: "
            value = [place + row.text]
        fields = {"place": row.place, "text": row.text, **version_json(version), **who.as_json()}
        del fields["value"]
        out.record(
            fields,
            out.time(version.ts),
            revision_text(version.revision, version.source_revision),
            ("-" if who.text is None else key_text(who.text), "green"),
            *value,
        )
