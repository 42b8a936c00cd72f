"""The rows that CouchDB's `chttpd_changes_test` expects, by its tests' names (facts 5.1)."""

import pytest
from cases import cases

from cdcmeta.errors import InvalidArgumentError, InvalidSequenceError

from .revs import replicated, shape, short

ROWS = [("doc1", "2-c", False), ("doc3", "2-b", True), ("_design/doc2", "2-c", False)]


@pytest.fixture
def golden(db, clock):
    writes = [
        replicated("doc1", "a"),
        replicated("_design/doc2", "a", deleted=True),
        replicated("doc3", "a"),
        replicated("doc1", "ba"),
        replicated("doc1", "ca", kind="winner"),
        replicated("doc1", "da", deleted=True),
        replicated("doc3", "ba", deleted=True),
        replicated("_design/doc2", "ca"),
    ]
    db.seqs = []
    db.times = []
    for doc in writes:
        clock.advance(1_000)
        (edited,) = db.replicate([doc])
        db.seqs.append(edited.seq)
        db.times.append(clock.now_ms())
    return db


def test_t_basic(golden):
    page = golden.changes()
    assert shape(page) == ROWS
    assert [row.seq for row in page.rows] == golden.seqs[5:]
    assert (page.last_seq, page.pending) == (golden.seqs[-1], 0)
    assert golden.changes(since=0) == golden.changes(since="0") == page
    assert golden.changes() == page, "a database at rest always says the same"


def test_t_style_all_docs(golden):
    page = golden.changes(style="all_docs")
    assert [short(rev) for rev in page.rows[0].revs] == ["2-c", "2-b", "2-d"]
    assert [[short(rev) for rev in row.revs] for row in page.rows[1:]] == [["2-b"], ["2-c"]]


def test_t_limit_zero(golden):
    page = golden.changes(limit=0)
    assert (page.rows, page.pending) == ((), 3)
    assert page.last_seq < golden.seqs[0], "where it began"
    later = golden.changes(since=golden.seqs[5], limit=0)
    assert (later.last_seq, later.pending) == (golden.seqs[5], 2)


def test_t_limit_one(golden):
    page = golden.changes(limit=1)
    assert (shape(page), page.last_seq, page.pending) == (ROWS[:1], golden.seqs[5], 2)


def test_t_since_now(golden):
    page = golden.changes(since="now")
    assert (page.rows, page.last_seq, page.pending) == ((), golden.seqs[-1], 0)


@cases("n", range(8))
def test_t_since_seq(golden, n):
    expected = [row for row, seq in zip(ROWS, golden.seqs[5:], strict=True) if seq > golden.seqs[n]]
    for since in (golden.seqs[n], str(golden.seqs[n])):
        page = golden.changes(since=since)
        assert shape(page) == expected
        assert page.last_seq == golden.seqs[-1]


def test_t_reverse(golden):
    page = golden.changes(descending=True)
    assert shape(page) == ROWS[::-1]
    assert (page.last_seq, page.pending) == (golden.seqs[5], 0)


def test_t_reverse_limit_zero(golden):
    page = golden.changes(descending=True, limit=0)
    assert (page.rows, page.last_seq, page.pending) == ((), golden.seqs[7], 3)


def test_t_reverse_limit_one(golden):
    page = golden.changes(descending=True, limit=1)
    assert (shape(page), page.last_seq, page.pending) == (ROWS[2:], golden.seqs[7], 2)


def test_t_selector_filter(golden):
    page = golden.changes(selector={"_id": "doc3"})
    assert (shape(page), page.last_seq) == (ROWS[1:2], golden.seqs[-1])
    assert shape(golden.changes(selector={"kind": "winner"})) == ROWS[:1]


def test_t_docs_id_filter(golden):
    page = golden.changes(doc_ids=["doc3", "nobody"])
    assert (shape(page), page.last_seq, page.pending) == (ROWS[1:2], golden.seqs[-1], 0)
    limited = golden.changes(doc_ids=["doc3", "doc1"], limit=1)
    assert (shape(limited), limited.last_seq, limited.pending) == (ROWS[:1], golden.seqs[5], 2)


def test_t_docs_id_filter_over_limit(golden):
    many = ["doc3", *(f"nobody{n}" for n in range(200))]
    assert golden.changes(doc_ids=many).rows == golden.changes(doc_ids=["doc3"]).rows
    assert golden.changes(doc_ids=many).last_seq == golden.seqs[-1]


def test_t_prefix(golden):
    assert shape(golden.changes(prefix="doc")) == ROWS[:2]
    assert shape(golden.changes(prefix="_design/")) == ROWS[2:]


