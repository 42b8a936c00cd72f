"""The command line `snapkv`.

An *option* that many commands share is declared once, in `options`, where a store is opened too.
A *form* is how a value, a time or a commit is written: as text for people, as JSON for programs.
The *output* writes forms to the terminal, the pipe and the error stream, and asks questions; it
is the only module that imports rich. An *exit* is the code a command ends with; one table maps
errors to them. The commands stand in `reading`, `writing` and `upkeep`; `app` puts them together.

Caveats. Times are shown to the millisecond, in which more than one commit can lie; `--raw` and
`--json` give the exact timestamp. Text is made safe for terminals (what does not print is shown
escaped); exact bytes come from `get` into a pipe, and from `--json`.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (else that of the process); return its exit code."""
    try:
        from snapkv.cli import app  # takes half a second, in which Ctrl-C is no traceback either

        return app.main(arguments)
    except KeyboardInterrupt:
        return 130
