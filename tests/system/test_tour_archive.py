"""The questions of a clone's tour, asked of a compacted store with its archive."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from snapkv.cli import git_import
from snapkv.cli.tour.examiner import AskedDate, TourReport
from system.everything import clone_archived
from system.everything.clone_exam import filled
from system.everything.clones import clones_of
from system.tour_clones import Repo

pytestmark = pytest.mark.slow

NOW_MS = 2_000_000_000_000


def asked(repo: Repo, folder: Path) -> tuple[TourReport, list[AskedDate], list[AskedDate]]:
    """Return the report of an archive, all moments, and those that the store has compacted."""
    (toured,) = clones_of([str(repo.path)], NOW_MS)
    with filled(toured, str(folder)) as (examiner, _):
        compacted = clone_archived.ask(examiner)
        return examiner.report, examiner.moments, compacted


def test_it_answers_what_was_compacted(
    odd: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    report, moments, compacted = asked(odd, tmp_path / "store")
    assert (report.mismatches, compacted) == ([], moments[:-1])
    assert len(moments) == 7
    assert report.answers > 2 * len(moments)
    assert list(scratch.iterdir()) == []


def test_one_commit_is_its_own_history(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "one")
    repo.write("f", b"1")
    repo.commit("only")
    report, _, compacted = asked(repo, tmp_path / "store")
    assert (report.mismatches, report.answers > 0) == ([], True)
    assert all(moment.index < 0 for moment in compacted)


def test_an_archive_that_says_something_else_is_found_out(
    simple: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here another hand writes into the store before it is recorded."""
    fill = git_import.import_history

    def and_more(store: Any, *more: Any, **options: Any) -> Any:
        done = fill(store, *more, **options)
        if "snapkv-tour-" in store.reader.url:
            store.save("README.md", b"of another hand")
        return done

    monkeypatch.setattr(git_import, "import_history", and_more)
    report, moments, _ = asked(simple, tmp_path / "store")
    assert {(wrong.question, wrong.key) for wrong in report.mismatches} >= {
        (f"archive: the tree at {moments[-1].date}", "README.md")
    }
    trees = [wrong.question for wrong in report.mismatches if "the tree at" in wrong.question]
    assert trees == [f"archive: the tree at {moments[-1].date}"]
