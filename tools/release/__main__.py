"""Run the release checklist; `--help` describes the options."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from tools import image
from tools.release.artifacts import Artifacts
from tools.release.checklist import FAILED, CheckFailed, Checklist
from tools.release.environments import LOWEST, NEWEST, found_python
from tools.release.installed import Installations
from tools.release.sources import Sources
from tools.release.tested import check_tests

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks that the command line asks for; return the exit code."""
    given = _parsed(arguments)
    sources, checklist = Sources(ROOT), Checklist()
    with tempfile.TemporaryDirectory(prefix="snapkv-release-") as folder:
        Path(folder).chmod(0o755)  # a test imports the installed packages as another user
        _check_sources(checklist, sources)
        artifacts = Artifacts(Path(folder, "artifacts"), ROOT)
        _check_artifacts(checklist, artifacts, sources)
        if not _has_failed(checklist, "build"):
            place = Path(folder, "installed")
            place.mkdir()
            installations = Installations(place, artifacts.wheel, sources.project)
            for python, extra, versions in _combinations(given, sources):
                _check_installed(checklist, installations, python, extra, versions, sources)
            if given.extra is None and given.versions != NEWEST:
                oldest = sources.pythons[0]
                with checklist.check(f"Python {oldest}, lowest versions: the fast tests"):
                    check_tests(
                        installations, artifacts.exported, found_python(oldest), sources.project
                    )
        if given.keep is not None and not checklist.exit_code(final=given.final):
            shutil.copytree(artifacts.dist, given.keep, dirs_exist_ok=True)
    print(checklist.summary())
    return checklist.exit_code(final=given.final)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--final", action="store_true", help="fail on what is to do or left out")
    parser.add_argument(
        "--keep", action="append", type=Path, help="a folder for the wheel and the sdist"
    )
    parser.add_argument("--python", action="append", help="only these versions: 3.12")
    parser.add_argument("--extra", action="append", help="only these extras; '' is none of them")
    parser.add_argument(
        "--versions", action="append", choices=(NEWEST, LOWEST), help="only these versions"
    )
    given = parser.parse_args(arguments)
    for name in ("keep", "versions"):  # with "store" argparse would drop the first, in silence
        first, *more = getattr(given, name) or [None]
        if more:
            parser.error(f"--{name} is given twice: {first} and {more[-1]}; give it once")
        setattr(given, name, first)
    return given


def _check_sources(checklist: Checklist, sources: Sources) -> None:
    with checklist.check("the tree is clean"):
        sources.check_tree()
    with checklist.check("the changelog begins with this version"):
        sources.check_changelog()
    with checklist.check("the tag is this commit's"):
        sources.check_tag()
    with checklist.check("pyproject.toml has what users need"):
        sources.check_metadata()


def _check_artifacts(checklist: Checklist, artifacts: Artifacts, sources: Sources) -> None:
    with checklist.check("build"):
        artifacts.build()
        artifacts.check_names(sources.version)
    if _has_failed(checklist, "build"):
        return
    with checklist.check("PyPI takes metadata and description"):
        artifacts.check_metadata()
    with checklist.check("wheel and sdist have every file"):
        artifacts.check_files()
    with checklist.check("the image is built, and keeps what docs/howto/run.md says"):
        if image.main([]):
            raise CheckFailed("it does not: see above")


def _combinations(given: argparse.Namespace, sources: Sources) -> Iterator[tuple[str, str, str]]:
    """Yield Python, extra ("" for none) and versions, as far as the command line asks for them.

    Each Python takes the wheel alone, with the newest and the lowest versions. The oldest and the
    newest Python take each extra, the oldest also with the lowest versions.
    """
    oldest, newest = sources.pythons[0], sources.pythons[-1]
    with_extras = {(oldest, NEWEST), (oldest, LOWEST), (newest, NEWEST)}
    for python, versions in product(given.python or sources.pythons, (NEWEST, LOWEST)):
        if given.versions in (None, versions):
            extras = sources.extras if (python, versions) in with_extras else []
            for extra in ("", *extras):
                if given.extra is None or extra in given.extra:
                    yield python, extra, versions


def _check_installed(
    checklist: Checklist,
    installations: Installations,
    python: str,
    extra: str,
    versions: str,
    sources: Sources,
) -> None:
    what = f"with the extra {extra}" if extra else "alone"
    with (
        checklist.check(f"Python {python}, {versions} versions: the wheel {what}"),
        installations.installed(found_python(python), extra, versions) as made,
    ):
        installations.check(made, extra, sources.version)
        if extra in ("", "archive", "spark"):
            installations.check_tour(made)
        if versions == LOWEST and python == sources.pythons[0]:
            installations.check_floors(made, extra)


def _has_failed(checklist: Checklist, name: str) -> bool:
    return any(each.check == name and each.state == FAILED for each in checklist.outcomes)


if __name__ == "__main__":
    sys.exit(main())
