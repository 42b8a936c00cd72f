"""Promises of an installation, tried in an empty environment outside of the clone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.release.calls import call
from tools.release.checklist import CheckFailed, LeftOut
from tools.release.environments import FROM_SOURCE, NEWEST, Environment

PROGRAMS = Path(__file__).parent / "programs"
PROMISES: dict[str, list[tuple[str, ...]]] = {
    "": [("commands.py",)],
    "aio": [("asyncio_store.py",)],
    "arrow": [("arrow.py",)],
    "archive": [("archive.py",)],
    "iceberg": [("archive.py",), ("iceberg.py",)],
    "spark": [("imports.py", "snapkv.spark", "cdcmeta.spark", "pyspark_snapkv"), ("spark.py",)],
    "http": [("serve.py", "cdcmeta", "serve")],
    "ui": [("serve.py", "snapkv", "ui"), ("imports.py", "cdcmeta.ui")],
    "generations": [("generations.py",)],
    "etcd3": [("etcd3_client.py",)],
    "kubernetes": [("cluster_recorder.py",)],
    "metrics": [("imports.py", "snapkv.metrics", "cdcmeta.metrics")],
    "all": [("arrow.py",), ("iceberg.py",), ("serve.py", "snapkv", "ui"), ("generations.py",)],
}
"""The programs that run with each extra alone; "" is the wheel without extras."""
VARIABLES = {"etcd3": {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}}
"""What README.md says that an extra needs in the environment."""
NEEDS_JAVA = "spark.py"
TOUR_COMMITS = 6


class Installations:
    """Installs one wheel into one empty environment after another."""

    def __init__(self, place: Path, wheel: Path, project: dict[str, Any]) -> None:
        self._place, self._wheel, self._project = place, wheel, project

    @contextmanager
    def installed(self, python: Path, extra: str, versions: str) -> Iterator[Environment]:
        """Give an environment with the wheel and one extra, or none; remove it afterwards.

        `extra` may be several names with commas between them.
        """
        made = Environment.made(self._place / "environment", python)
        requirement = f"snapkv[{extra}] @ {self._wheel.as_uri()}" if extra else str(self._wheel)
        try:
            if versions == NEWEST and not extra:
                made.pip_install(requirement)
            else:
                names = {each.name for each in self.requirements(extra)} - FROM_SOURCE
                made.uv_install([requirement], versions, sorted(names))
            yield made
        finally:
            made.remove()

    def requirements(self, extra: str) -> list[Requirement]:
        """Return what the wheel requires with an extra, also through its own extras."""
        waiting, found, seen = [*self._project["dependencies"]], [], set(extra.split(","))
        extras = self._project["optional-dependencies"]
        for own in seen - {""}:
            waiting += extras[own]
        while waiting:
            each = Requirement(waiting.pop(0))
            if each.name != "snapkv":
                found.append(each)
            for own in sorted(each.extras - seen) if each.name == "snapkv" else ():
                seen.add(own)
                waiting += extras[own]
        return found

    def check(self, made: Environment, extra: str, version: str) -> None:
        """Run what every installation promises, then what the extra adds. Raises `CheckFailed`."""
        made.run("-m", "pip", "check", cwd=made.place)
        shown = call(made.program("snapkv"), "--version", cwd=made.place).strip()
        if shown.split()[-1] != version:
            raise CheckFailed(f"snapkv --version says {shown!r}, not {version}")
        for words in dict.fromkeys([*PROMISES[""], *PROMISES[extra]]):
            self._run(made, words, VARIABLES.get(extra, {}))

    def check_tour(self, made: Environment) -> None:
        """Run `snapkv tour` in a small git clone. Raises `CheckFailed`."""
        clone = self._place / "clone"
        if not clone.exists():
            _make_clone(clone)
        shutil.rmtree(clone / ".git" / "snapkv-tour", ignore_errors=True)
        shown = call(made.program("snapkv"), "tour", cwd=clone)
        if "answers are equal to git's" not in shown:
            raise CheckFailed(f"snapkv tour did not compare with git:\n{shown}")

    def check_floors(self, made: Environment, extra: str) -> None:
        """Raise `CheckFailed` for floors below the lowest versions that can be installed.

        Nothing tries such a floor: another requirement, or a missing wheel, excludes it.
        """
        versions = made.versions()
        wrong = [
            f"{each} installs {found} at the lowest: raise the floor in pyproject.toml"
            for each in self.requirements(extra)
            if (floor := floor_of(each)) is not None
            and (found := versions.get(canonicalize_name(each.name))) is not None
            and Version(found) > floor
        ]
        if wrong:
            raise CheckFailed("\n".join(wrong))

    def _run(self, made: Environment, words: tuple[str, ...], variables: dict[str, str]) -> None:
        name, *rest = words
        if name == NEEDS_JAVA and shutil.which("java") is None:
            raise LeftOut("no Java on this machine: the imports work, no session was started")
        work = self._place / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        made.run("-I", PROGRAMS / name, *rest, cwd=work, variables=variables)


def floor_of(requirement: Requirement) -> Version | None:
    """Return the lowest version that a requirement names, None without one."""
    floors = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
    return max(floors, default=None)


def _make_clone(place: Path) -> None:
    """Make a git repository with a short history."""
    git = ("git", "-c", "user.name=release", "-c", "user.email=release@example.org")
    place.mkdir(parents=True)
    call("git", "init", "--quiet", cwd=place)
    for number in range(TOUR_COMMITS):
        (place / "README.md").write_text(f"version {number}\n")
        (place / f"{number}.txt").write_text("text\n" * number)
        call("git", "add", "--all", cwd=place)
        date = f"{1_600_000_000 + 60 * number} +0000"
        variables = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        call(*git, "commit", "--quiet", f"--message={number}", cwd=place, variables=variables)
