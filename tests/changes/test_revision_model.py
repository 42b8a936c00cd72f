"""RFC 001's revisions, by the names of `fabric2_doc_crud_tests` (facts 5.4), and the rows after."""

import pytest

from cdcmeta.errors import (
    DocumentConflictError,
    DocumentNotFoundError,
    InvalidDocumentError,
    InvalidIdError,
    InvalidRevisionError,
)

from .revs import replicated, rev, shape, short, tree


def conflicts(db, *arguments, **options):
    with pytest.raises(DocumentConflictError) as caught:
        db.put(*arguments, **options)
    return caught.value


# --- interactive edits ---


def test_create_and_update(db):
    first = db.put({"_id": "a", "x": 1})
    second = db.put({"_id": "a", "_rev": first.rev, "x": 2})
    assert (first.rev[:2], second.rev[:2]) == ("1-", "2-")
    assert db.get("a") == {"_id": "a", "_rev": second.rev, "x": 2}
    assert db.get("a", revisions=True)["_revisions"] == {
        "start": 2,
        "ids": [second.rev[2:], first.rev[2:]],
    }


def test_without_an_id_it_gets_one(db):
    edited = db.put({"x": 1})
    assert len(edited.id) == 32
    assert db.get(edited.id)["x"] == 1


def test_conflict_on_create_new_with_rev(db):
    assert conflicts(db, {"_id": "a"}, rev=rev(1, "a")).id == "a"
    assert db.changes().rows == ()


def test_conflict_on_update_with_no_rev(db):
    db.put({"_id": "a"})
    conflicts(db, {"_id": "a", "x": 1})


def test_conflict_on_update_with_an_old_rev(db):
    first = db.put({"_id": "a"})
    db.put({"_id": "a", "x": 1}, rev=first.rev)
    conflicts(db, {"_id": "a", "x": 2}, rev=first.rev)


def test_delete_and_recreate_doc_basic(db):
    """It extends the tombstone: never a second root."""
    first = db.put({"_id": "a"})
    gone = db.remove("a", first.rev)
    assert gone.rev.startswith("2-")
    with pytest.raises(DocumentNotFoundError) as caught:
        db.get("a")
    assert caught.value.reason == "deleted"
    assert db.get("a", rev=gone.rev)["_deleted"] is True
    again = db.put({"_id": "a", "x": 1})
    assert again.rev.startswith("3-")
    assert db.get("a", revisions=True)["_revisions"]["ids"] == [
        each.rev[2:] for each in (again, gone, first)
    ]
    assert tree(db, "a") == [short(again.rev)]


def test_conflict_on_recreate_as_deleted(db):
    db.remove("a", db.put({"_id": "a"}).rev)
    conflicts(db, {"_id": "a", "_deleted": True})


def test_conflict_on_extend_deleted(db):
    """A documented departure of RFC 001: a deleted leaf takes no edit that names it."""
    gone = db.remove("a", db.put({"_id": "a"}).rev)
    conflicts(db, {"_id": "a"}, rev=gone.rev)
    conflicts(db, {"_id": "a", "_deleted": True}, rev=gone.rev)


def test_allow_create_new_as_deleted(db):
    edited = db.put({"_id": "a", "_deleted": True})
    assert shape(db.changes()) == [("a", short(edited.rev), True)]
    assert db.info().deleted_count == 1


def test_an_edit_makes_the_same_revision_everywhere(db, place):
    from cdcmeta import ChangesDB

    other = ChangesDB(db.store, "other").create()
    docs = [{"_id": "a", "x": 1, "y": [1.5, None]}, {"y": [1.5, None], "x": 1, "_id": "a"}]
    revs = [each.put(doc).rev for each, doc in zip((db, other), docs, strict=True)]
    assert revs[0] == revs[1]
    assert db.put({"_id": "b", "x": 2}).rev != revs[0]


# --- branches ---


def test_update_winning_and_losing_conflict_branch(db):
    db.replicate([replicated("a", "fa"), replicated("a", "ba")])
    assert tree(db, "a") == ["2-f", "2-b"]
    loser = db.put({"_id": "a", "n": 1}, rev=rev(2, "b"))
    assert tree(db, "a") == [short(loser.rev), "2-f"], "now the longer one wins"
    winner = db.put({"_id": "a", "n": 2}, rev=rev(2, "f"))
    assert sorted(tree(db, "a")) == sorted([short(loser.rev), short(winner.rev)])
    assert db.get("a", conflicts=True)["_conflicts"] == [min(loser.rev, winner.rev)]


def test_delete_changes_winner(db):
    """The row tells of the new winner: nobody's tests look, and the archived layer is wrong."""
    db.replicate([replicated("a", "fa", n=1), replicated("a", "ba", n=2)])
    gone = db.remove("a", rev(2, "f"))
    assert shape(db.changes()) == [("a", "2-b", False)]
    assert tree(db, "a") == ["2-b", f"({short(gone.rev)})"]
    assert db.get("a")["n"] == 2
    assert "_conflicts" not in db.get("a", conflicts=True)
    last = db.remove("a", rev(2, "b"))
    assert shape(db.changes())[0][2] is True
    assert sorted(tree(db, "a")) == sorted(f"({short(each.rev)})" for each in (gone, last))


def test_recreate_after_all_branches_were_deleted(db):
    db.replicate([replicated("a", "fa", deleted=True), replicated("a", "eba", deleted=True)])
    again = db.put({"_id": "a"})
    assert again.rev.startswith("4-")
    assert tree(db, "a") == [short(again.rev), "(2-f)"]


