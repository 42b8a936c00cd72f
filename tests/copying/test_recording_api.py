"""A cluster is recorded through its API: nothing is missed, repeated, or told wrongly."""

import base64
import json
import threading
from contextlib import contextmanager

import pytest
from etcd_server import eventually

import snapkv
from snapkv.cli import main
from snapkv.copying import kubernetes_source, kubernetes_streams
from snapkv.copying.kubernetes_api import KubernetesApi
from snapkv.copying.kubernetes_source import as_sent
from snapkv.copying.kubernetes_streams import Inbox, ResourceStream
from snapkv.errors import (
    AccessDeniedError,
    ArchiveError,
    InvalidOptionError,
    ReadOnlyError,
    StoreRestoredError,
)

from .cluster_api import ClusterApi
from .targets import opened, target_url

pytestmark = pytest.mark.slow
KINDS = ("archive", "lmdb")
PODS, SECRETS, NODES = "/api/v1/pods", "/api/v1/secrets", "/api/v1/nodes"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRONTABS = "/apis/stable.example.com/v1/crontabs"


@pytest.fixture
def api(tmp_path, monkeypatch):
    api = ClusterApi()
    monkeypatch.setenv("KUBECONFIG", api.kubeconfig(tmp_path))
    monkeypatch.setattr(kubernetes_source, "QUIET_S", 0.2)
    monkeypatch.setattr(kubernetes_source, "SETTLE_S", 0.1)
    yield api
    if api.up:
        api.stop()


def recorder(into, **options):
    return snapkv.record("kubernetes:", into=into, flush="100ms", every="100ms", **options)


@contextmanager
def running(into, **options):
    """Record in a thread; yield the recorder while it runs."""
    stop, recording = threading.Event(), recorder(into, **options)
    failure = []

    def run():
        try:
            recording.run(stop)
        except Exception as e:
            failure.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield recording
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive(), "the recorder did not end"
    assert not failure, failure


def watched(api, path, count=1):
    """Wait until a path has been watched so many times."""
    eventually(lambda: sum(each == path for each, _ in api.watches) >= count, f"watches of {path}")


def seen(recording, revision):
    eventually(lambda: recording.status.recorded_revision >= revision, f"revision {revision}")


