"""The commands that read commits: log, by keys, writers or notes; show, a single one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, takewhile
from typing import Annotated, Any

import typer

from snapkv.cli.command_output import COMMIT_HEADINGS, Output, who_and_why
from snapkv.cli.commands import argument, option
from snapkv.cli.difference_output import Renderer, RenderingOptions, renders
from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.formats import commit_json, counted, revision_text
from snapkv.cli.moments import moment, settled, settled_range
from snapkv.cli.named_keys import check_existed, prefixes_in
from snapkv.cli.store_options import (
    CountOption,
    IgnoreCaseOption,
    OldestFirst,
    PatchOption,
    PrefixesArgument,
    PrefixesOption,
    SinceOption,
    StoreOptions,
    UntilOption,
    facts_of,
    grouped,
    takes,
)
from snapkv.cli.terminal import report
from snapkv.errors import CompactedError
from snapkv.layout import Selection
from snapkv.model import Commit, Difference
from snapkv.reading.log import Logged, differences_of, selection_in
from snapkv.reading.log import log as logged
from snapkv.reading.observed_prefix import Observed
from snapkv.reading.text_search import CommitFilter, TextSearch
from snapkv.rendering.audit_log import Who
from snapkv.rendering.managed_fields import writers_of
from snapkv.store.store import SnapshotKV
from snapkv.times import When, dated, format_time, revision_of

LoggedChanges = tuple[Logged, Callable[[], Iterator[Difference[str]]]]
"""A commit, and what returns its differences or raises `CompactedError`."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which commits a log prints, and how much of each, in the order of the help."""

    prefix: Annotated[
        list[str] | None,
        option("--prefix PREFIX", "Only commits that changed a key that begins so; repeatable."),
    ] = None
    writer: Annotated[
        str | None,
        option(
            "--writer TEXT",
            "Only commits whose writer has this text in it; with * ? or [] all of it.",
        ),
    ] = None
    grep: Annotated[
        str | None,
        option("--grep TEXT", "Only commits whose note, writer or meta has this text."),
    ] = None
    meta: Annotated[
        list[str] | None,
        option("--meta NAME=TEXT", "Only commits with this fact, as ticket=X; repeatable."),
    ] = None
    changed: Annotated[
        str | None,
        option("-S --changed TEXT", "Only commits in which a value gained or lost this text."),
    ] = None
    ignore_case: IgnoreCaseOption = False
    since_: SinceOption = None
    until: UntilOption = None
    count: CountOption = None
    oldest_first: OldestFirst = False
    ticks: Annotated[bool, option("--ticks", "Print ticks, too.")] = False
    patch: PatchOption = False

    @property
    def wanted(self) -> CommitFilter:
        """Which commits are wanted by their writer, note and meta."""
        return CommitFilter(self.writer, self.grep, facts_of(self.meta) or {}, self.ignore_case)

    def read(self, renderer: Renderer) -> dict[str, Any]:
        """Return the arguments of `snapkv.reading.log.log` for these commits, without the span."""
        text = None
        if self.changed is not None:
            text = TextSearch.of(self.changed, self.ignore_case, shows=renderer.ignored_paths.shows)
        return {
            "prefixes": prefixes_in(self.prefix) if self.prefix else (),
            "newest_first": not self.oldest_first,
            "wanted": None if self.wanted or text is not None else self.count,
            "details": self.patch or renderer.rendering.asked,
            "ignores": renderer.ignored_paths,
            "text": text,
        }


@takes("observe", "archive", "audit", "timeout", "no_pager", "raw")
@grouped(LogOptions, "which", None)
@renders()
def log(
    options: StoreOptions,
    rendering: RenderingOptions,
    which: LogOptions,
    keys: Annotated[list[str] | None, argument("KEY", "Only commits that changed these.")] = None,
) -> None:
    """Print the commits, newest first: time, revision, writer, note, meta.

    Commits that changed nothing and have no note or meta are ticks; they are left out, and counted
    on the error stream. So are commits in which only ignored paths differ, such as heartbeats of
    Kubernetes. With --observe it prints the writes of other programs, each with its own
    revision and the time of its tick.
    """
    if keys and which.prefix:
        raise CommandError("log takes either keys or --prefix")
    audit = options.audit_log(keys)
    renderer = Renderer(rendering, audit=audit)
    read = which.read(renderer)
    read["details"] |= audit is not None
    after, up_to = moment(which.since_, "since"), moment(which.until)
    with options.long_output() as out, options.readable() as kv:
        span = settled_range(kv, which.since_, after, up_to)
        names = renderer.name_keys(kv, raw=options.raw)
        if which.prefix:
            read["prefixes"] = prefixes_in(which.prefix, key=names.key)
        wanted = [names.key(key) for key in keys or ()]
        commits = logged(kv, *span, keys=wanted, **read)
        found = ((each, partial(differences_of, kv, each)) for each in commits)
        only = None if audit is None else partial(_only_key, kv)
        write_log(out, renderer, found, which, only)
        check_existed(kv, wanted, read["prefixes"])


