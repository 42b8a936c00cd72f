"""House style that a machine can see; each message names the mend. The limits only go down."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.sources import statements

pytestmark = pytest.mark.xdist_group("sources")  # parsed once

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 700
TEST_FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 62

SOURCES = [
    path
    for package in ("snapkv", "cdcmeta", "benchmarks", "tools")
    for path in sorted((ROOT / package).rglob("*.py"))
]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in statements(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_a_file_is_one_noun(subtests: pytest.Subtests) -> None:
    for path in SOURCES:
        with subtests.test(path=relative(path)):
            lines = len(path.read_text().splitlines())
            assert lines <= FILE_LINES_MAX, (
                f"{relative(path)} has {lines} lines: which nouns are in it?"
            )
    for path in sorted((ROOT / "tests").rglob("*.py")):
        with subtests.test(path=relative(path)):
            lines = len(path.read_text().splitlines())
            assert lines <= TEST_FILE_LINES_MAX or "node_modules" in path.parts, (
                f"{relative(path)} has {lines} lines: which nouns does it test?"
            )


def test_a_function_fits_a_screen(subtests: pytest.Subtests) -> None:
    for path in SOURCES:
        with subtests.test(path=relative(path)):
            for function in functions(path):
                docstring = ast.get_docstring(function, clean=False)
                lines = (function.end_lineno or 0) - function.lineno + 1
                lines -= len(docstring.splitlines()) if docstring else 0
                assert lines <= FUNCTION_LINES_MAX, (
                    f"{relative(path)}: {function.name} has {lines} lines without its docstring: "
                    "let the parent decide and helpers compute"
                )


def test_every_error_is_typed(subtests: pytest.Subtests) -> None:
    for path in SOURCES:
        with subtests.test(path=relative(path)):
            for node in statements(path):
                if isinstance(node, ast.ExceptHandler) and node.type is None:
                    raise AssertionError(
                        f"{relative(path)}:{node.lineno}: a bare except hides mistakes"
                    )
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    name = getattr(node.exc.func, "id", "")
                    assert name not in ("Exception", "RuntimeError"), (
                        f"{relative(path)}:{node.lineno}: raise an error class of the package"
                    )


def test_the_changelog_tells_of_this_version() -> None:
    import snapkv

    assert f"## {snapkv.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_path_of_a_machine_is_in_the_project() -> None:
    bad = ("/work" + "/", "/root" + "/", "/home" + "/")
    for path in [*SOURCES, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        text = path.read_text()
        for fragment in bad:
            assert fragment not in text, f"{relative(path)} names {fragment}"
