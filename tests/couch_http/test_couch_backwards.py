"""`_all_docs` from the last document back: the same rows, and few of them held at a time."""

import gc
import json
import socket
from random import Random

import pytest

from cdcmeta.changes.database_layout import ChangeRow
from cdcmeta.couch_http import Limits
from cdcmeta.couch_http.listing import HELD_MAX, rows_descending

from .conftest import ENGINES
from .served import WAIT_S

pytestmark = pytest.mark.slow


def rows_held() -> int:
    return sum(type(each) is ChangeRow for each in gc.get_objects())


def branch(id: str, letter: str) -> dict:
    return {"_id": id, "_rev": f"1-{letter * 32}", "_revisions": {"start": 1, "ids": [letter * 32]}}


@pytest.fixture(scope="module")
def mixed(served):
    """Ids of all kinds, some deleted, some with many branches; all tests only read them."""
    db = served.database()
    ids = [f"{n:03}" for n in range(150)] + [
        "a",
        "a\0b",
        "aa",
        "z" * 200,
        "é",
        "\U0001f600",
        "_design/x",
    ]
    db.lib.bulk([{"_id": id} for id in ids])
    for id in ids[::7]:
        db.lib.remove(id, db.lib.get(id)["_rev"])
    db.lib.replicate([branch(id, letter) for id in ids[::5] for letter in "abcdef"])
    return db


@pytest.mark.long_on("etcd")
@pytest.mark.parametrize("served", ENGINES, indirect=True)
@pytest.mark.parametrize("held_max", [2, 7, 50, HELD_MAX])
def test_it_is_the_listing_backwards(mixed, held_max):
    """Also when marks stand between marks: two held at once make eight levels of them."""
    state = mixed.lib.state()
    rows = list(state.documents(deleted=False))
    assert list(rows_descending(state, None, None, held_max)) == rows[::-1]
    random = Random(held_max)
    for _ in range(20):
        low, high = (random.choice([*[row.id for row in rows], "", "075x", "~"]) for _ in "12")
        expected = [row for row in rows if low <= row.id <= high][::-1]
        assert list(rows_descending(state, low, high, held_max)) == expected, (low, high)


@pytest.mark.parametrize("served", ["memory"], indirect=True)
def test_few_rows_are_held(db):
    for start in range(0, 3_000, 1_000):
        db.lib.bulk([{"_id": f"d{n:04}"} for n in range(start, start + 1_000)])
    state, before = db.lib.state(), rows_held()
    for n, row in enumerate(rows_descending(state, None, None, 60)):
        assert row.id == f"d{2_999 - n:04}"
        if n % 275 == 0:
            assert rows_held() - before <= 60


def test_a_slow_reader_of_a_listing_backwards(own):
    """While it takes the listing, the server holds a window of rows, not all that are left."""
    db = own().database()
    documents = 2 * HELD_MAX + 500
    for start in range(0, documents, 500):
        docs = [{"_id": f"d{n:05}", "text": "x" * 4_000} for n in range(start, start + 500)]
        db.lib.bulk(docs)
    before = rows_held()
    with socket.create_connection(("127.0.0.1", db.served.server.port), WAIT_S) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        path = f"/{db.lib.name}/_all_docs?descending=true&include_docs=true"
        client.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        taken = bytearray()
        held = []
        while piece := client.recv(1 << 20):
            if len(taken) // 1_000_000 != (len(taken) + len(piece)) // 1_000_000:
                held.append(rows_held() - before)
            taken += piece
    rows = json.loads(taken.partition(b"\r\n\r\n")[2])["rows"]
    assert [row["id"] for row in rows] == [f"d{n:05}" for n in reversed(range(documents))]
    assert len(held) > 5
    assert 0 < max(held) <= HELD_MAX + Limits().docs
