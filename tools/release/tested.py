"""The tests that run with the lowest versions: pyproject.toml's floors are versions that pass."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release.environments import FROM_SOURCE, LOWEST, NEWEST, Environment
from tools.release.installed import Installations

EXTRAS = "archive,arrow,generations,http,iceberg,ui"
"""The extras that the tests below use; Spark's versions have their own tests: `make soak`."""
FOLDERS = (
    *(
        "archive",
        "base",
        "changes",
        "committer",
        "conformance",
        "coordination",
        "copying",
        "engine",
    ),
    *("generations", "reading", "rendering", "scheduler", "store", "timeline", "unit"),
)
TESTS_S = 3_600.0
JOBS_MAX = 4


def check_tests(
    installations: Installations, sources: Path, python: Path, project: dict[str, Any]
) -> None:
    """Run the fast tests of most folders with the lowest versions. Raises `CheckFailed`.

    `sources` is an export of the last commit. The tests' own tools have their newest versions, so
    warnings of other projects about each other do not count.
    """
    with installations.installed(python, EXTRAS, LOWEST) as made:
        direct = {canonicalize_name(each.name) for each in installations.requirements(EXTRAS)}
        kept = {name: v for name, v in made.versions().items() if name in direct}
        constraints = made.place / "lowest.txt"
        constraints.write_text("".join(f"{name}=={v}\n" for name, v in sorted(kept.items())))
        made.uv_install(tools_of(project), NEWEST, sorted(kept.keys() - FROM_SOURCE), constraints)
        jobs = min(JOBS_MAX, os.cpu_count() or 1)
        options = ("--speed=fast", "--quiet", f"-n{jobs}", "--dist=loadgroup", "-pno:cacheprovider")
        folders = [f"tests/{name}" for name in FOLDERS]
        made.run(
            *("-m", "pytest", *options, "-Wignore::DeprecationWarning", *folders),
            cwd=sources,
            timeout_s=TESTS_S,
            variables={"PYTHONPATH": str(sources)},
        )
        _check_kept(made, kept)


def tools_of(project: dict[str, Any]) -> list[str]:
    """Return what the tests require besides snapkv and Spark."""
    found = [Requirement(each) for each in project["optional-dependencies"]["test"]]
    return [str(each) for each in found if each.name not in ("pyspark", "snapkv")]


def _check_kept(made: Environment, kept: dict[str, str]) -> None:
    """Assert that installing the tools has raised no version."""
    found = made.versions()
    assert {name: found[name] for name in kept} == kept
