"""What does `snapshot.to_arrow()` of a million keys cost on etcd, beside a raw client?"""

from itertools import pairwise

import pyarrow as pa

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.servers import Bare, etcd_server, put_all, server_facts

KEYS, RANGES, ROUNDS = 1_000_000, 50, 5
START, END = b"default/data/", b"default/data0"


def main() -> None:
    """Read 1,000,000 keys of 25 bytes with values of 64, of a past moment, into a table."""
    with (
        etcd_server("--quota-backend-bytes=4294967296", fsync=False) as server,
        snapkv.open(server.url) as store,
    ):
        bare, rng = Bare(server.endpoint), seeded("etcd_to_arrow")
        put_all(bare, ((START + _name(i).encode(), rng.randbytes(64)) for i in range(KEYS)), KEYS)
        tick = store.tick()
        store.save("later", b"")
        tables = {f"{KEYS:,} keys": _table(store, bare, tick)}
        bare.close()
    notes = (
        f"{server_facts(fsync=False)} The floor asks for {RANGES} ranges, one after the other, and "
        "decodes each answer to lists of keys and values; the second rival makes an Arrow table "
        "of them."
    )
    report("etcd_to_arrow", "What does a table of a million keys cost on etcd?", tables, notes)


def _name(number: int) -> str:
    return f"table/{number // 1000:06d}/col/{number:08d}"


def _table(store: snapkv.SnapshotKV, bare: Bare, tick: snapkv.Commit) -> list[Row]:
    starts = [START + _name(i).encode() for i in range(0, KEYS, KEYS // RANGES)]
    edges = [START, *starts[1:], END]

    def ranges() -> tuple[list[bytes], list[bytes]]:
        keys: list[bytes] = []
        values: list[bytes] = []
        for start, end in pairwise(edges):
            answer = bare.range(start, range_end=end, revision=tick.revision)
            keys += [kv.key for kv in answer.kvs]
            values += [kv.value for kv in answer.kvs]
        assert len(keys) == KEYS
        return keys, values

    def table(_: int) -> None:
        keys, values = ranges()
        data = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        assert len(pa.table(data)) == KEYS

    def by_store(_: int) -> None:
        assert len(store.at(tick.ts).to_arrow()) == KEYS

    rivals = [
        Rival(f"a raw client, {RANGES} ranges (floor)", lambda _: ranges()),
        Rival("the same, as a table", table),
        Rival("snapshot.to_arrow()", by_store),
    ]
    return measure(rivals, rounds=ROUNDS, warmup=1)
