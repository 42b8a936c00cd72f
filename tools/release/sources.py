"""Statements of the clone: its tree, its version, its changelog, its metadata."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from tools.release.calls import call
from tools.release.checklist import CheckFailed, ToDo

_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_HEADING = re.compile(r"^## (\S+) \(([^)]*)\)$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class Sources:
    """A clone of the project."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project: dict[str, Any] = tomllib.loads(self._text("pyproject.toml"))["project"]

    @property
    def version(self) -> str:
        """The version in `snapkv/base/version.py`. Raises `CheckFailed`."""
        found = _VERSION.search(self._text("snapkv/base/version.py"))
        if found is None:
            raise CheckFailed('snapkv/base/version.py has no line __version__ = "..."')
        return found[1]

    @property
    def extras(self) -> list[str]:
        """The extras for users, without those for developers."""
        developers = {"test", "lint", "docs", "bench", "release"}
        return sorted(set(self.project["optional-dependencies"]) - developers)

    @property
    def pythons(self) -> list[str]:
        """The versions of Python that the classifiers name, oldest first."""
        prefix = "Programming Language :: Python :: 3."
        found = [each for each in self.project["classifiers"] if each.startswith(prefix)]
        return sorted((each.rpartition(" ")[2] for each in found), key=lambda v: int(v[2:]))

    def check_tree(self) -> None:
        """Raise `CheckFailed` if a file differs from the last commit."""
        changed = call("git", "status", "--porcelain", cwd=self.root).splitlines()
        if changed:
            shown = "\n".join(changed[:10])
            raise CheckFailed(f"{len(changed)} files differ from the last commit:\n{shown}")

    def check_changelog(self) -> None:
        """Raise `CheckFailed` unless the first heading is this version; `ToDo` without a date."""
        found = _HEADING.search(self._text("CHANGELOG.md"))
        if found is None:
            raise CheckFailed("CHANGELOG.md has no heading '## VERSION (DATE)'")
        version, date = found[1], found[2]
        if version != self.version:
            raise CheckFailed(
                f"the newest heading of CHANGELOG.md is {version}, snapkv/base/version.py has "
                f"{self.version}: change one of them"
            )
        if _DATE.fullmatch(date) is None:
            raise ToDo(f"CHANGELOG.md says {version} ({date}): write the date, as 2026-01-31")

    def check_tag(self) -> None:
        """Raise `CheckFailed` if the version is the tag of another commit; `ToDo` without it."""
        tag = f"v{self.version}"
        if not call("git", "tag", "--list", tag, cwd=self.root).strip():
            raise ToDo(f"no tag {tag}: git tag --annotate {tag}")
        tagged = call("git", "rev-parse", f"{tag}^{{commit}}", cwd=self.root)
        if tagged != call("git", "rev-parse", "HEAD", cwd=self.root):
            raise CheckFailed(f"{tag} is the tag of another commit: raise the version")

    def check_metadata(self) -> None:
        """Raise `CheckFailed` for metadata that users need, `ToDo` without project URLs."""
        needed = ("description", "readme", "license", "requires-python", "classifiers")
        missing = [name for name in needed if not self.project.get(name)]
        if missing:
            raise CheckFailed(f"pyproject.toml lacks {', '.join(missing)}")
        oldest = self.project["requires-python"].removeprefix(">=")
        if self.pythons[0] != oldest:
            raise CheckFailed(
                f"requires-python is {oldest}, the oldest classifier {self.pythons[0]}"
            )
        if not self.project.get("urls"):
            raise ToDo(
                "pyproject.toml has no [project.urls]: add Source, Issues and Changelog, and to "
                "SECURITY.md an address for reports"
            )

    def _text(self, name: str) -> str:
        return (self.root / name).read_text()
