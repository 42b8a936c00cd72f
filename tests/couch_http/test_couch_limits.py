"""What a client may take: bodies, time, memory, connections, and who may come in."""

import base64
import gc
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from cdcmeta.changes.feed import FeedWalk
from cdcmeta.changes.selector import Selector
from cdcmeta.couch_http import Limits, Login
from cdcmeta.couch_http import changes_feed as params
from cdcmeta.couch_http import http_request as call
from cdcmeta.couch_http import wakeup as waking
from cdcmeta.couch_http.http_request import decoded, parsed

from .served import WAIT_S, error_of
from .test_couch_feeds import until, waits

pytestmark = pytest.mark.slow

LOGIN = Login("ann", "pass:word ä")


def basic(credentials: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}


# --- bodies ---


def head_of_put(db, length: int) -> bytes:
    head = f"PUT /{db.lib.name}/d HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    return head.encode()


@pytest.mark.parametrize("path", ["d", "_bulk_docs", "_changes"])
def test_a_body_over_the_limit(own, path):
    db = own(limits=Limits(body_bytes=1_000, bulk_bytes=1_000)).database()
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
        client.sendall(head_of_put(db, 9) + b"{")
        assert client.recv(4_096).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", ["d", "nothing/here"])
def test_a_body_that_stops_coming(own, path):
    """What came fast gives no time to rest, whether it is read or passed over."""
    db = own(limits=Limits(body_s=0.2, body_bytes_per_s=1)).database()
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        head = head_of_put(db, 2_000_000).replace(b"/d ", b"/%b " % path.encode())
        client.sendall(head + b"x" * 1_000_000)
        answer = client.makefile("rb").read()  # to its end: the server closes the connection
        assert answer.startswith(b"HTTP/1.1 408 " if path == "d" else b"HTTP/1.1 501 ")


def test_a_body_that_ends_early(own):
    db = own().database()
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        client.sendall(head_of_put(db, 9) + b"{}")
    assert db.get("d").status_code == 404
    assert db("PUT", "d", json={}).status_code == 201


def test_a_large_body_is_parsed_while_others_are_served(own, monkeypatch):
    """Here until others were."""
    db = own().database()
    parsing, served = threading.Event(), threading.Event()

    def waiting(raw, *, pausing):
        assert pausing
        parsing.set()
        assert served.wait(WAIT_S)
        return decoded(raw, pausing=pausing)

    monkeypatch.setattr(call, "decoded", waiting)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(db, "PUT", "d", json={"text": "x" * call.PARSED_AT_ONCE_BYTES})
        assert parsing.wait(WAIT_S)
        assert db.served.http.get("/_up").status_code == 200
        served.set()
        assert put.result(WAIT_S).status_code == 201


def test_a_selector_is_compiled_while_others_are_served(own, monkeypatch):
    """Here until others were."""
    db = own().database()
    compiling, served = threading.Event(), threading.Event()

    def waiting(selector, *, regex):
        compiling.set()
        assert served.wait(WAIT_S)
        return Selector(selector, regex=regex)

    monkeypatch.setattr(params, "Selector", waiting)
    with ThreadPoolExecutor(1) as pool:
        page = pool.submit(db.post, "_changes", {"selector": {"a": 1}}, filter="_selector")
        assert compiling.wait(WAIT_S)
        assert db.served.http.get("/_up").status_code == 200
        served.set()
        assert page.result(WAIT_S).status_code == 200


def test_a_parser_that_pauses():
    """Another thread has its turns while it goes on: more of them than any call would let pass."""
    raw = b"[" + b",".join([b'{"a":1}'] * 300_000) + b"]"
    begun, order = threading.Event(), []

    def other() -> None:
        assert begun.wait(WAIT_S)
        for _ in range(6):
            time.sleep(0)  # lets go of the interpreter
        order.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    begun.set()
    decoded(raw, pausing=True)
    order.append("parsed")
    thread.join(WAIT_S)
    assert order == ["other", "parsed"]


