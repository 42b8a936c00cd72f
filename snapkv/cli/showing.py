"""The command show: one commit, with everything that it changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, takewhile
from typing import Annotated

import typer

from snapkv.cli.differences import Renderer
from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.formats import commit_json
from snapkv.cli.moments import moment, settled
from snapkv.cli.options import PrefixOption, StoreOptions, takes
from snapkv.cli.output import Output, who_and_why
from snapkv.cli.rendering_options import Rendering, renders
from snapkv.cli.terminal import tell
from snapkv.model import Commit
from snapkv.reading.log import Logged, differences_of
from snapkv.reading.log import log as logged
from snapkv.reading.observed import Observed
from snapkv.store.store import SnapshotKV
from snapkv.times import When, dated, format_time, revision_of

SAME_TICK_MAX = 10
"""How many other writes of a tick are named."""


@takes("observe", "archive", "timeout", "no_pager", "raw")
@renders()
def show(
    options: StoreOptions,
    rendering: Rendering,
    time: Annotated[
        str, typer.Argument(metavar="COMMIT", help="Its time or rev:N; else the newest.")
    ] = "now",
    prefix: PrefixOption = "",
) -> None:
    """Print one commit: time, writer, note, meta, and every change as in diff.

    If no commit has exactly that time, it is the commit in force then: the newest before it that
    is not a tick. With --observe it is a write of another program.
    """
    when, renderer = moment(time), Renderer(rendering)
    with options.long_output(*renderer.headings) as out, options.readable() as kv:
        start, end = kv.keyspace.range_of(prefix or kv.keyspace.whole)
        older = logged(kv, until=settled(kv, when), wanted=1, details=True)
        found = _in_force(kv, when, older)
        if isinstance(kv, Observed) and revision_of(when) is None:
            _tell_same_tick(found, older, start, end)
        if found.moved is not None:
            own = tuple(each for each in found.moved if start <= each.key < end)
            found = found._replace(moved=own)
        differences = differences_of(kv, found)
        if out.structured:
            changes = list(renderer.fields(differences))
            out.record({**commit_json(found.commit), "changes": changes})
            return
        if out.format == "text":
            _write_head(out, found.commit)
        renderer.write(out, differences)
        if out.format == "text" and not (any(renderer.counts.values()) or renderer.ignored):
            below = f" below {prefix!r}" if prefix else ""
            has_spaces = isinstance(kv, SnapshotKV) and not (prefix or found.is_tick)
            spaces = ", or only keys of spaces" if has_spaces else ""
            out.record({}, (f"(it changed no keys{below}{spaces})", "dim"))
        renderer.finish(out)
    renderer.tell_ignored()


def _in_force(kv: SnapshotKV | Observed[str], when: When | None, found: Iterator[Logged]) -> Logged:
    """Return the commit at exactly a time, else the newest before it that is not a tick."""
    first = next(found, None)
    if when is None:
        newest = _no_tick(first, found)
        if newest is None:
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
        tell(f"snapkv: no commit at {asked}; this one was in force")
    return first


def _no_tick(first: Logged | None, found: Iterator[Logged]) -> Logged | None:
    return next((each for each in chain([first], found) if each and not each.is_tick), None)


def _tell_same_tick(shown: Logged, older: Iterator[Logged], start: bytes, end: bytes) -> None:
    """Say which other writes to a range of keys the tick of a shown write has stamped."""
    same = (
        each.commit.revision
        for each in takewhile(lambda each: each.commit.ts == shown.commit.ts, older)
        if any(start <= moved.key < end for moved in each.moved or ())
    )
    newest = [f"rev:{revision}" for revision in islice(same, SAME_TICK_MAX)]
    count = len(newest) + sum(1 for _ in same)
    if count:
        all_of_them = [*newest, "..."] if count > len(newest) else newest
        verb = "write has" if count == 1 else "writes have"
        tell(f"snapkv: {count:,} more {verb} this time: {', '.join(all_of_them)}")


def _write_head(out: Output, commit: Commit) -> None:
    who, why, meta = who_and_why(commit)
    rows = {
        "commit": out.time(commit.ts),
        "timestamp": None if out.raw else str(commit.ts),
        "revision": str(commit.revision),
        "writer": who,
        "note": why,
        "meta": meta,
    }
    for name, shown in rows.items():
        if shown is not None:
            out.record({}, f"{name:<9}", shown)
    out.record({})
