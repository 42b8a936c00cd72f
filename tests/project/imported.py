"""The modules of both packages, and what each imports."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.project.sources import statements

ROOT = Path(__file__).parents[2]


def found_modules() -> Iterator[tuple[str, Path]]:
    for package in ("snapkv", "cdcmeta"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@cache
def modules() -> list[tuple[str, Path]]:
    return list(found_modules())


@cache
def imports(path: Path) -> list[str]:
    return list(found_imports(path))


def found_imports(path: Path) -> Iterator[str]:
    for node in statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in NAMES else node.module


def root_of(module: str) -> str:
    return module.partition(".")[0]


NAMES = {name for name, _ in modules()}
