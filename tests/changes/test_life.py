"""Databases: made and deleted; local documents; history; edits at the same time."""

import threading

import pytest
from cases import cases
from store.engines import ENGINES

from cdcmeta import ChangesDB, databases
from cdcmeta.errors import (
    DatabaseExistsError,
    DatabaseNotFoundError,
    DocumentConflictError,
    DocumentNotFoundError,
    InvalidArgumentError,
    InvalidDocumentError,
    InvalidNameError,
)

from .revs import shape


@cases("name", ["", "A", "1a", "_a", "a b", "ä", "a" * 129, None, 5])
def test_bad_names(store, name):
    with pytest.raises(InvalidNameError):
        ChangesDB(store, name)


def test_made_and_deleted(store, clock):
    names = ["b", "a/b", "a%2Fb".lower().replace("%", "+"), "a"]
    for name in names:
        ChangesDB(store, name).create()
    assert databases(store) == sorted(names)
    db = ChangesDB(store, "a")
    with pytest.raises(DatabaseExistsError):
        db.create()
    edited = db.put({"_id": "x", "n": 1})
    clock.advance(1_000)
    db.delete()
    assert databases(store) == sorted(set(names) - {"a"})
    for work in (db.changes, db.info, db.delete, lambda: db.put({}), lambda: db.get("x")):
        with pytest.raises(DatabaseNotFoundError):
            work()
    assert db.get("x", as_of=edited.seq.timestamp)["n"] == 1, "its past can be read"
    assert databases(store, as_of=edited.seq.timestamp) == sorted(names)
    assert not db.exists()
    assert db.exists(as_of=edited.seq.timestamp)
    db.create()
    assert db.changes(since=edited.seq).rows == ()
    assert db.changes().rows == ()


def test_an_old_handle_on_a_recreated_database(store):
    old, other = ChangesDB(store, "a").create(), ChangesDB(store, "a")
    first = old.put({"_id": "x"})
    other.delete()
    other.create()
    with pytest.raises(DocumentConflictError):
        old.put({"_id": "x"}, rev=first.rev)
    assert old.put({"_id": "x", "n": 1}).ok
    assert shape(other.changes())[0][0] == "x"
    other.delete()
    with pytest.raises(DatabaseNotFoundError):
        old.put({"_id": "y"})
    with pytest.raises(DatabaseNotFoundError):
        old.bulk([{"_id": "x", "_rev": first.rev}])
    with pytest.raises(DatabaseNotFoundError):
        old.local.put("l", {})


@pytest.mark.parametrize("limit", [0, -1, 5_000, True, 1.5, "1"])
def test_bad_revs_limits(db, limit):
    with pytest.raises(InvalidArgumentError):
        db.set_revs_limit(limit)
    with pytest.raises(InvalidArgumentError):
        ChangesDB(db.store, "other").create(revs_limit=limit)


# --- local documents ---


def test_local_documents(db):
    with pytest.raises(DocumentNotFoundError):
        db.local.get("a")
    assert db.local.put("a", {"n": 1}) == "0-1"
    assert db.local.get("a") == {"_id": "_local/a", "_rev": "0-1", "n": 1}
    for stale in ({"n": 2}, {"n": 2, "_rev": "0-7"}):
        with pytest.raises(DocumentConflictError):
            db.local.put("a", stale)
    assert db.local.put("a", {"n": 2, "_rev": "0-1"}) == "0-2"
    with pytest.raises(DocumentConflictError):
        db.local.put("b", {"_rev": "0-1"})
    assert db.changes().rows == ()
    with pytest.raises(DocumentConflictError):
        db.local.remove("a", "0-1")
    db.local.remove("a", "0-2")
    with pytest.raises(DocumentNotFoundError):
        db.local.remove("a", "0-2")
    for bad in ("", "x" * 300, None):
        with pytest.raises(InvalidDocumentError):
            db.local.get(bad)


