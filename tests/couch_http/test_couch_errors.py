"""What the store raises, as a client is told."""

import pytest

import snapkv
from cdcmeta import errors
from cdcmeta.changes import ChangesDB
from cdcmeta.changes.database import Edited, LocalDocs
from cdcmeta.errors import EditUnknownError
from snapkv.errors import (
    CommitTimeoutError,
    CommitUnknownError,
    EngineBusyError,
    EngineUnavailableError,
    NoSpaceError,
    ReadOnlyError,
)

from .served import error_of

UNKNOWN = EditUnknownError(CommitUnknownError(1, b"n", may_still_land=True), None)


def raising(error):
    def fails(*args, **more):
        raise error

    return fails


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (EngineUnavailableError("no etcd"), 503, "service_unavailable"),
        (EngineBusyError("locked"), 503, "service_unavailable"),
        (CommitTimeoutError("late"), 503, "service_unavailable"),
        (snapkv.CompactedError(5, 9), 410, "gone"),
        (snapkv.CommitTooLargeError("the request", 2, 1), 413, "too_large"),
        (NoSpaceError("full"), 507, "insufficient_storage"),
        (ReadOnlyError("no"), 403, "forbidden"),
        (errors.DatabaseRelocatedError("moved"), 403, "forbidden"),
    ],
)
def test_what_the_store_raises(db, monkeypatch, error, status, word):
    monkeypatch.setattr(ChangesDB, "state", raising(error))
    assert error_of(db.get("d")) == (status, word, str(error))


def test_a_mistake_of_our_own(own, monkeypatch, caplog):
    """The client is told nothing of it, the log all; the next request is served."""
    db = own().database()
    with monkeypatch.context() as patch:
        patch.setattr(ChangesDB, "state", raising(ZeroDivisionError("secret")))
        assert error_of(db.get("d")) == (500, "unknown_error", "ZeroDivisionError")
    assert db.get("d").status_code == 404
    assert "secret" in caplog.text


def test_an_unknown_outcome_is_settled(db, monkeypatch):
    """The answer was lost, the commit was not: the client is told of the revision."""
    bulk = ChangesDB.bulk
    landed: list[list[Edited]] = []

    def lost(self, docs, timeout=None):
        landed.append(bulk(self, docs))
        raise UNKNOWN

    monkeypatch.setattr(ChangesDB, "bulk", lost)
    monkeypatch.setattr(ChangesDB, "resolve", lambda self, error: landed.pop())
    told = db("PUT", "d", json={}).json()
    monkeypatch.undo()
    assert told["rev"] == db.get("d").json()["_rev"]


def test_an_unknown_outcome_of_a_local_document_is_settled(db, monkeypatch):
    put = LocalDocs.put

    def lost(self, id, doc):
        rev = put(self, id, doc)
        monkeypatch.setattr(ChangesDB, "resolve", lambda self, error: [Edited("_local/d", rev)])
        raise UNKNOWN

    monkeypatch.setattr(LocalDocs, "put", lost)
    told = db("PUT", "_local/d", json={"n": 1}).json()
    monkeypatch.undo()
    assert told == {"ok": True, "id": "_local/d", "rev": "0-1"}
    assert db.get("_local/d").json() == {"_id": "_local/d", "_rev": "0-1", "n": 1}


def test_an_edit_that_never_happened(db, monkeypatch):
    monkeypatch.setattr(ChangesDB, "bulk", raising(UNKNOWN))
    monkeypatch.setattr(ChangesDB, "resolve", lambda self, error: None)
    for answer in (db("PUT", "d", json={}), db.post("_bulk_docs", {"docs": [{}]})):
        assert error_of(answer)[:2] == (503, "service_unavailable")


def test_an_edit_of_which_nobody_knows_yet(db, monkeypatch):
    monkeypatch.setattr(ChangesDB, "bulk", raising(UNKNOWN))
    monkeypatch.setattr(ChangesDB, "resolve", raising(UNKNOWN.commit))
    status, word, reason = error_of(db("PUT", "d", json={}))
    assert (status, word) == (503, "service_unavailable")
    assert "may still land" in reason


def test_a_database_that_moved_away(own, tmp_path):
    db = own().database()
    db.lib.put({"_id": "d"})
    with snapkv.open("memory:") as other:
        db.lib.relocate(other)
        assert error_of(db("PUT", "e", json={}))[:2] == (403, "forbidden")
        assert db.get("d").status_code == 200  # reading goes on
