"""What docs/api.md calls public exists, and the documents use nothing else."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import cdcmeta
import snapkv
from cdcmeta.cli.app import app

ROOT = Path(__file__).parents[2]
STATEMENT = (ROOT / "docs" / "api.md").read_text()
LISTED = (
    "snapkv",
    "snapkv.aio",
    "snapkv.fleet",
    "snapkv.metrics",
    "snapkv.rendering",
    "snapkv.spark",
    "snapkv.ui",
    "cdcmeta",
    "cdcmeta.changes",
    "cdcmeta.generations",
    "cdcmeta.couch_http",
    "cdcmeta.metrics",
    "cdcmeta.scheduler",
    "cdcmeta.scheduler.runtime",
    "cdcmeta.spark",
)
PROVISIONAL = (
    "snapkv.engine.contract",
    "cdcmeta.scheduler.transport.local",
    "cdcmeta.scheduler.transport.grpc_post",
)
PRIVATE = ("snapkv.cli.tour", "snapkv.engine.lmdb", "snapkv.web", "cdcmeta.ui")
"""Packages that other packages of the project import from."""
WHOLE = (
    "snapkv.errors",
    "snapkv.clock",
    "snapkv.codecs",
    "snapkv.hooks",
    "snapkv.model",
    "snapkv.times",
    "snapkv.tuples",
    "snapkv.spark.local",
    "cdcmeta.errors",
    *PROVISIONAL,
)


@pytest.mark.parametrize("module", LISTED)
def test_the_public_names_are_those_imported(module: str) -> None:
    imported = importlib.import_module(module)
    missing = [name for name in imported.__all__ if not hasattr(imported, name)]
    assert not missing
    assert len(set(imported.__all__)) == len(imported.__all__)
    assert imported_names(module) - {"requires_extra"} == set(imported.__all__)


def imported_names(module: str) -> set[str]:
    path = ROOT.joinpath(*module.split("."), "__init__.py")
    nodes = ast.walk(ast.parse(path.read_text()))
    return {a.name for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names}


def test_every_package_with_public_names_is_listed() -> None:
    found = {
        module.name
        for package in (snapkv, cdcmeta)
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        if module.ispkg and hasattr(importlib.import_module(module.name), "__all__")
    }
    assert found | {"snapkv", "cdcmeta"} == {*LISTED, *PRIVATE}


def test_the_statement_names_every_public_module() -> None:
    unnamed = [module for module in (*LISTED, *WHOLE) if f"`{module}`" not in STATEMENT]
    assert not unnamed


@pytest.mark.parametrize("module", LISTED)
def test_the_statement_lists_every_public_name_and_no_other(module: str) -> None:
    tables = re.split(r"^\| [a-z ]*package \|", STATEMENT, flags=re.MULTILINE)[1:]
    rows = dict(row for table in tables for row in names_in(table.partition("\n\n")[0]))
    assert rows.keys() == set(LISTED)
    expected = sorted(importlib.import_module(module).__all__)
    assert rows[module] == expected, f"docs/api.md and {module}.__all__ differ"


def names_in(table: str) -> list[tuple[str, list[str]]]:
    """Return the modules of a table of docs/api.md, and the names that it lists of each."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", table, re.MULTILINE)
    return [(module, re.findall(r"`(\w+)`", names)) for module, names in rows]


def test_the_names_that_the_statement_lists_exist(subtests: pytest.Subtests) -> None:
    table = STATEMENT.partition("| module |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", table, re.MULTILINE)
    assert {module for module, _ in rows} == set(WHOLE) - set(PROVISIONAL)
    for module, names in rows:
        with subtests.test(module=module):
            imported = importlib.import_module(module)
            listed = re.findall(r"`(\w+)`", names)
            assert listed == sorted(listed)
            assert [name for name in listed if not hasattr(imported, name)] == []
            assert listed or "every class" in names


def test_documents_use_public_modules_only() -> None:
    private = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        for block in re.findall(r"```(?:python|pycon)\n(.*?)```", path.read_text(), re.DOTALL):
            code = re.sub(r"^(>>> |\.\.\. )", "", block, flags=re.MULTILINE)
            for module in re.findall(
                r"^\s*(?:from|import) ((?:snapkv|cdcmeta)[\w.]*)", code, re.MULTILINE
            ):
                if module not in (*LISTED, *WHOLE):
                    private.append(f"{path.name}: {module}")
    assert not private, f"private modules in documents: {private}"


@pytest.mark.slow
def test_the_documents_name_every_command_of_cdcmeta() -> None:
    """Those of snapkv have a section each in docs/cli.md, which another test checks."""
    pages = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    lines: list[list[str]] = [[]]
    for line in lines:
        command: Any = get_command(app)
        for word in line:
            command = command.commands[word]
        lines += [[*line, word] for word in getattr(command, "commands", ())]
    commands = [" ".join(line) for line in lines if line]
    assert len(commands) > 10
    assert [each for each in commands if each not in pages] == []
