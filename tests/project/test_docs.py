"""What the documentation shows is what happens: docstrings and README sessions run."""

import doctest
import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import cdcmeta
import snapkv

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    module.name
    for package in (snapkv, cdcmeta)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    if not module.name.endswith("__main__")
)


def test_docstring_examples_run(subtests: pytest.Subtests) -> None:
    for name in MODULES:
        with subtests.test(name=name):
            outcome = doctest.testmod(importlib.import_module(name))
            assert outcome.failed == 0


SESSIONS = [
    "README.md",
    "snapkv/DESIGN.md",
    "cdcmeta/DESIGN.md",
    "docs/tables.md",
    "docs/rendering.md",
    "docs/archive.md",
    "docs/metrics.md",
    "docs/changes.md",
    "docs/generations.md",
    "docs/scheduler.md",
    "docs/scheduler_core.md",
]


@pytest.mark.parametrize("document", SESSIONS)
def test_sessions_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testfile(
        str(ROOT / document), module_relative=False, optionflags=doctest.ELLIPSIS
    )
    assert outcome.attempted > 0, f"{document} shows nothing that runs"
    assert outcome.failed == 0


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/DESIGN.md")]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=str(page.relative_to(ROOT))):
            for target, anchor in LINK.findall(page.read_text()):
                file = page.parent / target if target else page
                assert file.exists(), f"{page}: no {target}"
                assert not anchor or anchor in anchors(file), f"{page}: no #{anchor} in {file.name}"


def test_the_readme_links_every_page() -> None:
    linked = {target for target, _ in LINK.findall((ROOT / "README.md").read_text())}
    pages = {str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md")}
    assert pages <= linked


def test_the_picture_of_the_floors_is_of_these_imports() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_floors.py"))["draw"]()
    assert (ROOT / "docs" / "floors.svg").read_text() == drawn, "run python docs/draw_floors.py"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"[a-z_]+(?:/[a-z_]+)+\.py", (ROOT / page).read_text())
    assert len(named) > 5
    roots = (ROOT, ROOT / "snapkv", ROOT / "cdcmeta" / "scheduler")
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert not missing


def test_public_names_are_documented() -> None:
    for name in dir(snapkv):
        value = getattr(snapkv, name)
        if not name.startswith("_") and isinstance(value, type):
            assert value.__doc__, f"snapkv.{name} has no docstring"


def test_the_readme_names_every_make_target() -> None:
    readme = (ROOT / "README.md").read_text()
    for command in ("make tour", "make test"):
        assert command in readme
