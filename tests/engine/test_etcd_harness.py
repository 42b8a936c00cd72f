"""The servers of these tests do what they say, seen with plain HTTP and a raw gRPC client."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from etcd_raw import GIVES_UP_S, UNAVAILABLE, RawClient
from etcd_server import (
    KILLS_ETCD_MIN,
    EtcdCluster,
    EtcdPool,
    EtcdProxy,
    EtcdServer,
    Gateway,
    GatewayError,
    enable_auth,
    etcd_version,
    eventually,
    make_certificates,
    prefix_end,
)

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]


# --- servers --------------------------------------------------------------------------------


def test_each_server_of_the_pool_is_new(etcd_pool: EtcdPool) -> None:
    clusters = set()
    for _ in range(4):
        with etcd_pool.taken() as server:
            assert server.gateway.revision() == 1
            server.gateway.put(b"k", b"v")
            clusters.add(server.gateway.status()["header"]["cluster_id"])
            pid = server.pid
        assert not Path(f"/proc/{pid}").exists()
        assert not server.folder.exists()
    assert len(clusters) == 4


def test_a_server_comes_back_with_its_data(etcd: EtcdServer) -> None:
    etcd.gateway.put(b"k", b"v")
    url = etcd.url
    etcd.stop()
    with pytest.raises(ConnectionRefusedError):
        etcd.gateway.get(b"k")
    etcd.start()
    assert etcd.url == url
    assert etcd.gateway.get(b"k").value == b"v"


@pytest.mark.kills_etcd
def test_a_killed_server_comes_back_with_its_data(etcd: EtcdServer) -> None:
    etcd.gateway.put(b"k", b"v")
    etcd.kill()
    assert etcd.pid is None
    etcd.start()
    assert etcd.gateway.get(b"k").value == b"v"


def test_a_paused_server_is_silent_and_goes_on(etcd: EtcdServer) -> None:
    etcd.pause()
    with pytest.raises(TimeoutError):
        Gateway(etcd.client_port, timeout_s=GIVES_UP_S).get(b"k")
    etcd.resume()
    assert etcd.gateway.get(b"k") is None
    etcd.pause()
    etcd.stop()  # also when paused
    assert etcd.pid is None


def test_a_server_takes_other_ports_when_its_own_are_taken(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path)
    taken = server.client_port
    with socket.create_server(("127.0.0.1", taken)), server:
        assert server.client_port != taken
        assert server.gateway.revision() == 1
    assert not server.data.exists()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no-such-option"):
        EtcdServer(tmp_path, flags=["--no-such-option"]).start()


def test_no_server_outlives_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from etcd_server import EtcdServer\n"
        "s = EtcdServer(Path(sys.argv[1])); s.start(); print(s.pid, flush=True)\n"
        "s.pause(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    eventually(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_snapshot_brings_the_past_back(etcd: EtcdServer, tmp_path: Path) -> None:
    etcd.gateway.put(b"k", b"old")
    etcd.gateway.save_snapshot(tmp_path / "snapshot")
    etcd.gateway.put(b"k", b"new")
    etcd.restore_snapshot(tmp_path / "snapshot")
    assert etcd.gateway.get(b"k").value == b"old"
    assert etcd.gateway.revision() == 2


def test_copied_data_bring_the_past_back(etcd: EtcdServer, tmp_path: Path) -> None:
    etcd.gateway.put(b"k", b"old")
    etcd.stop()
    etcd.copy_data(tmp_path / "copy")
    etcd.start()
    etcd.gateway.put(b"k", b"new")
    etcd.put_back_data(tmp_path / "copy")
    assert etcd.gateway.get(b"k").value == b"old"


def test_foreign_keys_compaction_and_deletes(etcd: EtcdServer) -> None:
    for number in range(5):
        etcd.gateway.put(b"f/%d" % number, b"\0\xff")
    assert len(etcd.gateway.range(b"f/", prefix_end(b"f/"))) == 5
    assert etcd.gateway.get(b"f/0", revision=2).value == b"\0\xff"
    assert etcd.gateway.delete(b"f/", prefix_end(b"f/")) == 5
    etcd.gateway.compact(7)
    with pytest.raises(GatewayError, match="compacted"):
        etcd.gateway.get(b"f/0", revision=6)


def test_a_full_server_raises_an_alarm_until_it_is_disarmed(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, flags=["--quota-backend-bytes=400000"]) as etcd:

        def full() -> bool:
            try:
                etcd.gateway.put(b"k", b"x" * 100_000)
            except GatewayError as e:
                return "space exceeded" in e.text
            return False

        eventually(full, "a full server")
        assert etcd.gateway.alarms() == ["NOSPACE"]
        etcd.gateway.compact(etcd.gateway.revision())
        etcd.gateway.defragment()
        etcd.gateway.disarm()
        assert etcd.gateway.alarms() == []
        etcd.gateway.put(b"k", b"small")


def test_users_may_do_what_they_were_given(etcd: EtcdServer) -> None:
    enable_auth(
        etcd,
        {
            "root": ("root's", None),
            "app": ("app's", [("default/", "readwrite"), ("other/", "read")]),
        },
    )
    etcd.gateway.put(b"other/k", b"v")
    client = RawClient(etcd.endpoint)
    assert client.failure(b"default/k", b"v") == grpc.StatusCode.INVALID_ARGUMENT  # no user
    client.close()
    app = Gateway(etcd.client_port)
    with pytest.raises(GatewayError, match="user name is empty"):
        app.put(b"default/k", b"v")
    with pytest.raises(GatewayError, match="authentication failed"):
        app.log_in("app", "root's")
    app.log_in("app", "app's")
    app.put(b"default/k", b"v")
    assert app.get(b"other/k").value == b"v"
    for key in (b"other/k", b"elsewhere"):
        with pytest.raises(GatewayError, match="permission denied"):
            app.put(key, b"v")
    etcd.restart()
    assert etcd.is_ready()


@pytest.mark.parametrize("client_auth", [False, True])
def test_a_server_speaks_tls(tmp_path: Path, client_auth: bool) -> None:
    certificates = make_certificates(tmp_path / "tls", client_auth=client_auth)
    with EtcdServer(tmp_path, tls=certificates) as etcd:
        etcd.gateway.put(b"k", b"v")
        ca = certificates.ca.read_bytes()
        pair = (certificates.key("client").read_bytes(), certificates.cert("client").read_bytes())
        with EtcdProxy(etcd) as proxy:
            known = RawClient(proxy.endpoint, grpc.ssl_channel_credentials(ca, *pair))
            known.put(b"k", b"v2")
            stranger = RawClient(etcd.endpoint, grpc.ssl_channel_credentials(ca))
            if client_auth:
                assert stranger.failure(b"k", b"v3") == UNAVAILABLE
            else:
                stranger.put(b"k", b"v3")
            plain = RawClient(etcd.endpoint)
            assert plain.failure(b"k", b"v4") == UNAVAILABLE
            for client in (known, stranger, plain):
                client.close()
        assert etcd.gateway.get(b"k").version == (2 if client_auth else 3)


# --- clusters -------------------------------------------------------------------------------


@pytest.mark.kills_etcd
def test_a_cluster_outlives_its_leader(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        first = cluster.leader()
        assert len(cluster.followers()) == 2
        first.gateway.put(b"k", b"v")
        first.kill()
        second = cluster.leader()
        assert second is not first
        second.gateway.put(b"k", b"v2")
        first.start()
        cluster.wait_healthy()
        assert first.gateway.get(b"k").version == 2
    assert [node.pid for node in cluster.nodes] == [None] * 3


def test_a_cluster_goes_back_to_a_snapshot(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        assert cluster.url.count(",") == 2
        cluster.nodes[0].gateway.put(b"k", b"old")
        cluster.nodes[1].gateway.save_snapshot(tmp_path / "snapshot")
        cluster.nodes[2].gateway.put(b"k", b"new")
        cluster.restore_snapshot(tmp_path / "snapshot")
        assert [node.gateway.get(b"k").value for node in cluster.nodes] == [b"old"] * 3


def test_a_cluster_takes_other_ports_when_its_own_are_taken(tmp_path: Path) -> None:
    cluster = EtcdCluster(tmp_path)
    taken = cluster.nodes[1].peer_port
    with socket.create_server(("127.0.0.1", taken)), cluster:
        assert taken not in itertools.chain(
            *((node.peer_port, node.client_port) for node in cluster.nodes)
        )


# --- which etcd -----------------------------------------------------------------------------


@pytest.mark.long_after(1)
@pytest.mark.parametrize(("version", "told"), [((3, 5, 16), True), (KILLS_ETCD_MIN, False)])
def test_an_old_etcd_is_not_killed(
    tmp_path: Path, version: tuple[int, int, int], told: bool
) -> None:
    fake, text = tmp_path / "etcd", ".".join(map(str, version))
    fake.write_text(f"#!/bin/sh\necho etcd Version: {text}\n")
    fake.chmod(0o755)
    assert etcd_version(fake) == version
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            __file__,
        ],
        env={**os.environ, "SNAPKV_TEST_ETCD": str(fake)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    line = f"2 deselected, for etcd is {text}: tests that kill etcd servers need 3.5.17"
    assert (line in done.stdout) is told, done.stdout + done.stderr
    assert ("test_a_cluster_outlives_its_leader" in done.stdout) is not told
