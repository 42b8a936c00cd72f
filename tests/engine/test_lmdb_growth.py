"""The map grows by itself: under one process, several, and under readers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from lmdb_processes import Child, run
from lmdb_words import ALL, FIRST, get, head, keys, put, run_txn

from snapkv.engine.contract import Put
from snapkv.engine.lmdb import LmdbEngine
from snapkv.engine.lmdb.engine import MAP_BYTES_MIN
from snapkv.errors import InvalidOptionError

Opened = Callable[..., LmdbEngine]


def test_a_tiny_map_grows(opened: Opened) -> None:
    engine = opened(map_bytes=MAP_BYTES_MIN)
    for i in range(400):
        put(engine, b"%d" % i, b"x" * 2_000)
    assert int(engine.info()["map_bytes"]) > 400 * 2_000
    assert len(keys(engine)) == 400


def test_one_value_much_larger_than_the_map(opened: Opened) -> None:
    engine = opened(map_bytes=MAP_BYTES_MIN)
    big = bytes(range(256)) * (20 << 12)
    put(engine, b"big", big)
    assert get(engine, b"big") == big


@pytest.mark.slow
def test_one_transaction_of_many_keys(opened: Opened) -> None:
    engine = opened(map_bytes=MAP_BYTES_MIN)
    calls = []

    def prepare(found: object) -> object:
        calls.append(found)
        from snapkv.engine.contract import Txn

        return Txn(success=tuple(Put(b"%06d" % i, b"v" * 50) for i in range(50_000)))

    engine.transact(prepare, b"a", timeout=20)  # type: ignore[arg-type]
    assert calls == [None], "growing does not call `prepare` again"
    assert head(engine) == 2
    assert len(keys(engine)) == 50_000


def test_a_map_below_the_least_is_refused(path: Path) -> None:
    with pytest.raises(InvalidOptionError):
        LmdbEngine(path, map_bytes=MAP_BYTES_MIN - 1)


def test_readers_and_watchers_of_this_process_live_through_growth(opened: Opened) -> None:
    engine = opened(map_bytes=MAP_BYTES_MIN)
    run_txn(engine, *(Put(b"r%05d" % i, b"v") for i in range(200)))
    at, stop, errors, rounds = head(engine), threading.Event(), [], [0]
    watcher = engine.watch(b"w", b"", start_revision=at + 1)

    def read() -> None:
        try:
            while not stop.is_set():
                pages = list(engine.scan(b"r", b"s", revision=at))
                assert sum(map(len, pages)) == 200
                rounds[0] += 1
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(60):
        put(engine, b"w", b"%d" % i + b"x" * 20_000)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert rounds[0] > 0
    seen = [batch for _ in range(60) if (batch := watcher.next(5)) is not None]
    assert [int(b.events[0].kv.value.rstrip(b"x")) for b in seen] == list(range(60))


GROWER = """
engine = LmdbEngine(path, map_bytes=65_536)
for i in range(150):
    put(engine, args[0].encode() + b"%d" % i, b"x" * 3_000)
    assert get(engine, args[0].encode() + b"%d" % i) is not None
assert engine.check() == []
"""


def test_two_processes_make_it_grow(opened: Opened, path: Path) -> None:
    engine = opened(map_bytes=MAP_BYTES_MIN)
    with Child(GROWER, path, "a") as first, Child(GROWER, path, "b") as second:
        for i in range(50):
            put(engine, b"c%d" % i, b"x" * 3_000)
        first.end()
        second.end()
    assert len(keys(engine)) == 350
    assert head(engine) == 351


def test_a_reader_adopts_what_another_process_made(opened: Opened, path: Path) -> None:
    engine = opened(map_bytes=MAP_BYTES_MIN)
    put(engine, b"mine")
    watcher = engine.watch(FIRST, ALL, start_revision=3)
    run(GROWER, path, "a")
    assert len(keys(engine)) == 151
    assert [watcher.next(5).revision for _ in range(150)] == list(range(3, 153))  # type: ignore[union-attr]
    put(engine, b"mine", b"2")
    assert int(engine.info()["map_bytes"]) > MAP_BYTES_MIN


def test_the_map_size_is_kept_when_reopened(opened: Opened) -> None:
    engine = opened(map_bytes=MAP_BYTES_MIN)
    put(engine, b"big", b"x" * 1_000_000)
    size = int(engine.info()["map_bytes"])
    engine.close()
    again = opened(map_bytes=MAP_BYTES_MIN)
    assert int(again.info()["map_bytes"]) >= size // 2
    assert len(get(again, b"big") or b"") == 1_000_000
