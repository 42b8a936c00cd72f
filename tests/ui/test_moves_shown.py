"""Edits of documents and moves of tables: what pages show is what whole histories say."""

import random

import pytest

from cdcmeta import ChangesDB
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.ui import table_moves
from cdcmeta.ui.database_pages import edits_back
from cdcmeta.ui.table_moves import lanes, moves_back
from snapkv.ui import Source
from snapkv.ui.page_source import Budget

from .placing import Placing

TABLES = ["a/", "b/", "c/", "d/"]
LONG_S = 60.0


@pytest.fixture
def seed():
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    return seed


def whole(store, table, low, high):
    """Return the moves between two revisions, newest first, from the whole history of a table."""
    space = store.space(records.space_of("default"))
    key = records.place_key("copy", table)
    versions = [each for each in space.history(key) if each.revision <= high]
    found, until = [], None
    for version in reversed(versions):
        if version.revision <= low and version.value is None:
            break  # at `low` it was not placed
        place = None if version.value is None else records.place_of(key, version.value)
        found.append((version.revision, version.ts, until, place and place.capture))
        until = version.ts
        if version.revision <= low:
            break
    return found


def rows(moves):
    return [(row.revision, row.since, row.until, row.capture) for row in moves.rows]


def moved(store, clock, rng, steps):
    """Place and remove tables at random among other commits; return the changefeed."""
    placing = Placing(store)
    feed = placing.create(tables=TABLES)
    for _ in range(steps):
        clock.advance(rng.choice((0, 1_000)))
        match rng.randrange(4):
            case 0:
                store.save("other", b"")
            case 1:
                placing.unplace(rng.choice(TABLES))
            case _:
                some = rng.sample(TABLES, rng.randint(1, 3))
                placing.place(rng.choice(("c1-1", "c2-2", None)), *some, why="balance")
    return feed


@pytest.mark.long_after(2)
@pytest.mark.parametrize("window", [3, 1 << 16])
def test_lanes_between_any_two_moments(store, clock, seed, window, monkeypatch):
    monkeypatch.setattr(table_moves, "WINDOW_REVISIONS", window)
    rng = random.Random(seed)
    feed = moved(store, clock, rng, 40)
    source = Source(store)
    commits = [commit.ts for commit in store.commits()]
    for _ in range(8):
        since, until = sorted(rng.choices(commits, k=2))
        high = store.at(until).revision
        if high < feed.created:
            continue
        low = max(store.at(since).revision, feed.created)
        budget = Budget(LONG_S)
        found = lanes(source, "default", "copy", TABLES, until, since, feed.created, budget=budget)
        for table, moves in zip(TABLES, found, strict=True):
            assert rows(moves) == whole(store, table, low, high), (table, low, high)
            assert (moves.table, moves.following, moves.complete) == (table, None, True)


def test_lanes_say_how_far_they_looked(store, clock, seed, monkeypatch):
    monkeypatch.setattr(table_moves, "LANE_MOVES_MAX", 3)
    monkeypatch.setattr(table_moves, "WINDOW_REVISIONS", 5)
    feed = moved(store, clock, random.Random(seed), 60)
    source, since = Source(store), store.at(revision=feed.created).timestamp
    head = store.at().revision

    def look(seconds):
        budget = Budget(seconds)
        return lanes(source, "default", "copy", TABLES, None, since, feed.created, budget=budget)

    for moves in look(LONG_S):
        full = whole(store, moves.table, feed.created, head)
        assert rows(moves) == full[:3]
        assert (moves.following is None) == (len(full) <= 3)
    for moves in look(0.0):
        full = whole(store, moves.table, feed.created, head)
        assert rows(moves) == full[: len(moves.rows)]
        if moves.following is None:
            assert len(moves.rows) == len(full)


def test_pages_of_moves(store, clock, seed):
    moved(store, clock, random.Random(seed), 60)
    source = Source(store)
    for table in TABLES:
        found, high = [], store.at().revision
        while high is not None:
            page = moves_back(
                source, "default", "copy", table, high, limit=4, budget=Budget(LONG_S)
            )
            assert len(page.rows) <= 4
            found += [(row.revision, row.since, row.capture) for row in page.rows]
            high = page.following
        expected = whole(store, table, 0, store.at().revision)
        assert found == [(revision, ts, capture) for revision, ts, _, capture in expected]


def test_the_edits_of_a_document(store, clock):
    db, rev = ChangesDB(store, "db").create(), None
    for n in range(9):
        clock.advance(1_000)
        rev = db.put({"_id": "a", "n": n}, rev=rev).rev
    then = store.resolved()
    db.remove("a", rev)
    source = Source(store)
    versions = list(db.history("a"))
    found, until = [], None
    while True:
        page = edits_back(source, "db", "a", until, limit=4, budget=Budget(LONG_S))
        found += page.rows
        if page.following is None:
            break
        until = f"rev:{page.following}"
    assert [(e.timestamp, e.rev, e.seq, e.deleted, e.writer, e.note) for e in found] == [
        (v.ts, v.rev, str(v.seq), v.deleted, v.writer, v.note) for v in reversed(versions)
    ]
    past = edits_back(source, "db", "a", then, budget=Budget(LONG_S))
    assert past.rows == found[1:]
    db.delete()
    newest = edits_back(source, "db", "a", None, budget=Budget(LONG_S)).rows[0]
    assert (newest.rev, newest.seq, newest.deleted) == (None, None, True)
