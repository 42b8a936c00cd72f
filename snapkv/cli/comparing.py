"""The commands that compare: diff, two moments; blame, the versions of one key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from snapkv.base.text import LongerNames
from snapkv.cli.differences import Renderer
from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.formats import Json, key_text, version_json
from snapkv.cli.moments import moment, settled, up_to
from snapkv.cli.options import AtOption, KeyArgument, PrefixOption, StoreOptions, takes
from snapkv.cli.output import Output
from snapkv.cli.rendering_options import Rendering, renders
from snapkv.cli.terminal import tell_longer_names
from snapkv.copying.long_keys import with_long_keys
from snapkv.errors import KeyNotFoundError
from snapkv.model import Difference, Version
from snapkv.rendering import Blame
from snapkv.rendering import blame as blamed

BeforeArgument = Annotated[
    str, typer.Argument(metavar="TIME", help="The time before.", show_default=False)
]
AfterArgument = Annotated[
    str, typer.Argument(metavar="TIME", help="The time after; else now.", show_default=False)
]
ExitCodeOption = Annotated[
    bool, typer.Option("--exit-code", help="End with 1 when there are differences.")
]


@takes("observe", "archive", "timeout", "no_pager")
@renders()
def diff(
    options: StoreOptions,
    rendering: Rendering,
    a: BeforeArgument,
    b: AfterArgument = "now",
    prefix: PrefixOption = "",
    exit_code: ExitCodeOption = False,
) -> None:
    """Print what differs between two times: + added, - removed, ~ changed.

    Below a key whose value is structured (JSON, YAML, Kubernetes) are the paths that differ, below
    a longer text its lines. -o json has the whole values.
    """
    before, after, renderer = moment(a), moment(b), Renderer(rendering)
    longer = LongerNames(prefix)
    with options.long_output(*renderer.headings) as out, options.readable() as kv:
        before, after = settled(kv, before), settled(kv, after)
        renderer.write(out, _seen(kv.diff(before, after, prefix or None), longer))
        renderer.finish(out)
    renderer.tell_ignored()
    tell_longer_names(longer)
    if exit_code and any(renderer.counts.values()):
        raise typer.Exit(Exit.NO)


def _seen(differences: Iterable[Difference[str]], longer: LongerNames) -> Iterator[Difference[str]]:
    for each in differences:
        longer.add(each.key)
        yield each


@takes("observe", "archive", "timeout", "no_pager", "raw")
@renders("redact", "kind", "decoder")
def blame(
    options: StoreOptions, rendering: Rendering, key: KeyArgument, at: AtOption = None
) -> None:
    """Print which commit last changed each path, or each line, of a value.

    Each row has the time, revision and writer of the commit; then a path of a structured value with
    what it has, or the number of a line with the line. Where history was compacted, what the oldest
    version has may be older than it.
    """
    when, renderer = moment(at), Renderer(rendering)
    if renderer.covers(key):
        raise CommandError(f"the values of {key_text(key)} are redacted: blame would show them")
    headings = ("TIME", "REVISION", "WRITER", "PLACE", "VALUE")
    with options.long_output(*headings) as out:
        with options.readable() as kv:
            when = settled(kv, when)
            until = None if when is None else kv.timestamp_of(when)
            view, name = with_long_keys(kv, key)
            versions: Iterable[Version] = view.history(name)
            if when is not None:
                versions = filter(up_to(kv, when), versions)
            rows = blamed(versions, rendering.kind, renderer.read_decoder)
        if not rows:
            raise KeyNotFoundError(key, until)
        _write(out, rows)


def _write(out: Output, rows: list[Blame]) -> None:
    """Write the rows; as text in columns that fit all of them."""
    lines = isinstance(rows[0].place, int)
    columns = [_columns(out, row) for row in rows]
    widths = [max(len(text) for text, _ in column) for column in zip(*columns, strict=True)]
    for row, cells in zip(rows, columns, strict=True):
        place = f"{row.place:>{len(str(len(rows)))}}  " if lines else f"{row.place}: "
        in_front = [
            (text.ljust(width), style) for (text, style), width in zip(cells, widths, strict=True)
        ]
        text_line = [piece for cell in in_front for piece in (cell, "  ")]
        out.record(
            _fields(row),
            *cells,
            str(row.place),
            row.text,
            lines=[[*text_line, (place, "bold"), row.text]],
        )


def _columns(out: Output, row: Blame) -> list[tuple[str, str]]:
    version = row.version
    time = out.time(version.ts)
    shown = time if isinstance(time, tuple) else (time, "")
    writer = "-" if version.writer is None else key_text(version.writer)
    return [shown, (str(version.revision), ""), (writer, "green")]


def _fields(row: Blame) -> Json:
    version = version_json(row.version)
    del version["value"]
    return {"place": row.place, "text": row.text, **version}
