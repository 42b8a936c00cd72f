"""What docs/api.md calls public exists, and the documents use nothing else."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = (
    "snapkv",
    "snapkv.spark",
    "cdcmeta",
    "cdcmeta.changes",
    "cdcmeta.generations",
    "cdcmeta.couch_http",
    "cdcmeta.scheduler",
    "cdcmeta.spark",
)
WHOLE = (
    "snapkv.errors",
    "snapkv.clock",
    "snapkv.model",
    "snapkv.times",
    "snapkv.tuples",
    "snapkv.spark.local",
    "snapkv.engine.contract",
    "cdcmeta.errors",
)


@pytest.mark.parametrize("module", LISTED)
def test_the_public_names_are_those_imported(module: str) -> None:
    imported = importlib.import_module(module)
    missing = [name for name in imported.__all__ if not hasattr(imported, name)]
    assert not missing
    assert len(set(imported.__all__)) == len(imported.__all__)
    assert imported_names(module) - {"extra"} == set(imported.__all__)


def imported_names(module: str) -> set[str]:
    path = ROOT.joinpath(*module.split("."), "__init__.py")
    nodes = ast.walk(ast.parse(path.read_text()))
    return {a.name for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names}


def test_the_statement_names_every_public_module() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    unnamed = [module for module in (*LISTED, *WHOLE) if f"`{module}`" not in text]
    assert not unnamed


def test_documents_use_public_modules_only() -> None:
    private = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```(?:python|pycon)\n(.*?)```", path.read_text(), re.DOTALL):
            code = re.sub(r"^(>>> |\.\.\. )", "", block, flags=re.MULTILINE)
            for module in re.findall(
                r"^\s*(?:from|import) ((?:snapkv|cdcmeta)[\w.]*)", code, re.MULTILINE
            ):
                if module not in (*LISTED, *WHOLE):
                    private.append(f"{path.name}: {module}")
    assert not private, f"private modules in documents: {private}"
