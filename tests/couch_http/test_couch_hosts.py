"""By which names a server of this machine is asked: a page's own name may lead here, too."""

import socket

import pytest

from cdcmeta.couch_http import Login

from .served import WAIT_S, error_of

STRANGE = [
    *("rebound.example", "rebound.example:5984", "127.0.0.1.rebound.example", "localhost.example"),
    *("[::1].example", "[::1", "192.168.0.1", "127.0.0.1:80:80", "user@localhost", "localhost,x"),
]


def asked(served, host: str, path: str = "/_all_dbs", method: str = "GET"):
    return served.http.request(method, path, headers={"Host": host})


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:5984",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.9.8.7",
        "[::1]",
        "[::1]:5984",
    ],
)
def test_names_of_this_machine(served, host):
    assert asked(served, host).status_code == 200


@pytest.mark.parametrize("host", STRANGE)
def test_other_names(served, host):
    reason = "This server is not known by that host name (see --allow-host)."
    for path in ("/", "/_all_dbs", "/_up"):
        assert error_of(asked(served, host, path)) == (403, "forbidden", reason)
    assert asked(served, host, "/led-here", "PUT").status_code == 403
    assert served.http.get("/led-here").status_code == 404


def test_no_name(served):
    with socket.create_connection(("127.0.0.1", served.server.port), WAIT_S) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(4_096).startswith(b"HTTP/1.1 403 ")


def test_a_name_that_is_allowed(own):
    served = own(allow_hosts=("Couch.example",))
    assert asked(served, "couch.example").status_code == 200
    assert asked(served, "couch.example:443").status_code == 200
    assert asked(served, "localhost").status_code == 200
    assert asked(served, "other.example").status_code == 403


def test_a_login_is_enough(own):
    """A page that was led here has none to send."""
    served = own(login=Login("ann", "x"))
    assert asked(served, "rebound.example").status_code == 401
    served.http.auth = ("ann", "x")
    assert asked(served, "rebound.example").status_code == 200
