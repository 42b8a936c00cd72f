"""The command line as a whole: its commands, and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from snapkv.cli import importing, reading, recording, ticker, upkeep, writing
from snapkv.cli.archiving import archive
from snapkv.cli.commands import App, misuse_of, version_option
from snapkv.cli.exits import MEANINGS, Exit, code_of, message_of
from snapkv.cli.options import STORE_VARIABLE, JsonOption, NameOption
from snapkv.cli.output import prepare_streams, tell_error
from snapkv.cli.tour import tour

_EPILOG = "Exit codes:\n" + ";\n".join(f"{int(c)} = {text}" for c, text in MEANINGS.items())

app = App(name="snapkv", epilog=_EPILOG, rich_markup_mode="rich")


@app.callback()
def snapkv(
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            envvar=STORE_VARIABLE,
            help="The store, as in lmdb:./meta or etcd://HOST:PORT.",
        ),
    ] = None,
    name: NameOption = None,
    as_json: JsonOption = False,
    version: Annotated[bool, version_option("snapkv")] = False,
) -> None:
    """Time travel over key-value metadata: read, list, diff, watch and restore any moment.

    A TIME is 2026-01-31 14:05 (local time, or with an offset), 14:05, yesterday, 1h ago, -5m,
    rev:4, a timestamp, or now.
    --store, --name and --json may come before or after the command.
    """


_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Read": (reading.get, reading.ls, reading.log, reading.history, reading.diff, reading.watch),
    "Write": (
        writing.put,
        writing.rm,
        writing.restore,
        writing.resolve,
        importing.import_prefix,
        ticker.tick,
    ),
    "Keep": (
        upkeep.compact,
        upkeep.dump,
        upkeep.load,
        upkeep.backup,
        upkeep.check,
        upkeep.info,
        recording.record,
    ),
    "Try": (tour,),
}

_TIMES_TAKEN = {reading.diff: 2, writing.restore: 1, upkeep.compact: 1}
"""How many times a command takes as arguments."""

for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(
            _command.__name__.replace("_", "-"),
            rich_help_panel=_panel,
            times=_TIMES_TAKEN.get(_command, 0),
        )(_command)

app.add_typer(archive, name="archive", rich_help_panel="Keep")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of the process); return its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # an error is one line, without gRPC's log
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if words == ["archive"]:
        words.append("--help")
    prepare_streams()
    try:
        result = app(words, prog_name="snapkv", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except Exception as e:
        return _failed(e)
    return result if isinstance(result, int) else Exit.DONE


def _failed(error: Exception) -> int:
    """Show an error in one line and return its code; raise unexpected errors."""
    if (code := code_of(error)) is not None:
        tell_error(message_of(error))
        return code
    misuse = misuse_of(error, "snapkv")
    if misuse is None:
        raise error
    tell_error(misuse)
    return Exit.USAGE
