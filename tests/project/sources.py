"""The modules of the project as syntax trees; each is parsed once for all tests of a process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a node that hold statements; no expression holds one."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def statements(path: Path) -> tuple[ast.AST, ...]:
    """Return the statements of a module, and its handlers of exceptions: a tenth of its nodes."""
    return tuple(statements_in(tree(path)))


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    for field in BLOCKS:
        for each in getattr(node, field, ()):
            yield each
            yield from statements_in(each)
