"""Encrypted connections: with our CA, with client certificates, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from etcd_engines import events_until, get, opened, put
from etcd_server import Certificates, EtcdServer, make_certificates
from etcd_server.certificates import sign

import snapkv
import snapkv.aio
from snapkv.base.waiting import monotonic
from snapkv.clock import SystemClock
from snapkv.engine.contract import Refused
from snapkv.engine.etcd.security import GRPC_ROOTS, Security, system_authorities
from snapkv.errors import EngineUnavailableError, InvalidOptionError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A server that wants a certificate of its clients."""
    folder = tmp_path_factory.mktemp("asking")
    certificates = make_certificates(folder / "certificates", client_auth=True)
    with EtcdServer(folder / "etcd", tls=certificates) as server:
        yield server


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A server with a certificate of its own only."""
    folder = tmp_path_factory.mktemp("serving")
    with EtcdServer(folder / "etcd", tls=make_certificates(folder / "certificates")) as server:
        yield server


def of(server: EtcdServer) -> Certificates:
    assert server.tls is not None
    return server.tls


def pair(server: EtcdServer) -> dict[str, str]:
    """The options of a client with a certificate."""
    tls = of(server)
    return {
        "ca_cert": str(tls.ca),
        "cert": str(tls.cert("client")),
        "key": str(tls.key("client")),
    }


def test_a_server_with_a_certificate_of_our_ca(serving: EtcdServer) -> None:
    with opened(serving.url, ca_cert=str(of(serving).ca)) as engine:
        newest = put(engine, b"k", b"1")
        assert get(engine, b"k") == b"1"
        watcher = engine.watch(b"k", b"", start_revision=newest)
        assert [event.kv.value for event in events_until(watcher, newest)] == [b"1"]
        assert engine.check() == []
        assert engine.info()["version"] == serving.gateway.version()["etcdserver"]


def test_the_clock_over_https(serving: EtcdServer) -> None:
    with opened(serving.url, ca_cert=str(of(serving).ca)) as engine:
        sampled = engine.server_time_ms()
        assert sampled is not None
        at_ms, uncertainty_ms = sampled
        assert abs(SystemClock().now_ms() - at_ms) <= uncertainty_ms + 100
        assert uncertainty_ms < 3_000


def test_a_store_with_the_environment(asking: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    options = pair(asking)
    monkeypatch.setenv("SNAPKV_ETCD_CACERT", options["ca_cert"])
    monkeypatch.setenv("SNAPKV_ETCD_CERT", options["cert"])
    monkeypatch.setenv("SNAPKV_ETCD_KEY", options["key"])
    with snapkv.open(asking.url) as store:
        stamp = store.save("a", b"1")
        assert store.load("a", stamp) == b"1"


def test_a_client_certificate_that_is_wanted(asking: EtcdServer) -> None:
    with opened(asking.url, **pair(asking)) as engine:
        put(engine, b"k", b"1")
        assert get(engine, b"k") == b"1"
        assert engine.server_time_ms() is not None


@pytest.mark.parametrize("what", ["no certificate", "another CA's certificate"])
def test_clients_without_the_certificate_stay_out(
    what: str, asking: EtcdServer, tmp_path: Path
) -> None:
    options = {"ca_cert": str(of(asking).ca)}
    if what != "no certificate":
        others = make_certificates(tmp_path)
        options |= {"cert": str(others.cert("client")), "key": str(others.key("client"))}
    refused_in_time(asking.url, options)


def test_a_server_of_another_ca(serving: EtcdServer, tmp_path: Path) -> None:
    others = make_certificates(tmp_path)
    refused_in_time(serving.url, {"ca_cert": str(others.ca)}, f"{others.ca} is the authority")
    refused_in_time(serving.url, {"tls": True}, "give its authority: ca_cert=")


def test_tls_on_one_side_only(serving: EtcdServer, etcd: EtcdServer) -> None:
    refused_in_time(serving.url, {})
    refused_in_time(etcd.url, {"ca_cert": str(of(serving).ca)})


def refused_in_time(url: str, options: dict[str, object], why: str | None = None) -> None:
    """Neither reads nor writes get through; the error names the endpoint, and comes in time."""
    with opened(url, **options) as engine:
        began = monotonic()
        with pytest.raises(EngineUnavailableError, match=why) as read:
            get(engine, b"k", timeout=0.7)
        assert engine._connection.addresses[0] in str(read.value)
        with pytest.raises(Refused) as refused:
            put(engine, b"k", timeout=0.7)
        assert isinstance(refused.value.error, EngineUnavailableError)
        assert monotonic() - began < 5.0
        assert engine.server_time_ms() is None


def test_a_server_by_its_name(serving: EtcdServer) -> None:
    with opened(f"etcd://localhost:{serving.client_port}", ca_cert=str(of(serving).ca)) as engine:
        put(engine, b"k", b"1")
        assert get(engine, b"k") == b"1"


PAIR = r"cert= and key= \(SNAPKV_ETCD_CERT, SNAPKV_ETCD_KEY\)"


def raises_at_once(url: str, why: str, **options: object) -> None:
    """Opening a store raises one error with the reason, without waiting for another answer."""
    began = monotonic()
    with pytest.raises(EngineUnavailableError, match=why):
        snapkv.open(url, **options)
    assert monotonic() - began < 3.0


def test_a_client_without_a_certificate_reads_that_one_is_wanted(asking: EtcdServer) -> None:
    raises_at_once(asking.url, f"wants a client certificate: give {PAIR}", ca_cert=of(asking).ca)
    raises_at_once(asking.url, f"speaks TLS and wants a client certificate: give ca_cert=.*{PAIR}")


def test_a_rejected_client_certificate_is_named_with_the_reason(
    asking: EtcdServer, tmp_path: Path
) -> None:
    others = make_certificates(tmp_path)
    theirs = {"cert": others.cert("client"), "key": others.key("client")}
    why = f"rejects the client certificate {theirs['cert']}: "
    raises_at_once(asking.url, why, ca_cert=of(asking).ca, **theirs)


@pytest.mark.parametrize("expired", ["server", "client"])
def test_an_expired_certificate_is_named(expired: str, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates", client_auth=expired == "client")
    why = {
        "server": "is not trusted: certificate has expired",
        "client": "client.crt: certificate expired",
    }
    with EtcdServer(tmp_path / "etcd", tls=certificates) as server:
        sign(certificates.folder, expired, days="-1")  # etcd reads its own for each connection
        options = pair(server) if expired == "client" else {"ca_cert": certificates.ca}
        raises_at_once(server.url, why[expired], **options)


def test_tls_on_one_side_is_said_at_once(
    serving: EtcdServer, etcd: EtcdServer, tmp_path: Path
) -> None:
    others = make_certificates(tmp_path)
    raises_at_once(serving.url, "its certificate is not trusted", ca_cert=others.ca)
    raises_at_once(serving.url, r"speaks TLS: give ca_cert= \(SNAPKV_ETCD_CACERT\), or tls=True")
    raises_at_once(etcd.url, "speaks no TLS: give no certificates", ca_cert=of(serving).ca)


def test_the_reason_is_in_the_error_of_endpoints_that_fail_differently(asking: EtcdServer) -> None:
    """One endpoint is down, the other wants a certificate."""
    url = f"etcd://127.0.0.1:9,{asking.endpoint}"
    with (
        opened(url, ca_cert=str(of(asking).ca)) as engine,
        pytest.raises(EngineUnavailableError, match="wants a client certificate"),
    ):
        get(engine, b"k", timeout=0.7)


def test_in_a_loop_the_reason_is_said_at_once(asking: EtcdServer) -> None:
    async def opens() -> None:
        await snapkv.aio.open(asking.url, ca_cert=of(asking).ca)

    began = monotonic()
    with pytest.raises(EngineUnavailableError, match="wants a client certificate"):
        asyncio.run(opens())
    assert monotonic() - began < 3.0


def test_a_key_that_this_user_may_not_read(asking: EtcdServer, tmp_path: Path) -> None:
    """Of kubeadm the keys are root's, mode 0600."""
    tmp_path.chmod(0o755)
    options = pair(asking) | {"key": str(tmp_path / "client.key")}
    (tmp_path / "client.key").write_bytes(of(asking).key("client").read_bytes())
    (tmp_path / "client.key").chmod(0)
    with (
        as_another_user(),
        pytest.raises(InvalidOptionError, match=r"client.key: Permission denied: run as its owner"),
    ):
        Security.of(None, None, options["key"], options["key"])


