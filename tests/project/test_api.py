"""What docs/api.md calls public exists, and the documents use nothing else."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = (
    "snapkv",
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
    "snapkv.engine.errors",
    "cdcmeta.scheduler.transport.local",
    "cdcmeta.scheduler.transport.grpc_post",
)
WHOLE = (
    "snapkv.errors",
    "snapkv.clock",
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
    assert imported_names(module) - {"extra"} == set(imported.__all__)


def imported_names(module: str) -> set[str]:
    path = ROOT.joinpath(*module.split("."), "__init__.py")
    nodes = ast.walk(ast.parse(path.read_text()))
    return {a.name for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names}


def test_the_statement_names_every_public_module() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    unnamed = [module for module in (*LISTED, *WHOLE) if f"`{module}`" not in text]
    assert not unnamed


def test_the_names_that_the_statement_lists_exist(subtests: pytest.Subtests) -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    table = text.partition("| module |")[2].partition("## Provisional")[0]
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
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```(?:python|pycon)\n(.*?)```", path.read_text(), re.DOTALL):
            code = re.sub(r"^(>>> |\.\.\. )", "", block, flags=re.MULTILINE)
            for module in re.findall(
                r"^\s*(?:from|import) ((?:snapkv|cdcmeta)[\w.]*)", code, re.MULTILINE
            ):
                if module not in (*LISTED, *WHOLE):
                    private.append(f"{path.name}: {module}")
    assert not private, f"private modules in documents: {private}"
