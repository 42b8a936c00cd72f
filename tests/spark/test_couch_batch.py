"""A feed as a DataFrame is what `ChangesDB.changes` tells of that moment."""

import json
import random
from datetime import timedelta

import pytest
from direct import handed_over, new_worker
from feeds import DATABASE, Editing, FeedFrame, feed, rows_of
from pyspark.sql import types as T
from store.engines import write_raw

from cdcmeta import ChangesDB
from cdcmeta.errors import InvalidSequenceError
from cdcmeta.spark import ChangesDataSource, feed_options, feed_tasks
from snapkv import to_datetime
from snapkv.engine.contract import Delete
from snapkv.spark.errors import SourceError

pytestmark = pytest.mark.slow

COLUMNS = ["seq", "id", "rev", "revs", "deleted", "doc", "_commit_timestamp"]


@pytest.fixture
def db(store):
    return ChangesDB(store, DATABASE).create()


def refused(code: str, url: str, schema=None, **given) -> str:
    """Assert that a DataFrame cannot be made, or read, for that reason; return the message."""
    with pytest.raises(SourceError) as caught:
        feed(url, schema, **given)
    assert caught.value.code == code, caught.value
    return str(caught.value)


# --- what is read ---


def by_library(db, when, since, until, ids, **form):
    try:
        return rows_of(db.changes(since, until=until, as_of=when, doc_ids=ids, **form).rows)
    except InvalidSequenceError:
        return "CDCMETA_INVALID_SEQUENCE"


def by_spark(url, when, since, until, ids, style, include_docs, prefix):
    given = {
        "timestampAsOf": when,
        "since": since,
        "until": until,
        "docIds": None if ids is None else json.dumps(ids),
        "style": style,
        "includeDocs": include_docs,
        "prefix": prefix,
    }
    try:
        return feed(url, **{name: value for name, value in given.items() if value is not None})
    except SourceError as e:
        return e.code


@pytest.mark.long_on("etcd")
@pytest.mark.parametrize("seed", range(3))
def test_as_the_library_tells_it(place, store, clock, monkeypatch, seed):
    monkeypatch.setattr(feed_tasks, "PIECE_ROWS", 1)
    rng = random.Random(seed)
    editing = Editing(store, clock, rng)
    editing.steps(12)
    editing.db.relocate()  # the next incarnation
    editing.steps(8)
    seqs = [str(change.seq) for change in editing.db.changes().rows]
    for _ in range(10):
        when = rng.choice([None, *editing.moments])
        places = [0, "now", rng.choice(editing.moments), rng.choice(seqs)]
        since, until = rng.choice(places), rng.choice([None, *places])
        form = {
            "style": rng.choice(("main_only", "all_docs")),
            "include_docs": rng.random() < 0.7,
            "prefix": rng.choice(("", "", "a", "a/", "bé", "z")),
        }
        asked = when, since, until, rng.choice((None, ["a", "z"]))
        found, expected = (
            by_spark(place.url, *asked, **form),
            by_library(editing.db, *asked, **form),
        )
        backwards = found == "SNAPKV_INVALID_RANGE" and expected == []
        assert found == expected or backwards, (asked, form)


def test_the_columns(place, db):
    frame = FeedFrame(place.url)
    assert frame.schema.names == COLUMNS
    assert frame.reader().rows() == []
    first = db.put({"_id": "a", "n": 1.5, "text": 'ü"\n'})
    (row,) = feed(place.url)
    doc = f'{{"_id":"a","_rev":"{first.rev}","n":1.5,"text":"ü\\"\\n"}}'
    time = to_datetime(first.seq.timestamp)
    assert row == (str(first.seq), "a", first.rev, [first.rev], False, doc, time)
    assert time.microsecond % 1_000 == 0
    gone = db.remove("a", first.rev)
    (row,) = feed(place.url, includeDocs=False)
    time = to_datetime(gone.seq.timestamp)
    assert row == (str(gone.seq), "a", gone.rev, [gone.rev], True, None, time)


def test_columns_of_ones_own(place, db):
    first = db.put({"_id": "a"})
    own = [("revs", T.ArrayType(T.StringType())), ("id", T.StringType(), False)]
    assert feed(place.url, own) == [([first.rev], "a")]
    told = refused("SNAPKV_INVALID_SCHEMA", place.url, [("body", T.StringType())])
    assert all(name in told for name in COLUMNS)
    refused("SNAPKV_INVALID_SCHEMA", place.url, [("deleted", T.StringType())])
    given = {"includeDocs": False}
    refused("SNAPKV_INVALID_SCHEMA", place.url, [("doc", T.StringType(), False)], **given)


def test_tasks_are_bounded_and_read_in_workers(place, db, monkeypatch):
    monkeypatch.setattr(feed_tasks, "PIECE_ROWS", 5)
    for n in range(40):
        db.put({"_id": f"{n:02}"})
    reader = FeedFrame(place.url, numPartitions=3).reader()
    assert len(reader.tasks) == 3
    parts = []
    for n in range(3):
        new_worker()
        parts.append([row[1] for row in reader.rows(n)])
    assert [id for part in parts for id in part] == [f"{n:02}" for n in range(40)]
    assert all(len(part) >= 10 for part in parts)
    assert len(FeedFrame(place.url, numPartitions=1).reader().tasks) == 1


# --- what is pinned ---


