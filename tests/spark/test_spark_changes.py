"""Changes, histories and the commit log in batch: as the store itself tells them."""

import random
from datetime import timedelta

import pytest
from direct import Planned, columns, new_worker, read, refused
from frames import load, together
from reading.tabled import (
    FOREVER,
    SPACE,
    Writing,
    changes_of,
    commits_of,
    histories_of,
    moments,
    replayed,
)

from snapkv import format_time, to_datetime
from snapkv.spark import read_tasks

pytestmark = pytest.mark.slow

FEED = {"readChangeFeed": True}
RETAINED_MS = 200_000  # what `compact` leaves of the newest commits, and more


@pytest.fixture(params=[3, 4])
def rng(request):
    return random.Random(request.param)


@pytest.fixture
def written(store, clock, rng):
    return Writing(store, clock, rng).steps(40)


def shown(ts: int) -> str:
    """A time as Spark displays it, copied into an option."""
    return f"{to_datetime(ts).replace(tzinfo=None)}Z"


def in_order(rows: list[tuple]) -> list[tuple]:
    return sorted(rows, key=lambda row: (row[0], row[2]))


def ranges(written, rng, count: int):
    """Ends of ranges as options, and the same as timestamps: after one, up to the other."""
    draw = moments(written, rng)
    versions = [row.revision for row in written.rows]
    for _ in range(count):
        since, until = sorted((draw(), draw()))
        yield {"startingTimestamp": since + 1, "endingTimestamp": until}, since, until
        low, high = sorted(rng.randrange(1, versions[-1] + 1) for _ in range(2))
        before = [row.ts for row in written.rows if row.revision < low]
        up_to = [row.ts for row in written.rows if row.revision <= high]
        options = {"startingVersion": low, "endingVersion": high}
        yield options, max(before, default=0), max(up_to, default=0)


# --- random histories ---


@pytest.mark.long_on("etcd")
@pytest.mark.long_after(1)
def test_changes_between_any_two_commits(store, place, written, rng):
    for options, since, until in ranges(written, rng, 3):
        for preimages in (False, True):
            found = read(place.url, **FEED, **options, preimages=preimages)
            assert found == changes_of(written, since, until, preimages=preimages), options
        states = [dict(store.at(ts).items()) for ts in (since, until)]
        assert replayed(states[0], found) == states[1]
        inside = read(place.url, **FEED, **options, space=SPACE, keyPrefix="61")
        assert inside == changes_of(written, since, until, b"a", SPACE), options
        some = columns(place.url, "_change_type", "key", **FEED, **options, keyPrefix="a/")
        expected = changes_of(written, since, until, "a/")
        assert some == [(kind, key) for key, _, kind, *_ in expected]
        left = read(place.url, **FEED, **options, ignoreDeletes=True, preimages=True)
        every = changes_of(written, since, until, preimages=True)
        assert left == [row for row in every if row[2] != "delete"]


def test_changes_are_what_a_watch_tells(store, place, written):
    found = {}
    rows = read(place.url, **FEED, startingVersion=1)
    assert read(place.url, **FEED, startingVersion=0) == rows  # as Delta's users write it
    for key, value, _, version, n, _ in rows:
        assert n == len(found.setdefault(version, []))
        found[version].append((key, value))
    told = {}
    with store.watch(since=0, timeout=0) as watch:
        for changes in watch:
            told[changes.commit.revision] = [(change.key, change.value) for change in changes]
    assert found == told


