"""Options that are given as empty: the environment does not stand in for them."""

from __future__ import annotations

import pytest
from etcd_server import make_certificates

from snapkv.engine.etcd.options import VARIABLES, without_environment
from snapkv.engine.etcd.security import Credentials, Security
from snapkv.errors import InvalidOptionError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def variables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says everything."""
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    monkeypatch.setenv("SNAPKV_ETCD_USER", "somebody")
    monkeypatch.setenv("SNAPKV_ETCD_PASSWORD", "hunter2")
    monkeypatch.setenv("SNAPKV_ETCD_CACERT", str(certificates.ca))
    monkeypatch.setenv("SNAPKV_ETCD_CERT", str(certificates.cert("client")))
    monkeypatch.setenv("SNAPKV_ETCD_KEY", str(certificates.key("client")))


def test_empty_is_none() -> None:
    assert Credentials.of(None, None) is not None
    assert Credentials.of("", "") is None
    assert Security.of(None, None, None, None).key is not None
    assert Security.of(None, "", "", "") == Security()
    only_ours = Security.of(None, None, "", "")
    assert (only_ours.ca is not None, only_ours.key) == (True, None)


def test_what_is_given_is_all_there_is() -> None:
    assert Credentials.given(None, None) is None
    assert Credentials.given("u", "p") == Credentials("u", "p")
    with pytest.raises(InvalidOptionError, match="go together"):
        Credentials.given("u", None)


def test_options_without_the_environment() -> None:
    assert without_environment({}) == dict.fromkeys(VARIABLES, "")
    given = {"user": "u", "password": "p", "tls": True, "ca_cert": None}
    options = without_environment(given)
    assert options == {**dict.fromkeys(VARIABLES, ""), "user": "u", "password": "p", "tls": True}
    assert Credentials.of(options["user"], options["password"]) == Credentials("u", "p")
    paths = [options[name] for name in ("ca_cert", "cert", "key")]
    assert Security.of(True, *paths) == Security(True)
    for half in ({"user": "u"}, {"password": "p"}, {"user": "u", "password": None}):
        with pytest.raises(InvalidOptionError, match="go together"):
            without_environment(half)
