"""Commands and groups of commands for both command lines, `snapkv` and `cdcmeta`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from snapkv._version import __version__
from snapkv.cli.exits import Exit
from snapkv.cli.output import drop_output
from snapkv.cli.output import patience as patience

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
"""The context settings of an app, for all its commands."""

_SIGNED = re.compile(r"-\s*\d")

OTHER_WORDS = {
    "cat": "get",
    "checkout": "restore",
    "del": "rm",
    "delete": "rm",
    "export": "dump",
    "find": "ls",
    "follow": "watch",
    "help": "--help",
    "import": "import-prefix",
    "keys": "ls",
    "list": "ls",
    "read": "get",
    "remove": "rm",
    "revert": "restore",
    "rollback": "restore",
    "save": "put",
    "set": "put",
    "show": "get",
    "stats": "info",
    "status": "info",
    "undo": "restore",
    "write": "put",
}
"""Names of commands in other programs, and the command of snapkv that does the same."""


class Command(TyperCommand):
    """A command whose help shows no value for flags; typer 0.28 shows `<bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its parameters, including --help."""
        return [_plain(param) for param in super().get_params(ctx)]


class TimeCommand(Command):
    """A command whose first arguments are times: `-5m` is a time, not several short options.

    Otherwise the y of `-7days` would be `--yes`.
    """

    times = 1

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put a space before times with a sign, which parsing of times ignores."""
        valued = {name for param in self.params if not _is_flag(param) for name in param.opts}
        end, left = (args.index("--") if "--" in args else len(args)), self.times
        spaced: list[str] = []
        for before, word in pairwise(["", *args[:end]]):
            taken = before.startswith("-") and before in valued
            is_time = bool(left and not taken and _SIGNED.match(word))
            left -= is_time
            spaced.append(f" {word}" if is_time else word)
        return super().parse_args(ctx, spaced + args[end:])


class TwoTimesCommand(TimeCommand):
    """A command that takes two times."""

    times = 2


class Commands(TyperGroup):
    """Commands that end quietly at Ctrl-C, or when the reader of their output ends.

    The error for an unknown command suggests the command that was probably meant.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and flush its output while errors still count."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output()
            raise typer.Exit(Exit.PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        return result

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the group itself, as `Command`."""
        return [_plain(param) for param in super().get_params(ctx)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names, and the words after it."""
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except Exception as e:  # of typer; the class depends on its version
            meant = OTHER_WORDS.get(args[0]) if args else None
            if hasattr(e, "message") and (meant == "--help" or meant in self.commands):
                e.message = f"No such command {args[0]!r}. Did you mean {meant!r}?"
            raise
        if rest == ["-h"]:
            rest = ["--help"]
        return name, command, rest


class App(typer.Typer):
    """A typer app of `Commands`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=Commands, context_settings=HELP_OPTIONS, pretty_exceptions_enable=False, **settings
        )

    def command(
        self, name: str | None = None, *, times: int = 0, **settings: Any
    ) -> Callable[[Any], Any]:
        """Return the decorator that makes a function a `Command` with `times` times."""
        kinds = (Command, TimeCommand, TwoTimesCommand)
        return super().command(name, cls=kinds[times], **settings)


def _is_flag(param: Any) -> bool:
    return bool(getattr(param, "is_flag", False))


def misuse_of(error: Exception, program: str) -> str | None:
    """Return the message of a usage error; None for an error that is not of typer."""
    format_message = getattr(error, "format_message", None)  # the class depends on the version
    if format_message is None:
        return None
    message = format_message()
    if re.match(r"No such option: -[^-]", message):
        message += "; put words that begin with a dash after --"
    command = getattr(getattr(error, "ctx", None), "command_path", program)
    return f"{message} (see {command} --help)"


def version_option(program: str) -> Any:
    """Return the option that prints the version of a program."""

    def show(wanted: bool) -> None:
        if wanted:
            sys.stdout.write(f"{program} {__version__}\n")
            raise typer.Exit()

    return typer.Option("--version", callback=show, is_eager=True, help="Print the version.")


def _plain(param: Any) -> Any:
    if _is_flag(param):
        param.metavar = ""
    return param
