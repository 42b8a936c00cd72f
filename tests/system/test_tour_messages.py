"""What can be the matter: each says so, says what to do, and ends with a code of its own."""

import os
from pathlib import Path

import pytest

import snapkv
from system.tour_clones import Ran, Repo, Run, simple_repo

pytestmark = pytest.mark.slow


def check(ran: Ran, code: int, *fragments: str) -> None:
    """Check that a tour was refused: with its code, an error of two lines, and these words."""
    assert ran.code == code, ran.out + ran.err
    assert ran.err.startswith("snapkv: ")
    assert ran.err.count("\n") == 2
    assert "Traceback" not in ran.err
    for fragment in fragments:
        assert fragment in ran.err


def test_a_folder_that_is_no_clone(tmp_path: Path, run: Run) -> None:
    check(run("tour", tmp_path), 2, "is not in a git clone", "Name the folder")
    check(run("tour", cwd=tmp_path), 2, ". is not in a git clone")


def test_a_path_that_is_no_folder(tmp_path: Path, run: Run) -> None:
    check(run("tour", tmp_path / "nowhere"), 2, "does not exist")
    (tmp_path / "file").write_bytes(b"")
    check(run("tour", tmp_path / "file"), 2, "is not a folder")


def test_git_is_not_there(simple: Repo, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(simple.path))
    check(run("tour", simple.path), 2, "git is not installed", "Install git")


def test_no_commits_yet(tmp_path: Path, run: Run) -> None:
    check(run("tour", Repo(tmp_path / "new").path), 2, "has no commits yet", "Commit something")


def test_a_shallow_clone_and_its_remedy(simple: Repo, tmp_path: Path, run: Run) -> None:
    shallow = tmp_path / "shallow"
    simple.git("clone", "--quiet", "--depth=2", f"file://{simple.path}", str(shallow))
    ran = run("tour", shallow)
    check(ran, 2, "is a shallow clone", f"git -C {shallow} fetch --unshallow")
    simple.git("-C", str(shallow), "fetch", "--quiet", "--unshallow")
    assert run("tour", shallow).code == 0


def test_a_partial_clone(simple: Repo, run: Run) -> None:
    simple.git("config", "remote.origin.promisor", "true")
    check(run("tour", simple.path), 2, "is a partial clone", "without --filter")


def test_git_fails_in_a_way_that_nobody_foresaw(simple: Repo, run: Run) -> None:
    (simple.path / ".git" / "config").write_bytes(b"[nonsense\n")
    ran = run("tour", simple.path)
    assert ran.code == 2
    assert "git failed with code 128" in ran.err
    assert "bad config line 1" in ran.err


def test_an_object_is_missing(simple: Repo, run: Run) -> None:
    oid = simple.git("rev-parse", "HEAD:docs/3.md").decode().strip()
    (simple.path / ".git" / "objects" / oid[:2] / oid[2:]).unlink()
    check(run("tour", simple.path), 2, f"no content for the object {oid}", "git fsck")


def test_a_commit_too_large_and_its_remedy(simple: Repo, run: Run) -> None:
    simple.write("large/a", os.urandom(300_000))
    simple.write("large/b", os.urandom(300_000))
    oid = simple.commit("Add the data")
    simple.write("small", b"s")
    simple.commit("after it")
    ran = run("tour", simple.path, "--request-bytes-max", "500000")
    check(ran, 2, oid[:8], "(Add the data)", "too large for one transaction", "500,000 are allowed")
    words = ran.err.split()
    remedy = words[words.index("--request-bytes-max") + 1]
    assert 600_000 < int(remedy) < 2_000_000
    with snapkv.open(f"lmdb:{simple.path}/.git/snapkv-tour", create=False) as store:
        assert store.load("README.md") == b"version 4\n"
    again = run("tour", simple.path, "--request-bytes-max", remedy)
    assert (again.code, "holds 5 commits of an earlier tour" in again.out) == (0, True)
    assert "2 commits of git imported" in again.out


def test_a_restore_that_does_not_fit_is_left_out(tmp_path: Path, run: Run) -> None:
    repo = Repo(tmp_path / "clone")
    repo.write("README.md", b"1")
    repo.commit()
    for number in range(4):
        repo.write("data", os.urandom(300_000 + number))
        repo.commit()
    ran = run("tour", repo.path, "--request-bytes-max", "400000")
    assert ran.code == 0
    assert "Restore: not tried, the way there does not fit" in ran.out


@pytest.mark.parametrize("again", [(), ("--again",)])
def test_a_store_folder_that_is_something_else(
    simple: Repo, tmp_path: Path, run: Run, again: tuple[str, ...]
) -> None:
    place = tmp_path / "else"
    place.mkdir()
    (place / "diary.txt").write_bytes(b"dear")
    ran = run("tour", simple.path, "--store", place, *again)
    check(ran, 5, str(place), "holds other files: diary.txt", "--store DIR")
    ran = run("tour", simple.path, "--store", place / "diary.txt", *again)
    check(ran, 5, "is a file", "--store DIR")
    assert [path.name for path in place.iterdir()] == ["diary.txt"]


@pytest.mark.parametrize("again", [(), ("--again",)])
def test_a_store_that_no_tour_made(
    simple: Repo, tmp_path: Path, run: Run, again: tuple[str, ...]
) -> None:
    url = f"lmdb:{tmp_path}/meta"
    with snapkv.open(url) as store:
        store.save("precious", b"v")
    ran = run("tour", simple.path, "--store", url, *again)
    check(ran, 3, "no git history was imported", "--store DIR")
    with snapkv.open(url) as store:
        assert dict(store.at()) == {"precious": b"v"}


def test_a_damaged_store(simple: Repo, run: Run) -> None:
    assert run("tour", simple.path).code == 0
    os.truncate(simple.path / ".git/snapkv-tour/data.mdb", 10_000)
    check(run("tour", simple.path), 5, "is damaged", "Remove that folder")


def test_a_place_that_cannot_be_written(simple: Repo, run: Run) -> None:
    nobody_writes_here = "/sys/snapkv-tour"  # not even root
    check(
        run("tour", simple.path, "--store", nobody_writes_here),
        5,
        "cannot keep its store",
        "--store DIR",
    )


@pytest.mark.parametrize("store", ["memory:", "memory:x", "etcd:host", "lmdb:"])
def test_a_store_that_is_no_folder(simple: Repo, run: Run, store: str) -> None:
    check(run("tour", simple.path, "--store", store), 2, "needs a folder", "--store DIR")


def test_two_tours_at_once(
    simple: Repo, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from snapkv.cli.git_clone import BlobReader

    read = BlobReader.read
    other: list[snapkv.SnapshotKV] = []

    def read_beside_another(self: BlobReader, oids: list[bytes], *bounds: int) -> list[bytes]:
        if not other:
            other.append(snapkv.open(f"lmdb:{simple.path}/.git/snapkv-tour"))
            other[0].space("git").commit(puts={b"commit": b"another tour was here"})
        return read(self, oids, *bounds)

    monkeypatch.setattr(BlobReader, "read", read_beside_another)
    ran = run("tour", simple.path)
    other[0].close()
    check(ran, 3, "another import writes to this store", "Let it finish")


def test_the_messages_are_about_the_clone_given(tmp_path: Path, run: Run) -> None:
    path = simple_repo(tmp_path / "with space", 2).path
    ran = run("tour", path)
    assert ran.out.startswith(f"{path} at ")
    assert f"snapkv --store 'lmdb:{path}/.git/snapkv-tour' log" in ran.out
