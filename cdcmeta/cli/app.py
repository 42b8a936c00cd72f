"""The command line as a whole, and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cdcmeta.cli.generations import generations, streams
from cdcmeta.cli.serving import serve
from cdcmeta.errors import CDCMetaError
from snapkv import SnapKVError
from snapkv.cli.commands import App, misuse_of, version_option

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

app = App(name="cdcmeta")


@app.callback()
def cdcmeta(version: Annotated[bool, version_option("cdcmeta")] = False) -> None:
    """Metadata of change data capture, on stores that answer for any moment."""


app.command()(serve)
GROUPS = {"generations": generations, "streams": streams}
"""Commands that have commands of their own; alone each shows its help."""
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (else that of the process); return its exit code.

    0: done; 1: it failed; 2: a command line that cannot be used; 130: interrupted.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # an error is one line, and it is ours
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (len(words) == 1 and words[0] in GROUPS):
        words.append("--help")
    try:
        result = app(words, prog_name="cdcmeta", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (SnapKVError, CDCMetaError, OSError) as e:
        return _failed(str(e), FAILED)
    except Exception as e:
        misuse = misuse_of(e, "cdcmeta")
        if misuse is None:
            raise
        return _failed(misuse, USAGE)
    return result if isinstance(result, int) else DONE


def _failed(message: str, code: int) -> int:
    sys.stderr.write(f"cdcmeta: {message}\n")
    return code
