"""How long after a commit does its row reach a changefeed's sink?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.captures import (
    SINK,
    SOURCE,
    Fleet,
    Places,
    arrivals,
    first_arrivals,
    places,
    spread,
    table_names,
    until,
    write,
)
from benchmarks.captures_watching import Watching
from benchmarks.harness import seeded, show

COMMITS = 600
PAUSES_S = (0.02, 0.08)
TABLES = 10
ENGINES = ("lmdb", "etcd")
FACTOR_GOAL, MS_GOAL = 2.0, 20.0

STORE = "a changefeed into a store"

Times = dict[str, tuple[int, int]]
"""The nanoseconds at which the commit of each key began, and returned."""
Row = dict[str, float | str]


def main(commits: int = COMMITS) -> None:
    """Commit in turn, with two changefeeds of the same tables, and compare the times."""
    found = {}
    for number, engine in enumerate(ENGINES):
        show(number, len(ENGINES))
        found[engine] = _engine(engine, commits)
    notes = (
        f"{commits} commits of one value each, {PAUSES_S[0] * 1_000:g} to "
        f"{PAUSES_S[1] * 1_000:g} ms after another, to {TABLES} tables of two changefeeds on one "
        "capture: one calls a function, the other writes into a store. Watches run in processes "
        "of their own beside them, all for the same commits; a row of the store arrives when the "
        "watch of the sink returns it. Milliseconds from the return of `save` (a watch may be "
        "faster: then the time is negative) and from its call; CLOCK_MONOTONIC is common to all "
        "processes. The floor is the first watch of the source; on etcd one of gRPC's own client. "
        "On lmdb a watch finds commits of another process after pauses of up to 50 ms, which a row "
        "in a store meets twice; an eager watch is asked each 0.5 ms. The loop by hand writes what "
        "a watch returns with py-lmdb or gRPC's own client, and notes when that is durable. Source "
        "and sink are two stores on lmdb, and two names on one etcd node with fsync. The goal is a "
        f"median of at most {FACTOR_GOAL:g} times the floor's and under {MS_GOAL:g} ms."
    )
    question = "How long after a commit does its row reach a changefeed's sink?"
    write("captures_latency", question, found, notes)


def _engine(engine: str, commits: int) -> dict[str, Row]:
    tables = table_names(TABLES)
    with places(engine) as where, Fleet(where) as fleet, ExitStack() as stack:
        fleet.start("c1")
        fleet.create("call:arrived", tables)
        start = fleet.until_quiet()
        fleet.feeds.create(
            "store",
            where.source,
            where.sink,
            tables,
            start=start,
            source_name=SOURCE,
            sink_name=SINK,
        )
        watches = _watches(engine, where)
        running = {name: stack.enter_context(Watching(*words)) for name, words in watches.items()}
        first = {table: f"{table}first" for table in tables}
        for key in first.values():
            fleet.source.save(key, b"")
            running[STORE].until(key)
        times = _commit(fleet, commits)
        last = next(reversed(times))
        for each in running.values():
            each.until(last)
        until(lambda: last in first_arrivals(arrivals(fleet.arrived)), last, pause=0.1)
        found = {name: each.end() for name, each in running.items()}
        found["a changefeed into a function"] = first_arrivals(arrivals(fleet.arrived))
    rows = {name: _row(times, each) for name, each in found.items()}
    return _compared(rows)


def _watches(engine: str, where: Places) -> dict[str, tuple[str, ...]]:
    """Return the words of the processes that watch, the floor first."""
    source, sink = (where.source, SOURCE), (where.sink, SINK)
    if engine == "etcd":
        endpoint = where.source.removeprefix("etcd://")
        return {
            "a bare watch of the source": ("watch-raw", endpoint),
            "a watch of the source": ("watch", *source),
            "a loop by hand into a store": ("copy-raw", endpoint),
            STORE: ("watch", *sink),
        }
    return {
        "a watch of the source": ("watch", *source),
        "an eager watch of the source": ("watch-eagerly", *source),
        "a loop by hand into a store": ("copy", *source, f"{where.folder}/by-hand"),
        STORE: ("watch", *sink),
        f"{STORE}, watched eagerly": ("watch-eagerly", *sink),
    }


def _commit(fleet: Fleet, commits: int) -> Times:
    rng, times = seeded("captures_latency"), Times()
    for number in range(commits):
        key = f"t{rng.randrange(TABLES)}/{number}"
        began = time.monotonic_ns()
        fleet.source.save(key, b"%d" % number)
        times[key] = began, time.monotonic_ns()
        time.sleep(rng.uniform(*PAUSES_S))
    return times


def _row(times: Times, arrived: Mapping[str, int]) -> Row:
    after = {
        "from the return": [(arrived[key] - ended) / 1e6 for key, (_, ended) in times.items()],
        "from the call": [(arrived[key] - began) / 1e6 for key, (began, _) in times.items()],
    }
    return {
        f"{what}, {which}": value
        for what, values in after.items()
        for which, value in spread(values).items()
    }


def _compared(rows: dict[str, Row]) -> dict[str, Row]:
    floor = next(iter(rows))
    for name, row in rows.items():
        for what in ("return", "call"):
            ours, theirs = (float(each[f"from the {what}, median"]) for each in (row, rows[floor]))
            row[f"x floor, from the {what}"] = round(ours / theirs, 2)
            if name.startswith("a changefeed"):
                is_met = ours <= FACTOR_GOAL * theirs and ours < MS_GOAL
                row[f"goal, from the {what}"] = "met" if is_met else "missed"
    return {f"{floor} (floor)": rows.pop(floor), **rows}


if __name__ == "__main__":
    main()
