"""The tour's questions to an archive: of a compacted store, held against git."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tour_clones import Ran, Repo, Run

from snapkv.cli.tour import filling

pytestmark = pytest.mark.slow


def rows(ran: Ran) -> list[list[str]]:
    """Return what the archive said: date, files, the store alone, with its archive."""
    _, _, rest = ran.out.partition("What does an archive say, after the store was compacted?\n")
    lines = rest.partition("\n\n")[0].split("\n")[1:]
    return [line.split()[-4:] for line in lines]


def answers(ran: Ran) -> int:
    return int(re.findall(r"\nAll ([0-9,]+) answers", ran.out)[0].replace(",", ""))


def test_it_answers_what_was_compacted(
    odd: Repo, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    quick = run("tour", odd.path)
    ran = run("tour", odd.path, archive=True)
    assert ran.code == 0, ran.out + ran.err
    trees = quick.out.partition("What did the tree look like?\n")[2].partition("\n\n")[0]
    shown = re.findall(r"(\S+Z) .*? +([0-9,]+) +[0-9.,]+ k?B +equal", trees)
    *compacted, newest = rows(ran)
    assert [row[:2] for row in (*compacted, newest)] == [list(row) for row in shown]
    assert [row[2:] for row in compacted] == [["compacted", "equal"]] * len(compacted)
    assert newest[2:] == ["answers", "equal"]
    assert "not needed" not in ran.out
    assert answers(ran) > answers(quick) + 2 * len(shown)
    assert list(scratch.iterdir()) == []


def test_one_commit_is_its_own_history(tmp_path: Path, run: Run) -> None:
    repo = Repo(tmp_path / "one")
    repo.write("f", b"1")
    repo.commit("only")
    ran = run("tour", repo.path, archive=True)
    assert ran.code == 0, ran.out + ran.err
    assert {row[-1] for row in rows(ran) if row[-1] in ("equal", "DIFFERS")} == {"equal"}
    assert "The archive was not needed: all of this history falls on one date" in ran.out


def test_an_archive_that_says_something_else_is_found_out(
    simple: Repo, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here another hand writes into the store before it is recorded."""
    assert run("tour", simple.path).code == 0
    fill = filling.import_history

    def and_more(store: Any, *more: Any, **options: Any) -> Any:
        done = fill(store, *more, **options)
        if "snapkv-tour-" in options["path"]:
            store.save("README.md", b"of another hand")
        return done

    monkeypatch.setattr(filling, "import_history", and_more)
    ran = run("tour", simple.path, archive=True)
    assert ran.code == 1
    verdicts = [row[-1] for row in rows(ran)]
    assert verdicts == ["equal"] * (len(verdicts) - 1) + ["DIFFERS"]
    assert "  archive: the tree at " in ran.out
