"""CouchDB's own tests of `_changes` (chttpd_changes_test.erl), by name, over HTTP on every engine.

The documents are written in the order of its set-up; where it says 6, 7 and 8, which are the
places of these eight writes, it is the sequence of that write here.
"""

import time

import pytest

from .conftest import ENGINES
from .served import error_of
from .test_couch_documents import branch, revision

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("served", ENGINES, indirect=True)]
DESIGN = "_design/doc2"
START = "14" + "0" * 24
"""The place that `since=0` stands for."""
WRITES = (
    ("doc1", 1, "a", {}),
    (DESIGN, 1, "a", {"_deleted": True}),
    ("doc3", 1, "a", {}),
    ("doc1", 2, "ba", {}),
    ("doc1", 2, "ca", {}),
    ("doc1", 2, "da", {"_deleted": True}),
    ("doc3", 2, "ba", {"_deleted": True}),
    (DESIGN, 2, "ca", {}),
)


@pytest.fixture
def golden(db):
    """Return the database; `places` holds the sequence of each write, "0" before the first."""
    db.places = ["0"]
    for id, position, letters, more in WRITES:
        (written,) = db.lib.replicate([branch(id, position, letters, **more)])
        db.places.append(str(written.seq))
    return db


def told(db, page) -> tuple[int, int, list]:
    """Return (last_seq, pending, rows) with the places of CouchDB's tests."""
    last = page["last_seq"]
    return db.places.index("0" if last == START else last), page["pending"], rows_of(db, page)


def rows_of(db, page) -> list:
    return [
        (db.places.index(row["seq"]), row["id"], *revs(row), row.get("deleted", False))
        for row in page["results"]
    ]


def revs(row) -> list[str]:
    return [f"{each['rev'][:2]}{each['rev'][2]}" for each in row["changes"]]


ALL = [(6, "doc1", "2-c", False), (7, "doc3", "2-b", True), (8, DESIGN, "2-c", False)]


def test_basic(golden):
    assert told(golden, golden.changes()) == (8, 0, ALL)
    assert told(golden, golden.changes(since=0)) == (8, 0, ALL)


def test_basic_post(golden):
    assert told(golden, golden.post("_changes", {}).json()) == (8, 0, ALL)
    empty = golden("POST", "_changes", headers={"Content-Type": "application/json"})
    assert told(golden, empty.json()) == (8, 0, ALL)


def test_style_all_docs(golden):
    last, pending, rows = told(golden, golden.changes(style="all_docs"))
    assert (last, pending) == (8, 0)
    assert rows[0] == (6, "doc1", "2-c", "2-b", "2-d", False)
    assert rows[1:] == ALL[1:]


def test_limit_zero(golden):
    assert told(golden, golden.changes(limit=0)) == (0, 3, [])


def test_limit_one(golden):
    assert told(golden, golden.changes(limit=1)) == (6, 2, ALL[:1])


def test_since_now(golden):
    assert told(golden, golden.changes(since="now")) == (8, 0, [])


def test_longpoll_since_now(golden):
    page = golden.changes(feed="longpoll", since="now", timeout=10)
    assert told(golden, page) == (8, 0, [])


def test_continuous_since_now(golden):
    with golden.feed(feed="continuous", since="now", timeout=10) as feed:
        assert feed.row() == {"last_seq": golden.places[8], "pending": 0}
        assert feed.row() is None


def test_since_each(golden):
    for place, seq in enumerate(golden.places):
        rows = rows_of(golden, golden.changes(since=seq))
        assert rows == [row for row in ALL if row[0] > place]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, (6, 0, [ALL[2], ALL[1], ALL[0]])),
        ({"limit": 0}, (8, 3, [])),
        ({"limit": 1}, (8, 2, [ALL[2]])),
        ({"since": "now"}, (6, 0, [ALL[2], ALL[1], ALL[0]])),  # it does not count
    ],
)
def test_reverse(golden, query, expected):
    assert told(golden, golden.changes(descending="true", **query)) == expected