def write_log(
    out: Output,
    renderer: Renderer,
    found: Iterator[LoggedChanges],
    which: LogOptions,
    only_key: Callable[[Logged], tuple[str | None, bool]] | None = None,
) -> None:
    """Write the commits that are shown, with what each changed if options ask for it.

    `only_key` returns the only key of a commit, None for several, and whether it was removed: for
    the audit log. In the end the error stream has the number of ticks, and of commits in which only
    ignored paths differ, that were left out.
    """

    def who_of(each: Logged) -> Who:
        key, removed = (None, False) if only_key is None else only_key(each)
        return renderer.who(each.commit, key, removed=removed)

    ticks_left_out, details = 0, which.patch or renderer.rendering.asked
    out.headed(*COMMIT_HEADINGS, *(renderer.headings if details else ()), aligned=not details)
    wanted = which.wanted
    for each, changes_of in _until_enough(
        found, lambda each: wanted(_by(each.commit, who_of(each))), which.count, which.ticks
    ):
        if each.is_tick and not which.ticks:
            ticks_left_out += 1
        elif each.is_ignored:
            renderer.commits_ignored += 1
        elif not details:
            who = who_of(each)
            columns = out.commit_columns(_by(each.commit, who))
            out.record({**commit_json(each.commit), **who.as_json()}, *columns)
        else:
            try:
                changes = changes_of()
            except CompactedError:
                changes = None
            shown = renderer.from_zero()
            _write_detailed(out, shown, each.commit, changes, who_of(each), each.begins)
            renderer.ignored += shown.ignored
    out.flush()
    if ticks_left_out:
        report(f"snapkv: {counted(ticks_left_out, 'tick')} left out: --ticks shows them")
    renderer.report_ignored()


def _write_detailed(
    out: Output,
    renderer: Renderer,
    commit: Commit,
    changes: Iterator[Difference[str]] | None,
    who: Who,
    begins: str | None,
) -> None:
    """Write a commit with what it changed; None if it begins a recording, or was compacted."""
    if changes is not None:
        who, changes = _with_managers(who, changes)
    if out.structured:
        shown = None if changes is None else list(renderer.fields(changes))
        out.record({**commit_json(commit), **who.as_json(), "changes": shown})
        return
    in_front = out.commit_columns(_by(commit, who))
    if out.format == "text":
        out.record({}, *in_front)
    renderer.write(out, changes or (), *in_front, indent="  ")
    if out.format == "table" and not any(renderer.counts.values()):
        out.record({}, *in_front)
    elif out.format == "text":
        if changes is None:
            why = begins or "what it changed was compacted"
            out.record({}, lines=[[(f"  ({why})", "dim")]])
        renderer.finish(out, "  ")
        out.record({}, lines=[[]])


def _only_key(kv: SnapshotKV | Observed[str], logged: Logged) -> tuple[str | None, bool]:
    """Return the only key that a commit changed, None for several, and whether it removed it."""
    if logged.moved is None or len(logged.moved) != 1:
        return None, False
    return kv.keyspace.decode(logged.moved[0].key), logged.moved[0].after is None


def _by(commit: Commit, who: Who) -> Commit:
    """Return a commit for people: its writer is what is known of it."""
    return commit if who.text == commit.writer else replace(commit, writer=who.text)


def _with_managers(
    who: Who, changes: Iterator[Difference[str]]
) -> tuple[Who, Iterator[Difference[str]]]:
    """Add the managers that changed an object, if it is the only change of its commit."""
    first = list(islice(changes, 2))
    if len(first) == 1:
        who = replace(who, managers=writers_of(first[0].before, first[0].after))
    return who, chain(first, changes)


def _until_enough(
    found: Iterator[LoggedChanges],
    wanted: Callable[[Logged], bool],
    count: int | None,
    ticks: bool,
) -> Iterator[LoggedChanges]:
    """Yield the commits that are wanted until `count` were shown, and those left out in between."""
    left = count
    while left != 0 and (one := next(found, None)) is not None:
        if wanted(each := one[0]):
            yield one
            if left is not None and (ticks or not each.is_tick) and not each.is_ignored:
                left -= 1


# --- show ---


SAME_TICK_MAX = 10
"""The most other writes of a tick that are named."""


