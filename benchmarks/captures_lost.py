"""How long does a table wait after its capture was killed?"""

from __future__ import annotations

import time
from contextlib import nullcontext

from benchmarks.captures import (
    SINK,
    TTL_S,
    Fleet,
    arrivals,
    first_arrivals,
    places,
    spread,
    table_names,
    until,
    write,
)
from benchmarks.captures_watching import Watching
from benchmarks.harness import show

TABLES = 1_000
GRACE_S = 1.0
GOAL_S = 2.0
LABELS = ("c1", "c2", "c3")
CASES = (("lmdb", "a function"), ("lmdb", "a store"), ("etcd", "a function"), ("etcd", "a store"))


def main(tables: int = TABLES) -> None:
    """Kill a capture that does not lead, then the one that leads; for each engine and sink."""
    found = {}
    for number, (engine, sink) in enumerate(CASES):
        show(number, len(CASES))
        found[f"{engine}, the sink is {sink}"] = _case(engine, sink, tables)
    notes = (
        f"{tables:,} tables on {len(LABELS)} captures with a time to live of {TTL_S:g} s. A capture"
        " is killed with -9, and at once one commit writes a row to each of its tables. Seconds of "
        "the median, p99 and last of these rows, from the moment at which the session is missing "
        f"in `sessions()` (read each 10 ms) and the grace of {GRACE_S:g} s: that is the floor, 0. "
        "A negative time is a row before that. The capture that leads is killed second: the last "
        f"one gets half of all tables then. The goal is {GOAL_S:g} s. etcd is one node with fsync, "
        "which has records, source and sink; on lmdb they are three stores."
    )
    write("captures_lost", "How long does a table wait after its capture was killed?", found, notes)


def _case(engine: str, sink: str, count: int) -> dict[str, dict[str, float | str]]:
    tables, rows = table_names(count), {}
    with places(engine) as where, Fleet(where) as fleet:
        is_store = sink == "a store"
        fleet.start(*LABELS)
        began = time.monotonic()
        fleet.create(where.sink if is_store else "call:arrived", tables)
        fleet.source.multi_save({f"{table}first": b"" for table in tables})
        fleet.until_placed(count)
        fleet.until_quiet()
        placed_s = round(time.monotonic() - began, 1)
        others = [label for label in LABELS if label != fleet.leader()]
        for label, what in ((others[0], "does not lead"), (str(fleet.leader()), "leads")):
            with Watching("watch", where.sink, SINK) if is_store else nullcontext() as watching:
                row = _killed(fleet, label, what.replace(" ", "-"), watching)
            rows[f"a capture that {what}"] = {**row, "placed at first, s": placed_s}
    return rows


def _killed(
    fleet: Fleet, label: str, key: str, watching: Watching | None
) -> dict[str, float | str]:
    """Kill a capture, and return how long its tables waited."""
    fleet.until_quiet()
    lost = fleet.tables_of(label)
    killed = time.monotonic()
    session = fleet.kill(label)
    wanted = {f"{table}{key}" for table in lost}
    fleet.source.multi_save(dict.fromkeys(wanted, b""))
    until(
        lambda: session not in {each.id for each in fleet.store.sessions()}, "its end", pause=0.01
    )
    ended = time.monotonic()
    if watching is not None:
        for each in wanted:
            watching.until(each)
        first = watching.end()
    else:
        until(lambda: wanted <= first_arrivals(arrivals(fleet.arrived)).keys(), "rows", pause=0.1)
        first = first_arrivals(arrivals(fleet.arrived))
    since = (ended + GRACE_S) * 1e9
    waits = spread([(first[each] - since) / 1e9 for each in wanted])
    return {
        "tables": len(lost),
        "killed until its session ended, s": round(ended - killed, 2),
        **{f"{name}, s": value for name, value in waits.items()},
        "goal": "met" if waits["largest"] <= GOAL_S else "missed",
    }


if __name__ == "__main__":
    main()
