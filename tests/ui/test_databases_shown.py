"""Changes databases at a moment: what pages show is what the database and its history say."""

import json

import pytest

from cdcmeta import ChangesDB
from cdcmeta.errors import DatabaseNotFoundError, DocumentNotFoundError, InvalidIdError
from cdcmeta.ui import database_pages
from cdcmeta.ui.database_pages import (
    COLUMNS_MAX,
    LANES_MAX,
    document,
    has_databases,
    list_databases,
    list_documents,
    winner_body,
)
from snapkv.errors import CompactedError

ATTACKS = [
    "<script>alert(1)</script>",
    "\"'&",
    "\u202egnp.exe",
    "\0",
    "a\nb",
    "x" * 250,
    "_design/é",
]


def edited(db, id, *values):
    """Edit a document several times in a row; return the revisions."""
    revs = [None]
    for value in values:
        revs.append(db.put({"_id": id, "value": value}, rev=revs[-1]).rev)
    return revs[1:]


def branch(db, id, parent, hash, value):
    """Store a revision that conflicts, as a replicator does."""
    position = int(parent.split("-")[0]) + 1
    ids = [hash * 32, parent.split("-")[1]]
    doc = {"_id": id, "_rev": f"{position}-{ids[0]}", "value": value}
    db.replicate([doc | {"_revisions": {"start": position, "ids": ids}}])
    return doc["_rev"]


def test_the_databases_of_a_store_at_each_moment(store, clock):
    assert not has_databases(store)
    assert list_databases(store).rows == []
    first = ChangesDB(store, "catalogue").create()
    made = store.resolved()
    clock.advance(60_000)
    _, b = edited(first, "a", 1, 2)
    edited(first, "b", 1)
    then = store.resolved()
    clock.advance(60_000)
    first.remove("a", b)
    second = ChangesDB(store, "b/jobs").create(revs_limit=5)
    later = store.resolved()
    first.delete()

    (only,) = list_databases(store, then).rows
    assert (only.name, only.documents, only.deleted) == ("catalogue", 2, 0)
    assert (only.created, only.newest, only.incarnation, only.moved) == (made, then, 0, False)
    assert only.newest_seq == str(first.info(as_of=then).update_seq)
    rows = list_databases(store, later).rows
    assert [(row.name, row.documents, row.deleted) for row in rows] == [
        ("b/jobs", 0, 0),
        ("catalogue", 1, 1),
    ]
    assert (rows[0].newest_seq, rows[0].newest, rows[0].revs_limit) == (None, None, 5)
    assert [row.name for row in list_databases(store).rows] == ["b/jobs"]
    assert [has_databases(store, when) for when in (0, made, None)] == [False, True, True]
    assert second.exists()


def test_many_documents_are_counted_where_that_is_asked_for(store, monkeypatch):
    monkeypatch.setattr(database_pages, "COUNT_MAX", 3)
    db = ChangesDB(store, "db").create()
    for n in range(4):
        db.put({"_id": f"d{n}"})
        (row,) = list_databases(store).rows
        assert (row.documents, row.deleted) == ((n + 1, 0) if n < 3 else (None, None))
    db.remove("d0", db.get("d0")["_rev"])
    (row,) = list_databases(store, exact=True).rows
    assert (row.documents, row.deleted) == (3, 1)


def test_pages_of_databases(store):
    names = [f"db{n}" for n in range(5)]
    for name in names:
        ChangesDB(store, name).create()
    found, start = [], ""
    while start is not None:
        page = list_databases(store, start=start, limit=2)
        assert len(page.rows) <= 2
        found += [row.name for row in page.rows]
        start = page.start
    assert found == names
    assert list_databases(store, start="\udcff").rows != []  # any text of a URL


def test_a_feed_at_a_moment_newest_first_and_by_id(store, clock):
    db = ChangesDB(store, "db").create()
    for n in range(7):
        edited(db, f"d{n}", 1)
        clock.advance(3_600_000)
    (rev,) = edited(db, "c", 1)
    branch(db, "c", rev, "e", 2)
    branch(db, "c", rev, "f", 3)
    then = store.resolved()
    db.remove("d3", db.get("d3")["_rev"])
    now = list_documents(store, "db")
    assert [(row.id, row.deleted) for row in now.rows[:2]] == [("d3", True), ("c", False)]

    expected = db.changes(as_of=then, style="all_docs", descending=True).rows
    found, start, pages = [], "", 0
    while start is not None:
        page = list_documents(store, "db", then, start=start, limit=3)
        found += page.rows
        start, pages = page.start, pages + 1
    assert pages == 3
    assert [(row.seq, row.id, row.rev) for row in found] == [
        (str(each.seq), each.id, each.rev) for each in expected
    ]
    assert [row.timestamp for row in found] == [each.seq.timestamp for each in expected]
    (conflicting,) = [row for row in found if row.branches > 1]
    assert (conflicting.id, conflicting.branches, conflicting.conflicts) == ("c", 2, 1)

    listed, start = [], ""
    while start is not None:
        page = list_documents(store, "db", by="id", start=start, limit=3)
        listed += page.rows
        start = page.start
    assert [row.id for row in listed] == ["c", *(f"d{n}" for n in range(7))]
    assert {row.id: row for row in listed} == {row.id: row for row in now.rows}
    with pytest.raises(DatabaseNotFoundError):
        list_documents(store, "db", 0)


