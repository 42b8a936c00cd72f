"""A changes database on a CouchDB server: the same revisions, conflicts and removals."""

import random
from dataclasses import replace
from functools import partial

import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.executors.couch_client import CouchDatabase
from cdcmeta.scheduler.executors.database_sinks import CouchReplicaWriter
from cdcmeta.scheduler.executors.database_source import DatabasesSource
from cdcmeta.scheduler.runtime import Changefeed
from cdcmeta.scheduler.runtime.stores_and_sinks import Stores, open_sink

from .driving import Driven
from .mirror import T1, T2


@pytest.fixture
def source():
    with snapkv.open("memory:") as store:
        yield store


def replica(mirror, port=None):
    return partial(CouchReplicaWriter, CouchDatabase(mirror.url(port), {}), "f")


def leaves(doc):
    """A leaf without what its stemming or the server's order may change."""
    return doc["_rev"], doc.get("_deleted", False), doc["_revisions"]["ids"], doc.get("n")


def assert_equal(db, mirror):
    for row in db.changes(style="all_docs").rows:
        ours = sorted(map(leaves, db.open_revs(row.id)))
        assert sorted(map(leaves, mirror.leaves(row.id))) == ours, row.id
    alive = {row.id: row.rev for row in db.changes().rows if not row.deleted}
    rows = mirror.http.get("/_all_docs").raise_for_status().json()["rows"]
    assert {row["id"]: row["value"]["rev"] for row in rows} == alive  # the same winners


def edit(db, rng):
    id = f"doc {rng.randrange(5)}/é"
    rows = db.changes(doc_ids=[id]).rows
    if not rows:
        db.put({"_id": id, "n": rng.random()})
        return
    alive = [doc for doc in db.open_revs(id) if not doc.get("_deleted")]
    kind = rng.randrange(4)
    if kind == 0 and alive:
        db.remove(id, rng.choice(alive)["_rev"])
    elif kind == 1:
        start, hash = rows[0].rev.split("-")
        ids = [f"{rng.getrandbits(120):032x}", hash]
        db.replicate([{"_id": id, "_revisions": {"start": int(start) + 1, "ids": ids}, "n": -1}])
    elif alive:
        db.put({"_id": id, "_rev": rng.choice(alive)["_rev"], "n": rng.random()})
    else:
        db.put({"_id": id, "n": rng.random()})


def test_documents_conflicts_and_removals_are_the_same(source, mirror):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng, db = random.Random(seed), ChangesDB(source, "catalogue").create()
    for _ in range(40):
        edit(db, rng)
    at = source.resolved()
    driven = Driven(
        DatabasesSource(source, ["catalogue"]), replica(mirror), ["catalogue"], state_at=at
    )
    driven.start(at - 1)
    for _ in range(40):
        edit(db, rng)
    driven.reach(source.resolved())
    assert_equal(db, mirror)
    checkpoint, token = mirror.record()
    assert (checkpoint, token.owner) == (driven.stop()["catalogue"], 1)
    for _ in range(20):
        edit(db, rng)
    driven.start(at - 1, owner=2)  # begins again: what is there already changes nothing
    driven.reach(source.resolved())
    assert_equal(db, mirror)
    driven.close()


def test_an_earlier_assignment_is_fenced(mirror):
    old, new = replica(mirror)("db", T1), replica(mirror)("db", T2)
    assert old.begin(5) == 5
    old.write([], 7)
    assert new.begin(5) == 7
    with pytest.raises(Exception, match="later assignment"):
        old.write([], 8)
    for writer in (old, new):
        writer.close()


def test_a_star_in_the_url_is_the_name_of_the_database():
    feed = Changefeed("f", "memory:", "couch+http://127.0.0.1:1/copy-*", (), 1, databases=("a",))
    with snapkv.open("memory:") as store:
        sink = open_sink(feed, Stores(store), {}, 3.0)
        assert sink("orders/eu", T1)._client.database.path == "/copy-orders%2Feu"
        with pytest.raises(InvalidArgumentError, match="is not a URL of a CouchDB"):
            open_sink(replace(feed, sink="couch+http://127.0.0.1:1/"), Stores(store), {}, 3.0)
