"""What does filling the ring cost from a watch of the timestamp key, and of the whole store?"""

import tempfile
from pathlib import Path

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from snapkv.engine.lmdb import LmdbEngine
from snapkv.layout import prefix_end

COMMITS = 1_024


def main() -> None:
    """Fill a store with 1,024 commits of 20 keys, then read its log both ways."""
    with tempfile.TemporaryDirectory() as folder:
        tables, carried = {}, []
        for value_bytes in (100, 10_000):
            path = Path(folder) / str(value_bytes)
            rows, sizes = _compare(path, value_bytes)
            tables[f"{COMMITS:,} commits of 20 values of {value_bytes:,} bytes"] = rows
            carried.append(f"{value_bytes:,}-byte values: {sizes[0]:,} against {sizes[1]:,} bytes")
    report(
        "feed",
        "What does filling the ring from a watch cost?",
        tables,
        "Bytes carried, timestamp key against whole store: " + "; ".join(carried) + ".",
    )


def _compare(path: Path, value_bytes: int) -> tuple[list[Row], tuple[int, int]]:
    rng = seeded("feed")
    with snapkv.open(f"lmdb:{path}", durability="none") as store:
        for _ in range(COMMITS):
            puts = {f"k{rng.randrange(10**6)}": rng.randbytes(value_bytes) for _ in range(20)}
            store.commit(puts=puts)
        head = store.at().revision
    engine = LmdbEngine(str(path))
    size = [0, 0]

    def drain(at: int, key: bytes, end: bytes) -> None:
        watcher = engine.watch(key, end, start_revision=2)
        size[at] = 0
        while (batch := watcher.next(0)) is not None:
            size[at] += sum(len(e.kv.key) + len(e.kv.value) for e in batch.events)
            if batch.revision >= head:
                break
        watcher.close()

    rivals = [
        Rival("the timestamp key", lambda _: drain(0, b"default/sys/ts", b"")),
        Rival("the whole store", lambda _: drain(1, b"default/", prefix_end(b"default/"))),
    ]
    rows = measure(rivals, rounds=15)
    engine.close()
    return rows, (size[0], size[1])
