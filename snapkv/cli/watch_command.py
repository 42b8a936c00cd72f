"""The command watch: commits and their changes as they happen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import Annotated

from snapkv.cli.command_output import COMMIT_HEADINGS, Output
from snapkv.cli.commands import option
from snapkv.cli.difference_output import Renderer, RenderingOptions, renders
from snapkv.cli.formats import Json, change_json, commit_json, written_change_json
from snapkv.cli.moments import moment, settled
from snapkv.cli.named_keys import common, prefixes_in
from snapkv.cli.store_options import (
    CountOption,
    PatchOption,
    PrefixesArgument,
    PrefixesOption,
    StoreOptions,
    seconds,
    takes,
)
from snapkv.cli.terminal import Part
from snapkv.errors import CompactedError, HistoryGapError
from snapkv.model import Change, Changes, Difference
from snapkv.reading.log import values_before
from snapkv.reading.observed_prefix import Observed
from snapkv.store.store import SnapshotKV

WatchSinceOption = Annotated[
    str | None, option("--since TIME", "Begin after this time; else after now.")
]
IdleOption = Annotated[
    str | None, option("--timeout DURATION", "End when nothing came for so long.")
]


@takes("observe", "archive", "raw")
@renders()
def watch(
    options: StoreOptions,
    rendering: RenderingOptions,
    given: PrefixesArgument = None,
    prefix: PrefixesOption = None,
    since_: WatchSinceOption = None,
    count: CountOption = None,
    patch: PatchOption = False,
    timeout: IdleOption = None,
) -> None:
    """Print commits and their changes as they happen, until Ctrl-C.

    + added, - removed, ~ changed, on one line each; --patch prints them as diff does. With
    --observe, all writes that a tick stamps come at once, each with its own revision. Only commits
    of the ticking store have a writer. Commits in which only ignored paths differ are left out, and
    counted on the error stream in the end.
    """
    after, renderer = moment(since_, "since"), Renderer(rendering, brief=not patch)
    out = options.output.headed(*COMMIT_HEADINGS, *renderer.headings)
    with options.readable() as kv:
        prefixes = prefixes_in(given, prefix, key=renderer.name_keys(kv, raw=options.raw).key)
        until = seconds(timeout)
        with kv.watch(common(prefixes) or None, settled(kv, after), timeout=until) as changes:
            before_of = partial(_values_before, kv)
            shown = (without_ignored(renderer, each, before_of, prefixes) for each in changes)
            try:
                for found in islice(filter(None, shown), count):
                    if out.structured:
                        form = change_json if not options.observe else written_change_json
                        before = before_of(found.changes) if patch else None
                        out.record(changes_json(renderer, found, form, before))
                    else:
                        write_changes(out, renderer, found, before_of)
                    sys.stdout.flush()
            finally:
                renderer.report_ignored()


def without_ignored(
    renderer: Renderer,
    found: Changes[str],
    values_before: Callable[[list[Change[str]]], Sequence[bytes | None] | None],
    prefixes: tuple[str, ...],
) -> Changes[str] | None:
    """Return the changes of a time to keys with prefixes, None without any.

    Commits that are ignored are left out, and counted. Reads the values before changes that may be
    ignored.
    """
    kept: list[Change[str]] = []
    for commit, group in groupby(found.changes, key=lambda change: change.commit):
        changes = [change for change in group if change.key.startswith(prefixes)]
        if (
            changes
            and commit.note is None
            and commit.meta is None
            and _may_be_ignored(renderer, changes)
        ):
            before = values_before(changes)
            if before is not None and _are_ignored(renderer, changes, before):
                renderer.commits_ignored += 1
                continue
        kept += changes
    return replace(found, changes=tuple(kept)) if kept else None


def _may_be_ignored(renderer: Renderer, changes: Sequence[Change[str]]) -> bool:
    paths = renderer.ignored_paths
    return all(
        each.value is not None and paths.may_ignore(each.value) and paths.shows(each.key)
        for each in changes
    )


def _are_ignored(
    renderer: Renderer, changes: Sequence[Change[str]], before: Sequence[bytes | None]
) -> bool:
    pairs = zip(changes, before, strict=True)
    return all(
        value is not None
        and change.value is not None
        and renderer.ignored_paths.ignores(value, change.value)
        for change, value in pairs
    )


def changes_json(
    renderer: Renderer,
    found: Changes[str],
    form: Callable[[Change[str]], Json],
    before: Sequence[bytes | None] | None,
) -> Json:
    """Return a commit for programs, its changes in a form; with `before` with both values."""
    changes = []
    for number, change in enumerate(found.changes):
        value = renderer.value_json(change.key, change.value)
        both = {}
        if before is not None:
            both = {"before": renderer.value_json(change.key, before[number]), "after": value}
        changes.append({**form(change), "value": value, **both})
    return {**commit_json(found.commit), "changes": changes}


def _values_before(
    kv: SnapshotKV | Observed[str], changes: Sequence[Change[str]]
) -> list[bytes | None] | None:
    """Return the values before changes; None if these were compacted."""
    try:
        return values_before(kv, changes)
    except (CompactedError, HistoryGapError):
        return None


def write_changes(
    out: Output,
    renderer: Renderer,
    found: Changes[str],
    values_before: Callable[[list[Change[str]]], Sequence[bytes | None] | None],
) -> None:
    """Write the commits of one time for people: of observed keys there may be several."""
    in_order = sorted(found.changes, key=lambda change: change.commit.revision)
    for commit, group in groupby(in_order, key=lambda change: change.commit):
        changes, columns = list(group), out.commit_columns(replace(commit, ts=found.commit.ts))
        _write_commit(out, renderer, columns, changes, values_before(changes))


def _write_commit(
    out: Output,
    renderer: Renderer,
    in_front: Sequence[Part | None],
    changes: list[Change[str]],
    before: Sequence[bytes | None] | None,
) -> None:
    """Write a commit, its changes below; `=` is before a value if the one before is unknown."""
    if out.format == "text":
        out.record({}, *in_front)
    if before is not None:
        pairs = zip(changes, before, strict=True)
        differences = (Difference(change.key, value, change.value) for change, value in pairs)
        renderer.write(out, differences, *in_front, indent="  ")
        return
    for change in changes:
        sign, style = ("-", "red") if change.value is None else ("=", "green")
        value = "" if change.value is None else renderer.preview(change.key, change.value)
        key = renderer.shown_key(change.key)
        line = f"  {sign} {key}  {value}".rstrip()
        out.record({}, *in_front, (sign, style), key, value, lines=[[(line, style)]])
