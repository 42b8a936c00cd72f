"""Edits whose outcome was unknown for a while: the original sequence, one row, no conflict."""

import pytest
from store.wrapping import wrap_engines

from cdcmeta import ChangesDB
from cdcmeta.errors import DocumentConflictError, EditUnknownError

from .losing import Losing
from .sound import assert_database_sound


@pytest.fixture
def losing(place, clock, monkeypatch):
    engines = wrap_engines(monkeypatch, Losing)
    db = ChangesDB(place.open(clock=clock), "db").create()
    yield db, engines[-1]
    engines[-1].cut = False
    assert_database_sound(db)


@pytest.mark.parametrize(
    "plan", [["after"], ["before"], ["before", "after"], ["after", "before"], ["before"] * 3]
)
def test_an_edit_happens_once(losing, plan):
    """An insert that met itself would be in conflict with itself (couchdb#3560)."""
    db, engine = losing
    engine.plan = list(plan)
    first = db.put({"_id": "a", "n": 0})
    engine.plan = list(plan)
    second = db.put({"_id": "a", "n": 1}, rev=first.rev)
    engine.plan = list(plan)
    bulk = db.bulk([{"_id": "b"}, {"_id": "a"}, {"_id": "c"}])
    rows = db.changes().rows
    assert [(row.id, row.seq) for row in rows] == [
        ("a", second.seq),
        ("b", bulk[0].seq),
        ("c", bulk[2].seq),
    ]
    assert isinstance(bulk[1].error, DocumentConflictError)
    assert [each.seq for each in db.history("a")] == [first.seq, second.seq]
    engine.plan = list(plan)
    assert db.remove("a", second.rev).seq == db.changes().rows[-1].seq


def test_the_caller_gives_up_and_asks_later(losing):
    db, engine = losing
    db.put({"_id": "warm"})
    engine.plan = ["after, then cut"]
    with pytest.raises(EditUnknownError) as caught:
        db.put({"_id": "a", "n": 1}, timeout=0.2)
    engine.cut = False
    (edited,) = db.resolve(caught.value)
    (row,) = [row for row in db.changes().rows if row.id == "a"]
    assert (edited.seq, edited.rev) == (row.seq, row.rev)
    assert db.resolve(caught.value) == [edited]
    with pytest.raises(DocumentConflictError):
        db.put({"_id": "a", "n": 1})


def test_the_caller_gives_up_and_it_never_happened(losing):
    db, engine = losing
    db.put({"_id": "warm"})
    engine.plan = ["before, then cut"]
    with pytest.raises(EditUnknownError) as caught:
        db.put({"_id": "a", "n": 1}, timeout=0.2)
    engine.cut = False
    assert db.resolve(caught.value) is None
    assert db.put({"_id": "a", "n": 1}).ok
    assert [row.id for row in db.changes().rows] == ["warm", "a"]


def test_a_bulk_in_parts_of_which_one_is_unknown(losing, monkeypatch):
    """What was stored, what became of the unknown part, and what was never tried: each is told."""
    from cdcmeta.changes import editing
    from cdcmeta.errors import EditNotMadeError
    from snapkv import SnapshotKV

    db, engine = losing
    db.put({"_id": "warm"})
    monkeypatch.setattr(editing, "HEAD_TRIES", 0)
    monkeypatch.setattr(SnapshotKV, "guards_max", 4)
    engine.plan = ["fine", "after, then cut"]
    with pytest.raises(EditUnknownError) as caught:
        db.bulk([{"_id": f"d{n}"} for n in range(9)], timeout=0.5)
    engine.cut = False
    found = db.resolve(caught.value)
    assert [each.id for each in found] == [f"d{n}" for n in range(9)]
    assert [each.ok for each in found] == [True] * 6 + [False] * 3
    assert {type(each.error) for each in found[6:]} == {EditNotMadeError}
    assert [row.id for row in db.changes().rows][1:] == [f"d{n}" for n in range(6)]