def test_bodies_of_all_requests_together(own):
    """One that is on its way leaves no room for another, until it was answered."""
    db = own(limits=Limits(body_bytes=1_000, bodies_bytes=1_000)).database()
    body = b'{"text":"' + b"x" * 880 + b'"}'
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        client.sendall(head_of_put(db, len(body)) + body[:-1])
        deadline = time.monotonic() + WAIT_S
        while (answer := db("PUT", "e", content=b"[" * 300)).status_code == 400:
            assert time.monotonic() < deadline, "there is room for both"
        reason = "Too many bodies at once: try again."
        assert error_of(answer) == (503, "service_unavailable", reason)
        assert db.get("e").status_code == 404  # what has no body is served
        client.sendall(body[-1:])
        assert client.recv(4_096).startswith(b"HTTP/1.1 201 ")
    for _ in range(5):  # each gives back what it took, also when it is refused
        assert db("PUT", "e", content=b"[" * 300).status_code == 400
        assert db("PUT", "e", content=iter([b"[" * 600] * 2)).status_code == 413
    assert db("PUT", "e", json={"text": "x" * 900}).status_code == 201


def test_small_bodies_get_through_beside_large_ones_that_are_slow(own):
    limits = Limits(
        body_bytes=1_000, bulk_bytes=40_000, bodies_bytes=100_000, small_bodies_share=0.2
    )
    db = own(limits=limits).database()
    room = db.served.server._service.body_budget
    body = b'{"docs":[' + b",".join([b"{}"] * 12_000) + b"]}"
    body += b" " * (40_000 - len(body))
    head = f"POST /{db.lib.name}/_bulk_docs HTTP/1.1\r\nHost: localhost\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 40000\r\n\r\n"
    with ExitStack() as stack:
        address = "127.0.0.1", db.served.server.port
        clients = [stack.enter_context(socket.create_connection(address, WAIT_S)) for _ in range(2)]
        for client in clients:
            client.sendall(head.encode() + body[:39_000])
        until(lambda: room._left == 22_000, "the bodies do not come")
        assert db.post("_bulk_docs", {"docs": [{"text": "x" * 4_000}]}).status_code == 503
        for n in range(30):  # each gives back what it took
            assert db("PUT", f"d{n}", json={"text": "x" * 900}).status_code == 201
            assert db.post("_bulk_docs", {"docs": [{"text": "x" * 900}]}).status_code == 201
        for client in clients:
            client.sendall(body[39_000:])
            assert client.recv(4_096).startswith(b"HTTP/1.1 201 ")
    assert room._left == room.size


def test_a_feed_keeps_no_room(own):
    """What it was asked with made place for others long before it ends."""
    db = own(limits=Limits(body_bytes=1_000, bodies_bytes=1_000)).database()
    body = {"doc_ids": ["a"], "text": "x" * 900}
    with db.feed(body, feed="continuous", filter="_doc_ids", timeout=60_000) as feed:
        for n in range(3):
            assert db("PUT", f"d{n}", json={"text": "x" * 900}).status_code == 201
        db.lib.put({"_id": "a"})
        assert feed.row()["id"] == "a"


def test_there_is_room_for_the_largest_body(own):
    db = own(limits=Limits(body_bytes=2_000, bodies_bytes=1_000)).database()
    assert db("PUT", "d", json={"text": "x" * 1_900}).status_code == 201


# --- memory ---


@pytest.mark.parametrize("feed", ["normal", "continuous"])
def test_a_reader_that_is_slow_holds_up_the_reading(own, monkeypatch, feed):
    """Documents are read as the client takes them, not before."""
    db = own().database()
    for n in range(100):
        db.lib.put({"_id": f"d{n:03}", "text": "x" * 300_000})
    read = 0
    step = FeedWalk.step

    def counted(walk, rows_max):
        nonlocal read
        rows = step(walk, rows_max)
        read += len(rows)
        return rows

    monkeypatch.setattr(FeedWalk, "step", counted)
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        path = f"/{db.lib.name}/_changes?include_docs=true&feed={feed}&heartbeat=20"
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
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


