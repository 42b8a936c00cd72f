"""The sink in Spark: DataFrames and streams, whose batches come again."""

import pytest
from drivers import ended
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.captured import StreamingQueryException

from snapkv import open as open_store
from snapkv.spark import read_changes, read_snapshot

pytestmark = pytest.mark.slow

ARROW = pytest.mark.spark_since("4.1", "a stream's sink that takes Arrow")


def state(url: str, name: str = "default") -> dict:
    with open_store(url, name=name) as store:
        return {key: (entry.value.decode(), entry.version) for key, entry in store.at().entries()}


@pytest.mark.long_on("etcd")
def test_a_data_frame(spark, place, store):
    store.save("old/1", b"1")
    frame = spark.sql("SELECT concat('n/', id) AS key, string(id * id) AS value FROM range(500)")
    written = frame.repartition(4).write.format("snapkv").option("valueFormat", "utf8")
    written.mode("append").save(place.url)
    assert len(state(place.url)) == 501
    assert state(place.url)["n/20"] == ("400", 1)
    *_, last = store.commits()
    assert last.note == "written by Spark"
    smaller = spark.sql("SELECT concat('n/', id) AS key, string(id) AS value FROM range(1, 4)")
    replaced = smaller.write.format("snapkv").options(valueFormat="utf8", keyPrefix="n/")
    replaced.mode("overwrite").save(place.url)
    assert state(place.url) == {
        "n/1": ("1", 1), "n/2": ("2", 2), "n/3": ("3", 2), "old/1": ("1", 1),
    }  # fmt: skip


def test_a_copy_of_a_store(spark, place, store, clock):
    store.commit(puts={"a": b"1", "b": b"\xff"})
    copied = read_snapshot(spark, place.url).write.format("snapkv").option("name", "copy")
    copied.mode("append").save(place.url)
    first = store.at().timestamp
    store.commit(puts={"c": b"3"}, deletes=["a"])
    changes = read_changes(spark, place.url, first)
    changes.write.format("snapkv").option("name", "copy").mode("append").save(place.url)
    with open_store(place.url, name="copy") as copy:
        assert dict(copy.at().items()) == {"b": b"\xff", "c": b"3"}


def test_errors_and_modes(spark, place, store):
    frame = spark.sql("SELECT 'a' AS key, CAST(NULL AS STRING) AS value")
    written = frame.write.format("snapkv").option("valueFormat", "utf8")
    with pytest.raises(AnalysisException, match="ErrorIfExists"):
        written.save(place.url)
    for mode, code in (("append", "VALUE_MALFORMED"), ("overwrite", "MISSING_OPTION")):
        with pytest.raises(PySparkException, match=rf"\[SNAPKV_{code}\]"):
            written.mode(mode).save(place.url)
    assert state(place.url) == {}


@pytest.fixture
def rows(spark):
    """A stream of numbers, whose batches are the same when they come again."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7)
    return source.option("numPartitions", 2).load()


def run(frame, url: str, checkpoint, mode: str = "append", **options) -> None:
    options = {"valueFormat": "utf8"} | options
    writer = frame.writeStream.format("snapkv").options(**options)
    query = writer.outputMode(mode).option("checkpointLocation", str(checkpoint))
    ended(lambda: query.trigger(availableNow=True).start(url))


@ARROW
def test_a_stream_and_a_batch_that_comes_again(spark, place, store, tmp_path, rows):
    numbered = rows.selectExpr("concat('n/', value) AS key", "string(value) AS value")
    run(numbered, place.url, tmp_path / "ck")
    run(numbered, place.url, tmp_path / "ck")
    batches = sorted((tmp_path / "ck" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    expected = {f"n/{n}": (str(n), 1) for n in range(7 * len(batches))}
    assert state(place.url) == expected
    batches[-1].unlink()  # Spark does not know any more that the batch was committed
    (tmp_path / "ck" / "commits" / f".{batches[-1].name}.crc").unlink()
    head = store.at().revision
    run(numbered, place.url, tmp_path / "ck")
    again = state(place.url)
    assert {key: again[key] for key in expected} == expected, "no key was written twice"
    assert store.entry("n/0").revision <= head


@ARROW
def test_a_complete_table(spark, place, store, tmp_path, rows):
    store.save("other", b"1")
    counted = rows.groupBy((rows.value % 3).alias("left")).count()
    counts = counted.selectExpr("concat('left/', left) AS key", "string(count) AS value")
    run(counts, place.url, tmp_path / "ck", mode="complete", keyPrefix="left/")
    found = state(place.url)
    assert found.pop("other") == ("1", 1)
    assert sorted(found) == ["left/0", "left/1", "left/2"]
    assert sum(int(value) for value, _ in found.values()) % 7 == 0


@pytest.mark.long
@ARROW
def test_a_store_follows_another(spark, place, store, tmp_path):
    store.commit(puts={"a": b"1", "b": b"1"})
    feed = spark.readStream.format("snapkv").option("readChangeFeed", True).load(place.url)
    run(feed, place.url, tmp_path / "ck", name="copy", valueFormat="bytes")
    store.commit(puts={"a": b"2"}, deletes=["b"])
    store.commit(puts={"b": b"3"})
    run(feed, place.url, tmp_path / "ck", name="copy", valueFormat="bytes")
    assert state(place.url, "copy") == {"a": ("2", 2), "b": ("3", 2)}


@pytest.mark.long
@ARROW
def test_a_stream_that_cannot_write(spark, place, store, tmp_path, rows):
    wrong = rows.selectExpr("string(value % 2) AS key", "string(value) AS value")
    with pytest.raises(StreamingQueryException, match=r"\[SNAPKV_DUPLICATE_KEY\]"):
        run(wrong, place.url, tmp_path / "ck")
    assert state(place.url) == {}
