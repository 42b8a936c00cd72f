"""Requests as bytes: heads that are large, wrong or unusual, and several on one connection."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from cdcmeta.couch_http import Limits
from snapkv.web.client_connection import QUEUED_MAX

from .served import WAIT_S
from .test_couch_feeds import until

pytestmark = pytest.mark.slow

UP = b"GET /_up HTTP/1.1\r\nHost: localhost\r\n"
LARGE = 1 << 20


@contextmanager
def connected(db) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        yield client


def read(client: socket.socket, answers: int = 1) -> bytes:
    """Return what comes until there are so many answers, or it hangs up."""
    found = b""
    with suppress(ConnectionError):
        while found.count(b"HTTP/1.1 ") < answers or not found.endswith(b"\n"):
            some = client.recv(1 << 16)
            if not some:
                break
            found += some
    return found


def rest(client: socket.socket) -> bytes:
    """Return what comes until it hangs up."""
    found = b""
    with suppress(ConnectionError):
        while some := client.recv(1 << 16):
            found += some
    return found


def head_of_put(db, *headers: str) -> bytes:
    lines = [f"PUT /{db.lib.name}/d HTTP/1.1", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode()


# --- heads that are wrong ---


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01",  # TLS
        b"FOO /_up HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /_up HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /_up HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /_up HTTP/1.1\r\nHost: local\x00host\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"GET http:// HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_head_that_is_wrong(db, head):
    with connected(db) as client:
        client.sendall(head)
        assert rest(client).startswith(b"HTTP/1.1 400 ")
    assert db.get().is_success


@pytest.mark.parametrize(
    "head",
    [
        UP + b"X-Large: " + LARGE * b"x",
        UP + LARGE // 8 * b"X-A: b\r\n",
        b"GET /" + LARGE * b"x",
        b"PUT /a/b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;x="
        + LARGE * b"x",
        b"PUT /a/b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Large: "
        + LARGE * b"x",
    ],
)
def test_a_head_without_end(db, head):
    """What stands around a body has a bound, too: chunks have names, and there are trailers."""
    with connected(db) as client:
        with suppress(ConnectionError):  # it is closed before all of it is read
            client.sendall(head)
        rest(client)
    assert db.get().is_success


def test_a_head_within_the_bound(db):
    with connected(db) as client:
        client.sendall(UP + b"X-Large: " + 50_000 * b"x" + b"\r\n\r\n")
        assert read(client).startswith(b"HTTP/1.1 200 ")


# --- heads that are unusual ---


@pytest.mark.parametrize("sizes", [(1_000,), (1, 1_000), (200, 9)])
def test_a_body_behind_an_upgrade(db, sizes):
    """Java's clients ask for HTTP/2 so, in their first request, whatever it is."""
    doc = json.dumps({"a": "b" * 500}).encode()
    raw = head_of_put(
        db,
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        f"Content-Length: {len(doc)}",
    )
    raw += doc + UP + b"\r\n"
    with connected(db) as client:
        for size in sizes:
            client.sendall(raw[:size])
            raw = raw[size:]
        client.sendall(raw)
        answers = read(client, 2)
    assert answers.startswith(b"HTTP/1.1 201 ")
    assert b"HTTP/1.1 200 " in answers
    assert db.lib.get("d")["a"] == "b" * 500


def test_an_answer_without_chunks(db):
    """HTTP/1.0 does not know them: the answer ends where the connection does."""
    db.lib.bulk([{"_id": "a"}, {"_id": "b"}])
    head = f"GET /{db.lib.name}/_all_docs HTTP/1.0\r\nHost: localhost\r\n\r\n"
    with connected(db) as client:
        client.sendall(head.encode())
        told, _, body = rest(client).partition(b"\r\n\r\n")
    assert b"chunked" not in told
    assert [row["id"] for row in json.loads(body)["rows"]] == ["a", "b"]


def test_headers_behind_the_body(db):
    """They change nothing: who answers has read the head by then, or reads it at the same time."""
    raw = head_of_put(db, "Content-Type: application/json", "Transfer-Encoding: chunked")
    raw += b"2\r\n{}\r\n0\r\nContent-Type: multipart/related\r\nIf-Match: 1-a\r\n\r\n"
    with connected(db) as client:
        client.sendall(raw + UP + b"\r\n")
        assert read(client, 2).startswith(b"HTTP/1.1 201 ")


# --- several requests on one connection ---


def test_requests_that_do_not_wait(db):
    """They are answered in their order."""
    ids = [f"d{n}" for n in range(20)]
    db.lib.bulk([{"_id": id} for id in ids])
    head = "GET /{}/{} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(db) as client:
        client.sendall("".join(head.format(db.lib.name, id) for id in ids).encode())
        found = read(client, len(ids))
    told = [json.loads(line)["_id"] for line in found.splitlines() if line.startswith(b"{")]
    assert told == ids


def test_too_many_requests_that_do_not_wait(own):
    db = own().database()
    db.served.http.close()
    with connected(db) as client:
        with suppress(ConnectionError):
            client.sendall(1_000 * QUEUED_MAX * (UP + b"\r\n"))
        assert rest(client).count(b"HTTP/1.1 200 ") < 1_000 * QUEUED_MAX
    until(lambda: not db.served.server.server_state.tasks, "some are still answered")


@pytest.mark.parametrize("behind", [UP + b"\r\n", 3 * (UP + b"\r\n"), UP, b"\x16\x03\x01"])
def test_a_feed_that_is_left_with_more_behind_it(own, caplog, behind):
    """Its end is told to the feed, not to what waits for its turn; nothing stands within it."""
    db = own(limits=Limits(head_s=60.0)).database()
    db.served.http.close()
    path = f"/{db.lib.name}/_changes?feed=continuous&heartbeat=50"
    feed = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with connected(db) as client:
        client.sendall(feed)
        db.lib.put({"_id": "a"})
        while b'"id":"a"' not in client.recv(1 << 16):
            pass
        client.sendall(behind)
        if behind == b"\x16\x03\x01":
            assert b"HTTP" not in rest(client)
    state = db.served.server.server_state
    until(lambda: not state.tasks and not state.connections, "it is still served")
    assert not [each for each in caplog.records if each.exc_info]
