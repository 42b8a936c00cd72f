"""Changefeeds at a moment: which capture has which table, what they reported, how far they are."""

import pytest

from cdcmeta.errors import ChangefeedNotFoundError
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.changefeeds import GONE, NO_CAPTURE
from cdcmeta.ui.changefeed_pages import cluster_at, feed_at, has_changefeeds, list_clusters
from snapkv import pack
from snapkv.times import physical_ms

from .placing import SINK, SOURCE, Placing

LATER = 1 << 62


@pytest.fixture
def placing(store):
    return Placing(store)


def tables(store, when=None, **options):
    found = feed_at(store, "default", "copy", when, time=LATER, **options)
    return [(row.table, row.capture, row.why, row.since) for row in found.tables]


def test_where_each_table_was_at_each_moment(store, placing, clock):
    assert not has_changefeeds(store)
    placing.create()
    created = store.resolved()
    clock.advance(1_000)
    first = placing.place("c1-5f", "a/", "b/")
    clock.advance(60_000)
    moved = placing.place("c2-60", "b/", why="c1-5f is gone")
    assert [has_changefeeds(store, when) for when in (0, created, None)] == [False, True, True]
    unplaced = [("a/", None, "not placed yet", None), ("b/", None, "not placed yet", None)]
    assert tables(store, created) == unplaced
    both = [("a/", "c1-5f", "least loaded", first), ("b/", "c1-5f", "least loaded", first)]
    assert tables(store, first) == tables(store, moved - 1) == both
    assert tables(store) == [both[0], ("b/", "c2-60", "c1-5f is gone", moved)]
    assert feed_at(store, "default", "copy", first, time=first).captures == [("c1-5f", 2)]
    assert feed_at(store, "default", "copy", time=LATER).captures == [("c1-5f", 1), ("c2-60", 1)]
    with pytest.raises(ChangefeedNotFoundError):
        feed_at(store, "default", "copy", 0, time=0)
    placing.place(None, "a/", why="tables are paused")
    assert tables(store)[0][1:3] == (None, "tables are paused")
    problem = feed_at(store, "default", "copy", time=LATER).tables[0].problem
    assert problem == "no capture has it: tables are paused"


def test_how_far_a_changefeed_is_at_a_moment(store, placing, clock):
    placing.create(start=0, with_state=False)
    clock.advance(5_000)
    reached = store.resolved()
    stored = placing.checkpoint(reached, resolved=reached + 5)
    clock.advance(60_000)
    now = store.tick().ts

    def row(when, time):
        return feed_at(store, "default", "copy", when, time=time).feed

    then = row(stored, stored)
    assert (then.checkpoint, then.resolved) == (reached, reached + 5)
    assert then.lag_ms == physical_ms(stored) - physical_ms(reached)
    assert row(None, now).lag_ms == then.lag_ms + 60_000
    assert row(None, pack(1)).lag_ms == 0  # a source's clock may be ahead
    before = row(stored - 1, stored)
    assert (before.checkpoint, before.resolved, before.lag_ms) == (None, None, None)
    assert (then.source, then.sink, then.tables, then.kind) == (SOURCE, SINK, 2, "prefixes")
    assert feed_at(store, "default", "copy", time=LATER).writer == "ann@test"
    assert feed_at(store, "default", "copy", stored - 1, time=LATER).writer is None


def test_what_changed_a_changefeed_and_when(store, placing, clock):
    placing.create()
    created = store.resolved()
    clock.advance(60_000)
    placing.feeds.pause("copy")
    paused = store.resolved()
    row = feed_at(store, "default", "copy", time=LATER).feed
    assert (row.state, row.created, row.changed) == ("paused", created, paused)
    row = feed_at(store, "default", "copy", created, time=created).feed
    assert (row.state, row.created, row.changed) == ("running", created, created)
    placing.feeds.remove("copy")
    assert cluster_at(store, "default", time=LATER).feeds == []
    assert [feed.id for feed in cluster_at(store, "default", paused, time=LATER).feeds] == ["copy"]


def test_captures_now_and_at_a_moment(store, placing):
    placing.create()
    with placing.register("c1")[0] as session:
        name = records.capture_name("c1", session.id)
        placing.place(name, "a/")
        placing.place("gone-1", "b/")
        then = placing.report(name, error="<b>no sink</b>")
        with store.election(records.space_of("default"), session=session) as election:
            election.campaign(records.owner_name(name).encode(), timeout=20)
            now = cluster_at(store, "default", time=LATER).captures
    shown = [(row.name, row.tables, row.registered, row.leads, row.address) for row in now]
    assert shown == [
        (name, 1, True, True, "127.0.0.1:7000"),
        ("gone-1", 1, False, False, None),
    ]
    assert [row.label for row in now] == ["c1", "gone"]
    assert now[0].errors == ["copy: <b>no sink</b>"]
    past = cluster_at(store, "default", then, time=then)
    shown = [
        (row.name, row.tables, row.registered, row.leads, row.address) for row in past.captures
    ]
    assert shown == [(name, 1, None, None, None), ("gone-1", 1, None, None, None)]
    assert past.captures[0].errors == ["copy: <b>no sink</b>"]
    assert past.feeds[0].problems == "1 capture"
    assert cluster_at(store, "default", then - 1, time=then).feeds[0].problems == ""


