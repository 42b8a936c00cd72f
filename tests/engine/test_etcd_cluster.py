"""A store on three nodes: leaders that die, followers that stand still, under load.

The nodes are shared by the tests of this file; each has a store, or a part of it, of its own and
leaves the nodes running.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from etcd_protocol import CLOSE_S, Caller, History
from etcd_server import WAIT_S, EtcdCluster, EtcdServer, eventually
from etcd_writers import ProcessWriter, ThreadWriter

import snapkv
import snapkv.engine.etcd.cluster_client
from snapkv import Absent, ConflictError
from snapkv.engine.contract import Range
from snapkv.engine.etcd.cluster_client import ClusterClient
from snapkv.engine.etcd.engine import open_etcd
from snapkv.engine.etcd.grpc_client import CallFailed
from snapkv.errors import FutureRevisionError
from snapkv.layout import Layout

pytestmark = pytest.mark.slow

COMMITS_MIN = 25


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: EtcdCluster) -> Iterator[EtcdCluster]:
    """The nodes, all of them running before and after."""
    nodes.wait_healthy()
    yield nodes
    for node in nodes.nodes:
        if node.pid is not None:
            node.resume()
    nodes.start()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapkv.engine.etcd.cluster_client, "TRY_S", CLOSE_S)


def url_from(cluster: EtcdCluster, first: EtcdServer) -> str:
    """Return the URL of all nodes, one of them first: it is the one that is asked."""
    others = [node.endpoint for node in cluster.nodes if node is not first]
    return "etcd://" + ",".join([first.endpoint, *others])


def history_of(node: EtcdServer, name: str) -> History:
    """Return what was written to the store of that name; it is checked as the default one is."""
    history = History(node.gateway, node.client_port)
    root = f"{name}/".encode()
    history.changes = [
        change._replace(key=b"default/" + change.key.removeprefix(root))
        for change in history.changes
        if change.key.startswith(root)
    ]
    history.check()
    return history


# --- every node ---------------------------------------------------------------------------------


def test_every_endpoint_serves_the_same_store(cluster: EtcdCluster) -> None:
    for n, node in enumerate(cluster.nodes):
        with (
            snapkv.open(url_from(cluster, node), name="every") as through_all,
            snapkv.open(node.url, name="every") as alone,
        ):
            commit = through_all.commit(puts={f"k{n}": b"v"}, guards=[Absent(f"k{n}")])
            assert alone.load(f"k{n}") == b"v"
            assert alone.at(commit.ts).revision == commit.revision
            with pytest.raises(ConflictError):
                alone.commit(puts={"k0": b"w"}, guards=[Absent("k0")])
    assert [value for _, value in history_of(cluster.nodes[0], "every").written("k0")] == [b"v"]


def test_members_agree_on_every_moment(cluster: EtcdCluster) -> None:
    with snapkv.open(cluster.url, name="agree") as store:
        commits = [store.commit(puts={"k": b"%d" % n}) for n in range(20)]
        for node in cluster.nodes:
            with snapkv.open(node.url, name="agree", ring_slots=2) as alone:
                for n, commit in enumerate(commits):
                    assert alone.at(commit.ts).revision == commit.revision
                    assert alone.load("k", commit.ts) == b"%d" % n


# --- a leader that dies -------------------------------------------------------------------------


@pytest.mark.kills_etcd
def test_a_leader_killed_under_load_loses_nothing(cluster: EtcdCluster) -> None:
    """Four writers, one of them another process, and a watch that is open at the leader."""
    leader = cluster.leader()
    with (
        snapkv.open(url_from(cluster, leader), name="load") as store,
        snapkv.open(url_from(cluster, leader), name="load") as watching,
    ):
        watch = watching.watch(since=0)
        process = ProcessWriter(url_from(cluster, leader), "load", "process")
        writers = [process, *(ThreadWriter(store, f"thread{n}") for n in range(3))]

        def all_wrote(more: int) -> None:
            before = [writer.acknowledged for writer in writers]
            wanted = [number + more for number in before]
            eventually(
                lambda: all(w.acknowledged >= n for w, n in zip(writers, wanted, strict=True)),
                "all writers to go on",
                wait_s=2 * WAIT_S,
            )

        all_wrote(COMMITS_MIN)
        leader.kill()
        eventually(lambda: cluster.leader() is not leader, "a new leader")
        all_wrote(COMMITS_MIN)
        leader.start()
        cluster.wait_healthy()
        all_wrote(COMMITS_MIN)
        for writer in writers:
            writer.stop(2 * WAIT_S)
        compare(history_of(leader, "load"), writers)
        check_watch(watch, history_of(leader, "load"))


def compare(history: History, writers: list[ProcessWriter | ThreadWriter]) -> None:
    """Assert that what the writers heard is what stands there, each once, at its revision."""
    revisions = {stamp.record.timestamp: stamp.revision for stamp in history.stamps}
    for writer in writers:
        expected = [
            (heard.landed[1], heard.token.encode())
            for heard in writer.heard
            if heard.landed is not None
        ]
        assert history.written(writer.name) == expected
        for heard in writer.heard:
            assert heard.waited_s < 12, f"{heard.token} waited {heard.waited_s:.1f} s"
            if heard.landed is not None:
                assert revisions[heard.landed[0]] == heard.landed[1]


def check_watch(watch: snapkv.Watch[str], history: History) -> None:
    """Assert that a watch brings every commit with changes once, in order."""
    stored = b"default/data/"
    wanted = [
        (revision, {c.key.removeprefix(stored).decode(): c.value for c in changes})
        for revision, changes in (
            (revision, list(group))
            for revision, group in itertools.groupby(
                (c for c in history.changes if c.key.startswith(stored)), lambda c: c.revision
            )
        )
    ]
    seen = []
    while len(seen) < len(wanted):
        found = watch.next(WAIT_S)
        assert found is not None, f"the watch stopped after {len(seen)} of {len(wanted)} commits"
        seen.append((found.commit.revision, {change.key: change.value for change in found}))
    assert seen == wanted
    watch.close()


@pytest.mark.kills_etcd
def test_sessions_and_leaderships_survive_a_new_leader(cluster: EtcdCluster) -> None:
    leader = cluster.leader()
    url = url_from(cluster, leader)
    with snapkv.open(url, name="held") as one, snapkv.open(url, name="held") as other:
        session = one.session(ttl=8)
        first, second = one.election("who", session=session), other.election("who", ttl=8)
        first.campaign(b"one")
        waiting = Caller(lambda: second.campaign(b"other", timeout=3 * WAIT_S))
        eventually(lambda: second._candidacy is not None, "a second candidate")
        leader.kill()
        eventually(lambda: cluster.leader() is not leader, "a new leader")
        assert one.commit(puts={"k": b"1"}, guards=[first.guard, session.guard]).ts
        assert session.alive
        assert first.leading
        assert not second.leading
        leader.start()
        cluster.wait_healthy()
        first.resign()
        waiting.value()
        assert second.leading
        assert second.revision > first.revision
        other.commit(puts={"k": b"2"}, guards=[second.guard])
        with pytest.raises(ConflictError):
            one.commit(puts={"k": b"3"}, guards=[first.guard])
        one.commit(puts={"k": b"4"}, guards=[session.guard])
        second.close()
        session.close()


# --- nodes that stand still ---------------------------------------------------------------------


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_node_that_stands_still_is_left(cluster: EtcdCluster, which: str) -> None:
    node = cluster.leader() if which == "leader" else cluster.followers()[0]
    name = f"still-{which}"
    with snapkv.open(url_from(cluster, node), name=name) as store:
        store.save("before", b"1")
        node.pause()
        started = time.monotonic()
        commit = store.commit(puts={"a": b"1"}, guards=[Absent("a")], timeout=20)
        assert store.load("a") == b"1"
        assert time.monotonic() - started < 15
        node.resume()
        cluster.wait_healthy()
        history = history_of(node, name)
        assert [revision for revision, _ in history.written("a")] == [commit.revision]
        assert store.commit(puts={"b": b"1"}).ts > commit.ts


@pytest.mark.usefixtures("hurried")
def test_without_a_majority_nothing_is_promised(cluster: EtcdCluster) -> None:
    """Two nodes of three stand still: unknown until they go on, then one truth."""
    with snapkv.open(cluster.url, name="minority") as store:
        store.save("before", b"1")
        for node in cluster.nodes[1:]:
            node.pause()
        started = time.monotonic()
        with pytest.raises(snapkv.CommitUnknownError) as caught:
            store.commit(puts={"a": b"1"}, guards=[Absent("a")], timeout=2)
        assert time.monotonic() - started < 4
        for node in cluster.nodes[1:]:
            node.resume()
        error = caught.value
        found = store.resolve(error.timestamp, error.nonce, guards=error.guards, timeout=30)
        cluster.wait_healthy()
        written = history_of(cluster.nodes[0], "minority").written("a")
        assert [revision for revision, _ in written] == ([found.revision] if found else [])
        assert store.resolve(error.timestamp, error.nonce, guards=error.guards) == found


def test_a_node_that_lags_behind_does_not_tell_old_news(
    cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for a revision that it does not have yet: then the others are asked, too."""
    failures: list[str] = []
    call = ClusterClient._call

    def noting(self, *arguments):
        try:
            return call(self, *arguments)
        except CallFailed as e:
            failures.append(e.text)
            raise

    monkeypatch.setattr(ClusterClient, "_call", noting)
    lagging = cluster.followers()[0]
    key = Layout("lag").data.encode("k")
    with snapkv.open(cluster.leader().url, name="lag") as store:
        engine = open_etcd(lagging.url)
        for n in range(5):
            lagging.pause()
            commits = [store.commit(puts={"k": b"%d.%d" % (n, i)}) for i in range(20)]
            wanted = [Range(key, revision=commit.revision) for commit in commits]
            asked = Caller(lambda w=wanted: engine.read(w, serializable=True))
            lagging.resume()
            values = [result.kvs[0].value for result in asked.value().results]
            assert values == [b"%d.%d" % (n, i) for i in range(20)], failures
        with pytest.raises(FutureRevisionError):
            engine.read([Range(key, revision=commits[-1].revision + 1_000)], serializable=True)
        engine.close()
