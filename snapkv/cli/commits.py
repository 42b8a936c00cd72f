"""The command log: the commits, all or those that changed, or were made by, what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from snapkv.cli.differences import Renderer
from snapkv.cli.exits import CommandError
from snapkv.cli.formats import commit_json, counted
from snapkv.cli.moments import moment, settled_span, since
from snapkv.cli.options import (
    CountOption,
    OldestFirst,
    PatchOption,
    SinceOption,
    StoreOptions,
    UntilOption,
    takes,
)
from snapkv.cli.output import COMMIT_HEADINGS, Output
from snapkv.cli.rendering import Rendering, renders
from snapkv.cli.terminal import tell
from snapkv.errors import CompactedError
from snapkv.model import Commit
from snapkv.observing.observe import Observed
from snapkv.reading.log import Logged, differences_of
from snapkv.reading.log import log as logged
from snapkv.store.store import SnapshotKV

WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class CommitFilter:
    """Which commits are wanted by their writer and note; None: any."""

    writer: str | None = None
    note: str | None = None
    ignore_case: bool = False

    def __bool__(self) -> bool:
        return self.writer is not None or self.note is not None

    def __call__(self, commit: Commit) -> bool:
        """Return whether a commit is wanted.

        >>> wanted = CommitFilter(writer="ann", note="Undo", ignore_case=True)
        >>> wanted(Commit(1, 0, 1, "ann@laptop", "undo rm")), wanted(Commit(1, 0, 1, "bob", "undo"))
        (True, False)
        """
        return self._matches(_has, self.note, commit.note) and self._matches(
            _is_like, self.writer, commit.writer
        )

    def _matches(
        self, matches: Callable[[str, str], bool], wanted: str | None, text: str | None
    ) -> bool:
        if wanted is None or text is None:
            return wanted is None
        if self.ignore_case:
            wanted, text = wanted.casefold(), text.casefold()
        return matches(text, wanted)


def _has(text: str, part: str) -> bool:
    return part in text


def _is_like(text: str, pattern: str) -> bool:
    """Return whether a text has a part, or, as a whole, matches a pattern with wildcards.

    >>> _is_like("ann@laptop", "ann"), _is_like("ann@laptop", "*@desk"), _is_like("joann", "ann*")
    (True, False, False)
    """
    return fnmatchcase(text, pattern) if WILDCARDS & set(pattern) else pattern in text


@takes("observe", "archive", "timeout", "no_pager", "raw")
@renders()
def log(
    options: StoreOptions,
    rendering: Rendering,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Only commits that changed these.", show_default=False),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", metavar="PREFIX", help="Only commits that changed a key that begins so."
        ),
    ] = None,
    writer: Annotated[
        str | None,
        typer.Option(
            "--writer",
            metavar="TEXT",
            help="Only commits whose writer has this text in it; with * ? or [] all of it.",
        ),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="TEXT", help="Only commits whose note has this text."),
    ] = None,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="For --writer and --grep.")
    ] = False,
    since_: SinceOption = None,
    until: UntilOption = None,
    count: CountOption = None,
    oldest_first: OldestFirst = False,
    ticks: Annotated[bool, typer.Option("--ticks", help="Print ticks, too.")] = False,
    patch: PatchOption = False,
) -> None:
    """Print the commits, newest first: time, revision, writer, note, meta.

    Commits that changed nothing and have no note or meta are ticks; they are left out, and counted
    on the error stream. With --observe it prints the writes of other programs, each with its own
    revision and the time of its tick.
    """
    if keys and prefix is not None:
        raise CommandError("log takes either keys or --prefix")
    wanted, renderer = CommitFilter(writer, grep, ignore_case), Renderer(rendering)
    details = patch or rendering.asked
    after, up_to, left_out = since(since_), moment(until), 0
    headings = (*COMMIT_HEADINGS, *(renderer.headings if details else ()))
    with options.long_output(*headings) as out, options.readable() as kv:
        found = logged(
            kv,
            *settled_span(kv, since_, after, up_to),
            keys=keys or (),
            prefix=prefix,
            newest_first=not oldest_first,
            wanted=None if wanted else count,
            details=details,
        )
        for each in _until_enough(found, wanted, count, ticks):
            left_out += each.is_tick and not ticks
            if (ticks or not each.is_tick) and details:
                _write_detailed(out, renderer.from_zero(), kv, each)
            elif ticks or not each.is_tick:
                out.record(commit_json(each.commit), *out.commit_columns(each.commit))
    if left_out:
        tell(f"snapkv: {counted(left_out, 'tick')} left out: --ticks shows them")


def _write_detailed(
    out: Output, renderer: Renderer, kv: SnapshotKV | Observed[str], each: Logged
) -> None:
    """Write a commit with what it changed; None in JSON if that was compacted."""
    in_front = out.commit_columns(each.commit)
    try:
        shown = renderer.each(differences_of(kv, each), "" if out.structured else "  ")
    except CompactedError:
        shown = None
    if out.structured:
        changes = None if shown is None else [one.fields for one in shown]
        out.record({**commit_json(each.commit), "changes": changes})
        return
    if out.format == "text":
        out.record({}, *in_front)
    for one in shown or ():
        out.record({}, *in_front, *one.columns, lines=one.lines)
    if out.format == "table" and not any(renderer.counts.values()):
        out.record({}, *in_front)
    elif out.format == "text":
        if shown is None:
            out.record({}, ("  (what it changed was compacted)", "dim"))
        renderer.finish(out, "  ")
        out.record({})


def _until_enough(
    found: Iterator[Logged], wanted: CommitFilter, count: int | None, ticks: bool
) -> Iterator[Logged]:
    """Yield the commits that are wanted until `count` of them were shown, and ticks in between."""
    left = count
    while left != 0 and (each := next(found, None)) is not None:
        if wanted(each.commit):
            yield each
            if left is not None and (ticks or not each.is_tick):
                left -= 1
