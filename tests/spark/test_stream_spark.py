"""Streams through Spark itself: sinks, restarts, failures, and a driver that is killed."""

import json

import pytest
from drivers import ended
from pyspark.errors import StreamingQueryException
from store.engines import write_raw
from stream_queries import changes, inserted

from snapkv.engine.contract import Delete
from snapkv.spark.micro_batches import LIMITS_KNOWN

pytestmark = pytest.mark.slow


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "checkpoint"


def changes_of_store(spark, url: str, **options):
    """A stream of changes."""
    source = spark.readStream.format("snapkv").option("readChangeFeed", True)
    return source.options(**options).load(url)


def limit(rows: int) -> dict:
    """Batches of so many rows, where Spark knows of that."""
    return {"maxRowsPerTrigger": rows} if LIMITS_KNOWN else {}


def finished(writer, checkpoint) -> list:
    """Bring what there is now, and end; return what Spark said of each batch's progress."""
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return ended(writer.start).recentProgress


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_into_files_with_a_pause_in_between(spark, store, place, checkpoint, tmp_path):
    out = str(tmp_path / "out")
    first = store.commit(puts={f"k{n}": b"%d" % n for n in range(9)})

    def run():
        stream = changes_of_store(spark, place.url, **limit(4))
        progress = finished(stream.writeStream.format("parquet").option("path", out), checkpoint)
        if LIMITS_KNOWN:
            newest = json.loads(progress[-1]["sources"][0]["latestOffset"])
            assert newest["metrics"] == {
                "commitsBehindLatest": 0,
                "msBehindLatest": 0,
                "commitsLost": 0,
            }
        frame = spark.read.parquet(out)
        assert frame.schema == stream.schema
        times = frame.select("_commit_timestamp")  # as Python shows them here, without a zone
        rows = [tuple(row) for row in frame.drop("_commit_timestamp").collect()]
        return sorted(rows, key=lambda row: (row[3], row[4] or 0, row[0])), times.count()

    expected = inserted(first, **{f"k{n}": b"%d" % n for n in range(9)})
    assert run() == ([row[:5] for row in expected], 9)
    for n in range(5):
        puts = {"k0": b"new %d" % n, "new": b"%d" % n}
        expected += changes((store.commit(puts=puts), puts), existed="k0" if n == 0 else "k0 new")
    puts = {"k1": None, "k2": None}
    expected += changes((store.commit(deletes=["k1", "k2"]), puts), existed="k1 k2")
    assert run() == ([row[:5] for row in expected], len(expected))


@pytest.mark.long
@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_a_sink_that_fails_once_and_a_store_that_is_exchanged(
    spark, store, place, clock, checkpoint
):
    first = store.commit(puts={"a": b"0", "b": b"0"})
    brought: dict[int, list] = {}
    failures = [1 if LIMITS_KNOWN else 0]  # the first with rows

    def bring(frame, batch):
        rows = [tuple(row)[:5] for row in frame.collect()]
        assert brought.setdefault(batch, rows) == rows, "a batch that comes again is the same"
        if batch in failures:
            failures.remove(batch)
            raise OSError("the disk is full")

    def run():
        stream = changes_of_store(spark, place.url, **limit(2))
        finished(stream.writeStream.foreachBatch(bring), checkpoint)

    with pytest.raises(StreamingQueryException, match="the disk is full"):
        run()
    unread = store.commit(puts={"a": b"1"}), {"a": b"1"}
    run()
    run()  # before 4.2 a batch that comes again comes alone
    rows = [row for batch in sorted(brought) for row in brought[batch]]
    assert rows[:2] == [(key, b"0", "insert", first.revision, None) for key in "ab"]
    assert rows[2:] == [row[:5] for row in changes(unread, existed="a")]
    assert failures == []

    store.close()
    write_raw(place.engine(), Delete(b"default/", b"default0"))
    place.open(clock=clock).save("a", b"of another store")
    with pytest.raises(StreamingQueryException) as caught:
        run()
    assert "[SNAPKV_STORE_MISMATCH]" in str(caught.value)
    assert "new checkpoint" in str(caught.value)
