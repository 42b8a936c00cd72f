"""The documentation is right: examples of docstrings run, links lead somewhere."""

import doctest
import importlib
import pkgutil
import re
import runpy
import subprocess
from pathlib import Path

import pytest

import cdcmeta
import snapkv
from tests.project.pages import ROOT, page_files

pytestmark = pytest.mark.slow

MODULES = sorted(
    module.name
    for package in (snapkv, cdcmeta)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    if not module.name.endswith("__main__")
)


def test_docstring_examples_run(subtests: pytest.Subtests) -> None:
    for name in MODULES:
        with subtests.test(name=name):
            module, runner = importlib.import_module(name), doctest.DocTestRunner()
            for found in doctest.DocTestFinder().find(module):
                if found.examples:  # each run looks for changes of every file that was imported
                    runner.run(found)
            assert runner.failures == 0


README_LINES_MAX = 110
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere(subtests: pytest.Subtests) -> None:
    for page in page_files():
        with subtests.test(page=str(page.relative_to(ROOT))):
            for target, anchor in LINK.findall(page.read_text()):
                file = page.parent / target if target else page
                assert file.exists(), f"{page}: no {target}"
                assert not anchor or anchor in anchors(file), f"{page}: no #{anchor} in {file.name}"


def test_the_index_links_every_page() -> None:
    linked = {target for target, _ in LINK.findall((ROOT / "docs/index.md").read_text())}
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    assert pages - {"index.md"} <= linked


def test_the_site_has_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in ROOT.glob("docs/**/*.md"):
        assert f" {page.relative_to(ROOT / 'docs')}\n" in navigation, f"{page} is not in mkdocs.yml"


PUBLIC = [
    *(f"snapkv.{name}" for name in snapkv.__all__ if not name.startswith("_")),
    *(f"snapkv.fleet.{name}" for name in snapkv.fleet.__all__),
    *("cdcmeta", "cdcmeta.couch_http", "cdcmeta.generations", "cdcmeta.scheduler"),
    *(
        "cdcmeta.scheduler.runtime",
        "cdcmeta.spark",
        "snapkv.rendering",
        "snapkv.spark",
        "snapkv.ui",
    ),
    *("snapkv.errors", "cdcmeta.errors"),
]


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    errors = {f"snapkv.{name}" for name in vars(snapkv.errors)}
    assert set(PUBLIC) - errors <= shown


def test_the_readme_is_one_screen_and_leads_on() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= README_LINES_MAX, "move details to a page of docs/"
    assert "](docs/index.md)" in readme


def test_the_picture_of_the_floors_is_of_these_imports() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_floors.py"))["draw"]()
    assert (ROOT / "docs" / "floors.svg").read_text() == drawn, "run python docs/draw_floors.py"


def test_the_pictures_of_the_ideas_are_those_that_the_script_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_ideas.py"))["pictures"]()
    for file, text in drawn.items():
        assert file.read_text() == text, "run python docs/draw_ideas.py"
        assert f"({file.name})" in file.with_suffix(".md").read_text(), f"no page shows {file.name}"


def test_pictures_load_nothing() -> None:
    for file in ROOT.glob("docs/**/*.svg"):
        assert not re.search(r"(?:href=.|url\(.?)(?:https?:)?//", file.read_text()), file


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


HELP = dict(re.findall(r'@echo "make ([\w-]+)  +(.*)"', (ROOT / "Makefile").read_text()))
"""What `make help` says of each target."""


def test_the_documents_and_the_help_name_every_make_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(text.partition(".PHONY: ")[2].partition("\n")[0].split())
    assert set(HELP) == phony - {"help", "java-found"}
    pages = ("README.md", "CONTRIBUTING.md", "docs/install.md")
    documents = "".join((ROOT / page).read_text() for page in pages)
    assert not [each for each in HELP if each != "clean" and f"make {each}" not in documents]


def test_only_the_tour_of_spark_downloads_spark() -> None:
    def commands(target: str) -> str:
        done = subprocess.run(
            ["make", "--no-print-directory", "--dry-run", target, f"VENV={ROOT / '.venv-no'}"],
            capture_output=True, text=True, timeout=60, cwd=ROOT, check=True,
        )  # fmt: skip
        return done.stdout

    assert "spark" not in commands("tour")
    assert "--editable .\n" in commands("tour")
    assert commands("tour").rstrip().endswith("snapkv tour")
    assert "spark" not in commands("tour-all")
    assert "'.[spark]'" in commands("tour-spark")
    assert commands("tour-spark").rstrip().endswith("-m system.everything")


def test_the_glossary_explains_the_words_that_it_refers_to() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    explained = {word.lower() for word in re.findall(r"\*\*([^*]+)\*\*", text)}
    referred = set(re.findall(r"(?<!\*)\*([a-z][a-z ]+)\*(?!\*)", text.partition("\n## ")[2]))
    assert len(referred) > 10
    assert not {word for word in referred if word not in explained | {f"{e}s" for e in explained}}
