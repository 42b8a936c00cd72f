"""What a client may take: bodies, time, memory, connections, and who may come in."""

import base64
import socket
import threading
import time

import pytest

from cdcmeta.changes.feed import Walk
from cdcmeta.http import Limits, Login

from .served import WAIT_S, error_of

LOGIN = Login("ann", "pass:word ä")


def basic(credentials: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}


# --- bodies ---


@pytest.mark.parametrize("path", ["d", "_bulk_docs", "_changes"])
def test_a_body_over_the_limit(own, path):
    db = own(limits=Limits(body_bytes=1_000)).database()
    method = "PUT" if path == "d" else "POST"
    body = b'{"docs":[],"text":"' + b"x" * 2_000 + b'"}'
    headers = {"Content-Type": "application/json"}
    expected = (413, "too_large", "the request entity is too large")
    assert error_of(db(method, path, content=body, headers=headers)) == expected
    in_pieces = iter([body[:900], body[900:]])  # nobody said how much comes
    assert error_of(db(method, path, content=in_pieces, headers=headers)) == expected
    assert db(method, path, content=b'{"docs":[]}', headers=headers).status_code < 300


def test_a_body_that_does_not_come(own):
    db = own(limits=Limits(body_s=0.2)).database()
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        client.sendall(
            f"PUT /{db.lib.name}/d HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode()
        )
        assert client.recv(4_096).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_ends_early(own):
    db = own().database()
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        client.sendall(
            f"PUT /{db.lib.name}/d HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{}}".encode()
        )
    assert db.get("d").status_code == 404
    assert db("PUT", "d", json={}).status_code == 201


# --- memory ---


@pytest.mark.parametrize("feed", ["normal", "continuous"])
def test_a_reader_that_is_slow_holds_up_the_reading(own, monkeypatch, feed):
    """Documents are read as the client takes them, not before."""
    db = own().database()
    for n in range(100):
        db.lib.put({"_id": f"d{n:03}", "text": "x" * 300_000})
    read = 0
    step = Walk.step

    def counted(walk, rows_max):
        nonlocal read
        rows = step(walk, rows_max)
        read += len(rows)
        return rows

    monkeypatch.setattr(Walk, "step", counted)
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        path = f"/{db.lib.name}/_changes?include_docs=true&feed={feed}&heartbeat=20"
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        standing = -1
        while standing != read or not read:
            standing = read
            time.sleep(0.3)
        assert read < 50  # of 30 MB: what buffers on the way take, and one piece
        assert db.get("d000").status_code == 200  # others are served meanwhile
        taken = 0
        while taken < 30_000_000:
            taken += len(client.recv(1 << 20))
    assert read == 100


def test_a_listing_for_a_reader_that_is_slow(own):
    db = own().database()
    for n in range(60):
        db.lib.put({"_id": f"d{n:03}", "text": "x" * 300_000})
    rows = db.get("_all_docs", include_docs="true").json()["rows"]
    assert [row["id"] for row in rows] == [f"d{n:03}" for n in range(60)]


def test_connections_beyond_the_limit(own):
    db = own(limits=Limits(connections=3)).database()
    port = db.served.server.port
    db.served.http.close()  # and the one that it kept
    clients = [socket.create_connection(("127.0.0.1", port), WAIT_S) for _ in range(4)]
    try:
        answers = []
        for client in clients:
            client.sendall(b"GET /_up HTTP/1.1\r\nHost: x\r\n\r\n")
            answers.append(client.recv(4_096).split(b" ")[1])
        assert b"503" in answers
    finally:
        for client in clients:
            client.close()


# --- who comes in ---


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "Authentication required."),
        (basic("ann:wrong"), "Name or password is incorrect."),
        (basic("bob:pass:word ä"), "Name or password is incorrect."),
        (basic("ann"), "Name or password is incorrect."),
        ({"Authorization": "Basic ä".encode("latin-1")}, "Name or password is incorrect."),
        ({"Authorization": "Basic %%%"}, "Name or password is incorrect."),
        ({"Authorization": "Bearer x"}, "Name or password is incorrect."),
    ],
)
def test_a_stranger(own, headers, reason):
    db = own(login=LOGIN).database()
    for path in ("/", "/_all_dbs", f"/{db.lib.name}", "/%5Fup", "/_up/_all_dbs"):
        answer = db.served.http.get(path, headers=headers)
        assert error_of(answer) == (401, "unauthorized", reason)
        assert answer.headers["www-authenticate"].startswith("Basic ")
    assert db("PUT", "d", json={}, headers=headers).status_code == 401
    assert db.served.http.get("/_up").status_code == 200  # tells nothing but that it lives
    assert db.lib.info().doc_count == 0


def test_who_may_come_in(own):
    db = own(login=LOGIN).database()
    db.served.http.auth = ("ann", "pass:word ä")
    assert db("PUT", "d", json={}).status_code == 201
    assert db.changes()["results"][0]["id"] == "d"


def test_a_password_is_not_shown():
    assert "pass:word" not in repr(LOGIN)


def test_it_listens_on_this_machine_only(own):
    served = own()
    assert served.server.local
    assert served.server.url.startswith("http://127.0.0.1:")


def test_many_requests_at_once(db):
    """More than there are threads for them; all are served."""
    answers: list[int] = []
    import httpx

    def client(n: int) -> None:
        with httpx.Client(base_url=db.served.server.url, timeout=WAIT_S) as http:
            for i in range(5):
                answers.append(http.put(f"/{db.lib.name}/d{n}-{i}", json={}).status_code)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert answers == [201] * 100
    assert db.get().json()["doc_count"] == 100