def versions(kept, key):
    return [
        None if each.value is None else json.loads(each.value).get("n")
        for each in kept.history(key)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_record_is_the_state_of_one_revision(api, tmp_path, kind):
    for n in range(1_100):  # three pages
        api.put(PODS, f"shop/pod-{n}", n=n)
    api.put(NODES, "n1")
    into = target_url(kind, tmp_path / "r")
    recording = recorder(into)
    recording.catch_up()
    assert recording.status.gaps == []
    with opened(kind, tmp_path / "r") as kept:
        found = dict(kept.at().items())
        assert len(found) == 1_102
        node = json.loads(found["nodes/n1"])
        assert (node["apiVersion"], node["kind"]) == ("v1", "Nodes")
        assert node["metadata"]["resourceVersion"] == str(api.revision)
        assert json.loads(found["pods/shop/pod-7"])["n"] == 7
        names = json.loads(kept.space("kubernetes").at()[b"resources"])
        assert "pods" in names
        assert "events" in names
        assert not [name for name in names if "events.k8s.io" in name]
    exact = [each for each in api.requests if "resourceVersionMatch=Exact" in each]
    assert len({each.partition("resourceVersion=")[2].partition("&")[0] for each in exact}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_misses_and_repeats_nothing(api, tmp_path, kind):
    into = target_url(kind, tmp_path / "r")
    api.put(PODS, "shop/a", n=1)
    recorder(into).catch_up()
    for n in (2, 3):
        api.put(PODS, "shop/a", n=n)
        api.put(PODS, f"shop/brief-{n}", n=n)
        api.delete(PODS, f"shop/brief-{n}")
        api.put(NODES, "n1", n=n)
        recorder(into).catch_up()
        recorder(into).catch_up()
    last = api.delete(PODS, "shop/a")
    recording = recorder(into)
    recording.catch_up()
    assert recording.status.gaps == []
    with opened(kind, tmp_path / "r") as kept:
        assert versions(kept, "pods/shop/a") == [1, 2, 3, None]
        assert versions(kept, "pods/shop/brief-3") == [3, None]
        assert versions(kept, "nodes/n1") == [2, 3]
        commits = [
            c for c in kept.commits() if (c.revision if kind == "archive" else c.source_revision)
        ]
        newest = commits[-1].revision if kind == "archive" else commits[-1].source_revision
        assert newest == last
        assert kept.check().problems == ()


def test_streams_that_are_cut_in_a_line_go_on_where_they_were(api, tmp_path):
    into = target_url("lmdb", tmp_path / "r")
    with running(into) as recording:
        watched(api, PODS)
        for n in range(5):
            api.put(PODS, "shop/a", n=n)
            api.cut()
            watched(api, PODS, n + 2)
        seen(recording, api.put(PODS, "shop/a", n=5))
        assert recording.status.gaps == []
    with opened("lmdb", tmp_path / "r") as kept:
        assert versions(kept, "pods/shop/a") == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("as_event", [True, False])
def test_what_the_server_has_no_more_is_a_gap(api, tmp_path, as_event):
    into = target_url("lmdb", tmp_path / "r")
    api.put(PODS, "shop/a", n=1)
    api.put(PODS, "shop/b", n=1)
    api.put(NODES, "n1", n=1)
    since = snapkv.format_time(recorder(into).catch_up())
    api.put(PODS, "shop/a", n=2)
    api.put(PODS, "shop/a", n=3)
    api.delete(PODS, "shop/b")
    api.put(NODES, "n1", n=2)
    api.put(NODES, "n1", n=3)
    api.forget(PODS)
    api.gone_as_event = as_event
    recording = recorder(into)
    recording.catch_up()
    (gap,) = recording.status.gaps
    assert gap == (
        f"gap: the API server no longer has all changes of pods since {since}; what differs now "
        "is recorded"
    )
    with opened("lmdb", tmp_path / "r") as kept:
        assert versions(kept, "pods/shop/a") == [1, 3]
        assert versions(kept, "pods/shop/b") == [1, None]
        assert versions(kept, "nodes/n1") == [1, 2, 3]
        assert [c.note for c in kept.commits() if (c.note or "").startswith("gap")] == [gap]


def test_bookmarks_move_the_position_of_quiet_resources(api, tmp_path):
    into = target_url("lmdb", tmp_path / "r")
    with running(into) as recording:
        watched(api, NODES)
        seen(recording, api.put(PODS, "shop/a", n=1))
        api.bookmark()
        quiet = api.newest(NODES)
        seen(recording, api.put(PODS, "shop/a", n=2))
    api.forgotten[NODES] = quiet  # what is older than the bookmark
    recording = recorder(into)
    recording.catch_up()
    assert recording.status.gaps == []
    assert max(at for path, at in api.watches if path == NODES) >= quiet


def test_what_the_account_may_not_read_is_named_once_and_tried_again(api, tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_streams, "DENIED_S", 0.2)
    api.denied.add(SECRETS)
    api.put(SECRETS, "shop/s", data={"a": "MQ=="})
    into = target_url("lmdb", tmp_path / "r")
    with running(into) as recording:
        watched(api, PODS)
        assert recording.status.unread == {"secrets": "this account may not list and watch it"}
        api.denied.clear()
        watched(api, SECRETS)
        seen(recording, api.put(PODS, "shop/a"))
        eventually(lambda: not recording.status.unread, "secrets to be recorded")
    with opened("lmdb", tmp_path / "r") as kept:
        (first,) = [c for c in kept.commits() if c.note == "recorded from here on: secrets"]
        assert "secrets/shop/s" in kept.at(first.ts)


def test_once_names_what_the_account_may_list_but_not_watch(api, tmp_path, capsys):
    api.unwatched.add(PODS)
    api.put(PODS, "shop/a", n=1)
    words = "record", "--kubernetes", "--into", target_url("lmdb", tmp_path / "r"), "--once"
    for _ in range(2):
        assert main([*words]) == 0
        said = capsys.readouterr().err
        assert "not recorded: pods: this account may not list and watch it" in said
    with opened("lmdb", tmp_path / "r") as kept:
        assert "pods/shop/a" in kept.at()


def test_the_record_of_a_cluster_takes_no_commits(api, tmp_path):
    into = target_url("lmdb", tmp_path / "r")
    recorder(into).catch_up()
    with snapkv.open(into) as record, pytest.raises(ReadOnlyError) as caught:
        record.save("pods/shop/a", b"x")
    assert "is the record of the Kubernetes cluster, which only" in str(caught.value)


def test_an_account_without_rights(api, tmp_path):
    api.denied |= api.paths
    api.paths |= {"/apis/certificates.k8s.io/v1/clustertrustbundles"}  # all accounts may read it
    with pytest.raises(AccessDeniedError, match="may not list any resource"):
        recorder(target_url("lmdb", tmp_path / "r")).catch_up()


def test_custom_resources_come_and_go(api, tmp_path):
    into, name = target_url("lmdb", tmp_path / "r"), "crontabs.stable.example.com"
    with running(into) as recording:
        watched(api, CRDS)
        api.paths.add(CRONTABS)
        api.put(CRDS, name)
        watched(api, CRONTABS)
        seen(recording, api.put(CRONTABS, "shop/nightly", n=1))
        api.paths.discard(CRONTABS)  # a server that starts does not list all groups
        api.cut()
        watched(api, PODS, 2)
        seen(recording, api.put(PODS, "shop/a"))
    recorder(into).catch_up()
    with opened("lmdb", tmp_path / "r") as kept:
        assert versions(kept, f"{name}/shop/nightly") == [1]
    with running(into) as recording:
        watched(api, CRDS, 2)
        api.delete(CRDS, name)
        eventually(
            lambda: recording.status.changes >= 3, "the objects of the definition to be removed"
        )
    with opened("lmdb", tmp_path / "r") as kept:
        assert versions(kept, f"{name}/shop/nightly") == [1, None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_with_other_exceptions_loses_no_change(api, tmp_path, kind):
    into = target_url(kind, tmp_path / "r")
    for path, name in ((PODS, "shop/a"), (PODS, "shop/b"), (NODES, "n1")):
        api.put(path, name, n=1)
    recorder(into).catch_up()
    api.put(PODS, "shop/b", n=2)
    with running(into, exclude=["pods/shop/a", "nodes/"]) as recording:
        watched(api, PODS)
        api.put(PODS, "shop/a", n=3)
        api.put(NODES, "n1", n=3)
        api.put(PODS, "shop/b", n=3)
        api.bookmark()
        seen(recording, api.revision)
    recorder(into, exclude=["pods/shop/a", "nodes/"]).catch_up()
    with opened(kind, tmp_path / "r") as kept:
        found = {str(key) for key in kept.at() if not str(key).startswith("namespaces/")}
        assert found == {"pods/shop/b"}, "stale values are not the present"
    for n in (4, 5):
        api.put(PODS, "shop/a", n=n)
        recorder(into).catch_up()
    with opened(kind, tmp_path / "r") as kept:
        assert versions(kept, "pods/shop/a") == [1, None, 3, 4, 5]
        assert versions(kept, "pods/shop/b") == [1, 2, 3]
        assert versions(kept, "nodes/n1") == [1, None, 3]
        notes = [each.note for each in kept.commits() if each.note]
    assert notes == [
        "recorded from here on: pods",
        "not recorded from here on: nodes",
        "recorded from here on: pods",
        "recorded from here on: nodes",
    ]


def test_secrets_are_digests_unless_they_are_wanted(api, tmp_path):
    low = base64.b64encode(b"1234").decode()
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"pin": "1234"})}
    api.put(SECRETS, "shop/s", data={"pin": low, "same": low})
    api.state(SECRETS, api.revision)[0]["metadata"]["annotations"] = applied
    recorder(target_url("lmdb", tmp_path / "r")).catch_up()
    recorder(target_url("lmdb", tmp_path / "plain"), secrets=True).catch_up()
    with opened("lmdb", tmp_path / "r") as kept:
        text = kept.load("secrets/shop/s").decode()
    data = json.loads(text)["data"]
    assert "1234" not in text
    assert low not in text
    assert data["pin"] == data["same"]
    with opened("lmdb", tmp_path / "plain") as kept:
        assert json.loads(kept.load("secrets/shop/s"))["data"]["pin"] == low


