"""Documents: what cannot be stored, and what all engines take."""

import pytest
from cases import cases

from cdcmeta.errors import InvalidDocumentError, InvalidRevisionError

from .revs import rev

# --- what cannot be stored ---


@cases(
    "doc",
    [
        {"_id": ""},
        {"_id": 1},
        {"_id": None},
        {"_id": "_x"},
        {"_id": "_local/x"},
        {"_id": "x" * 300},
        {"_id": "\ud800"},
        {"_id": "a", "_x": 1},
        {"_id": "a", "_deleted": "yes"},
        {"_id": "a", "_attachments": {"f": {}}},
        {"_id": "a", "x": float("nan")},
        {"_id": "a", "x": {1, 2}},
        {"_id": "a", "x": "\ud800"},
        {"_id": "a", 5: 1},
        [],
        "text",
    ],
)
def test_what_is_no_document(db, doc):
    with pytest.raises(InvalidDocumentError):
        db.put(doc)
    (found,) = db.bulk([doc])
    assert isinstance(found.error, InvalidDocumentError)
    assert db.changes().rows == ()


@cases("text", ["", "1", "1-", "0-" + "a" * 32, "1-" + "A" * 32, "1-xyz", 7])
def test_what_is_no_revision(db, text):
    with pytest.raises(InvalidRevisionError):
        db.put({"_id": "a"}, rev=text)
    with pytest.raises(InvalidRevisionError):
        db.get("a", rev=text)


@cases(
    "revisions",
    [
        {"start": 0, "ids": []},
        {"start": 1, "ids": ["a" * 32, "b" * 32]},
        {"start": -1, "ids": ["a" * 32]},
        {"start": "1", "ids": ["a" * 32]},
        {"start": 1, "ids": ["a"]},
        {"start": 1, "ids": "a" * 32},
        {"start": 1},
        5,
    ],
)
def test_what_is_no_history(db, revisions):
    (found,) = db.replicate([{"_id": "a", "_revisions": revisions}])
    assert not found.ok
    assert db.changes().rows == ()


def test_replicated_without_a_revision(db):
    found = db.replicate([{"_id": "a"}, {"_rev": rev(1, "a")}, {"_id": "b", "_rev": rev(1, "a")}])
    assert [each.ok for each in found] == [False, False, True]


# --- what all engines take ---


def deep(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_how_deep_documents_are(db):
    db.put({"_id": "a", "x": deep(99)})
    for levels in (100, 5_000):
        with pytest.raises(InvalidDocumentError, match="nested"):
            db.put({"_id": "b", "x": deep(levels)})
    assert [row.id for row in db.changes(selector={"x": deep(40)}).rows] == []


@pytest.mark.parametrize("id", ["\0" * 128, "é" * 128, "x" * 256])
def test_the_longest_ids(db, id):
    """The engines agree on them, whatever their bytes are as keys."""
    edited = db.put({"_id": id})
    assert db.changes(doc_ids=[id, "y" * 700, "\ud800", ""]).rows[0].rev == edited.rev
    for longer in (id + "x", id + "\0"):
        with pytest.raises(InvalidDocumentError):
            db.put({"_id": longer})
