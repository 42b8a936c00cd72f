"""Edits for which the time is over: the caller learns that, and what was stored before."""

import itertools

import pytest
from store.wrapping import Intruding, wrap_engines

from cdcmeta import ChangesDB
from cdcmeta.changes import editing
from cdcmeta.errors import EditNotMadeError
from snapkv import CommitTimeoutError, SnapshotKV

from .revs import replicated


@pytest.fixture
def engines(monkeypatch):
    return wrap_engines(monkeypatch, Intruding)


def test_no_time_at_all(db):
    for edit in (db.put, lambda doc, **rest: db.bulk([doc], **rest)):
        with pytest.raises(CommitTimeoutError):
            edit({"_id": "a"}, timeout=1e-9)
    assert db.changes().rows == ()


def test_others_win_until_the_time_is_over(engines, db, place, clock):
    """However the last wait ends: it is the time that was over."""
    other = ChangesDB(place.open(clock=clock), "db")
    hashes = itertools.count(1)

    def intrude():
        other.replicate([{"_id": "a", "_rev": f"1-{next(hashes):032x}"}])

    engines[0].intrude = intrude
    with pytest.raises(CommitTimeoutError):
        db.replicate([replicated("a", "f")], timeout=0.2)
    assert f"1-{'f' * 32}" not in db.changes(style="all_docs").rows[0].revs


@pytest.fixture
def slow(engines, db, monkeypatch):
    """A database whose bulks go in parts of three, each of which takes four seconds."""
    now = [0.0]

    def intrude():
        now[0] += 4

    engines[0].intrude = intrude
    monkeypatch.setattr(editing, "monotonic", lambda: now[0])
    monkeypatch.setattr(editing, "HEAD_TRIES", 0)
    monkeypatch.setattr(SnapshotKV, "guards_max", 4)
    return db


def test_a_bulk_in_parts_that_takes_too_long(slow):
    found = slow.bulk([{"_id": f"d{n}"} for n in range(11)], timeout=8)
    assert [each.id for each in found] == [f"d{n}" for n in range(11)]
    assert [each.ok for each in found] == [True] * 6 + [False] * 5
    assert {type(each.error) for each in found[6:]} == {EditNotMadeError}
    assert [row.seq for row in slow.changes().rows] == [each.seq for each in found[:6]]


def test_a_bulk_in_parts_of_which_none_was_stored(slow):
    with pytest.raises(CommitTimeoutError):
        slow.bulk([{"_id": f"d{n}"} for n in range(11)], timeout=0)
    assert slow.changes().rows == ()