def test_rates_delays_and_errors_as_reported_then(store, placing):
    placing.create()
    placing.place("c1-5f", "a/", "b/")
    rates, delays = {"a/": [30.0, 900.0]}, {"b/": [12.0, "written"], "a/": [11.0, "written"]}
    then = placing.report("c1-5f", rates=rates, delays=delays, problems={"b/": "disk <full>"})
    placing.report("c1-5f")
    found = feed_at(store, "default", "copy", then, time=then)
    a, b = found.tables
    assert (a.rows_per_s, a.bytes_per_s, a.problem) == (30.0, 900.0, None)
    assert (b.rows_per_s, b.late, b.problem) == (0.0, "12 s, not written", "disk <full>")
    assert found.problems == ["c1-5f is slow: 2 of 1 tables are late, by up to 12 s"]
    assert found.feed.problems == "1 table"
    now = feed_at(store, "default", "copy", time=LATER)  # c1 was never registered here
    assert [row.problem for row in now.tables] == [GONE, GONE]


def test_a_changefeed_that_no_capture_has_any_more(store, placing):
    def problems(when=None):
        found = feed_at(store, "default", "copy", when, time=LATER)
        (row,) = cluster_at(store, "default", when, time=LATER).feeds
        assert row.problems == found.feed.problems
        return row.problems, found.problems, [each.problem for each in found.tables]

    waits = "no capture has it: not placed yet"
    placing.create()
    assert problems() == ("", [], [waits, waits])
    session, name = placing.register("c1")
    with session:
        placing.place(name, "a/", "b/")
        then = placing.report(name)
        assert problems() == ("", [], [None, None])
    assert problems() == ("no capture", [NO_CAPTURE], [GONE, GONE])
    assert problems(then) == ("", [], [None, None])  # registrations have no past
    with placing.register("c2")[0]:
        assert problems() == ("", [], [GONE, GONE])
    placing.feeds.pause("copy")
    assert problems() == ("", [], [None, None])
    with placing.register("c3")[0]:
        assert problems() == ("", [], [None, None])


def test_a_capture_need_not_report_a_paused_changefeed(store, placing):
    placing.create()
    session, name = placing.register("c1")
    with session:
        placing.place(name, "a/")
        placing.feeds.pause("copy")
        found = feed_at(store, "default", "copy", time=LATER)
        assert (found.problems, [row.problem for row in found.tables]) == ([], [None, None])


def test_a_capture_that_has_tables_and_does_not_report(store, placing):
    placing.create()
    session, name = placing.register("c1")
    with session:
        placing.place(name, "a/")
        found = feed_at(store, "default", "copy", time=LATER)
        assert found.problems == [f"{name} does not report: its log says why"]


def test_pages_of_tables(store, placing):
    names = [f"t{n:03}/" for n in range(60)]
    placing.create(tables=names)
    placing.place("c1-5f", *names[:50])
    found, start = [], 0
    while start is not None:
        page = feed_at(store, "default", "copy", time=LATER, start=start, limit=25)
        assert (page.total, page.captures, page.counted) == (60, [("c1-5f", 50)], True)
        found += [row.table for row in page.tables]
        start = page.start
    assert found == names
    assert feed_at(store, "default", "copy", time=LATER, start=999).tables == []


def test_the_clusters_of_a_store(store):
    for cluster in ("blue", "default", "green"):
        Placing(store, cluster).create(f"copy-{cluster}")
    found, start = [], ""
    while start is not None:
        page = list_clusters(store, time=LATER, start=start, limit=2)
        found += [(row.name, [feed.id for feed in row.feeds]) for row in page.rows]
        start = page.start
    assert found == [(name, [f"copy-{name}"]) for name in ("blue", "default", "green")]


def test_tables_with_names_that_attack(store, placing):
    names = ["<script>", "\"'", "\u202e", "\0", "a/b/../c", "\u00e9"]
    placing.create(tables=names)
    placing.place("c1-5f", *names)
    assert [row[0] for row in tables(store)] == names
    assert {row[1] for row in tables(store)} == {"c1-5f"}