def test_changes_over_several_tasks(store, place, written, monkeypatch):
    monkeypatch.setattr(read_tasks, "TASK_COMMITS", 7)
    monkeypatch.setattr(read_tasks, "TASK_ROWS", 7)
    first, last = written.rows[0], written.rows[-1]
    expected = changes_of(written, 0, FOREVER, preimages=True)
    for wanted in (1, 3, 16, None):
        options = {"startingVersion": first.revision, "endingVersion": last.revision}
        number = {} if wanted is None else {"numPartitions": wanted}
        planned = Planned(place.url, **FEED, **options, preimages=True, **number)
        reader, found = planned.reader(), []
        least, most = ((wanted + 1) // 2, wanted) if wanted else (2, len(written.rows))
        assert least <= len(reader.tasks) <= most
        for task in range(len(reader.tasks)):
            new_worker()
            found += reader.rows(task)
        assert found == expected, wanted


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_tasks_have_about_as_many_rows(place):
    """Commits of 1 key, then of 200: parts of as many commits would be uneven."""
    store = place.open()
    for n in range(300):
        size = 1 if n < 200 else 200
        store.commit(puts={f"k{k}": b"%d" % n for k in range(size)})
    for some in ({}, {"columns": "key,_commit_version"}):
        options = {**FEED, "startingVersion": 1, **some}
        assert len(Planned(place.url, **options).reader().tasks) == 1, "they are few"
        reader = Planned(place.url, **options, numPartitions=8).reader()
        rows = [len(reader.rows(task)) for task in range(len(reader.tasks))]
        assert len(rows) == 8
        assert sum(rows) == 200 + 100 * 200
        assert max(rows) < 2 * sum(rows) / 8, rows


def test_histories(store, place, written, rng, monkeypatch):
    assert in_order(read(place.url, view="history")) == histories_of(written, 0, FOREVER)
    monkeypatch.setattr(read_tasks, "PIECE_ROWS", 3)
    for options, since, until in ranges(written, rng, 3):
        if "startingTimestamp" in options:  # the state at the start belongs to it
            options["startingTimestamp"] = since
        else:
            since = max(
                (r.ts for r in written.rows if r.revision <= options["startingVersion"]), default=0
            )
        reader = Planned(place.url, view="history", **options, numPartitions=3).reader()
        found = in_order(reader.rows())
        assert found == histories_of(written, since, until), options
        inside = in_order(read(place.url, view="history", **options, keyPrefix="b/1"))
        assert inside == histories_of(written, since, until, "b/1")
    until = written.rows[9].ts
    found = in_order(read(place.url, view="history", endingTimestamp=until, space=SPACE))
    assert found == histories_of(written, 0, until, b"", SPACE)


def test_histories_are_those_of_each_key(store, place, written):
    found = {}
    for key, value, version, *_ in in_order(read(place.url, view="history")):
        found.setdefault(key, []).append((version, value))
    for key in found:
        versions = [(v.revision, v.value) for v in store.history(key) if v.value is not None]
        assert found[key] == versions


def test_the_log(store, place, written, rng):
    assert read(place.url, view="commits") == commits_of(written, 0, FOREVER)
    told = [(c.revision, c.writer, c.note) for c in store.commits(newest_first=True)]
    assert columns(place.url, "version", "userName", "userMetadata", view="commits") == told
    for options, since, until in ranges(written, rng, 5):
        assert read(place.url, view="commits", **options) == commits_of(written, since, until)
        plain = columns(place.url, "userMetadata", view="commits", **options)
        assert plain == [(row[4],) for row in commits_of(written, since, until)], "not counted"
    metas = columns(place.url, "meta", view="commits")
    assert metas == [(row[6],) for row in commits_of(written, 0, FOREVER)]
    assert {type(meta) for (meta,) in metas} == {str, type(None)}


@pytest.mark.long_on("etcd")
@pytest.mark.parametrize("rng", [3], indirect=True)
def test_through_spark(spark, store, place, written, rng):
    asked = list(ranges(written, rng, 2))
    for preimages in ("true", "false"):
        frames = [
            load(spark, place.url, readChangeFeed="TRUE", preimages=preimages, **options)
            for options, _, _ in asked
        ]
        for rows, (options, since, until) in zip(together(frames), asked, strict=True):
            rows.sort(key=lambda row: (row[3], row[4], row[2] != "update_preimage"))
            expected = changes_of(written, since, until, preimages=preimages == "true")
            assert rows == [naive(row) for row in expected], options
    ((history,), (log,)) = (
        together([load(spark, place.url, view=view)]) for view in ("history", "commits")
    )
    assert in_order(history) == [naive(row) for row in histories_of(written, 0, FOREVER)]
    expected = [(*naive(row[:5]), dict(row[5]), row[6]) for row in commits_of(written, 0, FOREVER)]
    assert log == expected


def naive(row: tuple) -> tuple:
    """A row as Spark gives it to Python: times have no zone, and are local (UTC, in tests)."""
    from datetime import datetime

    return tuple(
        each.astimezone().replace(tzinfo=None) if isinstance(each, datetime) else each
        for each in row
    )


# --- both ends belong to a range ---


def test_both_ends_belong_to_a_range(store, place, clock):
    commits = []
    for n in range(5):
        clock.advance(1_000)
        commits.append(store.commit(puts={"k": b"%d" % n}))
    revision, time = commits[1].revision, shown(commits[1].ts)
    upper, later = commits[3].revision, shown(commits[3].ts)
    forms = [
        {"startingVersion": revision, "endingVersion": upper},
        {"startingTimestamp": time, "endingTimestamp": later},
        {"startingTimestamp": commits[1].ts, "endingTimestamp": commits[3].ts},
        {"startingVersion": revision, "endingTimestamp": later},
        {"startingTimestamp": time, "endingVersion": upper},
    ]
    for options in forms:
        assert columns(place.url, "value", **FEED, **options) == [(b"1",), (b"2",), (b"3",)]
        assert columns(place.url, "version", view="commits", **options) == [
            (commit.revision,) for commit in commits[3:0:-1]
        ]
        held = columns(place.url, "value", view="history", **options)
        assert held == [(b"1",), (b"2",), (b"3",)]
    for commit in commits:
        version, ts = commit.revision, commit.ts
        for one in (
            {"startingVersion": version, "endingVersion": version},
            {"startingTimestamp": ts, "endingTimestamp": ts},
            {"startingTimestamp": shown(ts), "endingTimestamp": shown(ts)},
        ):
            assert columns(place.url, "_commit_version", **FEED, **one) == [(version,)]
    exact = {"startingTimestamp": commits[1].ts + 1, "endingTimestamp": commits[3].ts - 1}
    assert columns(place.url, "value", **FEED, **exact) == [(b"2",)]


def test_a_time_copied_from_a_column_finds_all_commits_of_its_millisecond(store, place, clock):
    """The clock stands still: three commits are displayed alike, and none may be missed."""
    store.save("k", b"before")
    clock.advance(1)
    for n in range(3):
        store.save("k", b"%d" % n)
    clock.advance(1)
    store.save("k", b"after")
    ((time,),) = set(columns(place.url, "_commit_timestamp", **FEED, startingVersion=1)[1:4])
    for text in (
        f"{time.replace(tzinfo=None)}Z",
        time.isoformat(),
        time.isoformat(timespec="milliseconds"),
    ):
        found = columns(place.url, "value", **FEED, startingTimestamp=text, endingTimestamp=text)
        assert found == [(b"0",), (b"1",), (b"2",)]
    held = columns(place.url, "value", view="history", startingTimestamp=time)
    assert held == [(b"0",), (b"1",), (b"2",), (b"after",)]
    before = time - timedelta(milliseconds=1)
    found = columns(place.url, "value", **FEED, startingTimestamp=before, endingTimestamp=before)
    assert found == [(b"before",)]


def test_ends_where_nothing_is(store, place, clock):
    first = store.save("k", b"1")
    clock.advance(1_000)
    last = store.save("k", b"2")
    head = store.at().revision
    empty = [
        {"startingTimestamp": last + 1},
        {"startingTimestamp": "+1s"},  # clocks may differ so much
        {"startingTimestamp": "+1s", "endingTimestamp": "+2h"},
        {"startingVersion": head + 1},
        {"startingTimestamp": first + 1, "endingTimestamp": last - 1},
        {"startingTimestamp": 0, "endingTimestamp": first - 1},
        {"startingTimestamp": first + 1, "endingTimestamp": first},  # after it, until it
        {"startingVersion": 1, "endingVersion": 1},
        {"startingVersion": head, "endingVersion": head - 1},  # after one, until the same
        {"startingVersion": head + 1, "endingVersion": head},
    ]
    for options in empty:
        assert read(place.url, **FEED, **options) == [], options
        assert read(place.url, view="commits", **options) == [], options
    whole = {"startingTimestamp": "1970-01-01", "timeZone": "UTC", "endingTimestamp": "2199-01-01"}
    assert columns(place.url, "value", **FEED, **whole) == [(b"1",), (b"2",)]


# --- ranges that are none ---


def test_ranges_that_are_none(store, place, clock):
    stamps = []
    for n in range(4):
        clock.advance(1_000)
        stamps.append(store.save("k", b"%d" % n))
    head = store.at().revision
    message = refused("NO_START", place.url, **FEED)
    assert "startingVersion or startingTimestamp" in message
    refused("NO_START", place.url, **FEED, endingVersion=head)
    backwards = [
        {"startingVersion": head, "endingVersion": head - 2},
        {"startingTimestamp": stamps[2], "endingTimestamp": stamps[1]},
        {"startingTimestamp": stamps[2] + 5, "endingTimestamp": stamps[2] + 3},  # nothing between
        {"startingTimestamp": shown(stamps[2]), "endingTimestamp": shown(stamps[2] - 1)},
        {"startingTimestamp": "+2s", "endingTimestamp": "+1s"},
        {"startingVersion": head, "endingTimestamp": stamps[1]},
        {"startingTimestamp": stamps[3], "endingVersion": head - 2},
    ]
    for options in backwards:
        for view in (FEED, {"view": "history"}, {"view": "commits"}):
            refused("INVALID_RANGE", place.url, **view, **options)
    state = {"startingTimestamp": stamps[2] + 1, "endingTimestamp": stamps[2]}
    refused("INVALID_RANGE", place.url, view="history", **state)
    refused("INVALID_RANGE", place.url, startKey="b", endKey="a")
    twice = [
        {"startingVersion": 1, "startingTimestamp": 1},
        {"startingVersion": 1, "endingVersion": 1, "endingTimestamp": 1},
    ]
    for options in twice:
        assert "not both" in refused("MULTIPLE_BOUNDARY", place.url, **FEED, **options)
    refused("MULTIPLE_BOUNDARY", place.url, versionAsOf=1, timestampAsOf=1)
    missing = [
        {"versionAsOf": head + 1},
        FEED | {"startingVersion": head + 2},
        FEED | {"startingVersion": 1, "endingVersion": head + 1},
        {"view": "history", "startingVersion": head + 1},
        {"view": "commits", "endingVersion": 2**62},
    ]
    for options in missing:
        message = refused("VERSION_NOT_FOUND", place.url, **options)
        assert f"versions are [1, {head}]" in message
        asked = max(
            int(value) for value in options.values() if value not in (True, "history", "commits")
        )
        assert f"version {asked} does not exist yet" in message


# --- compaction ---


def test_ranges_of_which_a_part_is_gone(store, place, clock):
    stamps = []
    for n in range(6):
        clock.advance(1_000)
        stamps.append(store.save("k", b"%d" % n))
    revisions = [commit.revision for commit in store.commits()]
    clock.advance(RETAINED_MS)
    store.compact(stamps[3])
    left = f"start after {format_time(stamps[3])}, version {revisions[3]}"
    for n in range(4):
        for code, name, at in (
            ("VERSION_COMPACTED", "startingVersion", revisions[n]),
            ("TIMESTAMP_EARLIER_THAN_RETENTION", "startingTimestamp", stamps[n]),
            ("TIMESTAMP_EARLIER_THAN_RETENTION", "startingTimestamp", shown(stamps[n])),
        ):
            for view in (FEED, {"view": "commits"}):
                assert left in refused(code, place.url, **view, **{name: at}), (n, name)
    for start in (
        {"startingVersion": revisions[3] + 1},
        {"startingTimestamp": stamps[3] + 1},
        {"startingTimestamp": shown(stamps[4])},
    ):
        assert columns(place.url, "value", **FEED, **start) == [(b"4",), (b"5",)]
        assert len(read(place.url, view="commits", **start)) == 2
    assert columns(place.url, "value", view="history") == [(b"3",), (b"4",), (b"5",)]
    assert columns(place.url, "version", view="commits") == [(r,) for r in revisions[:2:-1]]
    for n in (3, 4):
        for start in ({"startingVersion": revisions[n]}, {"startingTimestamp": shown(stamps[n])}):
            held = columns(place.url, "value", view="history", **start)
            assert held == [(b"%d" % value,) for value in range(n, 6)]
    message = refused(
        "TIMESTAMP_EARLIER_THAN_RETENTION", place.url, view="history", startingTimestamp=stamps[2]
    )
    assert f"the earliest that remains is {format_time(stamps[3])}" in message


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_commits_of_a_request_in_sql(spark, store, place):
    """The column is JSON text, which Spark takes apart; NULL for a commit without a meta."""
    store.save("a", b"1")
    ts = store.save("a", b"2", writer="alice", meta={"request": "r-17", "ticket": 4})
    log = spark.read.format("snapkv").option("view", "commits").load(place.url)
    assert [row[0] for row in log.orderBy("version").select("meta").collect()] == [
        None,
        '{"request": "r-17", "ticket": 4}',
    ]
    found = log.where("get_json_object(meta, '$.request') = 'r-17'").selectExpr(
        "version", "userName", "get_json_object(meta, '$.ticket')"
    )
    revision = store.at(ts).revision
    assert [tuple(row) for row in found.collect()] == [(revision, "alice", "4")]
