"""A cluster that was set back to a backup under open stores, on the same ports."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_protocol import History
from etcd_server import EtcdCluster, EtcdProxy, EtcdServer
from sampling import some

import snapkv
from snapkv import Absent, AtRevision, Commit, ConflictError, Snapshot, SnapshotKV
from snapkv.base.waiting import monotonic
from snapkv.errors import StoreRestoredError
from snapkv.reading.watches import Watch

COMMITS, SAVED = 12, 6
WAIT_S = 20

RAISED_BY = 1_000_000_000
RAISED = (f"--bump-revision={RAISED_BY}", "--mark-compacted")

pytestmark = [pytest.mark.slow, pytest.mark.kills_etcd]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def written(store: SnapshotKV, backup: Path, cluster: EtcdCluster) -> list[Commit]:
    """Commit a dozen times, with a backup in the middle."""
    commits = []
    for n in range(COMMITS):
        commits.append(store.commit(puts={"k": b"%d" % n, f"n{n}": b""}))
        if n == SAVED - 1:
            cluster.leader().gateway.save_snapshot(backup)
    return commits


def check_refusal(snap: Snapshot[str], store: SnapshotKV) -> None:
    for read in (
        lambda: snap["k"],
        lambda: len(snap),
        lambda: list(snap.items()),
        lambda: list(snap.diff(store.at())),
    ):
        with pytest.raises(StoreRestoredError):
            read()


@pytest.mark.parametrize("first", ["store", "snapshot", "commit"])
@pytest.mark.parametrize("same_cluster", [True, False])
def test_open_snapshots_say_so_and_the_store_goes_on(
    nodes: EtcdCluster, tmp_path: Path, same_cluster: bool, first: str
) -> None:
    """Whoever notices first: a read, a snapshot from before, or a commit."""
    name = f"restored-{first}-{same_cluster}"
    backup = tmp_path / f"{name}.db"
    with snapkv.open(nodes.url, name=name) as store:
        commits = written(store, backup, nodes)
        snaps = [store.at(commits[2].ts), store.at(commits[SAVED + 2].ts), store.at()]
        assert [snap["k"] for snap in snaps] == [b"2", b"8", b"11"]
        cluster_id = store.info()["engine"]["cluster"]
        nodes.restore_snapshot(backup, token=None if same_cluster else f"token of {name}")
        if first == "store":
            assert store.load("k") == b"5"
        elif first == "snapshot":
            check_refusal(snaps[1], store)
        else:
            store.commit(puts={"k": b"after"}, guards=[Absent(f"n{SAVED}")])
        assert store.resolved() is not None
        for snap in snaps:
            check_refusal(snap, store)
        assert (store.info()["engine"]["cluster"] == cluster_id) == same_cluster
        check_going_on(store, commits, nodes)


def check_going_on(store: SnapshotKV, commits: list[Commit], cluster: EtcdCluster) -> None:
    """Assert that the past that is left can be read, and the future be written."""
    for n, commit in enumerate(commits[:SAVED]):
        assert store.at(commit.ts)["k"] == b"%d" % n
        assert store.at(commit.ts).revision == commit.revision
    assert f"n{SAVED}" not in store.at()
    again = store.commit(puts={"k": b"new"}, guards=[Absent(f"n{SAVED}")])
    assert again.ts > commits[-1].ts, "timestamps never go back, whatever the cluster does"
    with pytest.raises(ConflictError):
        store.commit(puts={"k": b"newer"}, guards=[AtRevision("k", commits[SAVED - 1].revision)])
    assert store.at(again.ts)["k"] == b"new"
    found = [commit.ts for commit in store.commits()]
    assert found[:SAVED] == [commit.ts for commit in commits[:SAVED]]
    assert found[-1] == again.ts
    assert not set(found) & {commit.ts for commit in commits[SAVED:]}
    node = cluster.nodes[0]
    head = History(node.gateway, node.client_port, first=again.revision)
    assert [change.revision for change in head.changes] == [again.revision] * 2
    store._core.timeline.tracker.check()


def test_a_commit_of_unknown_outcome_from_before(nodes: EtcdCluster, tmp_path: Path) -> None:
    """What the backup does not hold has not happened, and never will."""
    backup = tmp_path / "unknown.db"
    with snapkv.open(nodes.url, name="unknown") as store:
        commits = written(store, backup, nodes)
        stamps = {c.ts: s.nonce for c in commits for s in _stamps(store, c)}
        nodes.restore_snapshot(backup)
        kept, lost = commits[SAVED - 1], commits[SAVED + 1]
        with snapkv.open(nodes.url, name="unknown") as other:
            assert other.resolve(kept.ts, stamps[kept.ts]).revision == kept.revision
            assert other.resolve(lost.ts, stamps[lost.ts]) is None
        assert store.resolve(kept.ts, stamps[kept.ts]).revision == kept.revision
        assert store.resolve(lost.ts, stamps[lost.ts]) is None


def _stamps(store: SnapshotKV, commit: Commit):
    found = store._core.timeline.find(commit.ts)
    assert found is not None
    return [found[1]]


# --- one server, set back and written to beyond the old head while nobody looked ---


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("node")) as server:
        yield server


def committed(store: SnapshotKV, value: bytes, count: int) -> list[Commit]:
    return [store.commit(puts={"k": value + b"%d" % n}) for n in range(count)]


@pytest.mark.long_after(6)
@pytest.mark.parametrize("first", ["now", "snapshot", "page", "past", "commit"])
@pytest.mark.parametrize("slots", [1_024, 1])
def test_an_idle_store_notices_a_restore_that_was_caught_up_with(
    node: EtcdServer, tmp_path: Path, first: str, slots: int
) -> None:
    name, backup = f"idle-{first}-{slots}", tmp_path / "backup.db"
    with snapkv.open(node.url, name=name) as writer:
        base = committed(writer, b"base", 3)
        node.gateway.save_snapshot(backup)
        old = committed(writer, b"old", 20)
    with snapkv.open(node.url, name=name, ring_slots=slots) as store:
        snaps = [store.at(old[4].ts), store.at()]
        assert [snap["k"] for snap in snaps] == [b"old4", b"old19"]
        assert [store.load("k", c.ts) for c in old] == [b"old%d" % n for n in range(20)]
        node.restore_snapshot(backup)
        with snapkv.open(node.url, name=name) as other:
            new = committed(other, b"new", 40)
        assert new[-1].revision > old[-1].revision
        if first == "now":
            assert store.load("k") == b"new39"
        elif first == "snapshot":
            with pytest.raises(StoreRestoredError):
                snaps[0]["k"]
        elif first == "page":
            with pytest.raises(StoreRestoredError):
                list(snaps[0].items())
        elif first == "commit":
            store.tick()
        for snap in snaps:
            check_refusal(snap, store)
        for commits, values in (
            (base, [b"base0", b"base1", b"base2"]),
            (old, [b"base2"] * 20),
            (new, [b"new%d" % n for n in range(40)]),
        ):
            assert [store.load("k", c.ts) for c in commits] == values
            assert [store.load_with_prefix("k", c.ts)[1] for c in commits] == [[v] for v in values]
        assert [store.at(c.ts).revision for c in new] == [c.revision for c in new]
        store._core.timeline.tracker.check()


FIRST_AFTER = ["now", "snapshot", "page", "past", "newest past", "commit"]
RAISED_CASES = some(itertools.product(FIRST_AFTER, [1, 5, 20, 21, 40]), one_in=3)


@pytest.mark.long_after(2)
@pytest.mark.parametrize(("first", "new"), [*RAISED_CASES[1::2], *RAISED_CASES[::2]])
def test_revisions_that_were_raised_do_not_hide_a_restore(
    node: EtcdServer, tmp_path: Path, first: str, new: int
) -> None:
    """As the documentation wants it restored: all that was known is behind the compaction."""
    name, backup = f"raised-{first}-{new}", tmp_path / "backup.db"
    with snapkv.open(node.url, name=name) as writer:
        base = committed(writer, b"base", 3)
        node.gateway.save_snapshot(backup)
        old = committed(writer, b"old", 20)
    with snapkv.open(node.url, name=name) as store:
        snaps = [store.at(old[4].ts), store.at(old[18].ts), store.at()]
        assert [store.load("k", c.ts) for c in old] == [b"old%d" % n for n in range(20)]
        node.restore_snapshot(backup, *RAISED)
        with snapkv.open(node.url, name=name) as other:
            later = committed(other, b"new", new)
        assert later[0].revision > RAISED_BY
        if first == "now":
            assert store.load("k") == b"new%d" % (new - 1)
        elif first == "snapshot":
            with pytest.raises(StoreRestoredError):
                snaps[1]["k"]
        elif first == "page":
            with pytest.raises(StoreRestoredError):
                list(snaps[1].items())
        elif first == "newest past":
            assert store.load("k", old[-1].ts) == b"base2"
        elif first == "commit":
            store.tick()
        for snap in snaps:
            check_refusal(snap, store)
        for commits, values in (
            (base[2:], [b"base2"]),
            (old, [b"base2"] * 20),
            (later, [b"new%d" % n for n in range(new)]),
        ):
            assert [store.load("k", c.ts) for c in commits] == values
            assert [store.load_with_prefix("k", c.ts)[1] for c in commits] == [[v] for v in values]
        with pytest.raises(snapkv.CompactedError) as caught:
            store.load("k", base[1].ts)
        assert caught.value.earliest == base[2].ts
        assert [c.ts for c in store.commits(since=base[2].ts)][:new] == [c.ts for c in later]
        store._core.timeline.tracker.check()


@pytest.mark.parametrize("flags", [(), RAISED], ids=["", "raised"])
def test_a_lost_answer_after_a_restore_is_not_taken_for_dead(
    node: EtcdServer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """The restored store counts to the very ordinal after the newest one known when sending."""
    name, backup = f"shortcut-{len(flags)}", tmp_path / "backup.db"
    with EtcdProxy(node) as proxy, snapkv.open(proxy.url, name=name) as store:
        committed(store, b"base", 3)
        node.gateway.save_snapshot(backup)
        committed(store, b"old", 20)
        known = store._core.timeline.tracker.newest.ordinal
        node.restore_snapshot(backup, *flags)

        def others() -> bool:
            cut.wait_answered()
            with snapkv.open(node.url, name=name) as other:
                while other._core.timeline.head().ordinal <= known:
                    other.save("b", b"")
            return True

        cut = proxy.cut_after(b"only-once", others)
        commit = store.commit(puts={"a": b"only-once"}, timeout=30)
        with snapkv.open(node.url, name=name) as other:
            assert [v.revision for v in other.history("a")] == [commit.revision]


def list_for(watch: Watch[str], seconds: float) -> None:
    """Wait for what a watch brings, which must be nothing."""
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        assert watch.next(1) is None, "an event of another history was given"


@pytest.mark.parametrize("flags", [(), RAISED], ids=["", "raised"])
@pytest.mark.parametrize("new", [2, 30])
def test_an_open_watch_says_that_its_server_was_restored(
    node: EtcdServer, tmp_path: Path, new: int, flags: tuple[str, ...]
) -> None:
    """Whether or not the restored server has come to where the watch goes on."""
    name, backup = f"watched-{new}-{len(flags)}", tmp_path / "backup.db"
    with snapkv.open(node.url, name=name) as store:
        committed(store, b"base", 2)
        node.gateway.save_snapshot(backup)
        with store.watch() as watch:
            old = committed(store, b"old", 10)
            assert [next(watch).commit.ts for _ in old] == [c.ts for c in old]
            node.restore_snapshot(backup, *flags)
            with snapkv.open(node.url, name=name) as other:
                committed(other, b"new", new)
            with pytest.raises(StoreRestoredError):
                list_for(watch, WAIT_S)


def test_an_open_watch_goes_on_where_the_backup_holds_all_it_saw(
    node: EtcdServer, tmp_path: Path
) -> None:
    name, backup = "watched-on", tmp_path / "backup.db"
    with snapkv.open(node.url, name=name) as store, store.watch() as watch:
        old = committed(store, b"old", 10)
        assert [next(watch).commit.ts for _ in old] == [c.ts for c in old]
        node.gateway.save_snapshot(backup)
        node.restore_snapshot(backup)
        with snapkv.open(node.url, name=name) as other:
            new = committed(other, b"new", 10)
        for commit in new:
            changes = watch.next(WAIT_S)
            assert changes is not None
            assert changes.commit.ts == commit.ts
