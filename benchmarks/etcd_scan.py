"""What does listing very many keys of a past time cost on etcd?"""

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.servers import Bare, etcd_server, put_all, server_facts
from snapkv.engine.contract import KeyValue
from snapkv.engine.etcd.codec import key_values

SIZES, PAGE = {200_000: 7, 1_000_000: 5}, 5_000
START, END = b"default/data/", b"default/data0"


def main() -> None:
    """List 200,000 keys of 100 bytes, then 1,000,000, at one revision."""
    tables, quota = {}, "--quota-backend-bytes=4294967296"
    with etcd_server(quota, fsync=False) as server, snapkv.open(server.url) as store:
        bare, filled = Bare(server.endpoint), 0
        for keys, rounds in SIZES.items():
            _fill(bare, filled, keys)
            filled = keys
            tick = store.tick()
            tables[f"{keys:,} keys"] = _list(store, bare, tick, keys, rounds)
        bare.close()
    notes = (
        f"{server_facts(fsync=False)} "
        f"All rivals decode to the same values, but snapkv also turns keys into "
        "text. The floor gets everything in one answer, as large as it is. Pages by limit make "
        "the server count the rest of the range each time; snapkv asks for ranges with both ends."
    )
    report("etcd_scan", "What does listing many keys cost on etcd?", tables, notes)


def _fill(bare: Bare, first: int, keys: int) -> None:
    rng = seeded(f"etcd_scan/{first}")
    names = (START + b"catalog/db%d/t%07d" % (i % 7, i) for i in range(first, keys))
    put_all(bare, ((name, rng.randbytes(100)) for name in names), keys - first)


def _list(
    store: snapkv.SnapshotKV, bare: Bare, tick: snapkv.Commit, keys: int, rounds: int
) -> list[Row]:
    def at_once(i: int) -> None:
        answer = bare.range(START, range_end=END, revision=tick.revision)
        assert len(key_values(answer.kvs)) == keys

    def by_limit(i: int) -> None:
        found: list[KeyValue] = []
        start, more = START, True
        while more:
            answer = bare.range(start, range_end=END, revision=tick.revision, limit=PAGE)
            found += key_values(answer.kvs)
            start, more = found[-1].key + b"\0", answer.more
        assert len(found) == keys

    def by_store(i: int) -> None:
        assert len(store.load_with_prefix("", tick.ts)[0]) == keys

    rivals = [
        Rival("one unsplit range (floor)", at_once),
        Rival("snapkv load_with_prefix(ts)", by_store),
    ]
    if keys == min(SIZES):  # its time grows with the square of the keys
        rivals.append(Rival(f"pages of {PAGE:,} by limit", by_limit))
    return measure(rivals, rounds=rounds, warmup=1)