def test_a_resource_with_revisions_of_its_own(api, tmp_path):
    api.paths.add(CRONTABS)
    api.apart[CRONTABS] = 5_000_000
    into, key = target_url("archive", tmp_path / "r"), "crontabs.stable.example.com/shop/c"
    api.put(CRONTABS, "shop/c", n=1)
    recorder(into).catch_up()
    for n in (2, 3):
        api.put(CRONTABS, "shop/c", n=n)
        api.put(PODS, "shop/a", n=n)
        recorder(into).catch_up()
    with opened("archive", tmp_path / "r") as kept:
        assert versions(kept, key) == [1, 2, 3]
        assert versions(kept, "pods/shop/a") == [2, 3]
        assert max(c.revision for c in kept.commits()) < 1_000


def test_another_cluster_is_refused(api, tmp_path, monkeypatch):
    into = target_url("lmdb", tmp_path / "r")
    recorder(into).catch_up()
    api.uid = "99999999-2222-3333-4444-555555555555"
    with pytest.raises(ArchiveError, match="is the record of another source"):
        recorder(into).catch_up()


@pytest.mark.parametrize("later", [0, 40])
def test_a_restored_etcd_ends_the_recording(api, tmp_path, later):
    into = target_url("lmdb", tmp_path / "r")
    api.put(PODS, "shop/a", n=1)
    kept = len(api.log), api.revision
    for n in range(10):
        api.put(PODS, f"shop/lost-{n}", n=n)
    recorder(into).catch_up()
    api.log, api.revision = api.log[: kept[0]], kept[1]
    for n in range(later):
        api.put(NODES, f"other-{n}")
    with pytest.raises(StoreRestoredError, match="restored from a backup"):
        recorder(into).catch_up()


