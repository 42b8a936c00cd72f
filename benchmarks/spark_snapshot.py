"""What does it cost to bring a million keys of a past moment into Spark?"""

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.servers import Bare, etcd_server, server_facts
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.codec import key_values
from snapkv.spark.local import local_session

KEYS = 1_000_000
RANGES = 50
ROUNDS = 5
START, END = b"default/data/", b"default/data0"


def main() -> None:
    """Read 1,000,000 keys of 25 bytes with values of 64 into Spark's noop sink."""
    with local_session({"spark.master": "local[2]"}) as spark:
        tables = {"from lmdb": _from_lmdb(spark), "from etcd": _from_etcd(spark)}
    rates = "; ".join(
        f"{title}, {row.rival}: {KEYS / row.median_us:.2f} M rows/s"
        for title, rows in tables.items()
        for row in rows
    )
    notes = (
        f"{server_facts(fsync=False)} "
        f"local[2], and the server on the same two cores. One operation is "
        f"load() and all {KEYS:,} rows; the raw clients decode to the same values, without Spark. "
        f"Rates: {rates}."
    )
    report("spark_snapshot", "What does it cost to bring a million keys into Spark?", tables, notes)


def names() -> Iterator[str]:
    return (f"table/{i // 1000:06d}/col/{i:08d}" for i in range(KEYS))


def noop(frame) -> None:  # type: ignore[no-untyped-def]
    frame.write.format("noop").mode("overwrite").save()


def _from_lmdb(spark) -> list[Row]:  # type: ignore[no-untyped-def]
    rng = seeded("spark_snapshot")
    with tempfile.TemporaryDirectory() as folder:
        url, parquet = f"lmdb:{folder}/meta", str(Path(folder) / "parquet")
        with snapkv.open(url, durability="none") as store:
            keys = list(names())
            for at in range(0, KEYS, 10_000):
                store.commit(puts={key: rng.randbytes(64) for key in keys[at : at + 10_000]})
            then = store.resolved()
            store.save("later", b"")
            table = store.at(then).to_arrow()
            Path(parquet).mkdir()
            for n, part in enumerate((table.slice(0, KEYS // 2), table.slice(KEYS // 2))):
                pq.write_table(part, f"{parquet}/part-{n}.parquet", compression="zstd")
            rivals = [
                Rival("spark.read.parquet (floor)", lambda i: noop(spark.read.parquet(parquet))),
                Rival("spark.read snapkv", lambda i: noop(past(spark, url, then))),
                Rival("to_arrow, no Spark", lambda i: store.at(then).to_arrow()),
            ]
            assert past(spark, url, then).count() == KEYS == len(table)
            return measure(rivals, rounds=ROUNDS, warmup=2, cpu=False)


def past(spark, url: str, then: int):  # type: ignore[no-untyped-def]
    return spark.read.format("snapkv").option("timestampAsOf", then).load(url)


def _from_etcd(spark) -> list[Row]:  # type: ignore[no-untyped-def]
    with etcd_server("--quota-backend-bytes=4294967296", fsync=False) as server:
        bare = Bare(server.endpoint)
        with snapkv.open(server.url) as store:
            _fill(bare)
            tick = store.tick()
            store.save("later", b"")
        keys = list(names())[:: KEYS // RANGES]
        edges = [START, *(START + key.encode() for key in keys[1:]), END]

        def split(i: int) -> None:
            found = 0
            for start, end in pairwise(edges):
                answer = bare.range(start, range_end=end, revision=tick.revision)
                found += len(key_values(answer.kvs))
            assert found == KEYS

        def unsplit(i: int) -> None:
            answer = bare.range(START, range_end=END, revision=tick.revision)
            assert len(key_values(answer.kvs)) == KEYS

        rivals = [
            Rival(f"a raw client, {RANGES} ranges (floor)", split),
            Rival("a raw client, one unsplit range", unsplit),
            Rival("spark.read snapkv", lambda i: noop(past(spark, server.url, tick.ts))),
        ]
        assert past(spark, server.url, tick.ts).count() == KEYS
        return measure(rivals, rounds=ROUNDS, warmup=1, cpu=False)


def _fill(bare: Bare) -> None:
    rng = seeded("spark_snapshot")
    keys = [START + name.encode() for name in names()]
    for at in range(0, KEYS, 128):
        puts = [pb.PutRequest(key=key, value=rng.randbytes(64)) for key in keys[at : at + 128]]
        bare.txn(pb.TxnRequest(success=[pb.RequestOp(request_put=put) for put in puts]))