# --- replicated edits ---


def test_update_doc_replicated(db):
    (edited,) = db.replicate([replicated("a", "cba", n=1)])
    assert edited.rev == rev(3, "c")
    assert db.get("a", revisions=True) == {
        "_id": "a",
        "_rev": rev(3, "c"),
        "n": 1,
        "_revisions": {"start": 3, "ids": ["c" * 32, "b" * 32, "a" * 32]},
    }


def test_update_doc_replicated_add_conflict(db):
    db.replicate([replicated("a", "ba")])
    db.replicate([replicated("a", "ca")])
    assert tree(db, "a") == ["2-c", "2-b"]
    assert db.changes().rows[0].revs == (rev(2, "c"),)


def test_update_doc_replicated_changes_winner(db):
    db.replicate([replicated("a", "ca")])
    db.replicate([replicated("a", "ba")])
    db.replicate([replicated("a", "1ba")])
    assert tree(db, "a") == ["3-1", "2-c"]


def test_update_doc_replicated_extension(db):
    db.replicate([replicated("a", "ba")])
    db.replicate([replicated("a", "dcba")])
    assert tree(db, "a") == ["4-d"]
    assert db.get("a", revisions=True)["_revisions"]["start"] == 4


def test_update_doc_replicated_existing_rev(db):
    db.replicate([replicated("a", "cba")])
    before = db.changes(style="all_docs")
    for known in ("cba", "ba", "a"):
        (edited,) = db.replicate([replicated("a", known)])
        assert (edited.ok, edited.seq) == (True, None)
    assert db.changes(style="all_docs") == before


def test_a_replicated_tombstone_of_the_winner_leaves_the_live_branch(db):
    """The archived layer takes the tombstone for the winner, for it extends it."""
    db.replicate([replicated("a", "fa"), replicated("a", "ba")])
    db.replicate([replicated("a", "efa", deleted=True)])
    assert tree(db, "a") == ["2-b", "(3-e)"]
    assert shape(db.changes()) == [("a", "2-b", False)]


def test_get_missing_revs_basic(db):
    db.replicate([replicated("a", "ba"), replicated("a", "1a"), replicated("b", "a")])
    found = db.missing_revs(
        {
            "a": [rev(2, "b"), rev(1, "a"), rev(2, "c"), rev(3, "c")],
            "b": [rev(1, "a")],
            "c": [rev(1, "a")],
        }
    )
    assert found.keys() == {"a", "c"}
    assert found["a"].missing == (rev(2, "c"), rev(3, "c"))
    assert set(found["a"].possible_ancestors) == {rev(2, "b"), rev(2, "1")}
    assert (found["c"].missing, found["c"].possible_ancestors) == ((rev(1, "a"),), ())


def test_open_doc_revs(db):
    db.replicate([replicated("a", "cba"), replicated("a", "1ba", deleted=True)])
    assert [short(doc["_rev"]) for doc in db.open_revs("a")] == ["3-c", "3-1"]
    found = db.open_revs("a", [rev(3, "1"), rev(2, "b"), rev(9, "9")])
    assert [each if isinstance(each, str) else short(each["_rev"]) for each in found] == [
        "3-1",
        rev(2, "b"),
        rev(9, "9"),
    ]
    latest = db.open_revs("a", [rev(2, "b")], latest=True)
    assert [short(doc["_rev"]) for doc in latest] == ["3-c", "3-1"]
    assert db.open_revs("nobody") == []
    assert db.open_revs("nobody", [rev(1, "a")]) == [rev(1, "a")]


# --- several at once ---


def test_bulk_tells_of_each(db):
    first = db.put({"_id": "a"})
    found = db.bulk(
        [
            {"_id": "b"},
            {"_id": "a", "x": 1},
            {"_id": "_odd"},
            {"_id": "a", "_rev": first.rev, "x": 2},
            "no object",
            {"_id": "c", "_rev": "2-x"},
        ]
    )
    kinds = [type(each.error) for each in found]
    assert kinds == [
        type(None),
        DocumentConflictError,
        InvalidIdError,
        type(None),
        InvalidDocumentError,
        InvalidRevisionError,
    ]
    assert [row.id for row in db.changes().rows] == ["b", "a"]
    assert db.get("a")["x"] == 2


def test_the_same_document_twice_in_a_bulk(db):
    first, second = db.bulk([{"_id": "a", "x": 1}, {"_id": "a", "x": 2}])
    assert first.ok
    assert isinstance(second.error, DocumentConflictError)
    assert db.get("a")["x"] == 1


def test_the_same_document_twice_replicated(db):
    """Both count; the document has one row."""
    found = db.replicate([replicated("a", "ba"), replicated("b", "a"), replicated("a", "ca")])
    assert all(each.ok for each in found)
    assert tree(db, "a") == ["2-c", "2-b"]
    assert [row.id for row in db.changes().rows] == ["b", "a"]


def test_doc_counts(db):
    assert (db.info().doc_count, db.info().deleted_count) == (0, 0)
    edited = db.bulk([{"_id": name} for name in "abc"])
    db.remove("b", edited[1].rev)
    db.replicate([replicated("d", "ba"), replicated("d", "ca", deleted=True)])
    db.replicate([replicated("e", "a", deleted=True)])
    assert (db.info().doc_count, db.info().deleted_count) == (3, 2)
    db.put({"_id": "b"})
    assert (db.info().doc_count, db.info().deleted_count) == (4, 1)
    assert [row.id for row in db.documents()] == ["a", "b", "c", "d"]
    assert [row.id for row in db.documents("bb")] == ["c", "d"]
