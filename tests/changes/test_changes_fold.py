"""Reading on, by the names of `fabric2_changes_fold_tests` (facts 5.4).

There a read ends after five seconds (`tx_too_old`) and is stitched together; here a page is of one
revision, and what can end it is compaction.
"""

import pytest
from cases import cases
from store.engines import EMBEDDED

from cdcmeta import Change, Checkpoint, Sequence, Versionstamp
from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.revisions import Leaf, Revision, Tree
from snapkv import CompactedError

from .forgetting import forget

WAIT_S = 20
ROWS = 10
LAST = 0xFFFF


@pytest.fixture
def rows(db):
    """Documents, one a commit; returns what became of them."""
    return [db.put({"_id": f"d{n}", "n": n}) for n in range(ROWS)]


def ids(page) -> list[str]:
    return [row.id for row in page.rows]


def names(*numbers) -> list[str]:
    return [f"d{n}" for n in numbers]


# --- the place after a place ---

CARRIES = [
    ((1, 1, 1), (1, 1, 2)),
    ((1, 1, LAST), (1, 2, 0)),
    ((1, LAST, LAST), (2, 0, 0)),
    ((0xFF, LAST, LAST), (0x100, 0, 0)),
    ((LAST, LAST, LAST), (0x10000, 0, 0)),
    ((0xFFFFFFFF, LAST, LAST), (0x100000000, 0, 0)),
    ((2**56 - 1, LAST, LAST), (2**56, 0, 0)),
    ((1, 2, 0), (1, 2, 1)),
]
"""Stamps that follow each other at once: `next_vs` counts on from the user's two bytes."""


@pytest.mark.parametrize(("stamp", "following"), CARRIES)
def test_next_vs(store, stamp, following):
    """A place is exclusive: nothing between two stamps is shown twice or passed over."""
    from cdcmeta import ChangesDB

    db = ChangesDB(store, "stamped").create()
    seqs = [Sequence(0, Versionstamp(*each)) for each in (stamp, following)]
    for n, seq in enumerate(seqs):
        tree = Tree.of([Leaf(True, Revision(1, bytes([n + 1]) * 16))])
        store.space("changes/stamped").commit(
            puts=layout.stored(layout.winner_key(f"d{n}"), f"d{n}", tree, seq)
        )
    assert seqs[0] < seqs[1]
    assert ids(db.changes()) == names(0, 1)
    assert ids(db.changes(since=str(seqs[0]))) == names(1)
    assert ids(db.changes(since=seqs[1])) == []
    assert ids(db.changes(until=seqs[0])) == names(0)
    assert ids(db.changes(descending=True)) == names(1, 0)
    assert ids(db.changes(since=seqs[0], descending=True)) == names(1)
    first = db.changes(limit=1)
    assert (first.last_seq, first.pending) == (seqs[0], 1)


def test_next_vs_of_the_next_incarnation(db):
    """Behind the last stamp that an incarnation can have stand all of the next one."""
    before = db.put({"_id": "d0"}).seq
    db.relocate()
    after = db.put({"_id": "d1"}).seq
    last = Sequence(before.incarnation, Versionstamp(2**64 - 1, LAST, LAST))
    assert before < last < after
    assert ids(db.changes(since=last)) == names(1)
    assert ids(db.changes(until=last)) == names(0)


# --- from everywhere ---


def test_fold_changes_basic(db, rows):
    assert [row.seq for row in db.changes().rows] == [each.seq for each in rows]


def test_fold_changes_since_now(db, rows):
    assert ids(db.changes(since="now")) == []
    assert ids(db.changes(since="now", descending=True)) == []


@cases("n", range(ROWS))
def test_fold_changes_since_seq(db, rows, n):
    assert ids(db.changes(since=rows[n].seq)) == names(*range(n + 1, ROWS))


@cases("n", range(ROWS))
def test_fold_changes_end_key(db, rows, n):
    assert ids(db.changes(until=rows[n].seq)) == names(*range(n + 1))
    assert ids(db.changes(until=rows[n].seq, descending=True)) == names(*range(n, -1, -1))


@pytest.mark.parametrize("descending", [False, True])
def test_fold_changes_single_row_pages(db, rows, clock, descending):
    """Each page is a read of its own, so compaction between them takes nothing away."""
    told, place = [], None
    for _ in range(ROWS):
        since, until = (0, place) if descending else (place or 0, None)
        page = db.changes(since, until=until, limit=1 + descending, descending=descending)
        own = page.rows[-1] if place is not None and descending else page.rows[0]
        told.append(own.id)
        place = own.seq
        forget(db.store, clock)
    expected = names(*range(ROWS))
    assert told == (expected[::-1] if descending else expected)


# --- when the past is gone ---


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
@pytest.mark.parametrize("descending", [False, True])
def test_fold_changes_tx_too_old(db, clock, descending):
    """A page that compaction overtakes is none: it is not told in part."""
    db.bulk([{"_id": f"d{n}"} for n in range(600)])
    done = []

    def overtake(change: Change) -> bool:
        if not done:
            db.put({"_id": "later"})
            forget(db.store, clock)
        done.append(change.id)
        return True

    form = {"include_docs": True, "descending": descending}
    with pytest.raises(CompactedError):
        db.changes(predicate=overtake, **form)
    assert done
    assert len(db.changes(**form).rows) == 601, "asked again, it is of the present"


@pytest.mark.slow
@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
@pytest.mark.parametrize("at", [[0], [1], [63], [1, 63, 200], range(0, 300, 50)])
def test_fold_changes_basic_tx_too_old(db, clock, at):
    """A follower goes on: each document at least once, and in the end as it is.

    It reads 64 and then the rest, so 63 is just before it reads for the last time.
    """
    first = db.bulk([{"_id": f"d{n}", "n": 0} for n in range(300)])
    follower = db.follower(since=0, include_docs=True)
    seen, last, restarts = 0, {}, 0
    while (item := follower.next_within(0.05)) is not None:
        if isinstance(item, Checkpoint):
            restarts += item.restarted
            continue
        last[item.id] = item.doc["n"]
        if seen in at:
            n = 299 - list(at).index(seen)
            db.put({"_id": f"d{n}", "n": 1}, rev=first[n].rev)
            forget(db.store, clock)
        seen += 1
    follower.close()
    assert restarts
    changed = {f"d{299 - n}" for n in range(len(at))}
    assert last == {f"d{n}": int(f"d{n}" in changed) for n in range(300)}


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
def test_fold_changes_not_progressing(db, clock):
    """Who is overtaken every time is told so every time: it never goes round by itself."""
    db.bulk([{"_id": f"d{n}"} for n in range(3)])
    follower = db.follower(since=0, include_docs=True)
    for n in range(5):
        db.put({"_id": f"later{n}"})
        forget(db.store, clock)
        assert follower.next_within(WAIT_S) == Checkpoint(follower.since, restarted=True)
        assert follower.since == Sequence.parse("0")
    told = [follower.next_within(WAIT_S) for _ in range(8)]
    assert [item.id for item in told] == [*names(0, 1, 2), *(f"later{n}" for n in range(5))]
    follower.close()
