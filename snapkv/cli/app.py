"""The command line as a whole: its commands, and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from snapkv._version import __version__
from snapkv.cli import importing, reading, ticking, upkeep, writing
from snapkv.cli.exits import MEANINGS, Exit, code_of, message_of
from snapkv.cli.options import STORE_VARIABLE, JsonOption, NameOption
from snapkv.cli.output import drop_output, prepare_streams, tell_error
from snapkv.cli.tour import tour

_EPILOG = "Exit codes:\n" + ";\n".join(f"{int(c)} = {text}" for c, text in MEANINGS.items())

_TIMES_AS_ARGUMENTS = {"ignore_unknown_options": True}
"""Lets `-5m` be an argument; a misspelt option then fails as a time that is none."""


class Commands(TyperGroup):
    """Commands that end quietly at Ctrl-C, or when the reader of their output goes away."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and write out what is buffered while errors still count."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output()
            raise typer.Exit(Exit.PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        return result


app = typer.Typer(
    name="snapkv",
    cls=Commands,
    epilog=_EPILOG,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"snapkv {__version__}\n")
        raise typer.Exit()


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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Time travel over key-value metadata: read, list, diff, watch and restore any moment.

    A TIME is 2026-01-31T14:05:00Z (any offset, always one), -5m or -7d, a timestamp, or now.
    --store, --name and --json may stand before or after the command.
    """


_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Read": (reading.get, reading.ls, reading.log, reading.history, reading.diff, reading.watch),
    "Write": (
        writing.put,
        writing.rm,
        writing.restore,
        writing.resolve,
        importing.import_prefix,
        ticking.tick,
    ),
    "Keep": (upkeep.compact, upkeep.dump, upkeep.load, upkeep.check, upkeep.info),
    "Try": (tour,),
}

for _panel, _commands in _PANELS.items():
    for _command in _commands:
        _times = _command in (reading.diff, writing.restore, upkeep.compact)
        app.command(
            _command.__name__.replace("_", "-"),
            rich_help_panel=_panel,
            context_settings=_TIMES_AS_ARGUMENTS if _times else None,
        )(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (else that of the process); return its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # an error is one line, and it is ours
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    prepare_streams()
    try:
        result = app(words, prog_name="snapkv", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except Exception as e:
        return _failed(e)
    return result if isinstance(result, int) else Exit.DONE


def _failed(error: Exception) -> int:
    """Tell an error in one line and return its code; raise those that nobody foresaw."""
    if (code := code_of(error)) is not None:
        tell_error(message_of(error))
        return code
    misuse = getattr(error, "format_message", None)  # of typer's own errors, whatever their class
    if misuse is None:
        raise error
    command = getattr(getattr(error, "ctx", None), "command_path", "snapkv")
    tell_error(f"{misuse()} (see {command} --help)")
    return Exit.USAGE