def test_a_server_that_does_not_answer_is_waited_for(api, tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_streams, "PATIENCE_S", 0.2)
    into, states = target_url("lmdb", tmp_path / "r"), []
    with running(into, report=lambda status: states.append(status.state)) as recording:
        watched(api, PODS)
        seen(recording, api.put(PODS, "shop/a", n=1))
        api.stop()
        eventually(lambda: states[-1] == "waiting", "the recorder to wait")
        api.start()
        seen(recording, api.put(PODS, "shop/a", n=2))
        assert recording.status.gaps == []
    with opened("lmdb", tmp_path / "r") as kept:
        assert versions(kept, "pods/shop/a") == [1, 2]


def test_the_end_ends_all_threads(api, tmp_path):
    with running(target_url("lmdb", tmp_path / "r")):
        watched(api, PODS)
    ours = [each.name for each in threading.enumerate() if each.name.startswith("snapkv-")]
    assert not [each for each in ours if each in {"snapkv-pods", "snapkv-nodes"}]


def test_a_cluster_is_no_store_and_has_no_prefix(api, tmp_path):
    with pytest.raises(InvalidOptionError, match="is a cluster's API, not a store: record it"):
        snapkv.open("kubernetes:")
    with pytest.raises(InvalidOptionError, match="has neither observe= nor options="):
        recorder("memory:r", observe="/registry/")
    with pytest.raises(InvalidOptionError, match="name a context of the kubeconfig"):
        snapkv.record("kubernetes:nowhere", into="memory:r").catch_up()


@pytest.mark.parametrize(
    ("url", "text", "says"),
    [
        ("kubernetes:", "hello: [", "expected the node content.*: name a context"),
        ("kubernetes:", "", "file is empty: name a context"),
        ("kubernetes://in-cluster", "", "not set: outside of a pod, name a context"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_an_error(url, text, says, tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
    (tmp_path / "broken").write_text(text)
    with pytest.raises(InvalidOptionError, match=says):
        snapkv.record(url, into="memory:r").catch_up()


def test_the_command_leaves_resources_out(api, tmp_path, capsys):
    api.put(PODS, "shop/a", n=1)
    api.put(NODES, "n1", n=1)
    place = target_url("lmdb", tmp_path / "r")
    words = "record", "--kubernetes", "--into", place, "--once"
    assert main([*words, "--except", "pods/"]) == 0
    with opened("lmdb", tmp_path / "r") as kept:
        kinds = {str(key).partition("/")[0] for key in kept.at()}
    assert "nodes" in kinds
    assert "pods" not in kinds
    assert main([*words, "--except", "/registry/pods/"]) == 2
    assert "keys of a cluster's API begin with the resource" in capsys.readouterr().err
    assert main([*words, "--redact", "pods/", "--redact-key", str(tmp_path / "key")]) == 2
    assert "of a cluster's secrets the record has digests anyway" in capsys.readouterr().err


def test_a_stream_that_is_stopped_while_its_watch_begins_ends(api, monkeypatch):
    connected = KubernetesApi("kubernetes:")
    api.put(PODS, "shop/a")
    resource = next(each for each in connected.resources() if each.name == "pods")
    stream = ResourceStream(connected, resource, api.revision, Inbox(), as_sent)
    begin = KubernetesApi.watch

    def watch(self, *wanted):
        begun = begin(self, *wanted)
        stream.stop()
        return begun

    monkeypatch.setattr(KubernetesApi, "watch", watch)
    stream.start()
    eventually(lambda: stream.watches, "a watch")
    stream.join(10)
    assert not stream._work.is_alive()
