"""The second tour of a clone: it goes on, takes back what others did, or says why it cannot."""

from pathlib import Path

import pytest

import snapkv
from snapkv.cli import git_import
from system.test_tour_history import check_every_commit, inside
from system.tour_clones import Repo, Run, simple_repo

pytestmark = pytest.mark.slow


def present(repo: Repo) -> dict[str, bytes]:
    with snapkv.open(inside(repo), clock=snapkv.ManualClock(2**45)) as store:
        return dict(store.at().items())


def expected(repo: Repo) -> dict[str, bytes]:
    return {path.decode(): content for path, (_, content) in repo.tree("HEAD").items()}


def test_nothing_new(simple: Repo, run: Run) -> None:
    assert run("tour", simple.path).code == 0
    ran = run("tour", simple.path)
    assert ran.code == 0
    assert "holds 5 commits of an earlier tour" in ran.out
    assert "git has no newer ones; --again would make it anew" in ran.out
    check_every_commit(inside(simple), simple)


def test_it_goes_on_with_what_was_committed_since(simple: Repo, run: Run) -> None:
    assert run("tour", simple.path).code == 0
    simple.write("docs/new.md", b"new")
    simple.commit("new", at=simple.now)  # in the very second of the last one
    simple.write("docs/newer.md", b"newer")
    simple.commit("newer")
    ran = run("tour", simple.path)
    assert ran.code == 0
    assert "2 commits of git imported" in ran.out
    check_every_commit(inside(simple), simple)
    assert present(simple) == expected(simple)


def test_history_was_rewritten(simple: Repo, run: Run) -> None:
    assert run("tour", simple.path).code == 0
    last = simple.head()
    simple.git("commit", "--quiet", "--amend", "-m", "better")
    ran = run("tour", simple.path)
    assert ran.code == 3
    assert last[:8] in ran.err
    assert "--again" in ran.err
    assert run("tour", simple.path, "--again").code == 0
    check_every_commit(inside(simple), simple)


def test_a_commit_that_is_an_ancestor_but_not_by_first_parents(simple: Repo, run: Run) -> None:
    simple.git("checkout", "--quiet", "-b", "side")
    simple.write("side", b"s")
    simple.commit("side")
    assert run("tour", simple.path).code == 0
    simple.git("checkout", "--quiet", "main")
    simple.git("merge", "--quiet", "--no-ff", "side", "-m", "merge")
    ran = run("tour", simple.path)
    assert (ran.code, "not in the first-parent history" in ran.err) == (3, True)


def test_the_store_of_another_clone(simple: Repo, tmp_path: Path, run: Run) -> None:
    other = simple_repo(tmp_path / "other", 3)
    other.write("x", b"x")
    other.commit("different")
    assert run("tour", other.path, "--store", tmp_path / "s").code == 0
    ran = run("tour", simple.path, "--store", tmp_path / "s")
    assert (ran.code, "another branch or clone" in ran.err) == (3, True)


def test_changes_by_hand_are_taken_back(simple: Repo, run: Run) -> None:
    assert run("tour", simple.path).code == 0
    with snapkv.open(inside(simple)) as store:
        store.save("README.md", b"scribbled")
        store.remove("docs/1.md")
    ran = run("tour", simple.path)
    assert ran.code == 0
    assert "2 keys had been changed since: taken back" in ran.out
    assert present(simple) == expected(simple)


def test_changes_by_hand_that_are_younger_than_gits_next_commit(simple: Repo, run: Run) -> None:
    assert run("tour", simple.path).code == 0
    with snapkv.open(inside(simple)) as store:
        store.save("README.md", b"scribbled now, years after 2020")
    simple.write("x", b"x")
    simple.commit("older than that")
    ran = run("tour", simple.path)
    assert ran.code == 3
    assert "cannot follow any more" in ran.err
    assert "--again" in ran.err
    ran = run("tour", simple.path, "--again")
    assert (ran.code, "6 commits of git imported" in ran.out) == (0, True)
    check_every_commit(inside(simple), simple)


def test_again_without_a_first_time(simple: Repo, run: Run) -> None:
    assert run("tour", simple.path, "--again").code == 0
    check_every_commit(inside(simple), simple)


def test_an_import_that_was_interrupted(
    simple: Repo, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        note_of = git_import.note_of

        def interrupted(commit: git_import.GitCommit) -> str:
            if commit.subject == "commit 3":
                raise KeyboardInterrupt
            return note_of(commit)

        patch.setattr(git_import, "note_of", interrupted)
        ran = run("tour", simple.path)
    assert ran.code == 130
    assert "another tour goes on from there" in ran.err
    ran = run("tour", simple.path)
    assert ran.code == 0
    assert "holds 3 commits of an earlier tour" in ran.out
    assert "2 commits of git imported" in ran.out
    check_every_commit(inside(simple), simple)


def test_a_restore_that_was_interrupted(
    simple: Repo, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = snapkv.SnapshotKV.restore
    with monkeypatch.context() as patch:

        def once(store: snapkv.SnapshotKV, when: snapkv.When, **words: str) -> snapkv.Commit:
            if "back" in words["note"]:
                raise KeyboardInterrupt
            return restore(store, when, **words)

        patch.setattr(snapkv.SnapshotKV, "restore", once)
        assert run("tour", simple.path).code == 130
    assert present(simple) != expected(simple)
    ran = run("tour", simple.path)
    assert (ran.code, "had been changed since: taken back" in ran.out) == (0, True)
    assert present(simple) == expected(simple)
    check_every_commit(inside(simple), simple)