def test_a_frame_shows_the_moment_it_was_made(place, store, db):
    first = db.put({"_id": "a"})
    frame, since_now = FeedFrame(place.url), FeedFrame(place.url, since="now")
    before = frame.reader().rows()
    db.put({"_id": "a"}, rev=first.rev)
    db.put({"_id": "b"})
    assert frame.reader().rows() == before
    assert since_now.reader().rows() == []
    db.delete()
    assert frame.reader().rows() == before
    refused("CDCMETA_DATABASE_NOT_FOUND", place.url)
    again = ChangesDB(store, DATABASE).create()
    assert frame.reader().rows() == before
    again.put({"_id": "other"})
    assert [row[1] for row in feed(place.url)] == ["other"]


def test_moments_by_time_and_version(place, store, clock, db):
    times, revisions = [], []
    for n in range(3):
        seq = db.put({"_id": str(n)}).seq
        times.append(to_datetime(seq.timestamp))
        revisions.append(store.at().revision)
        clock.advance(1_000)
    for n in range(3):
        ids = [str(each) for each in range(n + 1)]
        for given in (
            {"timestampAsOf": times[n].isoformat()},
            {"timestampAsOf": times[n].replace(tzinfo=None).isoformat(" "), "timeZone": "UTC"},
            {"versionAsOf": revisions[n]},
            {"until": times[n].isoformat()},
        ):
            assert [row[1] for row in feed(place.url, **given)] == ids, given
    assert [row[1] for row in feed(place.url, since=times[0].isoformat())] == ["1", "2"]
    long_ago = (times[0] - timedelta(days=1)).isoformat()
    refused("CDCMETA_DATABASE_NOT_FOUND", place.url, timestampAsOf=long_ago)


def test_compaction(place, store, db):
    first = db.put({"_id": "a"})
    frame = FeedFrame(place.url)
    db.put({"_id": "a"}, rev=first.rev)
    place.engine().compact(store.at().revision)
    with pytest.raises(SourceError) as caught:
        frame.reader().rows()
    assert caught.value.code == "SNAPKV_VERSION_COMPACTED"
    gone = first.seq.timestamp
    refused("SNAPKV_TIMESTAMP_EARLIER_THAN_RETENTION", place.url, timestampAsOf=gone)
    assert len(feed(place.url)) == 1


def test_another_store(place, store, clock, db):
    db.put({"_id": "a"})
    frame = FeedFrame(place.url)
    store.close()
    write_raw(place.engine(), Delete(b"default/", b"default0"))
    ChangesDB(place.open(clock=clock), DATABASE).create()
    with pytest.raises(SourceError) as caught:
        frame.reader()
    assert caught.value.code == "SNAPKV_STORE_MISMATCH"


# --- what is refused ---


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize(
    ("code", "given"),
    [
        ("SNAPKV_INVALID_OPTION", {"database": "No"}),
        ("CDCMETA_DATABASE_NOT_FOUND", {"database": "none"}),
        ("SNAPKV_STORE_NOT_FOUND", {"name": "none"}),
        ("CDCMETA_INVALID_SEQUENCE", {"since": "15" + "01" * 13}),
        ("SNAPKV_TIMESTAMP_INVALID", {"since": "yesterday"}),
        ("SNAPKV_TIMESTAMP_INVALID", {"until": "2026-11-20 14:05"}),
        ("SNAPKV_TIMESTAMP_INVALID", {"timestampAsOf": "2026-11-20"}),
        ("SNAPKV_MULTIPLE_BOUNDARY", {"timestampAsOf": "-1d", "versionAsOf": 3}),
        ("SNAPKV_VERSION_NOT_FOUND", {"versionAsOf": 99}),
        ("SNAPKV_INVALID_RANGE", {"since": "2023-11-20T00:00:00Z", "until": "0"}),
        ("SNAPKV_INVALID_OPTION", {"style": "some_docs"}),
        ("SNAPKV_INVALID_OPTION", {"includeDocs": "perhaps"}),
        ("SNAPKV_INVALID_OPTION", {"docIds": "a,b"}),
        ("SNAPKV_INVALID_OPTION", {"docIds": '{"a": 1}'}),
        ("SNAPKV_INVALID_OPTION", {"docIds": "[1]"}),
        ("SNAPKV_INVALID_OPTION", {"numPartitions": 0}),
        ("SNAPKV_INVALID_OPTION", {"paths": "[]"}),
        ("SNAPKV_INVALID_OPTION", {"timeZone": "Mars"}),
    ],
)
def test_options_that_are_refused(place, db, code, given):
    db.put({"_id": "a"})
    refused(code, place.url, **given)


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_names_of_options(place, db):
    told = refused("SNAPKV_UNKNOWN_OPTION", place.url, keyPrefix="a")
    assert all(name in told for name in feed_options.KNOWN)
    db.put({"_id": "a"})
    assert len(feed(place.url, PREFIX="a", INCLUDEDOCS="FALSE")) == 1
    for given, what in (({"path": place.url}, "database"), ({"database": DATABASE}, "store")):
        with pytest.raises(SourceError) as caught:
            ChangesDataSource(given).schema()
        assert caught.value.code == "SNAPKV_MISSING_OPTION"
        assert what in str(caught.value)
    table = {"provider": "cdcmeta.changes", "path": "/warehouse/t", "owner": "ann"}
    with pytest.raises(SourceError, match=r"CREATE TEMPORARY VIEW v USING cdcmeta\.changes"):
        ChangesDataSource(table).schema()


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_a_source_is_pickled_without_what_it_has_open(place, db):
    db.put({"_id": "a"})
    source = handed_over(ChangesDataSource({"path": place.url, "database": DATABASE}))
    assert source.schema().names == COLUMNS