def test_databases_that_are_followed_beyond_the_limit(own, monkeypatch):
    """One more has a place when nobody follows another any longer."""
    monkeypatch.setattr(waking, "LINGER_S", 0.1)
    served = own(limits=Limits(followed=2))
    one, two, three = (served.database() for _ in range(3))
    with one.feed(feed="continuous", heartbeat="true"):
        with two.feed(feed="longpoll", heartbeat="true"):
            until(lambda: waits(one) and waits(two), "they are not followed")
            for feed in ("longpoll", "continuous", "eventsource"):
                expected = 503, "service_unavailable", waking.TOO_MANY
                assert error_of(three.get("_changes", feed=feed)) == expected
            one.changes(feed="longpoll", timeout=0)  # who is followed already may be by more
            assert three.changes()["results"] == []
        until(lambda: three.get("_changes", feed="longpoll", timeout=0).is_success, "no place")


# --- answers that nobody reads ---


@contextmanager
def asking(db, rest: str = "") -> Iterator[socket.socket]:
    """Ask for 20 MB, which no buffer on the way takes."""
    for n in range(10):
        db.lib.put({"_id": f"d{n}", "text": "x" * 2_000_000})
    with socket.socket() as client:
        client.settimeout(WAIT_S)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.connect(("127.0.0.1", db.served.server.port))
        head = f"GET /{db.lib.name}/_all_docs?include_docs=true HTTP/1.1\r\nHost: localhost\r\n"
        client.sendall(f"{head}{rest}\r\n".encode())
        yield client


@pytest.mark.parametrize("rest", ["", "Connection: close\r\n"])
def test_an_answer_that_nobody_reads(own, rest):
    """So whoever asks and does not listen gives the place to others."""
    db = own(limits=Limits(unread_s=0.3)).database()
    db.served.http.close()
    with asking(db, rest) as client:
        assert client.recv(1)
        connections = db.served.server.server_state.connections
        until(lambda: not connections, "its place is kept")
        until(lambda: not db.served.server.server_state.tasks, "it is still answered")


@pytest.mark.parametrize("path", ["d0", "d0?"])
def test_the_end_of_an_answer_that_nobody_reads(own, path):
    """All of it was handed over, and the connection is kept alive or closed behind it."""
    db = own(limits=Limits(unread_s=0.3)).database()
    db.served.http.close()
    db.lib.put({"_id": "d0", "text": "x" * 7_000_000})
    rest = "Connection: close\r\n" if path.endswith("?") else ""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.connect(("127.0.0.1", db.served.server.port))
        head = f"GET /{db.lib.name}/{path} HTTP/1.1\r\nHost: localhost\r\n{rest}\r\n"
        client.sendall(head.encode())
        assert client.recv(1)
        until(lambda: not db.served.server.server_state.connections, "its place is kept")


def test_a_slow_reader_gets_all_of_it(own):
    """It takes longer than nothing may be read, and reads a little all the time."""
    db = own(limits=Limits(unread_s=1.0)).database()
    with asking(db) as client:
        taken = client.recv(1)
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            taken = taken[-8:] + client.recv(1 << 14)
            time.sleep(0.01)
        while not taken.endswith(b"\r\n0\r\n\r\n"):
            taken = taken[-8:] + client.recv(1 << 20)


def test_connections_beyond_the_limit(own):
    db = own(limits=Limits(connections=3)).database()
    port = db.served.server.port
    db.served.http.close()  # and the one that it kept
    clients = [socket.create_connection(("127.0.0.1", port), WAIT_S) for _ in range(4)]
    try:
        answers = []
        for client in clients:
            client.sendall(b"GET /_up HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answers.append(client.recv(4_096).split(b" ")[1])
        assert b"503" in answers
    finally:
        for client in clients:
            client.close()


# --- who comes in ---


@pytest.mark.long_after(3)
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


def test_no_garbage_is_looked_for_while_a_long_document_is_parsed():
    """Of millions of containers it would be a stop for all: each one of them is kept anyway."""
    raw = b'{"x":[' + b",".join([b"[]"] * 300_000) + b"]}"
    before = [each["collections"] for each in gc.get_stats()]
    assert len(parsed(raw, pausing=True)["x"]) == 300_000
    after = [each["collections"] for each in gc.get_stats()]
    assert after[1] - before[1] <= 2, "with the collector it is some 40"
    assert gc.isenabled()
    with pytest.raises(ValueError, match="Extra data"):
        parsed(raw + b"}", pausing=True)
    assert gc.isenabled()
