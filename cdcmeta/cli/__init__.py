"""The command line `cdcmeta`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (else that of the process); return its exit code."""
    try:
        from cdcmeta.cli import app  # takes half a second, in which Ctrl-C is no traceback either

        return app.main(arguments)
    except KeyboardInterrupt:
        return 130
