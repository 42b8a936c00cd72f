"""What does reading a live store by Spark cost beside Delta Lake?

Needs the Python that `make .venv-spark4.2/.installed` makes, in which it runs itself: Delta Lake
needs an older PySpark. Spark fetches Delta's jars.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import snapkv
from benchmarks import ready_source
from benchmarks.archive_spark_delta import SETTINGS, merge, rows
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.spark_snapshot import names, noop
from snapkv.spark.local import local_session

PYTHON = Path(".venv-spark4.2/bin/python")
DELTA = "4.4.0"
JARS = {"spark.jars.packages": f"io.delta:delta-spark_4.2_2.13:{DELTA}"}
MILLION, CHANGED = 1_000_000, 100_000
FEW, VERSIONS, COMMIT = 100_000, 10, 1_000
ROUNDS = 7
PREFIX = "table/000007/"
FAST = {"durability": "none"}


class Place(NamedTuple):
    """A store of snapkv and a table of Delta Lake with equal histories."""

    url: str
    path: str
    since: int
    """The revision after the first load, when Delta's version is 0."""


def main() -> None:
    """Ask both the same questions in one session of Spark."""
    if Path(sys.prefix).resolve() != PYTHON.parent.parent.resolve():
        if not PYTHON.exists():
            print(f"left out: Delta Lake needs `make {PYTHON.parent.parent}/.installed`")
            return
        os.execv(PYTHON, [str(PYTHON), "-m", "benchmarks.spark_delta"])
    with tempfile.TemporaryDirectory() as folder, local_session(SETTINGS | JARS) as spark:
        ready_source.register(spark)
        million = _million(spark, f"{folder}/million")
        tables = _tables(spark, million, f"1,000,000 keys, then {CHANGED:,} updates", CHANGED)
        many = _versions(spark, f"{folder}/versions")
        title = f"{FEW:,} keys with {VERSIONS} versions"
        tables |= _tables(spark, many, title, FEW * (VERSIONS - 1))
    notes = (
        f"PySpark {version('pyspark')}, Delta Lake {DELTA}, local[2]. Values of 64 bytes. Delta's "
        f"changes are made by MERGE, in as few commits as can be; the store has commits of "
        f"{CHANGED:,} and of {COMMIT:,} keys. Each read writes all of its columns to Spark's noop "
        "sink. A stream begins at the first change, with a new checkpoint. The Python source that "
        "yields ready Arrow batches from a mapped file, in one task, is the least that any source "
        "in Python costs."
    )
    report("spark_delta", "What does reading a live store cost beside Delta Lake?", tables, notes)


def _tables(spark: Any, place: Place, title: str, changes: int) -> dict[str, list[Row]]:
    def ours(**options: str) -> Any:
        return spark.read.format("snapkv").options(**options).load(place.url)

    def delta(**options: str) -> Any:
        return spark.read.format("delta").options(**options).load(place.path)

    feed = {"readChangeFeed": "true", "startingVersion": str(place.since + 1)}
    delta_feed = {"readChangeFeed": "true", "startingVersion": "1"}
    without = "_change_type <> 'update_preimage'"
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "state": (ours, delta),
        "state of a prefix": (
            lambda: ours(keyPrefix=PREFIX),
            lambda: delta().where(f"key like '{PREFIX}%'"),
        ),
        f"feed of {changes:,} changes": (
            lambda: ours(**feed),
            lambda: delta(**delta_feed).where(without),
        ),
        "the same with the rows before updates": (
            lambda: ours(**feed, preimages="true"),
            lambda: delta(**delta_feed),
        ),
    }
    tables = {}
    for question, (mine, theirs) in pairs.items():
        counts = mine().count(), theirs().count()
        assert counts[0] == counts[1], (question, counts)
        ready = f"{place.path}-ready"
        ready_source.keep(mine(), ready)
        tables[f"{title}: {question}"] = _measured(
            lambda mine=mine: noop(mine()),  # type: ignore[misc]
            lambda theirs=theirs: noop(theirs()),  # type: ignore[misc]
            lambda ready=ready: noop(spark.read.format("ready").load(ready)),  # type: ignore[misc]
        )
    ready_source.keep(ours(**feed), f"{place.path}-ready")
    tables[f"{title}: a stream of these changes"] = _measured(
        _stream(spark, "snapkv", place.url, feed),
        _stream(spark, "delta", place.path, delta_feed),
        _stream(spark, "ready", f"{place.path}-ready", {}),
    )
    return tables


def _measured(
    ours: Callable[[], None], delta: Callable[[], None], ready: Callable[[], None]
) -> list[Row]:
    rivals = [
        Rival("Delta Lake (floor)", lambda _: delta()),
        Rival("the same batches, ready, from a Python source", lambda _: ready()),
        Rival("snapkv", lambda _: ours()),
    ]
    return measure(rivals, rounds=ROUNDS, warmup=2, cpu=False)


def _stream(spark: Any, kind: str, path: str, options: dict[str, str]) -> Callable[[], None]:
    numbers = count()

    def run() -> None:
        checkpoint = tempfile.mkdtemp(prefix=f"checkpoint-{kind}-{next(numbers)}-")
        frame = spark.readStream.format(kind).options(**options).load(path)
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()
        shutil.rmtree(checkpoint)

    return run


def _million(spark: Any, folder: str) -> Place:
    """1,000,000 keys, of which a tenth was written again."""
    url, path, rng, keys = f"lmdb:{folder}/meta", f"{folder}/delta", seeded("spark_delta"), names()
    known = list(keys)
    with snapkv.open(url, **FAST) as store:
        for at in range(0, MILLION, 10_000):
            store.commit(puts={key: rng.randbytes(64) for key in known[at : at + 10_000]})
        since = store.at().revision
        store.commit(puts={key: rng.randbytes(64) for key in known[::10]})
    _written(spark, path, MILLION)
    merge(spark, path, rows(spark, 1, MILLION).where("id % 10 = 0"))
    return Place(url, path, since)


def _versions(spark: Any, folder: str) -> Place:
    """100,000 keys that were written ten times."""
    url, path, rng = f"lmdb:{folder}/meta", f"{folder}/delta", seeded("spark_delta/versions")
    known, since = list(names())[:FEW], 0
    with snapkv.open(url, **FAST) as store:
        for _ in range(VERSIONS):
            for at in range(0, FEW, COMMIT):
                store.commit(puts={key: rng.randbytes(64) for key in known[at : at + COMMIT]})
            since = since or store.at().revision
    _written(spark, path, FEW)
    for n in range(1, VERSIONS):
        merge(spark, path, rows(spark, n, FEW))
    return Place(url, path, since)


def _written(spark: Any, path: str, keys: int) -> None:
    options = {"delta.enableChangeDataFeed": "true"}
    rows(spark, 0, keys).drop("id").write.format("delta").options(**options).save(path)


if __name__ == "__main__":
    main()
