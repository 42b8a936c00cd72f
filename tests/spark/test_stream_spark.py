"""Streams through Spark itself: sinks, restarts, failures, and a driver that is killed."""

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import pytest
from etcd_server import eventually
from etcd_server.processes import keeper
from pyspark.errors import StreamingQueryException
from store.engines import write_raw
from store.tabled import FOREVER, Writing, changes_of
from stream_queries import changes, inserted

from snapkv.engine.base import Delete
from snapkv.spark.limits import LIMITS_KNOWN

WAIT_S = 120
PAUSE_S = 0.1
"""Between the commits of a writer that goes on: drivers keep pace with it, also slow ones."""
DRIVER = Path(__file__).with_name("stream_driver.py")


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


def finished(writer, checkpoint) -> None:
    """Bring what there is now, and end."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_into_files_with_a_pause_in_between(spark, store, place, checkpoint, tmp_path):
    out = str(tmp_path / "out")
    first = store.commit(puts={f"k{n}": b"%d" % n for n in range(9)})

    def run():
        stream = changes_of_store(spark, place.url, **limit(4))
        finished(stream.writeStream.format("parquet").option("path", out), checkpoint)
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


# --- kill -9 ---


class Drivers:
    """Processes with the query, one after the other, on one checkpoint.

    All of them get ready at once, for that takes most of their time.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        (folder / "batches").mkdir()

    def __enter__(self):
        command = [sys.executable, str(DRIVER), self.url, str(self.folder)]
        self.children = [keeper.start([*command, n], self.folder / f"log-{n}") for n in "01"]
        return self

    def __exit__(self, *error) -> None:
        for child in self.children:
            keeper.end(child, grace_s=0)

    def begin(self, number: int):
        (self.folder / f"begin-{number}").touch()
        return self.children[number]

    def wait(self, child, condition, what: str) -> None:
        def met() -> bool:
            return condition() or child.poll() is not None

        eventually(met, what, wait_s=WAIT_S)
        logs = [path.read_text()[-3_000:] for path in sorted(self.folder.glob("log-*"))]
        assert condition(), f"a driver ended: {logs}"

    def batches(self) -> dict[int, list[list]]:
        """The rows of each batch, as often as it came."""
        found: dict[int, list[list]] = {}
        for path in sorted((self.folder / "batches").glob("*.json")):
            rows = [tuple(row) for row in json.loads(path.read_text())]
            found.setdefault(int(path.name[:5]), []).append(rows)
        return found

    def start_of_the_query(self) -> tuple[int, int]:
        """The version and the timestamp that the checkpoint begins with."""
        log = (self.folder / "checkpoint" / "offsets" / "0").read_text().splitlines()
        offset = json.loads(log[-1])
        return offset["rev"], offset["ts"]


@pytest.fixture
def writing(store, clock):
    """A writer that goes on until it is told to stop."""
    writing = Writing(store, clock, random.Random(9))
    writing.steps(20)
    writing.stop = threading.Event()
    failed = []

    def write():
        try:
            while not writing.stop.wait(PAUSE_S):
                writing.steps(1)
        except BaseException as e:
            failed.append(e)

    writing.thread = threading.Thread(target=write)
    writing.thread.start()
    yield writing
    writing.stop.set()
    writing.thread.join(WAIT_S)
    assert failed == []


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_a_driver_that_is_killed_in_a_batch(place, writing, tmp_path):
    (tmp_path / "hold").touch()
    with Drivers(place.url, tmp_path) as drivers:
        child = drivers.begin(0)
        drivers.wait(child, (tmp_path / "held").exists, "a batch to be in its middle")
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(WAIT_S)
        (tmp_path / "hold").unlink()
        before = drivers.batches()

        child = drivers.begin(1)
        drivers.wait(child, lambda: max(drivers.batches()) > max(before), "batches to go on")
        writing.stop.set()
        writing.thread.join(WAIT_S)
        (tmp_path / "finish").touch()
        drivers.wait(child, lambda: child.poll() == 0, "the query to finish")

    batches = drivers.batches()
    assert len(batches[max(before)]) == 2, "the batch in which it was killed came again"
    for attempts in batches.values():
        assert all(attempt == attempts[0] for attempt in attempts)
    assert sorted(batches) == list(range(len(batches)))
    brought = [row for number in sorted(batches) for row in batches[number][0]]
    version, since = drivers.start_of_the_query()
    plain = writing.plain
    snapshot = [
        (key, value.hex(), "insert", version, None) for key, value in plain.state(since).items()
    ]
    after = [
        (key, value if value is None else value.hex(), *row)
        for key, value, *row, _ in changes_of(plain, since, FOREVER)
    ]
    assert brought == snapshot + after
