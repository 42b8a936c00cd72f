"""Freeing: bounded, driven by the log, going on after a crash."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from lmdb_processes import Child
from lmdb_words import ALL, FIRST, delete, get, head, keys, put, run_txn

from snapkv.base.waiting import monotonic, pause
from snapkv.engine.contract import Delete, Put, Range
from snapkv.engine.lmdb import LmdbEngine
from snapkv.engine.lmdb.writing import BATCH_LOG_ENTRIES

Opened = Callable[..., LmdbEngine]


def sizes(engine: LmdbEngine) -> tuple[int, int]:
    info = engine.info()
    return int(info["records"]), int(info["log_entries"])


def test_what_is_superseded_is_freed(opened: Opened) -> None:
    engine = opened(durability="none")
    for i in range(100):
        put(engine, b"a", b"%d" % i)
        put(engine, b"b%d" % i)
    delete(engine, b"b", b"c")
    assert sizes(engine) == (300, 201)
    engine.compact(head(engine))
    assert sizes(engine) == (1, 1)
    assert keys(engine) == [b"a"]
    put(engine, b"a")
    engine.compact(head(engine))
    assert sizes(engine) == (1, 1)


def test_the_batches_are_bounded(opened: Opened) -> None:
    engine = opened(durability="none")
    for i in range(2 * BATCH_LOG_ENTRIES + 100):
        put(engine, b"a", b"%d" % i)
    at = head(engine)
    engine.compact(at, batches=0)
    assert sizes(engine) == (2_100, 2_100)
    engine.compact(at, batches=1)
    assert sizes(engine) == (1_101, 1_100)
    engine.compact(at, batches=1)
    assert sizes(engine) == (101, 100)
    engine.compact(at, batches=1)
    assert sizes(engine) == (1, 1)
    engine.compact(at, batches=1)
    assert sizes(engine) == (1, 1)


def test_a_batch_of_wide_transactions_is_bounded_by_keys(opened: Opened) -> None:
    engine = opened(durability="none")
    for i in range(10):
        run_txn(engine, *(Put(b"%05d" % j, b"%d" % i) for j in range(2_500)))
    at = head(engine)
    engine.compact(at, batches=1)
    records, entries = sizes(engine)
    assert records > 15_000
    assert 7 <= entries <= 9
    assert engine.check() == []
    engine.compact(at)
    assert sizes(engine) == (2_500, 1)


def test_freeing_goes_on_after_reopening(opened: Opened) -> None:
    engine = opened(durability="none")
    for i in range(1_500):
        put(engine, b"%d" % (i % 5), b"%d" % i)
    at = head(engine)
    engine.compact(at, batches=1)
    engine.close()
    again = opened(durability="none")
    assert again.compacted_revision() == at
    assert sizes(again)[0] > 400
    again.compact(at)
    assert sizes(again) == (5, 1)


def test_space_is_used_again(opened: Opened) -> None:
    """A store whose history is compacted does not grow for ever."""
    engine = opened(durability="none")
    used = []
    for _ in range(6):
        for i in range(200):
            put(engine, b"a", b"%d" % i + b"x" * 3_000)
        engine.compact(head(engine))
        used.append(int(engine.info()["used_bytes"]))
    assert used[-1] <= 1.5 * used[1]


def test_a_page_of_a_scan_holds_no_space(opened: Opened) -> None:
    """Between two pages no read transaction is open: what is compacted can be used again."""
    engine = opened(durability="none")
    for base in range(0, 12_000, 4_000):
        run_txn(engine, *(Put(b"k%05d" % i, b"v") for i in range(base, base + 4_000)))
    pages = engine.scan(b"k", b"l", revision=head(engine))
    first = next(pages)
    used = []
    for _ in range(5):
        for i in range(150):
            put(engine, b"a", b"%d" % i + b"x" * 3_000)
        engine.compact(head(engine) - 10_000 if head(engine) > 20_000 else 4)
        used.append(int(engine.info()["used_bytes"]))
    assert sum(map(len, (first, *pages))) == 12_000


COMPACTOR = """
engine = LmdbEngine(path, durability="none")
from snapkv.engine.lmdb import writing
writing.BATCH_LOG_ENTRIES = 20
writing.BREATH_SECONDS = 1e-3
say("ready")
engine.compact(int(args[0]))
say("done")
"""


@pytest.mark.slow
def test_killed_compactions_are_resumed(opened: Opened, path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    engine = opened(durability="none")
    for i in range(1_500):
        run_txn(
            engine, Put(b"%d" % (i % 7), b"%d" % i), Delete(b"x%d" % (i - 1)), Put(b"x%d" % i, b"")
        )
    at = head(engine) - 5
    everything = Range(FIRST, ALL, at)
    state = engine.read([everything]).results[0]
    killed = 0
    for _ in range(6):
        with Child(COMPACTOR, path, at) as child:
            child.expect("ready")
            goal = sizes(engine)[1] - chance.randrange(1, 200)
            deadline = monotonic() + 10
            while sizes(engine)[1] > max(goal, 6) and monotonic() < deadline:
                pause(0.0005)
            child.kill()
        killed += sizes(engine)[1] > 6
        assert engine.check() == []
        assert engine.compacted_revision() == at
        assert engine.read([everything]).results[0] == state
    assert killed > 0
    engine.compact(at)
    assert sizes(engine) == (8 + 5 * 3, 6)
    assert engine.read([everything]).results[0] == state


def test_writers_get_their_turn_during_compaction(opened: Opened, path: Path) -> None:
    engine = opened(durability="none")
    for i in range(3_000):
        put(engine, b"%d" % (i % 3))
    with Child(COMPACTOR, path, head(engine)) as child:
        child.expect("ready")
        for i in range(50):
            put(engine, b"w", b"%d" % i, timeout=3)
        child.expect("done")
    assert get(engine, b"w") == b"49"
