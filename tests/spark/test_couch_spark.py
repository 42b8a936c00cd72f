"""Feeds through Spark itself: one moment for all actions, SQL, calls, streams, a killed driver."""

import random
import subprocess
import sys
from datetime import timedelta

import pytest
from drivers import ended
from feeds import DATABASE, Editing, rows_of
from frames import together
from pyspark.errors import AnalysisException, StreamingQueryException

from cdcmeta import ChangesDB
from cdcmeta.spark import ChangesDataSource, changes_as_of, register
from snapkv import to_datetime
from snapkv.spark.errors import SourceError
from snapkv.spark.micro_batches import LIMITS_KNOWN

pytestmark = pytest.mark.slow

COLUMNS = ("seq", "id", "rev", "revs", "deleted", "doc")
LMDB = pytest.mark.parametrize("place", ["lmdb"], indirect=True)


@pytest.fixture
def db(store):
    return ChangesDB(store, DATABASE).create()


def load(spark, url: str, **options):
    given = {"database": DATABASE} | options
    return spark.read.format("cdcmeta.changes").options(**given).load(url)


def stream(spark, url: str, **options):
    given = {"database": DATABASE} | options
    return spark.readStream.format("cdcmeta.changes").options(**given).load(url)


def plain(rows) -> list[tuple]:
    """Rows without their times, which Python shows in the zone of the machine."""
    return [tuple(row)[: len(COLUMNS)] for row in rows]


# --- batches ---


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_random_feeds(spark, store, place, clock):
    rng = random.Random(2)
    editing = Editing(store, clock, rng)
    editing.steps(25)
    asked = [(when, style) for when in rng.sample(editing.moments, 2) for style in ("all_docs", "")]
    frames = [
        changes_as_of(spark, place.url, DATABASE, when, style=style or "main_only")
        for when, style in asked
    ]
    for rows, (when, style) in zip(together(frames), asked, strict=True):
        form = {"style": style or "main_only", "include_docs": True}
        expected = rows_of(editing.db.changes(as_of=when, **form).rows)
        assert sorted(plain(rows)) == sorted(plain(expected))


@LMDB
def test_all_actions_share_a_moment(spark, place, db):
    first = db.put({"_id": "a"})
    frame = load(spark, place.url)
    frame.createOrReplaceTempView("frame")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW feed USING cdcmeta.changes "
        f"OPTIONS (path '{place.url}', database '{DATABASE}')"
    )
    assert frame.count() == 1
    db.put({"_id": "b"})
    db.put({"_id": "a"}, rev=first.rev)
    twice = frame.union(frame).union(spark.table("feed")).union(spark.table("frame"))
    assert {(row.id, row.rev) for row in twice.collect()} == {("a", first.rev)}
    assert frame.where("id = 'b'").count() == 0
    assert frame.count() == 1
    assert load(spark, place.url).where("id = 'b'").count() == 1


@LMDB
def test_naive_times_are_in_the_session_s_zone(spark, place, clock, db):
    seqs = []
    for n in range(3):
        seqs.append(db.put({"_id": str(n)}).seq)
        clock.advance(3_600_000)
    aware = to_datetime(seqs[0].timestamp)
    then = str(aware.replace(tzinfo=None) + timedelta(hours=2))
    spark.conf.set("spark.sql.session.timeZone", "+02:00")
    try:
        frames = [
            changes_as_of(spark, place.url, DATABASE, then),
            changes_as_of(spark, place.url, DATABASE, until=then, include_docs=False),
            changes_as_of(spark, place.url, DATABASE, since=aware),
            changes_as_of(spark, place.url, DATABASE, since=seqs[0], until=str(seqs[1])),
            changes_as_of(spark, place.url, DATABASE, since="now"),
            changes_as_of(spark, place.url, DATABASE, doc_ids=["0", "2", "4"], prefix="2"),
            changes_as_of(spark, place.url, DATABASE, seqs[1].timestamp, numPartitions=1),
        ]
        found = [[row[1] for row in rows] for rows in together(frames)]
        assert found == [["0"], ["0"], ["1", "2"], ["1"], [], ["2"], ["0", "1"]]
        with pytest.raises(SourceError, match=r"\[SNAPKV_TIMESTAMP_INVALID\]"):
            changes_as_of(spark, place.url, DATABASE, since="soon")
        for twice in ({"timestampAsOf": "-1d"}, {"DATABASE": "other"}, {"path": "memory:"}):
            with pytest.raises(SourceError, match="use the parameter"):
                changes_as_of(spark, place.url, DATABASE, **twice)
        with pytest.raises(SourceError, match=r"\[SNAPKV_TIMESTAMP_INVALID\].*astimezone"):
            changes_as_of(spark, place.url, DATABASE, aware.replace(tzinfo=None))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@LMDB
def test_errors_have_a_code(spark, place, db):
    with pytest.raises(AnalysisException, match=r"\[CDCMETA_DATABASE_NOT_FOUND\]"):
        load(spark, place.url, database="none")
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_UNKNOWN_OPTION\].*includeDocs"):
        load(spark, place.url, includeDoc=True)


@pytest.mark.long
@LMDB
def test_the_format_is_found_by_itself_and_by_registering(spark, place, db):
    import pyspark_cdcmeta

    assert pyspark_cdcmeta.DefaultSource is ChangesDataSource
    db.put({"_id": "a"})
    found = load(spark.newSession(), place.url)  # in which nothing was registered
    register(spark)
    register(spark)
    assert found.count() == load(spark, place.url).count() == 1


def test_the_module_that_spark_looks_into_is_light():
    heavy = "{'grpc', 'lmdb', 'typer', 'pandas'}"
    code = f"import sys, pyspark_cdcmeta; print(sorted({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert told.stdout.strip() == b"[]"


# --- streams ---


@pytest.mark.long
@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_into_files_with_a_sink_that_fails(spark, store, place, db, tmp_path):
    brought: dict[int, list] = {}
    failures = [1 if LIMITS_KNOWN else 0]  # the first with rows

    def bring(frame, batch):
        rows = plain(frame.collect())
        assert brought.setdefault(batch, rows) == rows, "a batch that comes again is the same"
        if batch in failures:
            failures.remove(batch)
            raise OSError("the disk is full")

    def run():
        limit = {"maxRowsPerTrigger": 2} if LIMITS_KNOWN else {}
        writer = stream(spark, place.url, **limit).writeStream.foreachBatch(bring)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        ended(writer.trigger(availableNow=True).start)

    revs = {id: db.put({"_id": id}).rev for id in "abc"}
    before = plain(rows_of(db.changes(include_docs=True).rows))
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        run()
    db.put({"_id": "a", "n": 2}, rev=revs["a"])
    run()
    run()  # before 4.2 a batch that comes again comes alone
    rows = [row for batch in sorted(brought) for row in brought[batch]]
    assert rows == before + plain(rows_of(db.changes(include_docs=True).rows))[-1:]

    db.delete()
    ChangesDB(store, DATABASE).create()
    with pytest.raises(StreamingQueryException, match=r"\[CDCMETA_DATABASE_MISMATCH\]"):
        run()
