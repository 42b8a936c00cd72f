"""Bodies as clients send them: packed, in other encodings, too large, or never read."""

import gzip
import json
import os
import resource
import socket
import subprocess
import threading

import httpx
import pytest
import requests

from cdcmeta.couch_http import Limits, Login, http_request

from .served import WAIT_S, error_of
from .test_couch_feeds import until

pytestmark = pytest.mark.slow

JSON_GZIP = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
LARGE = 40_000_000


def test_a_packed_body(db):
    body = gzip.compress(json.dumps({"docs": [{"_id": f"d{n}"} for n in range(5_000)]}).encode())
    assert db("POST", "_bulk_docs", content=body, headers=JSON_GZIP).status_code == 201
    assert db.lib.info().doc_count == 5_000
    for encoding in ("GZIP", "x-gzip", "identity, gzip"):
        headers = JSON_GZIP | {"Content-Encoding": encoding}
        body = gzip.compress(b'{"_id":"%s"}' % encoding.encode())
        assert db("POST", content=body, headers=headers).status_code == 201
    twice = gzip.compress(b'{"_id":"two ') + gzip.compress(b'members"}')
    assert db("POST", content=twice, headers=JSON_GZIP).json()["id"] == "two members"
    in_pieces = (twice[n : n + 1] for n in range(len(twice)))
    assert db("PUT", "d", content=in_pieces, headers=JSON_GZIP).status_code == 201
    assert (
        db("PUT", "e", content=b"{}", headers={"Content-Encoding": "identity"}).status_code == 201
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="plain"),
        pytest.param(b"", id="empty"),
        pytest.param(gzip.compress(b"{}")[:-1], id="cut"),
        pytest.param(gzip.compress(b"{}") + b"x", id="longer"),
        pytest.param(gzip.compress(b"{}") * 2, id="twice"),
    ],
)
def test_a_body_that_is_packed_wrongly(db, body):
    assert error_of(db("PUT", "d", content=body, headers=JSON_GZIP))[:2] == (400, "bad_request")


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "gzip, br", "\xe4"])
def test_another_encoding(db, encoding):
    """Also where the bytes would do as plain JSON."""
    headers = {"Content-Encoding": encoding.encode("latin-1")}
    for method, path in (("PUT", "d"), ("POST", "")):
        answer = db(method, path, content=b"{}", headers=headers | {b"Content-Type": JSON})
        assert error_of(answer)[:2] == (415, "bad_content_encoding")
    assert db.lib.info().doc_count == 0


JSON = b"application/json"


def test_a_multipart_document(db):
    """As CouchDB's replicator sends what has attachments."""
    kind = 'multipart/related; boundary="b"'
    body = b'--b\r\nContent-Type: application/json\r\n\r\n{"_id":"d"}\r\n--b--'
    answer = db(
        "PUT", "d", content=body, headers={"Content-Type": kind}, params={"new_edits": "false"}
    )
    assert error_of(answer)[:2] == (415, "bad_content_type")
    assert db("PUT", "d", content=b"{}", headers={"Content-Type": kind}).status_code == 415
    assert db.get("d").status_code == 404


def bomb(size: int) -> bytes:
    return gzip.compress(b'{"a":"' + b"x" * size + b'"}')


def test_a_bomb(own):
    """It is refused when it is too large unpacked, and no more than that is held."""
    db = own(limits=Limits(body_bytes=1_000_000)).database()
    packed = bomb(120_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for method, path in (("PUT", "d"), ("POST", "_bulk_get")):
        answer = db(method, path, content=packed, headers=JSON_GZIP)
        assert error_of(answer)[:2] == (413, "too_large")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB
    assert db("PUT", "d", content=bomb(900_000), headers=JSON_GZIP).status_code == 201
    assert db.served.server._service.body_budget._left == db.served.server._service.body_budget.size


def test_a_bomb_within_the_size(own, monkeypatch):
    monkeypatch.setattr(http_request, "RATIO_FREE_BYTES", 100_000)
    db = own().database()
    answer = db("PUT", "d", content=bomb(200_000), headers=JSON_GZIP)
    reason = f"the body unpacks to more than {http_request.RATIO_MAX} times its size"
    assert error_of(answer) == (413, "too_large", reason)
    assert db("PUT", "d", content=bomb(90_000), headers=JSON_GZIP).status_code == 201


# --- answers that come before the body ---


@pytest.fixture
def small(own):
    return own(limits=Limits(body_bytes=1_000)).database()


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize("chunked", [False, True])
def test_requests_sees_what_is_too_large(small, connection, chunked):
    """It looks at the answer when all is sent."""
    url = f"{small.served.server.url}{small.lib.name}/d"
    data = (b"x" * 1_000_000 for _ in range(40)) if chunked else b"x" * LARGE
    answer = requests.put(url, data=data, headers={"Connection": connection}, timeout=WAIT_S)
    assert (answer.status_code, answer.json()["error"]) == (413, "too_large")


@pytest.mark.parametrize("words", [[], ["-H", "Expect:"], ["-0"], ["-H", "Connection: close"]])
def test_curl_sees_what_is_too_large(small, tmp_path, words):
    body = tmp_path / "body"
    with body.open("wb") as file:
        os.truncate(file.fileno(), LARGE)
    url = f"{small.served.server.url}{small.lib.name}/d"
    command = ["curl", "-sS", "-X", "PUT", url, "--data-binary", f"@{body}", *words]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=True)
    assert json.loads(done.stdout)["error"] == "too_large"