def test_t_time_since(golden, clock):
    """Exact, where CouchDB's times fall into bins of three hours."""
    from datetime import UTC, datetime

    for n, ms in enumerate(golden.times):
        at = datetime.fromtimestamp(ms / 1_000, UTC)
        expected = [row for row, s in zip(ROWS, golden.seqs[5:], strict=True) if s > golden.seqs[n]]
        assert shape(golden.changes(since=at)) == expected
        assert shape(golden.changes(since=at.isoformat())) == expected
    assert shape(golden.changes(since="2001-01-01T00:00:00Z")) == ROWS
    assert shape(golden.changes(since="2099-01-01T00:00:00Z")) == []
    with pytest.raises(InvalidSequenceError):
        golden.changes(since="2025-01-01T00:00:00")


def test_no_match(golden):
    for form in ({"selector": {"_id": "x"}}, {"predicate": lambda _: False}, {"prefix": "x"}):
        page = golden.changes(**form)
        assert (page.rows, page.last_seq, page.pending) == ((), golden.seqs[-1], 0)


def test_t_include_docs(golden):
    docs = [row.doc for row in golden.changes(include_docs=True).rows]
    assert [(doc["_id"], short(doc["_rev"]), doc.get("_deleted")) for doc in docs] == [
        ("doc1", "2-c", None),
        ("doc3", "2-b", True),
        ("_design/doc2", "2-c", None),
    ]
    assert docs[0]["kind"] == "winner"


def test_t_conflicts(golden):
    assert all(row.doc is None for row in golden.changes(conflicts=True).rows)
    docs = [row.doc for row in golden.changes(conflicts=True, include_docs=True).rows]
    assert [short(rev) for rev in docs[0]["_conflicts"]] == ["2-b"], "no deleted leaves"
    assert "_conflicts" not in docs[1]


def test_limit_counts_rows_that_are_shown(golden):
    """COUCHDB-1037."""
    page = golden.changes(limit=1, selector={"_id": "_design/doc2"})
    assert (shape(page), page.last_seq, page.pending) == (ROWS[2:], golden.seqs[7], 0)


def test_a_revision_that_is_known_makes_no_row(golden):
    """COUCHDB-1256."""
    before = golden.changes(style="all_docs")
    (edited,) = golden.replicate([replicated("doc1", "ba")])
    assert edited.ok
    assert edited.seq is None
    (edited,) = golden.replicate([replicated("doc1", "a")])
    assert edited.seq is None
    assert golden.changes(style="all_docs") == before


def test_all_docs_with_a_selector_keeps_the_leaves_that_pass(golden):
    (row,) = golden.changes(style="all_docs", selector={"_deleted": True, "_id": "doc1"}).rows
    assert [short(rev) for rev in row.revs] == ["2-d"]
    assert short(row.rev) == "2-c"


def test_until(golden):
    assert shape(golden.changes(until=golden.seqs[6])) == ROWS[:2]
    assert shape(golden.changes(since=golden.seqs[5], until=golden.seqs[6])) == ROWS[1:2]
    assert shape(golden.changes(since=golden.seqs[6], until=golden.seqs[5])) == []


@cases("n", range(8))
def test_as_of_reads_the_feed_as_it_was(golden, n):
    page = golden.changes(as_of=golden.seqs[n].timestamp, style="all_docs")
    assert page.last_seq == golden.seqs[n]
    assert len(page.rows) == min(n + 1, 3)
    assert golden.changes(since=golden.seqs[n], as_of=golden.seqs[n].timestamp).rows == ()


@cases(
    ("arguments", "error"),
    [
        ({"limit": -1}, InvalidArgumentError),
        ({"limit": True}, InvalidArgumentError),
        ({"limit": 1.5}, InvalidArgumentError),
        ({"style": "some"}, InvalidArgumentError),
        ({"doc_ids": "doc1"}, InvalidArgumentError),
        ({"doc_ids": [1]}, InvalidArgumentError),
        ({"predicate": 1}, InvalidArgumentError),
        ({"prefix": 1}, InvalidArgumentError),
        ({"since": "nonsense"}, InvalidSequenceError),
        ({"since": "ff" * 13}, InvalidSequenceError),
        ({"since": True}, InvalidSequenceError),
        ({"since": None}, InvalidSequenceError),
        ({"since": "1501" + "00" * 12}, InvalidSequenceError),
        ({"until": "soon"}, InvalidSequenceError),
    ],
)
def test_bad_arguments(db, arguments, error):
    with pytest.raises(error):
        db.changes(**arguments)
