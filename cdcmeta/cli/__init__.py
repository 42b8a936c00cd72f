"""The command line `cdcmeta`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default the process's; return its exit code."""
    try:
        from cdcmeta.cli import app  # takes half a second; Ctrl-C then must not print a traceback

        return app.main(arguments)
    except KeyboardInterrupt:
        return 130
