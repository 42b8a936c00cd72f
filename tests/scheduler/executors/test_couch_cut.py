"""Documents whose histories the source cut, on a CouchDB server: the same winners and conflicts."""

import random
from functools import partial

import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.scheduler.executors.couch_client import CouchDatabase
from cdcmeta.scheduler.executors.database_sinks import CouchReplicaWriter

from .cutting import NAME, Copying, edits, living, run_randomly


@pytest.fixture
def documents():
    with snapkv.open("memory:") as store:
        yield ChangesDB(store, NAME).create(revs_limit=3)


@pytest.fixture
def copying(documents, mirror):
    database = CouchDatabase(mirror.url(), {})
    copying = Copying(documents, partial(CouchReplicaWriter, database, "f", write_s=20))
    yield copying
    copying.writer.close()


def living_there(mirror, db):
    """What `living` returns, of the same documents at the server."""
    rows = mirror.http.get("/_all_docs").raise_for_status().json()["rows"]
    winners = {row["id"]: row["value"]["rev"] for row in rows}
    return {
        row.id: (
            winners.get(row.id),
            sorted(doc["_rev"] for doc in mirror.leaves(row.id) if not doc.get("_deleted")),
        )
        for row in db.changes().rows
    }


@pytest.mark.parametrize(("limit", "count"), [(3, 20), (1, 1)])
def test_a_document_that_was_removed_after_a_pause_is_removed(
    documents, mirror, copying, limit, count
):
    documents.set_revs_limit(limit)
    rev = edits(documents, "a", 1)
    copying.run()
    removed = documents.remove("a", edits(documents, "a", count, rev)).rev
    copying.run()
    assert living_there(mirror, documents) == {"a": (None, [])}
    tombstones = sorted(doc["_rev"][:2] for doc in mirror.leaves("a"))
    assert tombstones == sorted(["2-", removed[:2]])  # that of the old leaf, and the source's
    assert mirror.http.get("/a").status_code == 404


def test_a_document_that_was_only_edited_has_no_conflict(documents, mirror, copying):
    rev = edits(documents, "a", 1)
    copying.run()
    last = edits(documents, "a", 20, rev)
    copying.run()
    assert living_there(mirror, documents) == {"a": (last, [last])}


def test_of_deleted_leaves_at_one_position_the_sources_wins(documents, mirror, copying):
    """A document of any later edit continues the winner."""
    documents.set_revs_limit(1)
    for n in range(8):
        rev = edits(documents, f"doc{n}", 1)
        copying.run()
        removed = documents.remove(f"doc{n}", rev).rev
        copying.run()
        rows = mirror.http.post("/_all_docs", json={"keys": [f"doc{n}"]}).json()["rows"]
        assert rows[0]["value"] == {"rev": removed, "deleted": True}


def test_what_was_edited_there_remains(documents, mirror, copying):
    rev = edits(documents, "a", 1)
    copying.run()
    ids = ["f" * 32, rev[2:]]
    own = {"_id": "a", "_rev": f"2-{ids[0]}", "_revisions": {"start": 2, "ids": ids}}
    mirror.http.post("/_bulk_docs", json={"docs": [own], "new_edits": False}).raise_for_status()
    last = edits(documents, "a", 20, rev)
    copying.run()
    assert living_there(mirror, documents) == {"a": (last, sorted([own["_rev"], last]))}


def test_a_batch_whose_histories_are_known_costs_no_request_more(documents, mirror, copying):
    rev = edits(documents, "a", 1)
    copying.run()
    sent, client = [], copying.writer._client
    request, client.request = client.request, lambda *args: sent.append(args[:2]) or request(*args)
    rev = edits(documents, "a", 2, rev)
    copying.run()
    assert [path for _, path in sent if not path.startswith("_local")] == ["_bulk_docs"]
    sent.clear()
    edits(documents, "a", 4, rev)
    copying.run()
    paths = [path.partition("?")[0] for _, path in sent if not path.startswith("_local")]
    assert paths == ["_bulk_docs", "_all_docs", "_bulk_docs"]


@pytest.mark.slow
def test_whatever_the_source_cuts_the_same_leaves_are_living(documents, mirror, copying):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    for _ in run_randomly(copying, random.Random(seed), 60):
        assert living_there(mirror, documents) == living(documents)
