"""The tour on etcd: the same history, answers and words, in an etcd that others use too."""

from pathlib import Path

import pytest
from etcd_server import EtcdServer

import snapkv
from snapkv.engine.etcd import cluster_client
from system.test_tour_history import check_every_commit
from system.tour_clones import Repo, Run

pytestmark = pytest.mark.slow


def test_a_strange_history_on_etcd(odd: Repo, run: Run, etcd: EtcdServer) -> None:
    """The very checks that the tour on lmdb has to pass."""
    ran = run("tour", odd.path, "--store", etcd.url)
    assert ran.code == 0, ran.out + ran.err
    check_every_commit(etcd.url, odd, name="tour")
    assert "answers are equal to git's" in ran.out
    assert f"of git imported into {etcd.url} in " in ran.out
    assert "Restored to " in ran.out
    assert odd.git("status", "--porcelain", "--ignored") == b""
    assert not (odd.path / ".git" / "snapkv-tour").exists()


def test_what_it_tells_to_try_works(simple: Repo, run: Run, etcd: EtcdServer) -> None:
    ran = run("--store", etcd.url, "tour", simple.path)
    assert ran.code == 0, ran.out + ran.err
    commands = [line for line in ran.out.partition("Try next:")[2].splitlines() if line]
    assert len(commands) == 6
    for line in commands[1:]:  # the first one is the page
        words = line[line.index("--store") :].split()
        tried = run(*words)
        assert (tried.code, bool(tried.out)) == (0, True), words


def test_it_goes_on_and_begins_anew(
    simple: Repo, run: Run, etcd: EtcdServer, tmp_path: Path
) -> None:
    with snapkv.open(etcd.url, name="plans") as neighbour:
        neighbour.save("a", b"1")
        etcd.gateway.put(b"tourist", b"not below tour/")
        assert run("tour", simple.path, "--store", etcd.url, "--again").code == 0
        simple.write("new", b"new")
        simple.commit("new")
        ran = run("tour", simple.path, "--store", etcd.url)
        assert "holds 5 commits of an earlier tour" in ran.out
        assert "1 commit of git imported" in ran.out
        simple.git("commit", "--quiet", "--amend", "-m", "better")
        assert run("tour", simple.path, "--store", etcd.url).code == 3
        ran = run("tour", simple.path, "--store", etcd.url, "--again")
        assert (ran.code, "6 commits of git imported" in ran.out) == (0, True), ran.err
        assert "answers are equal to git's" in ran.out
        with snapkv.open(etcd.url, name="tour", max_clock_skew=10**9) as store:
            notes = [(c.note or "")[:8] for c in store.commits()]
        assert notes[: len(simple.dates())] == [oid[:8] for oid, _ in simple.dates()]
        assert neighbour.load("a") == b"1"
    assert etcd.gateway.get(b"tourist") is not None


def test_a_store_of_somebody_else_is_left_alone(simple: Repo, run: Run, etcd: EtcdServer) -> None:
    with snapkv.open(etcd.url, name="tour") as store:
        store.save("mine", b"1")
        for words in ([], ["--again"]):
            ran = run("tour", simple.path, "--store", etcd.url, *words)
            assert (ran.code, "no git history was imported" in ran.err) == (3, True)
        assert dict(store.at().items()) == {"mine": b"1"}


def test_a_commit_too_large_for_the_server(simple: Repo, run: Run, etcd: EtcdServer) -> None:
    simple.write("large", b"x" * 2_000_000)
    simple.commit("large")
    ran = run("tour", simple.path, "--store", etcd.url)
    assert ran.code == 2
    assert "1,572,864 are allowed" in ran.err
    assert "--max-request-bytes" in ran.err


def test_nobody_there(
    simple: Repo, run: Run, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "READ_TIMEOUT_S", 1.0)
    etcd.stop()
    ran = run("tour", simple.path, "--store", etcd.url)
    assert (ran.code, ran.out.count("\n"), ran.err.count("\n")) == (7, 1, 1)
