"""Tables of what compaction left: from there on complete, NULL or an error for what is gone."""

import random
from datetime import datetime

import pytest
from store.engines import EMBEDDED, write_raw
from store.wrapping import ROUND_TRIPS, Wrapped, wrap_engines

import snapkv.reading.tables
from snapkv import CompactedError, to_datetime
from snapkv.engine.contract import Put
from snapkv.reading import arrow

from .tabled import FOREVER, Writing, changes_of, commits_of, histories_of, rows, timed

pytestmark = pytest.mark.slow


@pytest.fixture
def written(store, clock):
    """A random history, all of it long ago."""
    plain = Writing(store, clock, random.Random(3)).steps(20)
    clock.advance(500_000)
    return plain


def left(plain, at: int) -> list[tuple]:
    """The versions once the commits before one are gone: those have no times any more."""
    oldest = plain.rows[at]
    return [
        (*row[:4], None if row[2] < oldest.revision else row[4], row[5])
        for row in histories_of(plain, oldest.ts, FOREVER)
    ]


def times(plain, at: int) -> list:
    """When the keys that stand now were written, as far as that is left."""
    return [row[4] for row in left(plain, at) if row[3] is None]


# --- what is left ---


@pytest.mark.long_on("etcd")
@pytest.mark.parametrize("at", [0, 11, 19])
def test_it_begins_with_what_is_left(store, place, clock, written, at):
    oldest = written.rows[at]
    assert store.compact(oldest.ts).earliest == oldest.ts
    log = commits_of(written, oldest.ts, FOREVER)
    (of_it,) = commits_of(written, oldest.ts - 1, oldest.ts)
    of_it = (*of_it[:3], None, of_it[4], None, of_it[6])
    for asked in (store, place.open(clock=clock, ring_slots=1)):
        for since, preimages in ((None, True), (oldest.ts, False)):
            expected = changes_of(written, oldest.ts, FOREVER, preimages=preimages)
            assert rows(asked.changes_to_arrow(None, since, preimages=preimages)) == expected
        assert rows(asked.history_to_arrow()) == left(written, at)
        assert rows(asked.history_to_arrow(since=oldest.ts)) == left(written, at)
        assert rows(asked.commits_to_arrow()) == [*log, of_it], "what it did is unknown"
        assert rows(asked.commits_to_arrow(since=oldest.ts)) == log
        state = [(row[0], row[1]) for row in rows(asked.at(oldest.ts).to_arrow())]
        assert state == list(written.state(oldest.ts).items())


@pytest.mark.parametrize("at", [3, 11, 19])
def test_what_is_gone_says_so(store, place, clock, written, at):
    oldest = written.rows[at].ts
    store.compact(oldest)
    cold = place.open(clock=clock, ring_slots=1)
    tabled = (cold.changes_to_arrow, cold.history_to_arrow, cold.commits_to_arrow)
    asked = [(oldest - 1, read, {bound: oldest - 1}) for read in tabled for bound in BOUNDS]
    asked += [(0, read, {"since": 0}) for read in tabled]
    for requested, read, bounds in asked:
        with pytest.raises(CompactedError) as caught:
            read(**bounds)
        error = caught.value
        assert (error.unit, error.requested, error.earliest) == ("timestamp", requested, oldest)


BOUNDS = ("since", "until")


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
@pytest.mark.parametrize("lookups", [0, 5, 1_024])
@pytest.mark.parametrize("at", [0, 11, 19])
def test_times_are_null_where_the_commit_is_gone(store, written, monkeypatch, at, lookups):
    """One by one, from the log, and from the one after the other."""
    monkeypatch.setattr(snapkv.reading.tables, "LOOKUPS_MAX", lookups)
    monkeypatch.setattr(arrow, "BATCH_ROWS", 3)
    assert timed(store) == [row[4] for row in histories_of(written, 0, FOREVER) if row[3] is None]
    store.compact(written.rows[at].ts)
    assert timed(store) == times(written, at)
    assert rows(store.history_to_arrow()) == left(written, at)


