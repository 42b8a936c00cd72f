"""Commands and groups of commands for both command lines, `snapkv` and `cdcmeta`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from keyword import iskeyword
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from snapkv.base.text import shortened_text
from snapkv.base.version import __version__
from snapkv.cli.exits import Exit
from snapkv.cli.terminal import drop_output
from snapkv.cli.terminal import patience as patience
from snapkv.store.open import STORE_VARIABLE as STORE_VARIABLE

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
"""The context settings of an app, for all its commands."""

SHOWN_CHARS_MAX = 60
"""The most characters that an error shows of a value."""

_SIGNED = re.compile(r"-\s*\d")

OTHER_WORDS = {
    "annotate": "blame",
    "cat": "get",
    "checkout": "restore",
    "del": "rm",
    "delete": "rm",
    "find": "ls",
    "follow": "watch",
    "help": "--help",
    "info": "status",
    "keys": "ls",
    "list": "ls",
    "read": "get",
    "remove": "rm",
    "rollback": "restore",
    "save": "put",
    "search": "grep",
    "set": "put",
    "stats": "status",
    "undo": "revert",
    "write": "put",
}
"""The names of commands in other programs, and the command of snapkv that does the same."""


class _Params:
    """Parameters of a command or a group as both command lines need them.

    * The help shows no value for a flag: typer 0.28 shows `<bool>`.
    * Text is taken as it is. typer 0.29 converts every value but a flag with pydantic, even a text
      or a value that was not given; importing pydantic takes a third of the time of a short
      command.
    * An option that one command line gives two values is a usage error. Otherwise the last value
      counts, in silence. A flag may be repeated.
    * An option of a command may come before it, or before its group, where these have it, too.
      One with a callback decides for itself.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, including --help."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            kind = getattr(param, "type_descriptor", None)
            if kind and kind.annotation is bool:
                param.default = bool(param.default)  # typer would convert None
            elif kind and "process_value" not in vars(param):
                param.process_value = partial(_processed, param, param.process_value)
        return params

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser that checks how often options are given."""
        parser = super().make_parser(ctx)  # type: ignore[misc]
        for option in {*parser._short_opt.values(), *parser._long_opt.values()}:
            option.action = option.action.replace("store", "append")
        parser.parse_args = partial(_parsed, ctx, parser.parse_args)
        return parser

    def invoke(self, ctx: Any) -> Any:
        """Run it; options that are not given have the values of the same options before it."""
        before = ctx
        while (before := before.parent) is not None:
            for param in self.params:  # type: ignore[attr-defined]
                value = None if param.callback else before.params.get(param.name)
                if value is not None and not ctx.params[param.name]:
                    ctx.params[param.name] = value
        return super().invoke(ctx)  # type: ignore[misc]


class Command(_Params, TyperCommand):
    """A command of either command line."""


class TimeCommand(Command):
    """A command whose first arguments are times: `-5m` is a time, not several short options.

    Otherwise the y of `-7days` would be `--yes`.
    """

    times = 1

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put a space before times with a sign, which parsing of times ignores."""
        valued = {
            name
            for param in self.params
            if not getattr(param, "is_flag", False)
            for name in param.opts
        }
        end, left = (args.index("--") if "--" in args else len(args)), self.times
        spaced: list[str] = []
        for before, word in pairwise(["", *args[:end]]):
            taken = before.startswith("-") and before in valued
            is_time = bool(left and not taken and _SIGNED.match(word))
            left -= is_time
            spaced.append(f" {word}" if is_time else word)
        return super().parse_args(ctx, spaced + args[end:])


class CommandPlace(NamedTuple):
    """Where a command is, its panel in the help, and how many times it takes as arguments.

    The module has it under its name, with `_` for `-` and after `import`: a function, or an `App`
    with subcommands.
    """

    module: str
    panel: str
    times: int = 0


