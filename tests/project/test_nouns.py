"""One noun, one home: names that exist twice, halves of classes, and small files only get fewer.

`nouns.txt` lists what is left, a line each: `class NAME`, `file NAME`, `small PATH`, `half NAME`.
A new one is a fault; one that is mended is removed from the list.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.project import sources

pytestmark = pytest.mark.xdist_group("sources")  # parsed once

ROOT = Path(__file__).parents[2]
LISTED = (Path(__file__).with_name("nouns.txt")).read_text().splitlines()
SMALL_LINES = 75
ALONE = {"__init__", "__main__", "version"}
PATHS = [
    path.relative_to(ROOT)
    for package in ("snapkv", "cdcmeta")
    for path in sorted((ROOT / package).rglob("*.py"))
]
FILES = [path for path in PATHS if path.stem not in ALONE]


@cache
def modules() -> dict[Path, ast.Module]:
    return {path: sources.tree(ROOT / path) for path in PATHS}


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """The public classes of a module's top level."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def bases(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        base = base.value if isinstance(base, ast.Subscript) else base
        yield base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


@cache
def names(path: Path) -> set[str]:
    """The names that a module imports or uses."""
    found = set()
    for node in ast.walk(modules()[path]):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            found |= {each.name for each in node.names}
    return found


def users(name: str) -> list[Path]:
    return [path for path in PATHS if name in (ROOT / path).read_text() and name in names(path)]


def twice() -> Iterator[str]:
    """The names of classes in several modules, and of files in several folders.

    What is awaited has the name of what it awaits, in `snapkv/aio`.
    """
    pairs = [path for path in PATHS if path.parts[:2] != ("snapkv", "aio")]
    defined = Counter(node.name for path in pairs for node in classes(modules()[path]))
    for name in sorted(defined):
        if defined[name] > 1:
            yield f"class {name}"
    files = Counter(path.name for path in FILES if path in pairs)
    for name in sorted(files):
        if files[name] > 1:
            yield f"file {name}"


DOORS = (
    "snapkv/cli/command_kit.py",
    "snapkv/copying/copying_kit.py",
    "snapkv/spark/source_kit.py",
    "snapkv/ui/view_kit.py",
)
"""They only name what cdcmeta takes from other modules (tests/project/test_floors.py)."""


def small() -> Iterator[str]:
    for path in FILES:
        if str(path) not in DOORS and len((ROOT / path).read_text().splitlines()) < SMALL_LINES:
            yield f"small {path}"


def halves() -> Iterator[str]:
    """Classes whose only user is their one subclass, in another file of the same folder."""
    homes: dict[str, list[Path]] = defaultdict(list)
    children: dict[str, list[Path]] = defaultdict(list)
    for path, tree in modules().items():
        for node in classes(tree):
            homes[node.name].append(path)
            for base in bases(node):
                children[base].append(path)
    for name in sorted(homes):
        if len(homes[name]) == len(children[name]) == 1:
            home, child = homes[name][0], children[name][0]
            if home != child and home.parent == child.parent and users(name) == [child]:
                yield f"half {name}"


@pytest.mark.slow
def test_no_noun_gets_a_second_home() -> None:
    found, listed = {*twice(), *small(), *halves()}, set(LISTED)
    assert sorted(found - listed) == [], "put it into the module it belongs to, or rename it"
    assert sorted(listed - found) == [], "is mended: remove the line"
