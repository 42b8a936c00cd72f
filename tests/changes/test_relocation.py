"""Relocation: to the next incarnation, to another store, and what goes wrong on the way."""

import threading

import pytest

from cdcmeta import ChangesDB, databases
from cdcmeta.errors import (
    DatabaseExistsError,
    DatabaseRelocatedError,
    InvalidSequenceError,
)
from snapkv import ConflictError, ManualClock

from .sound import assert_database_sound


def test_the_next_incarnation_in_place(db, clock):
    first = db.put({"_id": "a"})
    clock.advance(1_000)
    assert db.relocate().info().incarnation == 1
    clock.advance(1_000)
    second = db.put({"_id": "b"})
    third = db.put({"_id": "a", "x": 1}, rev=first.rev)
    assert first.seq < second.seq < third.seq
    assert str(first.seq) < str(second.seq) < str(third.seq)
    assert [row.id for row in db.changes(since=first.seq).rows] == ["b", "a"]
    assert [row.id for row in db.changes(descending=True).rows] == ["a", "b"]


@pytest.mark.slow
def test_a_database_in_another_store_goes_on(db, place, clock):
    """Though the clock there is an hour behind."""
    docs = db.bulk([{"_id": f"d{n}", "x": "y" * 50} for n in range(2_500)])
    db.local.put("cp", {"n": 1})
    db.set_revs_limit(7)
    seen = db.changes(limit=2_000)
    behind = ManualClock(clock.now_ms() - 3_600_000)
    there = db.relocate(place.open(clock=behind, name="there"))
    assert there.info().incarnation == 1
    assert there.info().revs_limit == 7
    assert there.changes().rows == db.changes().rows
    assert there.local.get("cp")["n"] == 1
    last = there.put({"_id": "d0", "x": 1}, rev=docs[0].rev)
    assert last.seq > docs[-1].seq
    rest = there.changes(since=str(seen.last_seq))
    assert [row.id for row in rest.rows] == [f"d{n}" for n in range(2_000, 2_500)] + ["d0"]
    assert databases(there.store) == ["db"]
    assert_database_sound(there)
    with pytest.raises(DatabaseRelocatedError):
        db.put({"_id": "late"})
    with pytest.raises(InvalidSequenceError, match="incarnation 1"):
        db.changes(since=last.seq)
    assert db.relocate(there.store).info() == there.info(), "again changes nothing"


def test_a_move_that_was_interrupted_goes_on(db, place, clock, monkeypatch):
    from cdcmeta.changes import database as relocation

    db.bulk([{"_id": f"d{n}"} for n in range(30)])
    to = place.open(clock=clock, name="there")
    whole = relocation.bounded_batches

    def cut(items, *_):
        yield list(items)[:10]
        raise KeyboardInterrupt

    monkeypatch.setattr(relocation, "bounded_batches", cut)
    with pytest.raises(KeyboardInterrupt):
        db.relocate(to)
    assert databases(to) == []
    with pytest.raises(DatabaseRelocatedError):
        db.put({"_id": "late"})
    monkeypatch.setattr(relocation, "bounded_batches", whole)
    there = db.relocate(to)
    assert there.changes().rows == db.changes().rows
    assert_database_sound(there)


def test_there_and_back_again(db, place, clock):
    first = db.put({"_id": "a", "n": 1})
    there = db.relocate(place.open(clock=clock, name="there"))
    second = there.put({"_id": "a", "n": 2}, rev=first.rev)
    back = there.relocate(db.store)
    assert back.get("a")["n"] == 2
    assert back.info().incarnation == 2
    third = db.put({"_id": "a", "n": 3}, rev=second.rev)
    assert first.seq < second.seq < third.seq
    with pytest.raises(DatabaseRelocatedError):
        there.put({"_id": "late"})
    assert_database_sound(back)


def test_a_moved_database_takes_no_edits_of_any_kind(db, place, clock):
    db.put({"_id": "a"})
    db.relocate(place.open(clock=clock, name="there"))
    for work in (
        lambda: db.put({"_id": "b"}),
        lambda: db.local.put("l", {}),
        db.relocate,
        lambda: next(db.follow()),
    ):
        with pytest.raises(DatabaseRelocatedError):
            work()
    db.delete()
    db.create()
    assert db.put({"_id": "b"}).ok, "the same handle, another database"


def test_two_moves_at_once_make_one_whole_database(db, place, clock, monkeypatch):
    from cdcmeta.changes import database as relocation

    db.bulk([{"_id": f"d{n}"} for n in range(60)])
    stores = [place.open(clock=clock, name="there") for _ in range(2)]
    whole = relocation.bounded_batches
    first_is_half = threading.Event()
    second_is_over = threading.Event()

    def slow(items, *bounds):
        if first_is_half.is_set():
            yield from whole(items, *bounds)
            return
        (batch,) = whole(items, *bounds)
        yield batch[:20]
        first_is_half.set()
        assert second_is_over.wait(20)
        yield batch[20:]

    monkeypatch.setattr(relocation, "bounded_batches", slow)
    errors = []

    def move():
        try:
            db.relocate(stores[0])
        except ConflictError as e:
            errors.append(e)

    thread = threading.Thread(target=move)
    thread.start()
    assert first_is_half.wait(20)
    there = db.relocate(stores[1])
    second_is_over.set()
    thread.join(20)
    assert len(errors) == 1
    assert there.changes().rows == db.changes().rows
    assert_database_sound(there)


def test_another_one_is_there_already(db, place, clock):
    to = place.open(clock=clock, name="there")
    ChangesDB(to, "db").create()
    with pytest.raises(DatabaseExistsError):
        db.relocate(to)
    assert db.put({"_id": "a"}).ok, "nothing was begun"


def test_times_of_each_incarnation(db, clock):
    seqs = []
    for n in range(4):
        clock.advance(1_000)
        seqs.append(db.put({"_id": f"d{n}"}).seq)
        if n in (1, 2):
            clock.advance(1_000)
            db.relocate()
    for n, seq in enumerate(seqs):
        assert [row.id for row in db.changes(since=seq.timestamp).rows] == [
            f"d{m}" for m in range(n + 1, 4)
        ]