# --- history ---


def test_history_tells_of_every_edit(db, clock):
    revs = []
    for n in range(3):
        clock.advance(1_000)
        doc = {"_id": "a", "n": n}
        revs.append(db.put(doc, rev=revs[-1].rev if revs else None))
    gone = db.remove("a", revs[-1].rev)
    found = list(db.history("a", include_docs=True))
    assert [each.rev for each in found] == [each.rev for each in (*revs, gone)]
    assert [each.seq for each in found] == [each.seq for each in (*revs, gone)]
    assert [each.doc.get("n") for each in found] == [0, 1, 2, None]
    assert [each.deleted for each in found] == [False, False, False, True]
    assert {each.writer for each in found} == {"ann@test"}
    assert [each.ts for each in found] == [each.seq.timestamp for each in found]
    assert list(db.history("nobody")) == []


def test_a_recreated_database_has_its_own_history(db, clock):
    db.put({"_id": "a", "n": 1})
    clock.advance(1_000)
    db.delete()
    db.create()
    clock.advance(1_000)
    db.put({"_id": "a", "n": 2})
    assert [each.doc["n"] for each in db.history("a", include_docs=True)] == [2]


def test_history_begins_with_the_move(db, place, clock):
    first = db.put({"_id": "a", "n": 1})
    clock.advance(1_000)
    there = db.relocate(place.open(clock=clock, name="there"))
    there.put({"_id": "a", "n": 2}, rev=first.rev)
    assert [each.doc["n"] for each in there.history("a", include_docs=True)] == [1, 2]
    assert len(there.open_revs("a", [first.rev], as_of=there.info().update_seq.timestamp)) == 1


# --- at the same time ---


def test_of_edits_at_the_same_time_one_succeeds(db):
    first = db.put({"_id": "a", "n": 0})
    barrier, results = threading.Barrier(8), []

    def edit(n: int) -> None:
        barrier.wait()
        try:
            results.append(db.put({"_id": "a", "n": n}, rev=first.rev))
        except DocumentConflictError:
            results.append(None)

    run([threading.Thread(target=edit, args=(n,)) for n in range(1, 9)])
    (won,) = [each for each in results if each is not None]
    assert db.get("a")["_rev"] == won.rev
    assert len(db.open_revs("a")) == 1


def test_inserts_at_the_same_time_make_one_root(db):
    barrier, results = threading.Barrier(6), []

    def insert(n: int) -> None:
        barrier.wait()
        results.append(db.bulk([{"_id": "a", "n": n}])[0].ok)

    run([threading.Thread(target=insert, args=(n,)) for n in range(6)])
    assert sorted(results) == [False] * 5 + [True]
    assert len(db.open_revs("a")) == 1


def test_replicated_at_the_same_time_all_are_kept(db):
    from .revs import replicated

    letters = "bcdef0123"
    barrier = threading.Barrier(len(letters))

    def add(letter: str) -> None:
        barrier.wait()
        assert db.replicate([replicated("a", letter + "a")])[0].ok

    run([threading.Thread(target=add, args=(letter,)) for letter in letters])
    assert len(db.open_revs("a")) == len(letters)
    (row,) = db.changes(style="all_docs").rows
    assert len(row.revs) == len(letters)


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_a_large_bulk_among_others(db, place):
    """More documents than etcd has guards: others commit all the time, and it still ends."""
    assert "etcd" in ENGINES
    done = threading.Event()

    def disturb() -> None:
        n = 0
        while not done.is_set():
            db.store.save("noise", b"%d" % n)
            n += 1

    noise = threading.Thread(target=disturb)
    noise.start()
    try:
        found = db.bulk([{"_id": f"d{n:03d}"} for n in range(300)])
    finally:
        done.set()
        noise.join(20)
    assert all(each.ok for each in found)
    assert [row.id for row in db.changes().rows] == [f"d{n:03d}" for n in range(300)]


def run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
