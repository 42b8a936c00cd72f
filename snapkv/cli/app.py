"""The command line as a whole: its commands, and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from snapkv.cli.commands import STORE_VARIABLE, App, CommandPlace, misuse_of, option, version_option
from snapkv.cli.exits import MEANINGS, Exit, Interrupts, code_of, message_of
from snapkv.cli.store_options import (
    JsonOption,
    LocalOption,
    NameOption,
    NoPagerOption,
    OutputOption,
)
from snapkv.cli.terminal import prepare_streams, report_error

_EPILOG = "Exit codes:\n" + ";\n".join(f"{int(c)} = {text}" for c, text in MEANINGS.items())

COMMANDS = {
    "get": CommandPlace("snapkv.cli.key_commands", "Read"),
    "ls": CommandPlace("snapkv.cli.key_commands", "Read"),
    "grep": CommandPlace("snapkv.cli.key_commands", "Read"),
    "log": CommandPlace("snapkv.cli.commit_commands", "Read"),
    "history": CommandPlace("snapkv.cli.key_commands", "Read"),
    "diff": CommandPlace("snapkv.cli.key_commands", "Read", times=2),
    "show": CommandPlace("snapkv.cli.commit_commands", "Read", times=1),
    "blame": CommandPlace("snapkv.cli.key_commands", "Read"),
    "watch": CommandPlace("snapkv.cli.watch_command", "Read"),
    "fleet": CommandPlace("snapkv.cli.fleet", "Read"),
    "ui": CommandPlace("snapkv.cli.ui_command", "Read"),
    "put": CommandPlace("snapkv.cli.write_commands", "Write"),
    "rm": CommandPlace("snapkv.cli.write_commands", "Write"),
    "restore": CommandPlace("snapkv.cli.write_commands", "Write", times=1),
    "revert": CommandPlace("snapkv.cli.write_commands", "Write", times=1),
    "resolve": CommandPlace("snapkv.cli.write_commands", "Write"),
    "import": CommandPlace("snapkv.cli.importing", "Write"),
    "import-etcd": CommandPlace("snapkv.cli.importing", "Write"),
    "import-prefix": CommandPlace("snapkv.cli.importing", "Write"),
    "tick": CommandPlace("snapkv.cli.tick_command", "Write"),
    "compact": CommandPlace("snapkv.cli.maintenance_commands", "Keep", times=1),
    "dump": CommandPlace("snapkv.cli.maintenance_commands", "Keep"),
    "load": CommandPlace("snapkv.cli.maintenance_commands", "Keep"),
    "export": CommandPlace("snapkv.cli.importing", "Keep"),
    "backup": CommandPlace("snapkv.cli.maintenance_commands", "Keep"),
    "check": CommandPlace("snapkv.cli.maintenance_commands", "Keep"),
    "status": CommandPlace("snapkv.cli.maintenance_commands", "Keep"),
    "sessions": CommandPlace("snapkv.cli.maintenance_commands", "Keep"),
    "health": CommandPlace("snapkv.cli.maintenance_commands", "Keep"),
    "record": CommandPlace("snapkv.cli.recording", "Keep"),
    "archive": CommandPlace("snapkv.cli.archiving", "Keep"),
    "tour": CommandPlace("snapkv.cli.tour", "Try"),
}
"""The commands, in the order of the help. Only the module of the command that runs is imported."""

StoreOption = Annotated[
    str | None,
    option(
        "--store URL", "The store, as in lmdb:./meta or etcd://HOST:PORT.", envvar=STORE_VARIABLE
    ),
]
VersionOption = Annotated[bool, version_option("snapkv")]

app = App(name="snapkv", epilog=_EPILOG, rich_markup_mode="rich", table=COMMANDS)


@app.callback()
def snapkv(
    store: StoreOption = None,
    name: NameOption = None,
    output_format: OutputOption = None,
    as_json: JsonOption = False,
    no_pager: NoPagerOption = False,
    local: LocalOption = False,
    version: VersionOption = False,
) -> None:
    """Time travel over key-value metadata: read, list, diff, watch and restore any moment.

    A TIME is 2026-01-31 14:05 (local time, or with an offset), 3am, monday, 1h ago, -5m, rev:4,
    rv:4, a timestamp, or now.
    --store, --name, --output, --json, --no-pager and --local may come before or after the command.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the arguments of the process); return its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # an error is one line, without gRPC's log
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if words in (["archive"], ["fleet"]):
        words.append("--help")
    prepare_streams()
    with Interrupts() as interrupts:
        try:
            result = app(words, prog_name="snapkv", standalone_mode=False)
        except (KeyboardInterrupt, typer.Abort):
            return Exit.INTERRUPTED
        except Exception as e:
            return Exit.INTERRUPTED if interrupts.came else _failed(e)
    return result if isinstance(result, int) else Exit.DONE


def _failed(error: Exception) -> int:
    """Show an error in one line and return its code; raise unexpected errors."""
    if (code := code_of(error)) is not None:
        report_error(message_of(error))
        return code
    misuse = misuse_of(error, "snapkv")
    if misuse is None:
        raise error
    report_error(misuse)
    return Exit.USAGE
