"""What a feed received before its server was set back, and brings after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_server import EtcdServer, eventually

import snapkv
from snapkv import Commit, SnapshotKV
from snapkv.engine.etcd.watch_stream import WatchReader
from snapkv.errors import StoreRestoredError
from snapkv.reading.watches import Watch
from snapkv.timeline import continuity

pytestmark = [pytest.mark.slow, pytest.mark.kills_etcd]
WAIT_S = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("node")) as server:
        yield server


def committed(url: str, name: str, *values: bytes) -> list[Commit]:
    """Commit as another process."""
    with snapkv.open(url, name=name) as other:
        return [other.commit(puts={"k": value}) for value in values]


def followed(store: SnapshotKV, old: list[Commit]) -> None:
    """Look up an old time: from then on, a feed follows the other writers."""
    assert store.at(old[0].ts)["k"] == b"base0"
    assert store._core.timeline.tracker._feed.running


def received(store: SnapshotKV, lost: list[Commit]) -> None:
    """Wait until the feed has received commits; no lookup takes them."""
    reader = store._core.timeline.tracker._feed._watcher._watcher._reader  # type: ignore[union-attr]
    eventually(lambda: reader.resume > lost[-1].revision, "the feed has received the commits")


@pytest.mark.parametrize("new", [2, 3, 5])
def test_a_mark_of_the_lost_history_is_not_added_behind_the_newest(
    node: EtcdServer, tmp_path: Path, new: int
) -> None:
    """The head is read first: of what was known before, nothing contradicts it."""
    name, backup = f"behind-{new}", tmp_path / "backup.db"
    with snapkv.open(node.url, name=name) as store:
        base = committed(node.url, name, b"base0", b"base1", b"base2")
        followed(store, base)
        node.gateway.save_snapshot(backup)
        lost = committed(node.url, name, b"lost0", b"lost1")
        received(store, lost)
        node.restore_snapshot(backup)
        later = committed(node.url, name, *(b"new%d" % n for n in range(new)))
        with snapkv.open(node.url, name=name) as fresh:
            check(store, fresh, [*lost, *base, *later, *lost])


@pytest.mark.parametrize("new", [0, 1, 2, 5])
def test_marks_that_go_beyond_the_newest_one_of_the_restored_history(
    node: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: int
) -> None:
    name, backup = f"beyond-{new}", tmp_path / "backup.db"
    with snapkv.open(node.url, name=name) as store:
        base = committed(node.url, name, b"base0", b"base1", b"base2")
        followed(store, base)
        node.gateway.save_snapshot(backup)
        lost = committed(node.url, name, *(b"lost%d" % n for n in range(6)))
        received(store, lost)
        node.restore_snapshot(backup)
        assert store.load("k") == b"base2"  # read with the mark of base2, which is still there
        monkeypatch.setattr(continuity, "GAP_S", WAIT_S)
        later = committed(node.url, name, *(b"new%d" % n for n in range(new)))
        with snapkv.open(node.url, name=name) as fresh:
            check(store, fresh, [*lost, *base, *later, *lost])


def test_a_mark_that_goes_beyond_the_newest_is_checked_by_the_next_read(
    node: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little time has passed since the last check: that was of an older mark.

    The feed's stream is not open again yet.
    """
    name, backup, gate = "next-read", tmp_path / "backup.db", threading.Event()
    follow = WatchReader._follow
    base = committed(node.url, name, *(b"base%d" % n for n in range(40)))
    with snapkv.open(node.url, name=name, ring_slots=2) as store:
        followed(store, base)
        node.gateway.save_snapshot(backup)
        lost = committed(node.url, name, b"lost0", b"lost1")
        received(store, lost)
        monkeypatch.setattr(WatchReader, "_follow", lambda r: gate.wait(WAIT_S) and follow(r))
        node.restore_snapshot(backup)
        later = committed(node.url, name, b"new0", b"new1", b"new2")
        assert store.load("k", base[0].ts) == b"base0"  # with the newest mark, which is still there
        monkeypatch.setattr(continuity, "GAP_S", WAIT_S)
        assert store.load("k", base[20].ts) == b"base20"  # a search, which drains the feed
        with snapkv.open(node.url, name=name) as fresh:
            check(store, fresh, lost[::-1])
            gate.set()
            check(store, fresh, [*base, *later, *lost])


def check(store: SnapshotKV, fresh: SnapshotKV, commits: list[Commit]) -> None:
    """Assert that a store shows what a store shows that was opened after the restore."""
    for commit in commits:
        expected, found = fresh.at(commit.ts), store.at(commit.ts)
        assert found["k"] == expected["k"]
        assert (found.revision, found.final) == (expected.revision, expected.final)
    store._core.timeline.tracker.check()


def take_all(watch: Watch[str], found: list[int]) -> None:
    """Append the timestamps that a watch gives, until it ends with an error."""
    while (changes := watch.next(WAIT_S)) is not None:
        found.append(changes.commit.ts)


@pytest.mark.parametrize("new", [1, 3, 6])
def test_a_watch_ends_where_its_stream_was_opened_again(
    node: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: int
) -> None:
    """It may give what it received before; what follows is of another history."""
    name, backup = f"watch-{new}", tmp_path / "backup.db"
    monkeypatch.setattr(continuity, "LOOK_S", 0.2)
    with snapkv.open(node.url, name=name) as store, store.watch() as watch:
        base = committed(node.url, name, b"base0", b"base1")
        found = [next(watch).commit.ts for _ in base]
        node.gateway.save_snapshot(backup)
        lost = committed(node.url, name, b"lost0", b"lost1")
        reader = watch._watcher._watcher._reader
        eventually(lambda: reader.resume > lost[-1].revision, "the watch has received them")
        node.restore_snapshot(backup)
        later = committed(node.url, name, *(b"new%d" % n for n in range(new)))
        eventually(lambda: reader.reopened, "its stream was opened again")
        eventually(lambda: reader.resume > later[-1].revision, "it has received what is new")
        with pytest.raises(StoreRestoredError):
            take_all(watch, found)
        assert found == [commit.ts for commit in [*base, *lost]]
