"""The release checklist: what it asks of a clone, and that it knows every extra and Python."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from test_extras import FOR_USERS

from tools.release.__main__ import _combinations, _parsed
from tools.release.calls import call
from tools.release.checklist import CheckFailed, Checklist, LeftOut, ToDo
from tools.release.environments import LOWEST, NEWEST, Environment, found_python
from tools.release.installed import PROGRAMS, PROMISES, Installations
from tools.release.sources import Sources

ROOT = Path(__file__).parents[2]
PROJECT = """
[project]
description = "d"
readme = "README.md"
license = "Apache-2.0"
requires-python = ">=3.11"
classifiers = ["Programming Language :: Python :: 3.11", "Programming Language :: Python :: 3.9"]
dependencies = ["a>=1"]
optional-dependencies = {one = ["b>=2"], two = ["c", "snapkv[one]"], test = ["d"]}
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A small clone with a version, a changelog and metadata."""
    (tmp_path / "snapkv" / "base").mkdir(parents=True)
    (tmp_path / "snapkv" / "base" / "version.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.0 (2026-01-31)\n\n## 1.1.0 (x)\n")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=one")
    return tmp_path


def git(place: Path, *words: str) -> None:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *who, *words], check=True, timeout=60, cwd=place)


def test_a_clean_clone_passes(clone: Path) -> None:
    sources = Sources(clone)
    sources.check_tree()
    sources.check_changelog()
    assert sources.version == "1.2.0"


def test_a_changed_tree_fails(clone: Path) -> None:
    (clone / "new.txt").touch()
    with pytest.raises(CheckFailed, match=r"1 files differ(.|\n)*new\.txt"):
        Sources(clone).check_tree()


@pytest.mark.parametrize(
    ("heading", "error"),
    [
        ("## 1.1.0 (2026-01-31)", CheckFailed),
        ("## 1.2.0 (unreleased)", ToDo),
        ("## 1.2.0", CheckFailed),
    ],
)
def test_the_changelog_begins_with_the_version_and_a_date(
    clone: Path, heading: str, error: type[Exception]
) -> None:
    (clone / "CHANGELOG.md").write_text(f"# Changes\n\n{heading}\n")
    with pytest.raises(error):
        Sources(clone).check_changelog()


def test_a_tag_is_of_this_commit(clone: Path) -> None:
    with pytest.raises(ToDo, match=r"git tag --annotate v1\.2\.0"):
        Sources(clone).check_tag()
    git(clone, "tag", "v1.2.0")
    Sources(clone).check_tag()
    git(clone, "commit", "--quiet", "--allow-empty", "--message=two")
    with pytest.raises(CheckFailed, match="raise the version"):
        Sources(clone).check_tag()


def test_metadata_without_urls_is_to_do(clone: Path) -> None:
    wrong = PROJECT.replace(":: 3.9", ":: 3.12")
    (clone / "pyproject.toml").write_text(wrong)
    with pytest.raises(ToDo, match="urls"):
        Sources(clone).check_metadata()
    (clone / "pyproject.toml").write_text(wrong.replace(">=3.11", ">=3.10"))
    with pytest.raises(CheckFailed, match=r"requires-python is 3\.10"):
        Sources(clone).check_metadata()


def test_pythons_are_in_the_order_of_their_numbers(clone: Path) -> None:
    assert Sources(clone).pythons == ["3.9", "3.11"]
    assert Sources(clone).extras == ["one", "two"]


def test_requirements_of_an_extra_include_those_of_extras_in_it(clone: Path) -> None:
    installations = Installations(clone, clone / "a.whl", Sources(clone).project)
    assert [str(each) for each in installations.requirements("")] == ["a>=1"]
    assert [each.name for each in installations.requirements("two")] == ["a", "c", "b"]


def test_each_extra_has_promises_and_their_programs_exist() -> None:
    assert sorted(PROMISES) == sorted(["", "all", *FOR_USERS])
    for words in (words for each in PROMISES.values() for words in each):
        assert (PROGRAMS / words[0]).exists(), words


def test_each_python_and_each_extra_is_tried() -> None:
    sources = Sources(ROOT)
    assert sources.extras == sorted(["all", *FOR_USERS])
    found = list(_combinations(_parsed([]), sources))
    assert {python for python, _, _ in found} == set(sources.pythons)
    for versions in (NEWEST, LOWEST):
        assert {extra for _, extra, v in found if v == versions} == {"", *sources.extras}
    asked = _parsed(["--python", "3.12", "--extra", "", "--versions", LOWEST])
    assert list(_combinations(asked, sources)) == [("3.12", "", LOWEST)]
    for words in (["--versions", LOWEST, "--versions", NEWEST], ["--keep=a", "--keep", "b"]):
        with pytest.raises(SystemExit):
            _parsed(words)


def test_outcomes_are_printed_and_decide() -> None:
    out = io.StringIO()
    checklist = Checklist(out, clock=lambda: 0.0)
    for error in (None, ToDo("a date"), LeftOut("no Python 3.99 on this machine")):
        with checklist.check("one"):
            if error is not None:
                raise error
    assert (checklist.exit_code(final=False), checklist.exit_code(final=True)) == (0, 1)
    with checklist.check("two"):
        raise CheckFailed("wrong\nof all")
    assert checklist.exit_code(final=False) == 1
    assert out.getvalue().splitlines()[2:6] == [
        "          a date",
        "left out  one (0.0 s)",
        "          no Python 3.99 on this machine",
        "FAILED    two (0.0 s)",
    ]
    assert checklist.summary() == "1 ok, 1 FAILED, 1 to do, 1 left out"


def test_a_python_that_is_missing_is_left_out() -> None:
    with pytest.raises(LeftOut, match=r"no Python 3\.99"):
        found_python("3.99")


def test_a_floor_that_cannot_be_installed_is_raised(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installations = Installations(clone, clone / "a.whl", Sources(clone).project)
    made = Environment(clone, Path(sys.executable))
    monkeypatch.setattr(Environment, "versions", lambda _: {"a": "1.0", "b": "2.0.1", "c": "9"})
    installations.check_floors(made, "")
    with pytest.raises(CheckFailed, match=r"^b>=2 installs 2\.0\.1 at the lowest: raise"):
        installations.check_floors(made, "two")


def test_an_environment_says_what_is_installed(tmp_path: Path) -> None:
    found = Environment(tmp_path, Path(sys.executable)).versions()
    assert found["pytest"] == pytest.__version__


def test_a_program_that_fails_is_shown(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"ended with 3:\nwhy"):
        call(sys.executable, "-c", "print('why'); raise SystemExit(3)", cwd=tmp_path)
    with pytest.raises(CheckFailed, match="took more than"):
        call(sys.executable, "-c", "import time; time.sleep(60)", cwd=tmp_path, timeout_s=0.2)
    with pytest.raises(CheckFailed, match="did not start"):
        call(tmp_path / "none", cwd=tmp_path)
    assert call(sys.executable, "-c", "import os; print(os.environ['A'])", cwd=tmp_path,
                variables={"A": "1"}) == "1\n"  # fmt: skip
