"""Commits that ride together: who is refused does not take the others with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from etcd_protocol import Two
from etcd_server import EtcdProxy, EtcdServer, enable_auth

import snapkv
from snapkv.errors import AccessDeniedError

pytestmark = pytest.mark.slow

MAY = [("default/sys/", "readwrite"), ("default/data/own/", "readwrite")]
USERS = {
    "root": ("very-secret", None),
    "me": ("secret", [*MAY, ("default/data/stall", "readwrite")]),
}
SERVER_BYTES, VALUE_BYTES = 200_000, 60_000


@pytest.mark.etcd_since("3.5.28", "rights inside nested transactions")
def test_a_member_without_the_right_is_refused_alone(proxy: EtcdProxy) -> None:
    with snapkv.open(proxy.server.url) as store:
        store.save("own/x", b"1")
    enable_auth(proxy.server, USERS)
    with Two(proxy) as two:
        a = two.a(user="me", password="secret")
        keys = ["own/a", "other/a", "own/b"]
        with two.riding(a, *(lambda k=key: a.save(k, b"1") for key in keys)) as callers:
            pass
        own_a, other, own_b = callers
        assert isinstance(other.error(), AccessDeniedError)
        for caller, key in ((own_a, b"own/a"), (own_b, b"own/b")):
            assert caller.value() > 0
            found = two.gateway.get(b"default/data/" + key)
            assert found is not None
            assert found.version == 1
        assert two.gateway.get(b"default/data/other/a") is None


def test_a_group_that_is_too_large_for_the_server_goes_one_by_one(tmp_path: Path) -> None:
    """The server takes less than it was said to; each of them fits."""
    flags = [f"--max-request-bytes={SERVER_BYTES}"]
    with EtcdServer(tmp_path, flags=flags) as server, EtcdProxy(server) as proxy, Two(proxy) as two:
        a = two.a()
        keys = [f"k{n}" for n in range(6)]
        value = b"x" * VALUE_BYTES
        with two.riding(a, *(lambda k=key: a.save(k, value) for key in keys)) as callers:
            pass
        assert len({caller.value() for caller in callers}) == len(keys)
        assert [len(two.history().written(key)) for key in keys] == [1] * len(keys)
