"""How long from a commit to its row in a micro-batch, and how fast does a stream catch up?"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import snapkv
from benchmarks.harness import Rival, Row, measure, median_ratio, quantile, report, seeded
from benchmarks.servers import etcd_server, server_facts
from snapkv.spark.local import local_session

TRIGGER = "500 milliseconds"
SECONDS, EVERY_S, LATENCY_ROUNDS = 10, 0.05, 3
CATCH_UP = {"commits of 100 keys": (5_000, 100), "commits of 1 key": (50_000, 1)}
ROUNDS = 3


def main() -> None:
    """Follow 20 commits a second, then catch up with what was committed before."""
    with local_session({"spark.master": "local[2]"}) as spark:
        tables = {f"latency, trigger {TRIGGER}": _latencies(spark)}
        rates = []
        for what, (commits, keys) in CATCH_UP.items():
            rows = _catch_up(spark, commits, keys)
            tables[f"catching up with {commits * keys:,} changes, {what}"] = rows
            rates += [f"{what}, {r.rival}: {commits * keys / r.median_us * 1e6:,.0f}" for r in rows]
    notes = (
        f"{server_facts(fsync=False)} "
        f"local[2]. Latency: from the time in the row to foreachBatch having it "
        f"in the driver, {LATENCY_ROUNDS} times {SECONDS} s each, in turn. Spark's rate source "
        "gives whole seconds only, once they are over. Changes a second in catching up, with the "
        f"start of the query: {'; '.join(rates)}."
    )
    report("spark_stream", "How fast is the stream of changes?", tables, notes)


# --- latency ---


def _latencies(spark) -> list[Row]:  # type: ignore[no-untyped-def]
    """Follow each source for a while, in turn, in rounds."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", round(1 / EVERY_S)).load()
    found: dict[str, list[list[float]]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(etcd_server())
        sources = {
            "Spark's rate source (floor)": lambda: _followed(rate, "timestamp", lambda: None)
        }
        for name, url in {"lmdb": f"lmdb:{folder}/meta", "etcd": server.url}.items():
            store = stack.enter_context(snapkv.open(url))
            sources[f"snapkv on {name}"] = partial(_followed_store, spark, store, url)
        for round_ in range(LATENCY_ROUNDS):
            for name in sources if round_ % 2 else reversed(sources):
                found.setdefault(name, []).append(sources[name]())
        floor = [statistics.median(each) for each in found[next(iter(sources))]]
        return [_latency_row(name, found[name], floor) for name in sources]


def _latency_row(name: str, rounds: list[list[float]], floor: list[float]) -> Row:
    took = [latency for each in rounds for latency in each]
    median, p99 = statistics.median(took), quantile(took, 0.99)
    ratio = median_ratio([statistics.median(each) for each in rounds], floor)
    return Row(name, round(median * 1e6), round(p99 * 1e6), ratio)


def _followed_store(spark, store: snapkv.SnapshotKV, url: str) -> list[float]:  # type: ignore[no-untyped-def]
    done = threading.Event()

    def write() -> None:
        n = 0
        while not done.wait(EVERY_S):
            store.save(f"k/{n % 1_000}", b"%d" % n)
            n += 1

    writer = threading.Thread(target=write)
    try:
        changes = spark.readStream.format("snapkv").option("readChangeFeed", "true")
        frame = changes.option("startingVersion", "latest").load(url)
        return _followed(frame, "_commit_timestamp", writer.start)
    finally:
        done.set()
        writer.join()


def _followed(frame, column: str, begin: Callable[[], None]) -> list[float]:  # type: ignore[no-untyped-def]
    found: list[float] = []
    started = threading.Event()

    def take(batch, _: int) -> None:  # type: ignore[no-untyped-def]
        times = [row[0].timestamp() for row in batch.select(column).collect()]
        now = time.time()
        started.set()
        found.extend(now - then for then in times)

    with tempfile.TemporaryDirectory() as checkpoint:
        sink = frame.writeStream.foreachBatch(take).trigger(processingTime=TRIGGER)
        query = sink.option("checkpointLocation", checkpoint).start()
        started.wait(60)
        begin()
        query.awaitTermination(SECONDS)
        query.stop()
    return found[len(found) // 5 :]  # the first batches are Spark warming up


# --- catching up ---


def _catch_up(spark, commits: int, keys: int) -> list[Row]:  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory() as folder, etcd_server(fsync=False) as server:
        urls = {"lmdb": f"lmdb:{folder}/meta", "etcd": server.url}
        rivals = []
        for name, url in urls.items():
            _fill(url, commits, keys)
            rivals.append(Rival(f"store.watch on {name}", _watched(url, commits * keys)))
            rivals.append(Rival(f"stream on {name}", _streamed(spark, url, commits * keys)))
        return measure(rivals, rounds=ROUNDS, warmup=1, cpu=False)


def _fill(url: str, commits: int, keys: int) -> None:
    rng = seeded("spark_stream")
    options = {"durability": "none"} if url.startswith("lmdb:") else {}
    with snapkv.open(url, **options) as store:
        for n in range(commits):
            base = n * keys % 50_000
            store.commit(puts={f"key/{base + k:06d}": rng.randbytes(64) for k in range(keys)})


def _watched(url: str, changes: int) -> Callable[[int], None]:
    def run(i: int) -> None:
        found = 0
        with snapkv.open(url) as store, store.watch(since=0, timeout=5) as watch:
            while found < changes:
                found += len(next(watch).changes)

    return run


def _streamed(spark, url: str, changes: int) -> Callable[[int], None]:  # type: ignore[no-untyped-def]
    def run(i: int) -> None:
        with tempfile.TemporaryDirectory() as checkpoint:
            read = spark.readStream.format("snapkv").option("readChangeFeed", "true")
            frame = read.option("startingVersion", 1).load(url)
            sink = frame.writeStream.format("noop").trigger(availableNow=True)
            query = sink.option("checkpointLocation", str(Path(checkpoint))).start()
            query.awaitTermination(600)
            found = sum(int(each["numInputRows"]) for each in query.recentProgress)
            assert found == changes, f"{found} of {changes}"

    return run