def test_a_document_with_its_branches_at_a_moment(store):
    db = ChangesDB(store, "db").create()
    one, two = edited(db, "a", 1, 2)
    then = store.resolved()
    theirs = branch(db, "a", one, "f", "theirs")
    found = document(store, "db", "a")
    assert (found.rev, json.loads(found.body)) == (theirs, {"value": "theirs"})
    assert [(leaf.rev, leaf.wins, leaf.known) for leaf in found.leaves] == [
        (theirs, True, 2),
        (two, False, 2),
    ]
    assert json.loads(document(store, "db", "a", rev=two).body) == {"value": 2}
    drawn = [(n.rev, n.lane, n.column, n.kind, n.parent) for n in found.tree.nodes]
    assert drawn == [
        (one, 0, 0, "inner", None),
        (theirs, 0, 1, "wins", 0),
        (two, 1, 1, "conflict", 0),
    ]
    past = document(store, "db", "a", then)
    assert (past.rev, json.loads(past.body), len(past.leaves)) == (two, {"value": 2}, 1)

    db.remove("a", theirs)
    gone = document(store, "db", "a")
    assert (gone.rev, gone.leaves[0].deleted) == (two, False)  # the other branch wins
    db.remove("a", two)
    gone = document(store, "db", "a")
    assert (gone.deleted, gone.body) == (True, b"{}")
    assert {leaf.deleted for leaf in gone.leaves} == {True}
    with pytest.raises(DocumentNotFoundError):
        document(store, "db", "b")
    with pytest.raises(DocumentNotFoundError):
        document(store, "db", "a", rev=one)


def test_the_winner_at_two_moments(store):
    db = ChangesDB(store, "db").create()
    created = store.resolved()
    (one,) = edited(db, "a", 1)
    then = store.resolved()
    db.remove("a", one)
    bodies = [winner_body(store, "db", "a", when) for when in (0, created, then, None)]
    assert bodies == [None, None, b'{"value":1}', None]


def test_a_tree_of_many_revisions_is_bounded(store):
    db = ChangesDB(store, "db").create()
    revs = edited(db, "a", *range(COLUMNS_MAX + 6))
    for n in range(LANES_MAX + 3):
        branch(db, "a", revs[-2], f"{n:x}", n)
    branch(db, "a", revs[0], "0", "far behind")
    found = document(store, "db", "a")
    tree = found.tree
    assert (tree.lanes, tree.columns, tree.older) == (LANES_MAX, COLUMNS_MAX, True)
    assert tree.more == len(found.leaves) - LANES_MAX == 5
    assert max(node.column for node in tree.nodes) == COLUMNS_MAX - 1
    assert sum(node.kind == "wins" for node in tree.nodes) == 1
    assert sum(node.kind == "conflict" for node in tree.nodes) == LANES_MAX - 1


@pytest.mark.parametrize("id", ATTACKS, ids=ascii)
def test_ids_that_attack_are_data(store, id):
    db = ChangesDB(store, "db").create()
    edited(db, id, id)
    assert list_documents(store, "db").rows[0].id == id
    assert list_documents(store, "db", by="id", start=id).rows[0].id == id
    assert json.loads(document(store, "db", id).body) == {"value": id}


def test_ids_that_cannot_be(store):
    ChangesDB(store, "db").create()
    for id in ("", "\udcff", "_hidden"):
        with pytest.raises(InvalidIdError):
            document(store, "db", id)
    assert list_documents(store, "db", by="id", start="\udcff").rows == []


def test_what_was_compacted(store, clock):
    db = ChangesDB(store, "db").create()
    made = store.resolved()
    (rev,) = edited(db, "a", 1)
    clock.advance(600_000)
    db.put({"_id": "a", "value": 2}, rev=rev)
    store.compact(store.resolved())
    clock.advance(600_000)
    store.compact(store.resolved())
    (row,) = list_databases(store).rows
    assert (row.created, row.documents) == (None, 1)
    with pytest.raises(CompactedError):
        list_documents(store, "db", made)
