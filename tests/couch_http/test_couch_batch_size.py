"""How much is read at once, and held for clients that do not take it."""

import json
import socket
import time
import tracemalloc
from collections import deque
from contextlib import ExitStack

import pytest

from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.couch_http import Limits
from cdcmeta.couch_http.streaming import BatchSize, pieces_of

from .served import WAIT_S

pytestmark = pytest.mark.slow

LISTINGS = [
    "_changes?include_docs=true",
    "_changes?include_docs=true&feed=continuous&heartbeat=50",
    "_all_docs?include_docs=true",
    "_changes?include_docs=true&descending=true",
    "_all_docs?include_docs=true&descending=true",
]


def test_as_many_documents_as_make_a_step():
    batch_size = BatchSize(Limits(docs=16, step_bytes=1_000))
    found = []
    for size in (10, 10, 10, 10, 10, 0, 160, 1_600, 0, 2_000, 9_000, 1):
        batch_size.after(size)
        found.append(batch_size.docs)
    assert found == [2, 4, 8, 16, 16, 16, 16, 10, 10, 5, 1, 2]


@pytest.mark.parametrize(("size", "expected"), [(1, 5), (4, 4), (8, 2), (9, 2), (99, 1)])
def test_rows_in_pieces(size, expected):
    rows = deque([b"a" * 4] * 3 + [b"", b"b", b"", b"c" * 3])
    whole, left, found = b"".join(rows), [], []
    for piece in pieces_of(rows, size):
        found.append(piece)
        left.append(len(rows))
    assert b"".join(found) == whole
    assert len(found) == expected
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0


@pytest.fixture
def reads(monkeypatch):
    """Return how many documents were read together, each time."""
    found, bodies = [], DatabaseState.bodies

    def counted(state, wanted):
        found.append(len(wanted))
        return bodies(state, wanted)

    monkeypatch.setattr(DatabaseState, "bodies", counted)
    return found


@pytest.mark.parametrize("path", [LISTINGS[0], LISTINGS[2], "_changes?filter=_selector"])
def test_documents_of_all_sizes(db, reads, path):
    """Small ones are read many at once, large ones alone; also those that a filter leaves out."""
    sizes = [10] * 300 + [200_000] * 100
    for at in range(0, 400, 100):
        docs = [{"_id": f"d{n:03}", "text": "x" * sizes[n]} for n in range(at, at + 100)]
        db.lib.bulk(docs)
    body = {"selector": {"nothing": 1}}
    answer = db("POST", path, json=body) if "selector" in path else db("GET", path)
    page = answer.json()
    rows = page.get("rows", page.get("results"))
    assert len(rows) == (0 if "selector" in path else 400)
    assert sum(reads) == 400
    assert reads[:7] == [1, 2, 4, 8, 16, 32, 64]
    assert max(reads) == Limits().docs
    assert reads[-30:] == [1] * 30


@pytest.mark.long_after(3)
@pytest.mark.parametrize("path", LISTINGS)
def test_readers_that_take_nothing(own, path):
    """For each the server holds one document, as JSON."""
    db = own().database()
    size, documents, readers = 3_000_000, 6, 5
    for n in range(documents):
        db.lib.put({"_id": f"d{n}", "text": "x" * size})
    with ExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        before, _ = tracemalloc.get_traced_memory()
        clients = [
            stack.enter_context(socket.create_connection(address_of(db), WAIT_S))
            for _ in range(readers)
        ]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            request = f"GET /{db.lib.name}/{path} HTTP/1.0\r\nHost: localhost\r\n\r\n"
            client.sendall(request.encode())
        held = settled() - before
        assert held < readers * 1.4 * size
        assert held > readers * 0.5 * size, "nothing is on its way: this shows nothing"
        if "feed" not in path:
            told = b"".join(iter(lambda: clients[0].recv(1 << 20), b""))
            page = json.loads(told.partition(b"\r\n\r\n")[2])
            assert len(page.get("rows", page.get("results"))) == documents


def address_of(db) -> tuple[str, int]:
    return "127.0.0.1", db.served.server.port


def settled() -> int:
    """Return how much memory is in use once that no longer changes."""
    sizes = deque([0], maxlen=6)
    deadline = time.monotonic() + WAIT_S
    while max(sizes) - min(sizes) > 100_000 or len(sizes) < 6:
        assert time.monotonic() < deadline, list(sizes)
        time.sleep(0.1)
        sizes.append(tracemalloc.get_traced_memory()[0])
    return sizes[-1]
