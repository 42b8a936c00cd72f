"""How fast does a changefeed copy a history, beside a loop that copies it by hand?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import lmdb

import snapkv
from benchmarks.captures import SOURCE, Fleet, places, table_names, until, write
from benchmarks.harness import median_ratio, show
from benchmarks.servers import Bare, batched
from cdcmeta.scheduler.executors.json_lines_sink import file_name
from cdcmeta.scheduler.executors.recorded_sink import store_name
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.errors import StoreNotFoundError

COMMITS = {"lmdb": 20_000, "etcd": 10_000}
VALUE = bytes(100)
TABLES = 100
BATCH, ETCD_BATCH = 256, 128
"""What a changefeed writes at once at most, and what etcd takes at once."""
ROUNDS = 3
PAUSE_S = 0.005
GOAL = 0.5


class Times(NamedTuple):
    """`monotonic()` of the beginning, of the first row and of the last."""

    began: float
    first: float
    last: float


def main(scale: float = 1.0) -> None:
    """Copy the same history by hand and by changefeeds, on lmdb and on etcd."""
    found = {}
    for number, (engine, commits) in enumerate(COMMITS.items()):
        show(number, len(COMMITS))
        count = round(commits * scale)
        title = f"{engine} to {engine}, {count:,} commits"
        found[title] = _engine(engine, count)
    notes = (
        f"Each commit saves one value of {len(VALUE)} bytes. The floor reads the commits in a "
        "watch, and writes each with py-lmdb or gRPC's own client in a durable transaction of its "
        "own, without timestamps and checkpoints: ten lines that begin again after a crash. The "
        f"same loop with {BATCH} commits a transaction (on etcd {ETCD_BATCH}, its limit) is a "
        "rival: a changefeed into a store writes up to as many in one commit, of which each key's "
        "last value remains. Seconds from the creation of the changefeed until its sink has the "
        "last commit, with the creation itself, opening and placing; the rate after the start is "
        "that from the first row to the last. One capture, which runs when the changefeed is "
        f"created. Rows are looked for each {PAUSE_S * 1_000:.0f} ms in another process. The goal "
        f"of a changefeed into a store is {GOAL} of the floor. Medians of {ROUNDS} "
        "rounds; `x floor` is the median of the rate by the floor's in the same round. On etcd "
        "source and sink are nodes of their own, with fsync."
    )
    write("captures_mirror", "How fast does a changefeed copy a history?", found, notes)


def _engine(engine: str, count: int) -> dict[str, dict[str, float | str]]:
    found: dict[str, list[Times]] = {}
    with places(engine, sink_node=True) as where, Fleet(where) as fleet:
        start = _fill(fleet.source, count)
        fleet.start("c1")
        for round_ in range(ROUNDS):
            show(round_, ROUNDS)
            for name, times in _round(engine, fleet, start, count, round_):
                found.setdefault(name, []).append(times)
    floors = next(iter(found.values()))
    return {name: _row(each, floors, count) for name, each in found.items()}


def _round(
    engine: str, fleet: Fleet, start: int, count: int, round_: int
) -> Iterator[tuple[str, Times]]:
    copy, many = (_by_lmdb, BATCH) if engine == "lmdb" else (_by_etcd, ETCD_BATCH)
    for name, size in (("a loop (floor)", 1), (f"a loop, {many} at once", many)):
        target = f"{fleet.where.folder}/raw-{round_}-{size}"
        yield name, copy(fleet, start, target, size, count)
    folder, store = fleet.where.folder, fleet.where.sink
    for number, (name, sink, tables) in enumerate(
        (
            ("a changefeed into a store", store, ["t"]),
            (f"the same with {TABLES} tables", store, table_names(TABLES)),
            ("a changefeed into jsonl", f"jsonl:{folder}/lines-{round_}", ["t"]),
            ("a changefeed into a record on lmdb", f"record+lmdb:{folder}/copy", ["t"]),
        )
    ):
        yield name, _mirrored(fleet, sink, tables, start, f"s{round_}-{number}", count)


def _row(found: list[Times], floors: list[Times], count: int) -> dict[str, float | str]:
    whole = [each.last - each.began for each in found]
    after = [max(each.last - each.first, 1e-3) for each in found]
    return {
        "s": round(median(whole), 2),
        "until the first row, s": round(median(each.first - each.began for each in found), 2),
        "commits/s": round(count / median(whole)),
        "x floor": median_ratio([each.last - each.began for each in floors], whole),
        "commits/s after the start": round(count / median(after)),
        "x floor, after the start": median_ratio([e.last - e.first for e in floors], after),
    }


def _key(number: int) -> str:
    return f"t{number % TABLES}/{number}"


def _fill(source: snapkv.SnapshotKV, count: int) -> int:
    """Commit the history in one thread: several would share commits; return the time before it."""
    start = source.tick().ts
    for number in range(count):
        source.save(_key(number), VALUE)
    return start


# --- by hand ---


def _by_lmdb(fleet: Fleet, start: int, target: str, size: int, count: int) -> Times:
    with closing(lmdb.open(target, map_size=1 << 30)) as env:
        began, first = time.monotonic(), 0.0
        with fleet.source.watch(since=start) as watch:
            for commits in batched(islice(watch, count), size):
                with env.begin(write=True) as txn:
                    for each in chain.from_iterable(commits):
                        txn.put(f"{target}/{each.key}".encode(), each.value or b"")
                first = first or time.monotonic()
        return Times(began, first, time.monotonic())


def _by_etcd(fleet: Fleet, start: int, target: str, size: int, count: int) -> Times:
    with closing(Bare(fleet.where.sink.removeprefix("etcd://"))) as bare:
        began, first = time.monotonic(), 0.0
        with fleet.source.watch(since=start) as watch:
            for commits in batched(islice(watch, count), size):
                pairs = [
                    (f"{target}/{each.key}".encode(), each.value or b"")
                    for each in chain.from_iterable(commits)
                ]
                if size == 1:
                    bare.put(*pairs[0])
                else:
                    puts = [pb.PutRequest(key=key, value=value) for key, value in pairs]
                    ops = [pb.RequestOp(request_put=put) for put in puts]
                    bare.txn(pb.TxnRequest(success=ops))
                first = first or time.monotonic()
        return Times(began, first, time.monotonic())


# --- by a changefeed ---


def _mirrored(
    fleet: Fleet, sink: str, tables: list[str], start: int, name: str, count: int
) -> Times:
    """Create a changefeed, and wait until its sink has the last commit of each table."""
    last = [_key(number) for number in range(count - len(tables), count)]
    with ExitStack() as stack:
        has = _has(sink, name, stack)
        began = time.monotonic()
        fleet.feeds.create(
            name, fleet.where.source, sink, tables, start=start, source_name=SOURCE, sink_name=name
        )
        until(lambda: has(_key(0)), "the first row", pause=PAUSE_S)
        first = time.monotonic()
        for key in last:
            until(partial(has, key), f"{key} in {sink}", pause=PAUSE_S)
        ended = time.monotonic()
    fleet.feeds.remove(name)
    return Times(began, first, ended)


def _has(sink: str, name: str, stack: ExitStack) -> Callable[[str], bool]:
    """Return a function that looks for a key in a sink."""
    if sink.startswith("jsonl:"):
        return partial(_is_line, Path(sink.removeprefix("jsonl:")) / file_name("t"))
    found: list[snapkv.SnapshotKV] = []

    def is_key(key: str) -> bool:
        try:
            if not found:
                url = sink.removeprefix("record+")
                store = store_name(name, "t") if sink.startswith("record+") else name
                found.append(stack.enter_context(snapkv.open(url, name=store, create=False)))
            found[0].load(key)
        except (StoreNotFoundError, snapkv.KeyNotFoundError):
            return False
        return True

    return is_key


def _is_line(path: Path, key: str) -> bool:
    """Return whether a key is near the end of a file of lines; the first, if there is a line."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4_096))
        return size > 0 if key == _key(0) else f'"{key}"'.encode() in file.read()


if __name__ == "__main__":
    main()