@takes("observe", "archive", "audit", "timeout", "no_pager", "raw")
@renders()
def show(
    options: StoreOptions,
    rendering: RenderingOptions,
    time: Annotated[
        str, typer.Argument(metavar="COMMIT", help="Its time, rev:N or rv:N; else the newest.")
    ] = "now",
    given: PrefixesArgument = None,
    prefix: PrefixesOption = None,
) -> None:
    """Print one commit: time, writer, note, meta, and every change as in diff.

    If no commit has exactly that time, it is the commit in force then: the newest before it that
    is not a tick, and in which more than ignored paths differ. With --observe it is a write of
    another program.
    """
    when, renderer = moment(time), Renderer(rendering, audit=options.audit_log())
    with options.long_output(*renderer.headings) as out, options.readable() as kv:
        prefixes = prefixes_in(given, prefix, key=renderer.name_keys(kv, raw=options.raw).key)
        keys = selection_in(kv.keyspace, prefixes)
        when = settled(kv, when)
        paths = renderer.ignored_paths
        older = logged(kv, until=when, wanted=1, details=True, ignores=paths)
        found = _in_force(kv, when, _counting_ignored(older, renderer))
        if isinstance(kv, Observed) and revision_of(when) is None:
            _report_same_tick(found, older, keys)
        if found.moved is not None:
            found = found._replace(moved=tuple(each for each in found.moved if keys.has(each.key)))
        alone, removed = _only_key(kv, found)
        known = iter(()) if found.begins else differences_of(kv, found)
        who = renderer.who(found.commit, alone, removed=removed)
        who, differences = _with_managers(who, known)
        if out.structured:
            changes = None if found.begins else list(renderer.fields(differences))
            out.record({**commit_json(found.commit), **who.as_json(), "changes": changes})
            return
        if out.format == "text":
            _write_head(out, _by(found.commit, who))
        renderer.write(out, differences)
        if out.format == "text" and found.begins:
            out.record({}, (f"({found.begins})", "dim"))
        elif out.format == "text" and not (any(renderer.counts.values()) or renderer.ignored):
            below = f" below {' and '.join(map(repr, prefixes))}" if any(prefixes) else ""
            has_spaces = isinstance(kv, SnapshotKV) and not (below or found.is_tick)
            spaces = ", or only keys of spaces" if has_spaces else ""
            out.record({}, (f"(it changed no keys{below}{spaces})", "dim"))
        renderer.finish(out)
    renderer.report_ignored()


def _counting_ignored(found: Iterator[Logged], renderer: Renderer) -> Iterator[Logged]:
    """Yield commits, and count the ignored ones that another one follows: it is what is shown."""
    for each in found:
        yield each
        renderer.commits_ignored += each.is_ignored


def _in_force(kv: SnapshotKV | Observed[str], when: When | None, found: Iterator[Logged]) -> Logged:
    """Return the commit at exactly a time, else the newest before it that `log` would show."""
    first = next(found, None)
    if when is None:
        if (newest := _no_tick(first, found)) is None:
            raise CommandError("the store has no commit yet", Exit.NO)
        return newest
    revision, until = revision_of(when), kv.timestamp_of(when)
    if first is not None and (first.commit.ts == until or first.commit.revision == revision):
        return first
    first = _no_tick(first, found)
    if first is None:
        end = dated(until) if revision is None else f"revision {revision}"
        raise CommandError(f"the store has no commit up to {end}", Exit.NO)
    if revision is not None or format_time(first.commit.ts) != format_time(until):
        asked = format_time(until) if revision is None else when
        report(f"snapkv: no commit at {asked}; this one was in force")
    return first


def _no_tick(first: Logged | None, found: Iterator[Logged]) -> Logged | None:
    both = (each for each in chain([first], found) if each is not None)
    return next((each for each in both if not (each.is_tick or each.is_ignored)), None)


def _report_same_tick(shown: Logged, older: Iterator[Logged], keys: Selection) -> None:
    """Say which other writes to some keys the tick of a shown write has stamped."""
    same = (
        each.commit.revision
        for each in takewhile(lambda each: each.commit.ts == shown.commit.ts, older)
        if not each.is_ignored and any(keys.has(moved.key) for moved in each.moved or ())
    )
    newest = [f"rev:{revision}" for revision in islice(same, SAME_TICK_MAX)]
    count = len(newest) + sum(1 for _ in same)
    if count:
        all_of_them = [*newest, "..."] if count > len(newest) else newest
        verb = "write has" if count == 1 else "writes have"
        report(f"snapkv: {count:,} more {verb} this time: {', '.join(all_of_them)}")


def _write_head(out: Output, commit: Commit) -> None:
    who, why, meta = who_and_why(commit)
    rows = {
        "commit": out.time(commit.ts),
        "timestamp": None if out.raw else str(commit.ts),
        "revision": revision_text(commit.revision, commit.source_revision),
        "writer": who,
        "note": why,
        "meta": meta,
    }
    for name, shown in rows.items():
        if shown is not None:
            out.record({}, f"{name:<9}", shown)
    out.record({})
