"""The command line `snapkv`.

`store_options` declares the options that many commands share, and opens the store. `formats`
writes values, times and commits as text for people and as JSON for programs. `command_output` is
the answer of a command, as text, table, JSON or YAML. `difference_output` has the options of values
and differences, and shows them. `terminal` writes lines, shows progress and asks, `pager` shows
long answers. `exits` maps errors to exit codes, in one table. `app` has the table of the commands.

Caveats. Times are shown to the millisecond, and several commits can share one; `--raw` and `--json`
give the exact timestamp. Text is made safe for terminals (characters that do not print are
escaped); `get` into a pipe and `--json` give exact bytes.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the arguments of the process); return its exit code."""
    try:
        # takes a while; Ctrl-C then must not print a traceback
        from snapkv.cli import app

        return app.main(arguments)
    except KeyboardInterrupt:
        return 130
