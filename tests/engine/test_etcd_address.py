"""Where a cluster listens and how to be let in: every form of it, and no secret in any error."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from etcd_engines import opened, told
from etcd_server import Certificates, EtcdServer, make_certificates

import snapkv
from snapkv.engine.etcd.endpoint import endpoints_of
from snapkv.engine.etcd.engine import open_etcd
from snapkv.engine.etcd.security import Credentials, Security
from snapkv.errors import (
    EngineUnavailableError,
    InvalidOptionError,
    InvalidTypeError,
)

pytestmark = pytest.mark.slow

NOWHERE = "etcd://127.0.0.1:1"
VARIABLES = ("USER", "PASSWORD", "CACERT", "CERT", "KEY")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"SNAPKV_ETCD_{name}", raising=False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


# --- the URL --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("etcd://a", ["a:2379"]),
        ("etcd://a/", ["a:2379"]),
        ("etcd://a:", ["a:2379"]),
        ("etcd://a:1", ["a:1"]),
        ("etcd://a:65535", ["a:65535"]),
        ("etcd://a:02380", ["a:2380"]),
        ("etcd://a,b:2380,c", ["a:2379", "b:2380", "c:2379"]),
        ("etcd://a, b", ["a:2379", "b:2379"]),
        ("etcd://unix:2380", ["unix:2380"]),
        ("etcd://unix:/run/kine.sock", ["unix:/run/kine.sock"]),
        ("etcd://unix:///run/kine.sock", ["unix:/run/kine.sock"]),
        ("etcd://unix:///run/a.sock,b", ["unix:/run/a.sock", "b:2379"]),
        ("etcd://127.0.0.1:4001", ["127.0.0.1:4001"]),
        ("etcd://[::1]", ["[::1]:2379"]),
        ("etcd://[::1]:4001", ["[::1]:4001"]),
        ("etcd://[fe80::1%eth0]:4001,b", ["[fe80::1%eth0]:4001", "b:2379"]),
        ("etcd://etcd-0.etcd.svc.cluster.local", ["etcd-0.etcd.svc.cluster.local:2379"]),
    ],
)
def test_endpoints_of_a_url(url: str, endpoints: list[str]) -> None:
    assert list(endpoints_of(url)) == endpoints


@pytest.mark.parametrize(
    "url",
    [
        "etcd:",
        "etcd:a:2379",
        "etcd:/a",
        "etcd://",
        "etcd:///",
        "etcd://unix:///",
        "etcd://unix:///run/a.sock?mode=ro",
        "etcd://unix:/run/a.sock,unix:///run/a.sock",
        "etcd://a,",
        "etcd://,a",
        "etcd://a,,b",
        "etcd://a,a",
        "etcd://a,a:2379",
        "etcd://a:1,a:01",
        "etcd://:2379",
        "etcd://a:b",
        "etcd://a:0",
        "etcd://a:65536",
        "etcd://a:-1",
        "etcd://a:1:2",
        "etcd://a:" + "1" * 5_000,
        "etcd://a:²",
        "etcd://::1",
        "etcd://[]",
        "etcd://[::1",
        "etcd://::1]",
        "etcd://[::1]2379",
        "etcd://[::1]x:2379",
        "etcd://a b",
        "etcd://a\nb",
        "etcd://a/path",
        "etcd://a//",
        "etcd://a?x=1",
        "etcd://http://a:2379",
    ],
)
def test_what_is_no_url_is_a_typed_error(url: str) -> None:
    with pytest.raises(InvalidOptionError):
        endpoints_of(url)
    with pytest.raises(InvalidOptionError):
        snapkv.open(url)


@pytest.mark.parametrize(
    "url",
    [
        "etcd://user:hunter2@host:2379",
        "etcd://user:hunter2@host:port",
        "etcd://host,user:hunter2@host/path",
        "etcd:user:hunter2@host",
        "etcd://host?user=u&password=hunter2",
        "etcd://host/?password=hunter2",
    ],
)
def test_a_secret_in_a_url_is_not_repeated(url: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        snapkv.open(url)
    assert "hunter2" not in told(raised.value)
    assert b"hunter2" not in pickle.dumps(raised.value)


def test_a_url_with_a_secret_says_where_secrets_go() -> None:
    with pytest.raises(InvalidOptionError, match=r"password=.*SNAPKV_ETCD_PASSWORD"):
        endpoints_of("etcd://user:hunter2@host")


@pytest.mark.long_after(1)
@pytest.mark.parametrize("name", ["unix", "dns", "ipv4"])
def test_a_host_with_the_name_of_a_scheme_is_a_host(name: str) -> None:
    """gRPC would take "unix:2379" for a path."""
    with (
        opened(f"etcd://{name}") as engine,
        pytest.raises(EngineUnavailableError, match=r"DNS|address"),
    ):
        engine.read([], timeout=2.0)


# --- who it is ------------------------------------------------------------------------------


def test_a_login_is_given_or_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Credentials.of(None, None) is None
    assert Credentials.of("u", "p") == Credentials("u", "p")
    assert Credentials.of("u", "") == Credentials("u", "")
    monkeypatch.setenv("SNAPKV_ETCD_PASSWORD", "from-there")
    assert Credentials.of(None, None) is None
    assert Credentials.of("u", None) == Credentials("u", "from-there")
    monkeypatch.setenv("SNAPKV_ETCD_USER", "somebody")
    assert Credentials.of(None, None) == Credentials("somebody", "from-there")
    assert Credentials.of("u", "p") == Credentials("u", "p")
    monkeypatch.setenv("SNAPKV_ETCD_USER", "")
    assert Credentials.of(None, None) is None


@pytest.mark.parametrize(("user", "password"), [("u", None), (None, "p"), ("", "p")])
def test_half_a_login_is_an_error(user: str | None, password: str | None) -> None:
    with pytest.raises(InvalidOptionError, match="go together"):
        open_etcd(NOWHERE, user=user, password=password)


def test_half_a_login_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNAPKV_ETCD_USER", "u")
    with pytest.raises(InvalidOptionError, match="go together"):
        open_etcd(NOWHERE)


@pytest.mark.parametrize(("user", "password"), [(1, "hunter2"), ("u", b"hunter2"), ("u", 5)])
def test_a_login_of_the_wrong_type(user: object, password: object) -> None:
    with pytest.raises(InvalidTypeError) as raised:
        open_etcd(NOWHERE, user=user, password=password)  # type: ignore[arg-type]
    assert "hunter2" not in told(raised.value)


@pytest.mark.parametrize(("user", "password"), [("u", "hunter2\ud800"), ("\udfff", "hunter2")])
def test_a_login_that_cannot_be_sent(user: str, password: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        open_etcd(NOWHERE, user=user, password=password)
    assert "hunter2" not in told(raised.value)


def test_a_login_does_not_show_its_password() -> None:
    login = Credentials("u", "hunter2")
    assert "hunter2" not in f"{login} {login!r} {[login]}"


# --- certificates ---------------------------------------------------------------------------


def test_tls_by_option_and_by_environment(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, cert, key = (str(p) for p in _paths(certificates))
    assert Security.of(None, None, None, None) == Security()
    assert Security.of(None, None, None, None).context() is None
    assert Security.of(True, None, None, None).tls  # with what the system trusts
    assert Security.of(None, ca, None, None).ca == certificates.ca.read_bytes()
    monkeypatch.setenv("SNAPKV_ETCD_CACERT", ca)
    monkeypatch.setenv("SNAPKV_ETCD_CERT", cert)
    monkeypatch.setenv("SNAPKV_ETCD_KEY", key)
    found = Security.of(None, None, None, None)
    assert (found.tls, found.ca, found.cert, found.key) == (
        True,
        *(path.read_bytes() for path in _paths(certificates)),
    )
    assert Security.of(False, None, None, None) == Security()
    assert found.context() is not None


def test_a_security_does_not_show_its_key(certificates: Certificates) -> None:
    _, cert, key = _paths(certificates)
    security = Security.of(None, None, str(cert), str(key))
    assert "PRIVATE" not in f"{security} {security!r}"


def _paths(certificates: Certificates) -> tuple[Path, Path, Path]:
    return certificates.ca, certificates.cert("client"), certificates.key("client")


def test_certificates_and_no_tls_contradict(certificates: Certificates) -> None:
    with pytest.raises(InvalidOptionError, match="tls=False"):
        open_etcd(NOWHERE, tls=False, ca_cert=str(certificates.ca))


def test_half_a_client_certificate(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for half in ("cert", "key"):
        with pytest.raises(InvalidOptionError, match="needs both cert= and key="):
            open_etcd(NOWHERE, **{half: str(certificates.ca)})
    monkeypatch.setenv("SNAPKV_ETCD_KEY", str(certificates.key("client")))
    with pytest.raises(InvalidOptionError, match="needs both cert= and key="):
        open_etcd(NOWHERE)


@pytest.mark.parametrize("wrong", [{"ca_cert": 5}, {"cert": 5, "key": "k"}, {"tls": "yes"}])
def test_tls_options_of_the_wrong_type(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidTypeError):
        open_etcd(NOWHERE, **wrong)  # type: ignore[arg-type]


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    unreadable = tmp_path / "unreadable"
    unreadable.mkdir()
    for path in (tmp_path / "missing.crt", unreadable, "nul\0byte"):
        with pytest.raises(InvalidOptionError):
            open_etcd(NOWHERE, ca_cert=str(path))


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"not a certificate",
        b"\xff\xfe-----BEGIN",
        b"-----BEGIN CERTIFICATE-----\nZm9v\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n",
    ],
)
def test_garbage_is_no_certificate(
    garbage: bytes, tmp_path: Path, certificates: Certificates
) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_bytes(garbage)
    _, cert, key = map(str, _paths(certificates))
    for options in (
        {"ca_cert": str(bad)},
        {"cert": str(bad), "key": key},
        {"cert": cert, "key": str(bad)},
    ):
        with pytest.raises(InvalidOptionError, match=r"bad\.pem"):
            open_etcd(NOWHERE, **options)  # type: ignore[arg-type]


def test_a_key_of_another_certificate(certificates: Certificates) -> None:
    with pytest.raises(InvalidOptionError, match="not usable for TLS"):
        open_etcd(
            NOWHERE, cert=str(certificates.cert("client")), key=str(certificates.key("server"))
        )


def test_a_key_with_a_password_does_not_ask_for_it(
    certificates: Certificates, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-aes256", "-passout", "pass:x", "-out", str(locked)]
    command += ["-in", str(certificates.key("client"))]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    code = (
        "import sys; from snapkv.engine.etcd.engine import open_etcd\n"
        "from snapkv.errors import InvalidOptionError\n"
        "try: open_etcd('etcd://127.0.0.1:1', cert=sys.argv[1], key=sys.argv[2])\n"
        "except InvalidOptionError: print('refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(certificates.cert("client")), str(locked)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        start_new_session=True,  # no terminal to ask
    )
    assert done.stdout == "refused\n", done.stderr


# --- options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_request_bytes": 100}, InvalidOptionError),
        ({"max_txn_ops": 1}, InvalidOptionError),
        ({"max_request_bytes": "1"}, InvalidTypeError),
        ({"max_txn_ops": True}, InvalidTypeError),
        ({"durability": "none"}, InvalidTypeError),
    ],
)
def test_bad_options_of_open(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        snapkv.open(NOWHERE, **options)  # type: ignore[arg-type]


def test_secrets_of_the_environment_open_a_store(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster without authentication takes anybody: the login is kept for when it is asked."""
    monkeypatch.setenv("SNAPKV_ETCD_USER", "u")
    monkeypatch.setenv("SNAPKV_ETCD_PASSWORD", "hunter2")
    with snapkv.open(etcd.url) as store:
        store.save("a", b"1")
        assert "hunter2" not in f"{store!r} {store.info()}"
    assert os.environ["SNAPKV_ETCD_PASSWORD"] == "hunter2"
