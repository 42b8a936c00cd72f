"""How far behind true time is `resolved("all")` of 16 stores that tick every 100 ms?"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import snapkv
from benchmarks.harness import Row, Times, quantile, report, rows_of, seeded, show
from benchmarks.servers import etcd_server, server_facts
from snapkv.times import physical_ms

MEMBERS, EVERY_S, LOOKS = 16, 0.1, 300
ROOT = Path(__file__).parents[1]


def main() -> None:
    """Ask the stores one by one and as a fleet, on lmdb and on one etcd."""
    with tempfile.TemporaryDirectory() as folder:
        lmdb = [(f"lmdb:{folder}/{n}", "default") for n in range(MEMBERS)]
        tables = {"16 lmdb stores": _lags(lmdb)}
    with etcd_server(fsync=False) as server:
        tables["16 stores of one etcd"] = _lags([(server.url, f"s{n}") for n in range(MEMBERS)])
    notes = (
        "Another process ticks each store every 100 ms, each at a time of its own. Every 50 ms, in "
        "turn: the stores are asked one after the other, which gives the lag of the slowest "
        "member, and the fleet is asked. The lag is the wall clock after the answer less the "
        f"timestamp, in microseconds. {server_facts(fsync=False)}"
    )
    report("fleet_lag", "How far behind is the resolved time of a fleet?", tables, notes)


def _lags(places: Sequence[tuple[str, str]]) -> list[Row]:
    with ExitStack() as stack:
        stores = [stack.enter_context(snapkv.open(url, name=name)) for url, name in places]
        described = {f"m{n:02}": {"url": url, "name": name} for n, (url, name) in enumerate(places)}
        command = [sys.executable, "-m", "benchmarks.fleet_lag"]
        words = [word for place in places for word in place]
        ticking = stack.enter_context(
            subprocess.Popen([*command, *words], stdout=subprocess.PIPE, cwd=ROOT)
        )
        stack.callback(ticking.kill)
        assert ticking.stdout is not None
        ticking.stdout.readline()
        fleet = stack.enter_context(snapkv.fleet.open(described))

        def slowest() -> int:
            return min(store.resolved() for store in stores)

        def together() -> int:
            return fleet.resolved("all")

        times = {
            "the slowest member's own lag (floor)": Times([], []),
            'resolved("all")': Times([], []),
        }
        for look in range(LOOKS):
            show(look, LOOKS)
            turns = list(zip(times.values(), (slowest, together), strict=True))
            for found, ask in turns if look % 2 else reversed(turns):
                resolved = ask()
                found.wall.append((time.time() * 1_000 - physical_ms(resolved)) * 1_000)
            time.sleep(EVERY_S / 2)
        floor, ours = (found.wall for found in times.values())
        more = statistics.median(ours) - statistics.median(floor)
        print(f"{more / 1_000:.1f} ms more at the median,", end=" ")
        print(f"{(quantile(ours, 0.99) - quantile(floor, 0.99)) / 1_000:.1f} ms at p99")
        return rows_of(times)


def _tick(places: Sequence[tuple[str, str]]) -> None:
    """Tick each store every 100 ms, at regular times of its own, until the process is killed."""
    rng = seeded("fleet_lag")
    stores = [snapkv.open(url, name=name) for url, name in places]
    for store in stores:
        store.tick()
    began = time.monotonic()
    due = [(began + rng.random() * EVERY_S, n) for n in range(len(stores))]
    print("ready", flush=True)
    while True:
        at, n = min(due)
        time.sleep(max(0.0, at - time.monotonic()))
        stores[n].tick()
        due[n] = (at + EVERY_S, n)


if __name__ == "__main__":
    if sys.argv[1:]:
        _tick(list(zip(sys.argv[1::2], sys.argv[2::2], strict=True)))
    else:
        main()
