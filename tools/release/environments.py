"""The Pythons of this machine, and empty virtual environments."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from tools.release.calls import call
from tools.release.checklist import CheckFailed, LeftOut

NEWEST, LOWEST = "newest", "lowest"
UV = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
FROM_SOURCE = frozenset({"etcd3", "pyspark"})
"""They are published as source only, pure Python; anything else is installed as a wheel."""


def tool(name: str) -> Path:
    """Return a program of the extra `release`, which is installed beside this Python."""
    return Path(sys.executable).parent / name


def found_python(version: str) -> Path:
    """Return the interpreter of a version such as 3.12. Raises `LeftOut` if there is none."""
    for path in _candidates(version):
        try:
            shown = call(
                path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", cwd=Path("/")
            )
        except CheckFailed:
            continue  # a shim of pyenv, for a version that is not selected
        if shown.strip() == version:
            return path
    raise LeftOut(f"no Python {version} on this machine")


def _candidates(version: str) -> Iterator[Path]:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        yield Path(sys.executable)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if (path := Path(folder, f"python{version}")).exists():
            yield path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}*/bin/python"), reverse=True)


@dataclass(frozen=True, slots=True)
class Environment:
    """An empty virtual environment of one Python, outside of the clone."""

    place: Path
    python: Path

    @staticmethod
    def made(place: Path, python: Path) -> Environment:
        """Make it, without any package but pip."""
        if place.exists():
            shutil.rmtree(place)
        call(python, "-m", "venv", place, cwd=place.parent)
        return Environment(place, place / "bin" / "python")

    def pip_install(self, *words: str) -> None:
        """Install as a user does."""
        self.run("-m", "pip", "install", "--quiet", *words, cwd=self.place)

    def uv_install(
        self,
        requirements: Sequence[str],
        versions: str,
        wheels_only: Sequence[str],
        constraints: Path | None = None,
    ) -> None:
        """Install with the newest or the lowest versions of direct requirements.

        Without building `wheels_only`: the lowest version of those is the first with a wheel.
        `constraints` is a file with versions to keep.
        """
        resolution = {NEWEST: "highest", LOWEST: "lowest-direct"}[versions]
        options = [f"--only-binary={name}" for name in wheels_only]
        if constraints is not None:
            options.append(f"--constraint={constraints}")
        call(
            *(tool("uv"), "pip", "install", "--quiet", f"--python={self.python}"),
            *(f"--resolution={resolution}", *options, *requirements),
            cwd=self.place,
            variables=UV,
            timeout_s=3_600,
        )

    def versions(self) -> dict[str, str]:
        """Return the installed packages, by their canonical names, and their versions."""
        code = (
            "from importlib.metadata import distributions as d\n"
            "for each in d(): print(each.name, each.version)"
        )
        lines = self.run("-c", code, cwd=self.place).splitlines()
        return {canonicalize_name(name): version for name, version in map(str.split, lines)}

    def run(
        self,
        *words: str | Path,
        cwd: Path,
        timeout_s: float = 900.0,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run its Python; return what it wrote to stdout. Raises `CheckFailed`."""
        return call(self.python, *words, cwd=cwd, timeout_s=timeout_s, variables=variables)

    def program(self, name: str) -> Path:
        """Return an installed program."""
        return self.place / "bin" / name

    def remove(self) -> None:
        """Remove it from the disk."""
        shutil.rmtree(self.place, ignore_errors=True)