@pytest.mark.parametrize("lookups", [0, 1_024])
def test_a_neighbours_compaction_leaves_the_commit_in_force(
    store, place, clock, written, monkeypatch, lookups
):
    """It is older than what can be read, but its time is not forgotten."""
    monkeypatch.setattr(snapkv.reading.tables, "LOOKUPS_MAX", lookups)
    written.add(store.save("~late", b"1"), store.at().revision, {("", "~late"): b"1"})
    at = len(written.rows) - 1
    engine = place.engine()
    engine.compact(write_raw(engine, Put(b"elsewhere", b"x")))
    assert timed(store) == times(written, at)
    assert timed(store)[-1] == to_datetime(written.rows[at].ts)
    assert rows(store.history_to_arrow()) == left(written, at)
    written.add(store.save("~later", b"1"), store.at().revision, {("", "~later"): b"1"})
    assert rows(store.history_to_arrow()) == left(written, at)
    assert rows(store.changes_to_arrow()) == changes_of(written, written.rows[at].ts, FOREVER)


# --- in the middle of a long read ---


class Compacting(Wrapped):
    """Compacts just before the call number `at` that would be a round trip to a server."""

    at, revision, calls = -1, 0, 0

    def __getattr__(self, name):
        if name in ROUND_TRIPS:
            self.calls += 1
            if self.calls == self.at:
                newest = self.inner.info()["revision"]
                self.inner.compact(min(self.revision, newest))
        return super().__getattr__(name)


READS = {
    "moment": lambda asked, since: rows(asked.at(since).to_arrow()),
    "times": lambda asked, since: timed(asked),
    "changes": lambda asked, since: rows(asked.changes_to_arrow(None, since)),
    "preimages": lambda asked, since: rows(asked.changes_to_arrow(None, since, preimages=True)),
    "history": lambda asked, since: rows(asked.history_to_arrow(None, since)),
    "commits": lambda asked, since: rows(asked.commits_to_arrow(since)),
}


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
@pytest.mark.parametrize(
    ("what", "lookups"), [*((what, 1_024) for what in READS), ("times", 0), ("history", 0)]
)
def test_compaction_before_any_call(place, clock, monkeypatch, lookups, what):
    """All of it or an error, whenever a neighbour compacts to whatever revision."""
    monkeypatch.setattr(snapkv.reading.tables, "LOOKUPS_MAX", lookups)
    engines = wrap_engines(monkeypatch, Compacting)
    outcomes = set()
    for behind in (0, 5):  # the revision compacted to, from that of the bound on
        calls, more = 0, True
        while more:
            calls += 1
            store = place.open(clock=clock, name=f"{behind} {calls}", ring_slots=4)
            engine = engines[-1]
            plain = Writing(store, clock, random.Random(calls)).steps(8)
            since = plain.rows[3]
            whole = READS[what](store, since.ts)
            engine.revision = since.revision + behind
            engine.calls, engine.at = 0, calls
            found = outcome(lambda store=store, ts=since.ts: READS[what](store, ts))
            if isinstance(found, CompactedError):
                assert (found.unit, found.requested) == ("timestamp", since.ts)
                assert behind > 0, "nothing that was asked for is gone"
                outcomes.add("gone")
            else:
                assert fits(found, whole)
                outcomes.add("whole")
            more = engine.calls >= calls
    assert "whole" in outcomes
    assert ("gone" in outcomes) == (what != "times"), "of now nothing goes but times"


def outcome(read):
    try:
        return read()
    except CompactedError as e:
        return e


def fits(found, whole) -> bool:
    """Whether rows are the same, but for times that turned NULL meanwhile."""
    if isinstance(found, list | tuple):
        return len(found) == len(whole) and all(map(fits, found, whole))
    return found == whole or (found is None and isinstance(whole, datetime))
