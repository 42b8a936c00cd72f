"""How long does a table wait while captures are restarted one after another?"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import snapkv
from benchmarks.captures import (
    TTL_S,
    WAIT_S,
    Fleet,
    arrivals,
    first_arrivals,
    places,
    spread,
    table_names,
    until,
    write,
)
from benchmarks.harness import show

TABLES = 300
EVERY_S = 0.1
STEADY_S, AFTER_S = 15.0, 5.0
LABELS = ("c1", "c2", "c3")
ENGINES = ("lmdb", "etcd")
GOAL_S = 2.0

Row = dict[str, float | str]


def main(tables: int = TABLES) -> None:
    """Restart three captures under a steady load, on each engine."""
    found = {}
    for number, engine in enumerate(ENGINES):
        show(number, len(ENGINES))
        found[engine] = _engine(engine, tables)
    notes = (
        f"{tables} tables on {len(LABELS)} captures (time to live {TTL_S:g} s). Each "
        f"{EVERY_S * 1_000:g} ms one commit writes a row to each table. The pause of a table is "
        "the longest time between the arrivals of two of its rows; a row that is repeated counts "
        "once, at its first arrival. Seconds of the median, p99 and largest over all tables. The "
        f"floor is the same load for {STEADY_S:g} s before. Then each capture in turn gets SIGTERM "
        "and, when it has ended, is started again; the next one follows as soon as that one is "
        "registered, as `ends, s` shows. No row is missing at the end. The sink is a function that "
        f"notes the time in a file. The goal is a p99 below {GOAL_S:g} s. etcd is one node with "
        "fsync, which has records and source."
    )
    question = "How long does a table wait while captures are restarted one after another?"
    write("captures_restart", question, found, notes)


class Load:
    """Commits a row to each table, each row with the commit's number, until it is stopped."""

    def __init__(self, source: snapkv.SnapshotKV, tables: list[str]) -> None:
        self._source, self._tables = source, tables
        self.committed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, after the commit under way."""
        self._stop.set()
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            number = self.committed
            self._source.multi_save({f"{table}{number}": b"" for table in self._tables})
            self.committed = number + 1
            due = max(due + EVERY_S, time.monotonic())


class Restart(NamedTuple):
    """The time that a capture took to end, and to be registered again."""

    ended_s: float
    began_s: float


def _engine(engine: str, count: int) -> dict[str, Row]:
    tables = table_names(count)
    with places(engine) as where, Fleet(where) as fleet:
        fleet.start(*LABELS)
        fleet.create("call:arrived", tables)
        fleet.until_placed(count)
        fleet.until_quiet()
        load = Load(fleet.source, tables)
        time.sleep(STEADY_S)
        steady = load.committed
        began = time.monotonic()
        restarts = [_restarted(fleet, label) for label in LABELS]
        time.sleep(AFTER_S)
        load.stop()
        took_s, committed = time.monotonic() - began, load.committed
        wanted = {f"{table}{committed - 1}" for table in tables}
        until(lambda: wanted <= _arrived(fleet).keys(), "the last rows", pause=0.5)
        first = _arrived(fleet)
    missing = committed * count - len(first)
    if missing:
        raise AssertionError(f"{missing} rows are missing")
    floor = _row(first, tables, range(steady), STEADY_S)
    row = _row(first, tables, range(steady, committed), took_s)
    row["ends, s"] = ", ".join(f"{each.ended_s:.1f}" for each in restarts)
    row["registers, s"] = ", ".join(f"{each.began_s:.1f}" for each in restarts)
    row["goal"] = "met" if float(row["p99, s"]) < GOAL_S else "missed"
    return {"no restart (floor)": floor, "three restarts": row}


def _arrived(fleet: Fleet) -> dict[str, int]:
    return first_arrivals(arrivals(fleet.arrived))


def _restarted(fleet: Fleet, label: str) -> Restart:
    began = time.monotonic()
    fleet.end(label)
    ended = time.monotonic()
    fleet.start(label)
    return Restart(ended - began, time.monotonic() - ended)


def _row(first: Mapping[str, int], tables: list[str], numbers: range, took_s: float) -> Row:
    pauses = []
    for table in tables:
        times = sorted(first[f"{table}{number}"] for number in numbers)
        pauses.append(max(b - a for a, b in pairwise(times)) / 1e9)
    found: Row = {f"{name}, s": value for name, value in spread(pauses).items()}
    return {**found, "commits/s": round(len(numbers) / took_s, 1)}


if __name__ == "__main__":
    main()
