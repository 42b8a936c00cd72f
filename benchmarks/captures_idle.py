"""What do captures use while their tables are idle?"""

from __future__ import annotations

import time

from benchmarks.captures import (
    Fleet,
    cpu_s,
    loopback_bytes,
    memory_mb,
    own_network,
    places,
    port_bytes,
    table_names,
    write,
)
from benchmarks.harness import show

TABLES = 10_000
SECONDS = 30.0
SETTLE_S = 12.0
"""Longer than the pause between two heartbeats that list all tables."""
TTL_S = 10.0
"""As captures have it by default."""
LABELS = ("c1", "c2", "c3")
ENGINES = ("lmdb", "etcd")
CPU_GOAL, BYTES_GOAL = 0.05, 50_000

Row = dict[str, float | str]


def main(tables: int = TABLES, seconds: float = SECONDS) -> None:
    """Measure three captures without a changefeed, then with idle tables, on each engine."""
    found = {}
    with own_network() as is_own:
        for number, engine in enumerate(ENGINES):
            show(number, len(ENGINES))
            found[f"{engine}, {len(LABELS)} captures"] = _engine(engine, tables, seconds)
    whose = "one of this benchmark alone" if is_own else "that of the machine, with all programs"
    notes = (
        f"CPU of one core and memory (RSS) of each capture over {seconds:g} s, of processes that "
        "`cdcmeta capture` starts with its defaults. First without a changefeed, for half as long: "
        f"that is the floor. Then with one of {tables:,} tables, {SETTLE_S:g} s after all of them "
        "have replicated a row and a checkpoint has all. Nothing is committed meanwhile, "
        "but for what captures themselves do: renewals of sessions. Bytes are those that the "
        f"loopback device sent, {whose}, with headers; etcd's are those of its connections as `ss` "
        "counts them; "
        "the rest is at most what captures send to each other. The sink is a function. Goals: less "
        f"than {CPU_GOAL:.0%} of a core for each capture, less than {BYTES_GOAL / 1_000:g} kB/s."
    )
    write("captures_idle", "What do captures use while their tables are idle?", found, notes)


def _engine(engine: str, count: int, seconds: float) -> dict[str, Row]:
    tables = table_names(count)
    with places(engine) as where, Fleet(where, TTL_S) as fleet:
        fleet.start(*LABELS)
        time.sleep(3)
        rows = {"without a changefeed (floor)": _used(fleet, seconds / 2)}
        began = time.monotonic()
        fleet.create("call:arrived", tables)
        fleet.until_placed(count)
        fleet.until_quiet()
        placed_s = time.monotonic() - began
        for at in range(0, count, 1_000):
            fleet.source.multi_save({f"{table}first": b"" for table in tables[at : at + 1_000]})
        fleet.until_quiet()
        time.sleep(SETTLE_S)
        rows[f"{count:,} idle tables"] = _used(fleet, seconds)
        rows[f"{count:,} idle tables"]["placed in, s"] = round(placed_s, 1)
    return rows


def _used(fleet: Fleet, seconds: float) -> Row:
    """Return what captures use, the one that leads first."""
    leader = fleet.leader()
    labels = sorted(LABELS, key=lambda label: (label != leader, label))
    pids = [fleet.processes[label].pid for label in labels]
    bytes_before, began = _bytes(fleet), time.monotonic()
    before = [cpu_s(pid) for pid in pids]
    time.sleep(seconds)
    after, took = [cpu_s(pid) for pid in pids], time.monotonic() - began
    sent, of_node = (b - a for a, b in zip(bytes_before, _bytes(fleet), strict=True))
    cpu = [(b - a) / took for a, b in zip(before, after, strict=True)]
    kept = max(cpu) < CPU_GOAL, (sent - of_node) / took < BYTES_GOAL
    return {
        "CPU, the one that leads": f"{cpu[0]:.1%}",
        "CPU, the rest": ", ".join(f"{each:.1%}" for each in cpu[1:]),
        "memory, MB, the one that leads": round(memory_mb(pids[0])),
        "memory, MB, the rest": ", ".join(f"{memory_mb(pid):.0f}" for pid in pids[1:]),
        "kB/s between captures, at most": round((sent - of_node) / took / 1_000, 1),
        "kB/s to and from etcd": round(of_node / took / 1_000, 1),
        "goals: CPU, bytes": ", ".join("met" if each else "missed" for each in kept),
    }


def _bytes(fleet: Fleet) -> tuple[int, int]:
    """Return what the loopback device has sent, and how much of it to and from etcd."""
    port = fleet.where.records.removeprefix("etcd://").rpartition(":")[2]
    return loopback_bytes(), port_bytes(int(port)) if port.isdigit() else 0


if __name__ == "__main__":
    main()
