"""The wheel and the sdist of the last commit."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

from tools.release.calls import call
from tools.release.checklist import CheckFailed
from tools.release.environments import tool

IN_SDIST = ("README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "Makefile")

SPARKS_DOORS = {
    "snapkv/spark/pyspark_snapkv.py": "pyspark_snapkv.py",
    "cdcmeta/spark/pyspark_cdcmeta.py": "pyspark_cdcmeta.py",
}
"""Files that the wheel has elsewhere: where Spark looks for data sources."""


class Artifacts:
    """A folder with a wheel and an sdist that `build` made from an export of the last commit."""

    def __init__(self, place: Path, root: Path) -> None:
        self.place, self._root = place, root
        self.exported, self.dist = place / "source", place / "dist"

    @property
    def wheel(self) -> Path:
        """The wheel. Raises `CheckFailed` if there is none."""
        return self._one("*.whl")

    @property
    def sdist(self) -> Path:
        """The sdist. Raises `CheckFailed` if there is none."""
        return self._one("*.tar.gz")

    def build(self) -> None:
        """Build both from committed files alone, and the wheel from the sdist."""
        self.exported.mkdir(parents=True)
        archive = self.place / "source.tar"
        call("git", "archive", f"--output={archive}", "HEAD", cwd=self._root)
        with tarfile.open(archive) as tar:
            tar.extractall(self.exported, filter="data")
        call(sys.executable, "-m", "build", f"--outdir={self.dist}", self.exported, cwd=self.place)

    def check_names(self, version: str) -> None:
        """Raise `CheckFailed` unless both have the version in their names."""
        expected = {f"snapkv-{version}-py3-none-any.whl", f"snapkv-{version}.tar.gz"}
        found = {self.wheel.name, self.sdist.name}
        if found != expected:
            raise CheckFailed(f"built {sorted(found)}, not {sorted(expected)}")

    def check_metadata(self) -> None:
        """Raise `CheckFailed` if PyPI would reject the metadata or the description."""
        call(tool("twine"), "check", "--strict", self.wheel, self.sdist, cwd=self.place)

    def check_files(self) -> None:
        """Raise `CheckFailed` unless the wheel has every file of both packages, and no other."""
        with ZipFile(self.wheel) as wheel:
            names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        expected = set(SPARKS_DOORS.values())
        for package in ("snapkv", "cdcmeta"):
            files = (self.exported / package).rglob("*")
            expected |= {str(p.relative_to(self.exported)) for p in files if p.is_file()}
        expected -= set(SPARKS_DOORS)
        if names != expected:
            raise CheckFailed(f"the wheel's files differ: {sorted(names ^ expected)[:10]}")
        with tarfile.open(self.sdist) as sdist:
            packed = {name.partition("/")[2] for name in sdist.getnames()}
        missing = [name for name in IN_SDIST if name not in packed]
        if missing:
            raise CheckFailed(f"the sdist lacks {', '.join(missing)}")

    def _one(self, pattern: str) -> Path:
        found = list(self.dist.glob(pattern))
        if len(found) != 1:
            raise CheckFailed(f"nothing was built: {len(found)} files {pattern}")
        return found[0]
