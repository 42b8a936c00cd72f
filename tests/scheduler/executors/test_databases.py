"""Changes databases as tables: the target has the same documents, revisions and conflicts."""

import json
import random
from functools import partial

import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.errors import DatabaseNotFoundError
from cdcmeta.scheduler import TableState, Token
from cdcmeta.scheduler.executors.contracts import CalledWriter
from cdcmeta.scheduler.executors.database_sinks import DatabaseWriter
from cdcmeta.scheduler.executors.database_source import DatabasesSource
from cdcmeta.scheduler.executors.json_lines_sink import JsonLinesWriter, file_name

from .driving import Driven, Noting
from .sources import open_source

NAMES = ["users", "orders/eu"]


@pytest.fixture(params=["memory", "lmdb"])
def store(request, tmp_path):
    with open_source(request.param, tmp_path / "source") as store:
        for name in [*NAMES, "unwanted"]:
            ChangesDB(store, name).create()
        yield store


@pytest.fixture
def target():
    with snapkv.open("memory:") as target:
        yield target


@pytest.fixture
def seed():
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    return seed


def driven(store, sink, tables=NAMES, **options):
    return Driven(DatabasesSource(store, tables), sink, tables, **options)


def all_leaves(db):
    """All that replication is about: each document's leaves with their histories."""
    return {
        row.id: sorted(db.open_revs(row.id), key=lambda doc: doc["_rev"])
        for row in db.changes(style="all_docs").rows
    }


def winners(db):
    return {row.id: row.rev for row in db.changes().rows}


def assert_equal(store, target, names=NAMES):
    for name in names:
        ours, theirs = ChangesDB(store, name), ChangesDB(target, name)
        assert winners(ours) == winners(theirs)
        assert all_leaves(ours) == all_leaves(theirs)


def branch(id, number, of):
    hash = f"{number:032x}"
    return {"_id": id, "_revisions": {"start": 2, "ids": [hash, of.rev[2:]]}, "branch": number}


def edit(db, rng, known):
    """Make one edit: a new document, a revision, a removal, or a branch beside the others."""
    id = f"doc{rng.randrange(6)}"
    before = known.get(id)
    if before is None:
        known[id] = db.put({"_id": id, "n": rng.randrange(100)})
    elif rng.random() < 0.3:
        db.replicate([branch(id, rng.getrandbits(64), before)])
    else:
        docs = [doc for doc in db.open_revs(id) if not doc.get("_deleted")]
        if not docs:
            db.put({"_id": id, "again": True})
        elif rng.random() < 0.3:
            db.remove(id, rng.choice(docs)["_rev"])
        else:
            doc = rng.choice(docs)
            db.put({"_id": id, "_rev": doc["_rev"], "n": rng.randrange(100)})


def test_state_and_changes_with_conflicts_reach_a_database(store, target, seed):
    rng, known = random.Random(seed), {name: {} for name in [*NAMES, "unwanted"]}

    def edits(count):
        for _ in range(count):
            name = rng.choice([*NAMES, "unwanted"])
            edit(ChangesDB(store, name), rng, known[name])

    edits(60)
    at = store.resolved()
    replica = driven(store, partial(DatabaseWriter, target, "f"), state_at=at)
    edits(20)
    replica.start(at - 1)
    edits(40)
    replica.reach(store.resolved())
    assert_equal(store, target)
    assert not ChangesDB(target, "unwanted").exists()
    reached = replica.stop()
    edits(20)
    replica.start(min(reached.values()), owner=2)  # another assignment continues
    replica.reach(store.resolved())
    assert_equal(store, target)
    replica.close()


def test_a_database_continues_after_its_commits_were_compacted(store, target):
    db = ChangesDB(store, "users")
    first = db.put({"_id": "a", "n": 1})
    start = store.resolved()
    replica = driven(store, partial(DatabaseWriter, target, "f"), ["users"], state_at=start)
    replica.start(start - 1)
    replica.reach(store.resolved())
    reached = replica.stop()["users"]
    db.put({"_id": "a", "n": 2}, rev=first.rev)
    db.put({"_id": "b"})
    store.save("plain", b"1")
    store.reader.engine.compact(store.at().revision)
    db.put({"_id": "c"})
    replica.start(reached, owner=2)
    replica.reach(store.resolved())
    assert_equal(store, target, ["users"])
    replica.close()


def test_a_deleted_database_ends_its_table_only(store, target):
    noting = Noting()
    replica = driven(store, partial(CalledWriter, noting))
    replica.start(store.resolved())
    ChangesDB(store, "users").delete()
    replica.until(lambda: replica.state("users") is TableState.STOPPED, "the end of the table")
    replica.executor.is_remove_finished("users")
    assert "'users' was deleted" in replica.executor.problems()["users"].error
    kept = ChangesDB(store, "orders/eu").put({"_id": "x", "n": 1})
    replica.reach(store.resolved(), ["orders/eu"])
    ((table, _, commits, _),) = [call for call in noting.calls if call[2]]
    (change,) = commits[0].changes
    assert (table, change.key) == ("orders/eu", "x")
    assert json.loads(change.value) == {"_id": "x", "_rev": kept.rev, "n": 1}
    assert commits[0].commit.writer is not None
    replica.close()


def test_a_table_of_a_missing_database_fails_with_its_name(store):
    store.save("plain", b"1")
    replica = driven(store, partial(CalledWriter, Noting()), ["none"], state_at=store.resolved())
    replica.executor.add_table("none", 1, Token(1, 1), is_prepare=True)
    replica.until(partial(replica.is_done, "none", is_prepare=True), "it to be prepared")
    replica.executor.add_table("none", 1, Token(1, 1), is_prepare=False)
    replica.until(lambda: replica.state("none") is TableState.STOPPED, "its end")
    error = replica.executor.problems()["none"].error
    assert error.startswith(DatabaseNotFoundError.__name__)
    assert "'none'" in error
    replica.close()


def test_lines_have_documents_and_removals(store, tmp_path):
    db = ChangesDB(store, "orders/eu")
    start = store.resolved()
    replica = driven(store, partial(JsonLinesWriter, tmp_path / "lines"), ["orders/eu"])
    replica.start(start)
    made = db.put({"_id": "x", "n": 1})
    db.remove("x", made.rev)
    replica.reach(store.resolved())
    replica.close()
    lines = (tmp_path / "lines" / file_name("orders/eu")).read_text().splitlines()
    found = [
        (change["key"], change["value"] and json.loads(change["value"]))
        for line in map(json.loads, lines)
        for change in line.get("changes", ())
    ]
    assert found == [("x", {"_id": "x", "_rev": made.rev, "n": 1}), ("x", None)]
