"""Other programs, with a bound on their time; their output is in the error."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools.release.checklist import CheckFailed

OUTPUT_LINES_MAX = 30
LEFT_IN_ENVIRONMENT = ("PYTHON", "SNAPKV_", "CDCMETA_", "VIRTUAL_ENV", "GIT_DIR", "GIT_WORK_TREE")
"""Beginnings of variables that would change what an empty environment does."""


def call(
    *words: str | Path,
    cwd: Path,
    timeout_s: float = 900.0,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a program; return what it wrote to stdout. Raises `CheckFailed`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LEFT_IN_ENVIRONMENT)}
    line = [str(word) for word in words]
    try:
        done = subprocess.run(
            line,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            cwd=cwd,
            env=kept | dict(variables or {}),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as e:
        raise CheckFailed(f"{' '.join(line)} took more than {timeout_s:.0f} s") from e
    except OSError as e:
        raise CheckFailed(f"{' '.join(line)} did not start: {e}") from e
    if done.returncode != 0:
        said = (done.stdout + done.stderr).splitlines()[-OUTPUT_LINES_MAX:]
        shown = "\n".join(said)
        raise CheckFailed(f"{' '.join(line)} ended with {done.returncode}:\n{shown}")
    return done.stdout
