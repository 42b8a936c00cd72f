"""What is built is complete, and works in a virtual environment that has no extra."""

import importlib.util
import os
import subprocess
import sys
import tarfile
import venv
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from test_extras import EXTRAS, FOR_USERS, PROJECT, installed_by

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("packaging")]  # they share what is built

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 300


def call(*words: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        env={**os.environ, **variables},
        cwd=ROOT,
    )


def new_environment(place: Path) -> Path:
    """Make a virtual environment with pip; return its folder of programs."""
    venv.create(place, with_pip=True, symlinks=True)
    return place / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the sdist."""
    place = tmp_path_factory.mktemp("built")
    python: object = sys.executable
    if importlib.util.find_spec("hatchling") is None:  # installed before it was in the extra `test`
        python = new_environment(place / "builder") / "python"
        done = call(python, "-m", "pip", "install", "--quiet", "hatchling")
        assert done.returncode == 0, done.stderr
    done = call(python, "-m", "hatchling", "build", "--directory", place / "dist")
    assert done.returncode == 0, done.stderr
    return place / "dist"


@pytest.fixture(scope="module")
def bare(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with the wheel and what it requires, no more.

    What it requires is linked from the packages of this environment: nothing is downloaded.
    """
    place = tmp_path_factory.mktemp("bare")
    programs = new_environment(place)
    (site,) = place.glob("lib/python*/site-packages")
    for name in installed_by(PROJECT["dependencies"]):
        for file in distribution(name).files or ():
            top = Path(file.parts[0])
            if top.name not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)
    (wheel,) = built.glob("*.whl")
    done = call(programs / "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    assert done.returncode == 0, done.stderr
    return programs


def test_the_sdist_has_what_a_reader_wants(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = (
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "Makefile",
        "mkdocs.yml",
        "docs/cli.md",
        "tests/conftest.py",
        "tools/release/__main__.py",
    )
    assert set(wanted) <= names


def test_the_wheel_has_both_packages_and_sparks_doors(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = (
        *("snapkv/py.typed", "cdcmeta/py.typed", "pyspark_snapkv.py", "pyspark_cdcmeta.py"),
        *(f"snapkv/ui/assets/{name}" for name in ("bar.js", "live.js", "style.css", "icon.svg")),
        *("snapkv/ui/templates/base.html", "snapkv/ui/templates/bar.html"),
        *("cdcmeta/ui/templates/databases.html", "cdcmeta/ui/assets/cdcmeta.css"),
    )
    assert set(wanted) <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "snapkv", "cdcmeta", "pyspark_snapkv.py", "pyspark_cdcmeta.py", "pytest_snapkv.py",
    }  # fmt: skip
    assert any(name.endswith("/LICENSE") for name in names)
    with ZipFile(wheel) as archive:
        (points,) = (name for name in names if name.endswith("/entry_points.txt"))
        assert "[pytest11]\nsnapkv = pytest_snapkv\n" in archive.read(points).decode()


def test_a_bare_installation_is_complete(bare: Path) -> None:
    done = call(bare / "pip", "check")
    assert done.returncode == 0, done.stdout


def test_a_bare_installation_works(bare: Path, tmp_path: Path) -> None:
    store = f"lmdb:{tmp_path / 'meta'}"
    for program in ("snapkv", "cdcmeta"):
        done = call(bare / program, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"Usage: {program}" in done.stdout
    assert call(bare / "cdcmeta", "serve", "--help").returncode == 0
    assert call(bare / "snapkv", "put", "a", "1", "--store", store).returncode == 0
    assert call(bare / "snapkv", "get", "a", SNAPKV_STORE=store).stdout == "1"
    done = call(bare / "cdcmeta", "serve", "--port", "0", SNAPKV_STORE=store)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.endswith("pip install 'snapkv[http]'\n")


def test_the_extra_all_is_all_of_them() -> None:
    (all_,) = (Requirement(each) for each in EXTRAS["all"])
    assert all_.name == "snapkv"
    assert sorted(all_.extras) == FOR_USERS


def test_the_table_of_extras_names_each() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    for extra in [*FOR_USERS, "all"]:
        assert f"| `{extra}` |" in page, f"docs/install.md does not tell of the extra {extra}"