FETCH = """
const body = Buffer.alloc(Number(process.argv[2]), "x");
const sent = async () => {
  const fetched = await fetch(process.argv[1], { method: "PUT", body });
  console.log(fetched.status, (await fetched.json()).error);
  const options = { method: "PUT", headers: { Connection: process.argv[3] } };
  const request = require("http").request(process.argv[1], options, (answer) => {
    console.log(answer.statusCode);
    answer.resume();
  });
  request.end(body);
};
sent();
"""


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_node_sees_what_is_too_large(small, connection):
    url = f"{small.served.server.url}{small.lib.name}/d"
    command = ["node", "-e", FETCH, url, str(LARGE), connection]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout == "413 too_large\n413\n", done.stderr


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_client_that_sends_it_all_before_it_looks(small, connection):
    """A connection that was closed meanwhile would be reset, and the answer lost."""
    head = f"PUT /{small.lib.name}/d HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n"
    with socket.create_connection(("127.0.0.1", small.served.server.port), WAIT_S) as client:
        client.sendall(f"{head}Content-Length: {LARGE}\r\n\r\n".encode() + b"x" * LARGE)
        assert client.recv(4_096).startswith(b"HTTP/1.1 413 ")


def test_a_stranger_sees_the_answer_too(own):
    db = own(login=Login("ann", "x")).database()
    url = f"{db.served.server.url}{db.lib.name}/d"
    headers = {"Connection": "close"}
    assert requests.put(url, data=b"x" * LARGE, headers=headers, timeout=WAIT_S).status_code == 401


def test_a_connection_goes_on_after_a_small_body_that_nobody_read(db):
    port = db.served.server.port
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
        for _ in range(3):
            head = f"POST /{db.lib.name}/nothing/here HTTP/1.1\r\nHost: localhost\r\n"
            client.sendall(f"{head}Content-Length: 5000\r\n\r\n".encode())
            client.sendall(b"x" * 5_000)
            answer = client.makefile("rb")
            assert answer.readline().startswith(b"HTTP/1.1 501 ")
            headers = [line.strip().lower() for line in iter(answer.readline, b"\r\n")]
            assert b"connection: close" not in headers
            (length,) = (int(each[15:]) for each in headers if each.startswith(b"content-length:"))
            answer.read(length)


@pytest.mark.parametrize("length", ["Content-Length: 99999999999", "Transfer-Encoding: chunked"])
def test_a_body_that_nobody_wants_has_an_end(own, monkeypatch, length):
    """Neither much of it nor waiting for it keeps a connection."""
    monkeypatch.setattr(http_request, "UNREAD_BYTES_MAX", 5_000_000)
    db = own(limits=Limits(body_s=0.5)).database()
    head = f"PATCH /{db.lib.name}/d HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"
    for chunk in (b"", b"fffff\r\n" + b"x" * 0xFFFFF + b"\r\n"):
        with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
            client.sendall(head.encode())
            assert client.recv(4_096).startswith(b"HTTP/1.1 405 ")

            def send(client=client, chunk=chunk) -> None:
                try:
                    while chunk:
                        client.sendall(chunk)
                except OSError:
                    pass  # it was closed: this is what the test waits for

            sender = threading.Thread(target=send)
            sender.start()
            sender.join(WAIT_S)
            assert not sender.is_alive()
            until(lambda client=client: closed(client), "it stays open")


def closed(client: socket.socket) -> bool:
    try:
        return client.recv(4_096) == b""
    except ConnectionError:
        return True


def test_a_body_of_which_a_client_waits_to_be_asked(small):
    """Expect: 100-continue; nobody asks for what is too large."""
    with socket.create_connection(("127.0.0.1", small.served.server.port), WAIT_S) as client:
        head = f"PUT /{small.lib.name}/d HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        client.sendall(f"{head}Content-Length: 5000000\r\n\r\n".encode())
        assert client.recv(4_096).startswith(b"HTTP/1.1 413 ")
    with httpx.Client(base_url=small.served.server.url, timeout=WAIT_S) as http:
        answer = http.put(f"/{small.lib.name}/d", content=b"{}", headers={"Expect": "100-continue"})
        assert answer.status_code == 201