@contextmanager
def as_another_user() -> Iterator[None]:
    """Run without the rights of root, which reads all files."""
    if os.geteuid():
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("place", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_a_ca_that_the_system_trusts(
    place: str, serving: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `tls=True` for gRPC as for HTTPS, which has the clock."""
    ca = of(serving).ca
    command = ["openssl", "x509", "-noout", "-subject_hash", "-in", str(ca)]
    hashed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / f"{hashed}.0").symlink_to(ca)
    nothing = tmp_path / "nothing"
    monkeypatch.setenv("SSL_CERT_FILE", str(ca if place == "SSL_CERT_FILE" else nothing))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path if place == "SSL_CERT_DIR" else nothing))
    with opened(serving.url, tls=True) as engine:
        put(engine, b"k", b"1")
        assert get(engine, b"k") == b"1"
        assert engine.server_time_ms() is not None


def test_what_stands_in_the_systems_places(
    serving: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = of(serving).ca.read_bytes().strip()
    (tmp_path / "bundle.pem").write_bytes(b"# a comment\n" + ca + b"\n")
    (tmp_path / "0a1b2c3d.0").write_bytes(ca)  # the same one
    (tmp_path / "0a1b2c3d.1").write_bytes(b"no certificate")
    (tmp_path / "other.pem").write_bytes(of(serving).cert("client").read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "bundle.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'nothing'}:{tmp_path}")
    assert system_authorities() == ca + b"\n"
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing"))
    assert system_authorities() == ca + b"\n"
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "nothing"))
    assert system_authorities() is None  # gRPC takes its own then
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.delenv("SSL_CERT_DIR")
    monkeypatch.setenv(GRPC_ROOTS, str(tmp_path / "bundle.pem"))
    assert system_authorities() is None
