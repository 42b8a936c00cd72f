"""The feed after each write, as CouchDB's `cpse_test_fold_changes` has it (facts 5.3)."""

import pytest

from .revs import replicated

pytestmark = pytest.mark.slow


def ids(db, **arguments):
    return [row.id for row in db.changes(**arguments).rows]


def test_empty(db):
    page = db.changes()
    assert (page.rows, page.pending) == ((), 0)
    assert ids(db, since="now") == []


def test_single(db):
    edited = db.put({"_id": "a"})
    (row,) = db.changes().rows
    assert (row.seq, row.id, row.rev, row.revs) == (edited.seq, "a", edited.rev, (edited.rev,))


def test_two_changes(db):
    db.put({"_id": "b"})
    db.put({"_id": "a"})
    assert ids(db) == ["b", "a"]


def test_two_changes_batch(db):
    first, second = db.bulk([{"_id": "a"}, {"_id": "b"}])
    assert ids(db) == ["a", "b"]
    assert first.seq.stamp[:2] == second.seq.stamp[:2]
    assert (first.seq.stamp.user, second.seq.stamp.user) == (0, 1)


def test_two_changes_batch_sorted(db):
    """As they were given, not by id."""
    db.bulk([{"_id": "b"}, {"_id": "a"}])
    assert ids(db) == ["b", "a"]


def test_update_one(db):
    first = db.put({"_id": "a"})
    second = db.put({"_id": "a", "x": 1}, rev=first.rev)
    (row,) = db.changes().rows
    assert (row.seq, row.rev) == (second.seq, second.rev)


@pytest.mark.parametrize(("updated", "order"), [("a", ["b", "a"]), ("b", ["a", "b"])])
def test_update_one_of_two(db, updated, order):
    revs = {edited.id: edited.rev for edited in db.bulk([{"_id": "a"}, {"_id": "b"}])}
    db.put({"_id": updated, "x": 1}, rev=revs[updated])
    assert ids(db) == order


def test_mutation_ordering(db):
    """Every suffix from every sequence, after every document was changed in turn."""
    revs = {edited.id: edited.rev for edited in db.bulk([{"_id": f"d{n}"} for n in range(6)])}
    order = list(revs)
    for changed in [*revs, *reversed(revs), "d3", "d3"]:
        revs[changed] = db.put({"_id": changed, "n": len(order)}, rev=revs[changed]).rev
        order.remove(changed)
        order.append(changed)
        rows = db.changes().rows
        assert [row.id for row in rows] == order
        for n, row in enumerate(rows):
            assert ids(db, since=row.seq) == order[n + 1 :]
            assert ids(db, since=row.seq, descending=True) == order[n + 1 :][::-1]
            assert ids(db, until=row.seq) == order[: n + 1]


def test_a_losing_branch_moves_the_row(db):
    db.replicate([replicated("a", "fa"), replicated("b", "a")])
    (edited,) = db.replicate([replicated("a", "0a", deleted=True)])
    rows = db.changes().rows
    assert [row.id for row in rows] == ["b", "a"]
    assert (rows[1].seq, rows[1].rev[:3], rows[1].deleted) == (edited.seq, "2-f", False)


@pytest.mark.parametrize("count", [1, 3, 300, 1_000])
def test_pages_by_last_seq_are_the_whole(db, count):
    for at in range(0, count, 250):
        db.bulk([{"_id": f"d{n:04d}"} for n in range(at, min(at + 250, count))])
    whole = db.changes().rows
    assert len(whole) == count
    for size in (1, 7, 256, 2_000):
        if count / size > 200:
            continue
        pages, since = [], 0
        while True:
            page = db.changes(since=since, limit=size)
            pages += page.rows
            assert page.pending == count - len(pages)
            if not page.pending:
                break
            since = str(page.last_seq)
        assert tuple(pages) == whole


def test_backwards_through_windows(db, clock):
    """Long silences, bursts, and more rows of one time than a window takes."""
    expected = []
    for burst, silence_ms in ((1, 0), (50, 86_400_000), (5_000, 1), (3, 31_536_000_000), (1, 7)):
        clock.advance(silence_ms)
        for at in range(0, burst, 500):
            names = [f"{len(expected)}-{at}-{n}" for n in range(min(500, burst - at))]
            db.bulk([{"_id": name} for name in names])
            expected += names
    assert ids(db, descending=True) == expected[::-1]
    assert ids(db, descending=True, limit=2) == expected[:-3:-1]
    page = db.changes(descending=True, limit=10)
    assert page.pending == len(expected) - 10
    assert db.info().update_seq == db.changes(limit=1, descending=True).rows[0].seq