@pytest.mark.parametrize("feed", ["longpoll", "continuous"])
@pytest.mark.parametrize(("limit", "shown"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_reverse_ends_when_all_was_told(golden, feed, limit, shown):
    with golden.feed(feed=feed, descending="true", limit=limit, timeout=60_000) as feed:
        assert sum('"changes"' in line for line in feed.rest()) == shown


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_continuous_limit(golden, limit):
    began = time.monotonic()
    with golden.feed(feed="continuous", limit=limit, timeout=60_000) as feed:
        rows = [feed.row() for _ in range(limit)]
        last = feed.row()
        assert feed.row() is None
    assert time.monotonic() - began < 10
    assert [row["seq"] for row in rows] == [golden.places[n] for n in (6, 7, 8)[:limit]]
    assert last["pending"] == 3 - limit


def test_continuous_limit_over(golden):
    began = time.monotonic()
    with golden.feed(feed="continuous", limit=4, timeout=600) as feed:
        rows = [feed.row() for _ in range(3)]
        assert feed.row()["last_seq"] == rows[-1]["seq"] == golden.places[8]
    assert time.monotonic() - began > 0.5


def test_continuous_zero_timeout(golden):
    with golden.feed(feed="live", timeout=0) as feed:
        assert len(feed.rest()) == 4


def test_seq_interval(golden):
    seqs = [row["seq"] for row in golden.changes(seq_interval=2)["results"]]
    assert seqs == [None, golden.places[7], None]
    for bad in ("0", "-1", "x"):
        answer = golden.get("_changes", seq_interval=bad)
        assert error_of(answer) == (400, "bad_request", "invalid_seq_interval")


def test_selector_filter(golden):
    page = golden.post("_changes", {"selector": {"_id": "doc1"}}, filter="_selector").json()
    assert told(golden, page) == (8, 0, ALL[:1])


def test_design_filter(golden):
    assert told(golden, golden.changes(filter="_design")) == (8, 0, ALL[2:])


@pytest.mark.parametrize("more", [0, 100])
def test_docs_id_filter(golden, more):
    ids = ["doc3", "doc1", "nobody", *(f"x{n}" for n in range(more))]
    page = golden.post("_changes", {"doc_ids": ids}, filter="_doc_ids").json()
    assert told(golden, page) == (8, 0, ALL[:2])


def test_time_since(golden):
    future = golden.changes(since="2100-01-01T00:00:00Z")
    assert future["results"] == []
    golden.lib.put({"_id": "doc4"})  # who goes on from there misses nothing
    assert [row["id"] for row in golden.changes(since=future["last_seq"])["results"]] == ["doc4"]
    assert rows_of(golden, golden.changes(since="2000-01-01T00:00:00Z", limit=3)) == ALL
    answer = golden.get("_changes", since="2025-01-01Txx:yy:00Z")
    assert error_of(answer) == (400, "bad_request", "invalid_time_format")


def test_since_a_time_is_exact(golden):
    """Where CouchDB has 60 bins of three hours and more."""
    for place in (5, 6, 7, 8):
        then = int(golden.places[place][2:18], 16)  # the timestamp of that commit
        rows = rows_of(golden, golden.changes(since=then))
        assert rows == [row for row in ALL if row[0] > place]


def test_include_docs(golden):
    rows = golden.changes(include_docs="true")["results"]
    assert [row["doc"]["_rev"][:3] for row in rows] == ["2-c", "2-b", "2-c"]
    assert rows[1]["doc"]["_deleted"] is True


def test_conflicts(golden):
    assert "doc" not in golden.changes(conflicts="true")["results"][0]
    rows = golden.changes(conflicts="true", include_docs="true", style="all_docs")["results"]
    assert rows[0]["doc"]["_conflicts"] == [revision(2, "b")]
    assert "_conflicts" not in rows[1]["doc"]


def test_the_feed_as_it_was(golden):
    third = int(golden.places[3][2:18], 16)
    last, pending, rows = told(golden, golden.changes(as_of=third))
    assert (last, pending) == (3, 0)
    assert rows == [
        (1, "doc1", "1-a", False),
        (2, DESIGN, "1-a", True),
        (3, "doc3", "1-a", False),
    ]
    answer = golden.get("_changes", as_of=third, feed="longpoll")
    assert error_of(answer)[:2] == (400, "bad_request")


def test_events(golden):
    """The feed of browsers: an id for each row, nothing at the end."""
    with golden.feed(feed="eventsource", limit=3) as feed:
        lines = feed.rest()
    assert feed.answer.headers["content-type"].startswith("text/event-stream")
    assert len(lines) == 9
    assert [line for line in lines if line.startswith("id:")] == [
        f'id: "{golden.places[n]}"' for n in (6, 7, 8)
    ]
    assert lines[0].startswith('data: {"seq":')
    assert lines[2] == lines[5] == lines[8] == ""


def test_last_event_id_beats_since(golden):
    """COUCHDB-1852; browsers send the header when they connect again."""
    header = {"Last-Event-ID": f'"{golden.places[7]}"'}
    query = {"feed": "eventsource", "since": "0", "timeout": "0"}
    answer = golden("GET", "_changes", params=query, headers=header)
    assert answer.text.count("data: {") == 1
    answer = golden("GET", "_changes", params={"since": "0"}, headers=header)
    assert len(answer.json()["results"]) == 3
    assert len(golden.changes(**{"last-event-id": golden.places[7]})["results"]) == 1
