"""A cluster that was set back to a backup under open stores, on the same ports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_protocol import History
from etcd_server import EtcdCluster

import snapkv
from snapkv import Absent, AtRevision, Commit, ConflictError, Snapshot, SnapshotKV
from snapkv.errors import StoreRestoredError

COMMITS, SAVED = 12, 6

pytestmark = pytest.mark.kills_etcd


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def restore(cluster: EtcdCluster, backup: Path, *, same_cluster: bool) -> None:
    """Set all nodes back; under another token they become another cluster."""
    if same_cluster:
        cluster.restore_snapshot(backup)
        return
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        token = f"--initial-cluster-token=restored-{backup.stem}"
        node.restore_snapshot(backup, token, wait=False)
    cluster.wait_healthy()


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
        restore(nodes, backup, same_cluster=same_cluster)
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
    store._core.timeline.check()


def test_a_commit_of_unknown_outcome_from_before(nodes: EtcdCluster, tmp_path: Path) -> None:
    """What the backup does not hold has not happened, and never will."""
    backup = tmp_path / "unknown.db"
    with snapkv.open(nodes.url, name="unknown") as store:
        commits = written(store, backup, nodes)
        stamps = {c.ts: s.nonce for c in commits for s in _stamps(store, c)}
        restore(nodes, backup, same_cluster=True)
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