class LazyCommands(Mapping[str, Any]):
    """Commands by name; the first access to one imports its module, and makes it."""

    def __init__(self, places: Mapping[str, CommandPlace]) -> None:
        self._places, self._made = places, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(name, self._places[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _made(name: str, place: CommandPlace) -> Any:
    """Return the command at a place, as typer makes it."""
    found = getattr(import_module(place.module), name.replace("-", "_") + "_" * iskeyword(name))
    if isinstance(found, App):
        command: Any = get_command(found)
        command.rich_help_panel = place.panel
        return command
    alone = App(add_completion=False, rich_markup_mode="rich")
    alone.command(name, times=place.times, rich_help_panel=place.panel)(found)
    return get_command(alone)


class Commands(_Params, TyperGroup):
    """Commands that end quietly at Ctrl-C, or when the reader of their output ends.

    The error for an unknown command suggests the command that was probably meant. Commands of the
    class's `table` are made when something asks for them.
    """

    table: ClassVar[Mapping[str, CommandPlace]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.table:
            self.commands: Any = LazyCommands(self.table)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(self.commands)

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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names, or two words, and the words after it."""
        if args[:2] == ["import", "etcd"] and "import-etcd" in self.commands:
            args = ["import-etcd", *args[2:]]
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
    """A typer app of `Commands`: the commands of a table, or commands that are added."""

    def __init__(self, *, table: Mapping[str, CommandPlace] | None = None, **settings: Any) -> None:
        kind = type("Commands", (Commands,), {"table": table}) if table else Commands
        super().__init__(
            cls=kind, context_settings=HELP_OPTIONS, pretty_exceptions_enable=False, **settings
        )

    def command(
        self, name: str | None = None, *, times: int = 0, **settings: Any
    ) -> Callable[[Any], Any]:
        """Return the decorator that makes a function a `Command` with `times` times."""
        kind = type("TimeCommand", (TimeCommand,), {"times": times}) if times else Command
        return super().command(name, cls=kind, **settings)


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


def option(form: str, help: str, **settings: Any) -> Any:
    """Return an option: its names, what the help calls its value (nothing: a flag), its help.

    >>> option("--output -o FORMAT", "How to answer.").metavar
    'FORMAT'
    """
    words = form.split()
    names = [word for word in words if word.startswith("-")]
    metavar = None if len(names) == len(words) else words[-1]
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def argument(metavar: str, help: str | None = None) -> Any:
    """Return an argument, which the help calls `metavar`, without its default."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def version_option(program: str) -> Any:
    """Return the option that prints the version of a program."""

    def show(wanted: bool) -> None:
        if wanted:
            sys.stdout.write(f"{program} {__version__}\n")
            raise typer.Exit()

    return typer.Option("--version", callback=show, is_eager=True, help="Print the version.")


def _processed(param: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Return a parameter's converted value; texts and absent values stay as they are."""
    kind: Any = {str: str, list[str]: (tuple, list)}.get(param.type_descriptor.annotation, ())
    if value is None and (param.nargs != 1 or param.multiple):
        value = ()
    convertible = value not in (None, ()) and not isinstance(value, kind)
    if convertible or (param.required and not value):
        return convert(ctx, value)
    return value if param.callback is None else param.callback(ctx, param, value)


def _parsed(ctx: Any, parse: Callable[[list[str]], Any], args: list[str]) -> Any:
    """Return the parsed words, of each option one value; raise if it was given several."""
    found, rest, order = parse(args)
    options = {each.name: each for each in order if each.param_type_name == "option"}
    ends = any(map(attrgetter("is_eager"), options.values()))  # as --help does
    for name, option in options.items():
        if not (option.multiple or option.count):
            values, found[name] = [*_given_before(ctx, name), *found[name]], found[name][-1]
            if len(values) > 1 and not (ends or ctx.resilient_parsing):
                _check_once(ctx, option, values)
    return found, rest, order


def _given_before(ctx: Any, name: str) -> Iterator[object]:
    """Yield the values of the same option before the command or its group, the nearest first."""
    while (ctx := ctx.parent) is not None:
        if gives(ctx, name):
            yield ctx.params[name]


def _check_once(ctx: Any, option: Any, values: Sequence[object]) -> None:
    """Raise for an option that is given several times, unless it is a flag, each time the same."""
    if option.is_flag and len(set(values)) == 1:
        return
    times = "twice" if len(values) == 2 else f"{len(values)} times"
    name = "/".join([*option.opts, *option.secondary_opts])
    ctx.fail(f"{name} is given {times}: {_shown(values[0])} and {_shown(values[-1])}; give it once")


def _shown(value: object) -> str:
    return repr(shortened_text(str(value), SHOWN_CHARS_MAX))


def gives(ctx: Any, name: str) -> bool:
    """Return whether the words of one command, or group, give an option; not the environment."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
