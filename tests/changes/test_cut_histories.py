"""Histories that were cut short, by a limit or by who told them (`fabric2_rev_stemming`)."""

import pytest

from cdcmeta.errors import DocumentConflictError

from .revs import replicated, rev, tree


def test_a_stemmed_path_takes_over_what_is_known(db):
    db.replicate([replicated("a", "dcba")])
    db.replicate([replicated("a", "1b", start=3)])
    docs = {doc["_rev"][:3]: doc["_revisions"]["ids"] for doc in db.open_revs("a")}
    assert docs["3-1"] == ["1" * 32, "b" * 32, "a" * 32]


def test_a_stemmed_path_takes_over_all_that_is_known(db):
    """Of the branches that know it, one was cut short, though it ranks first."""
    db.replicate([replicated("a", "1ba")])
    db.set_revs_limit(2)
    db.replicate([replicated("a", "fba")])
    db.set_revs_limit(1_000)
    db.replicate([replicated("a", "cb", start=3)])
    docs = {doc["_rev"][:3]: doc["_revisions"]["ids"] for doc in db.open_revs("a")}
    assert docs == {
        "3-f": ["f" * 32, "b" * 32],
        "3-c": ["c" * 32, "b" * 32, "a" * 32],
        "3-1": ["1" * 32, "b" * 32, "a" * 32],
    }


@pytest.mark.parametrize("deleted", [False, True])
def test_databases_that_cut_histories_come_to_rest(db, deleted):
    """They may not come to the same: a leaf stays a stranger where nobody tells who its heir is.

    CouchDB is the same here; a limit below the edits between two replications loses this.
    """
    db.set_revs_limit(1)
    db.replicate([replicated("a", "cba", deleted=deleted), replicated("a", "a")])
    assert sorted(tree(db, "a")) == sorted(["1-a", "(3-c)" if deleted else "3-c"])
    (known,) = db.replicate([replicated("a", "cba", deleted=deleted)])
    assert known.seq is None
    assert db.missing_revs({"a": [rev(3, "c"), rev(1, "a")]}) == {}


def test_rev_stemming(db):
    db.set_revs_limit(2)
    db.replicate([replicated("a", "cba")])
    assert db.get("a", revisions=True)["_revisions"]["ids"] == ["c" * 32, "b" * 32]
    edited = db.put({"_id": "a"}, rev=rev(3, "c"))
    assert db.get("a", revisions=True)["_revisions"]["ids"] == [edited.rev[2:], "c" * 32]
    db.set_revs_limit(1)
    edited = db.put({"_id": "a", "n": 1}, rev=edited.rev)
    assert db.get("a", revisions=True)["_revisions"] == {"start": 5, "ids": [edited.rev[2:]]}
    assert db.info().revs_limit == 1


def test_an_edit_that_another_branch_had_already(db):
    """Revisions are the same everywhere, so an edit here may be one that came from elsewhere."""
    first = db.put({"_id": "a", "n": 1})
    made = db.put({"_id": "a", "n": 2}, rev=first.rev)
    db.replicate([{"_id": "b", "n": 1, "_rev": first.rev}, {"_id": "b", "n": 2, "_rev": made.rev}])
    assert len(db.open_revs("b")) == 2
    edited = db.put({"_id": "b", "n": 2}, rev=first.rev)
    assert (edited.rev, edited.seq) == (made.rev, db.changes().rows[-1].seq)
    assert [doc["_rev"] for doc in db.open_revs("b")] == [made.rev]
    db.replicate([replicated("b", "fff", n=3)])
    assert len(db.open_revs("b")) == 2
    assert "_conflicts" in db.get("b", conflicts=True)


def test_an_edit_that_another_branch_had_long_ago(db):
    """It leads to where that branch went on: the branch stays, and what was edited is its past."""
    first = db.put({"_id": "a", "n": 1})
    made = db.put({"_id": "a", "n": 2}, rev=first.rev)
    later = {"start": 3, "ids": ["f" * 32, made.rev.partition("-")[2]]}
    db.replicate([{"_id": "b", "n": 1, "_rev": first.rev}, {"_id": "b", "_revisions": later}])
    assert tree(db, "b") == ["3-f", f"1-{first.rev[2]}"]
    edited = db.put({"_id": "b", "n": 2}, rev=first.rev)
    assert (edited.rev, edited.seq) == (made.rev, db.changes().rows[-1].seq)
    assert tree(db, "b") == ["3-f"]


def test_a_long_history_takes_the_place_of_all_its_parts(db):
    """Leaves that were strangers for want of history are its ancestors."""
    db.replicate([replicated("a", "a"), {"_id": "a", "_rev": rev(2, "b")}])
    assert tree(db, "a") == ["2-b", "1-a"]
    db.replicate([replicated("a", "cba", deleted=True)])
    assert tree(db, "a") == ["(3-c)"]


def test_the_last_position_takes_no_edit(db):
    last = f"{2**63 - 1}-{'a' * 32}"
    db.replicate([{"_id": "a", "_rev": last}])
    with pytest.raises(DocumentConflictError):
        db.put({"_id": "a"}, rev=last)
    assert db.get("a")["_rev"] == last
