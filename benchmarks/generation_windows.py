"""What does a window of a consumer cost, of many streams with few rows?"""

import random

import snapkv
from benchmarks.harness import Rival, Row, measure, report
from benchmarks.servers import DURABLE, server_facts
from cdcmeta.generations import (
    CdcLog,
    GenerationLog,
    Generations,
    LogRow,
    Sharding,
    StreamConsumer,
)
from cdcmeta.generations.log_rows import encoded
from cdcmeta.generations.tokens import TOKEN_MAX, TOKEN_MIN
from snapkv.tuples import pack

SHARDS = 64
RANGES = {102_400: 1_600, 1_638_400: 25_600}
ROWS, OLD_ROWS, BATCH = 1_000, 50_000, 500
STREAMS_AT_ONCE = 1_024
RNG = random.Random(7)


def main() -> None:
    """Read a window of 1,000 rows, and one without rows, behind 50,000 older rows."""
    tables = {}
    for name, opened in DURABLE.items():
        for streams, ranges in RANGES.items():
            with opened() as store:
                tables[f"{streams:,} streams, {name}"] = _windows(store, ranges)
    notes = (
        f"{server_facts()} A window has {ROWS:,} rows of 100 bytes, one a key, behind "
        f"{OLD_ROWS:,} older ones. The floor scans the same log rows, which lie in a space of "
        "their own. By stream: each stream of the generation is asked for its rows, 128 in a round "
        "trip, as it was before rows lay in slots; of 1,638,400 that takes minutes: left out."
    )
    report("generation_windows", "What does a window of a consumer cost?", tables, notes)


def _windows(store: snapkv.SnapshotKV, ranges: int) -> list[Row]:
    log = GenerationLog(store, propagation_delay=0.0, leeway=60.0)
    ring = {RNG.randint(TOKEN_MIN, TOKEN_MAX): Sharding(SHARDS) for _ in range(ranges)}
    made = log.make(ring)
    topology = log.topology(made)
    generations = Generations(leeway=60.0)
    generations.insert(made.time, topology)
    rows, idle = CdcLog(store, generations), CdcLog(store, generations, "idle")
    _write(rows, OLD_ROWS)
    begin = store.resolved()
    written = _write(rows, ROWS)
    bare = store.space("bare")
    for at in range(0, ROWS, BATCH):
        bare.commit(puts=encoded(written[at : at + BATCH]))
    store.tick()
    full, empty = (StreamConsumer(log, each, "c", since=begin) for each in (rows, idle))

    def scanned(_: int) -> None:
        assert sum(1 for _ in bare.at().items()) == ROWS

    def window(_: int) -> None:
        found = full.next()
        assert found is not None
        assert len(found.rows) == ROWS

    def without_rows(_: int) -> None:
        found = empty.next()
        assert found is not None
        assert not found.rows

    rivals = [
        Rival("a scan of the same rows (floor)", scanned),
        Rival("a window of 1,000 rows", window),
        Rival("a window without rows", without_rows),
    ]
    table = measure(rivals, rounds=30)
    if ranges == RANGES[102_400]:
        streams = [pack(("log", bytes(raw))) for raw in topology.ids]

        def by_stream(_: int) -> None:
            snapshot = bare.at()
            for at in range(0, len(streams), STREAMS_AT_ONCE):
                some = streams[at : at + STREAMS_AT_ONCE]
                snapshot.items_of([(key, key + b"\xff") for key in some])

        table += measure([rivals[0], Rival("by stream", by_stream)], rounds=3, warmup=1)[1:]
    return table


def _write(rows: CdcLog, count: int) -> list[LogRow]:
    written: list[LogRow] = []
    for _ in range(0, count, BATCH):
        keys = [RNG.randbytes(16) for _ in range(BATCH)]
        written += rows.write_batch(dict.fromkeys(keys, bytes(100)), timeout=60)
    return written


if __name__ == "__main__":
    main()
