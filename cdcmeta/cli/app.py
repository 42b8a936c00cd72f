"""The whole command line, and its exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cdcmeta.cli.changefeed_commands import changefeed
from cdcmeta.cli.generation_commands import generations, streams, upgrade
from cdcmeta.cli.server_commands import capture, serve
from cdcmeta.errors import CDCMetaError
from snapkv import SnapKVError
from snapkv.cli.command_kit import App, misuse_of, version_option

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

app = App(name="cdcmeta")


@app.callback()
def cdcmeta(version: Annotated[bool, version_option("cdcmeta")] = False) -> None:
    """Metadata of change data capture, in stores that can be read as of any moment."""


app.command()(serve)
app.command()(capture)
app.command()(upgrade)
GROUPS = {"changefeed": changefeed, "generations": generations, "streams": streams}
"""The commands with subcommands; without one, each shows its help."""
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default the process's; return its exit code.

    0: done; 1: failed; 2: invalid command line; 130: interrupted.
    """
    # gRPC must not print: an error is one line, printed here
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (len(words) == 1 and words[0] in GROUPS):
        words.append("--help")
    try:
        result = app(words, prog_name="cdcmeta", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (SnapKVError, CDCMetaError) as e:
        return _failed(str(e), FAILED)
    except OSError as e:
        return _failed(e.strerror if e.strerror and not e.filename else str(e), FAILED)
    except Exception as e:
        misuse = misuse_of(e, "cdcmeta")
        if misuse is None:
            raise
        return _failed(misuse, USAGE)
    return result if isinstance(result, int) else DONE


def _failed(message: str, code: int) -> int:
    sys.stderr.write(f"cdcmeta: {message}\n")
    return code
