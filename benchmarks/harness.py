"""Run rivals in turn, and write what came out.

All rivals of a table run in one process, in rounds: each round gives every rival one block of
operations, and the order turns round with every round. A ratio is the median, over the rounds, of
a rival's time by the floor's time in the same round; so what slows the machine for a while slows
both. CPU time is that of this whole process, its background threads included, but no server's.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Rival:
    """One contestant: `run(i)` does the i-th operation; equal i means equal work for all."""

    name: str
    run: Callable[[int], object]


@dataclass(frozen=True)
class Row:
    """What one rival took, per operation; ratios are medians over rounds of self / floor.

    Times are those of blocks, divided by their operations. CPU time is None where the work is done
    in other processes.
    """

    rival: str
    median_us: float
    p99_us: float
    ratio: float
    cpu_us: float | None = None
    cpu_ratio: float | None = None

    def per(self, operations: int) -> Row:
        """Return the same of an operation that was one of several."""
        cpu_us = None if self.cpu_us is None else round(self.cpu_us / operations, 3)
        return replace(
            self,
            median_us=round(self.median_us / operations, 3),
            p99_us=round(self.p99_us / operations, 3),
            cpu_us=cpu_us,
        )


class Times(NamedTuple):
    """Microseconds per operation of one rival, one number a round; `cpu` may be empty."""

    wall: list[float]
    cpu: list[float]


def measure(
    rivals: Sequence[Rival], *, rounds: int, block: int = 1, warmup: int = 3, cpu: bool = True
) -> list[Row]:
    """Time rivals in interleaved rounds of `block` operations; the first is the floor.

    `cpu=False` where other processes do the work, so that this one's CPU time means nothing.
    """
    times = {rival.name: Times([], []) for rival in rivals}
    for round_ in range(-warmup, rounds):
        show(round_ + warmup, rounds + warmup)
        for rival in rivals if round_ % 2 else list(reversed(rivals)):
            first, run = (round_ + warmup) * block, rival.run
            cpu_started, started = time.process_time_ns(), time.perf_counter_ns()
            for i in range(first, first + block):
                run(i)
            ended, cpu_ended = time.perf_counter_ns(), time.process_time_ns()
            if round_ < 0:
                continue
            times[rival.name].wall.append((ended - started) / block / 1_000)
            if cpu:
                times[rival.name].cpu.append((cpu_ended - cpu_started) / block / 1_000)
    return rows_of(times)


def rows_of(times: Mapping[str, Times]) -> list[Row]:
    """Return a table of what was timed in the same rounds; the first rival is the floor."""
    floor = next(iter(times.values()))
    return [
        Row(
            name,
            round(statistics.median(each.wall), 3),
            round(quantile(each.wall, 0.99), 3),
            median_ratio(each.wall, floor.wall),
            round(statistics.median(each.cpu), 3) if each.cpu else None,
            median_ratio(each.cpu, floor.cpu) if each.cpu and min(floor.cpu) > 0 else None,
        )
        for name, each in times.items()
    ]


def median_ratio(ours: Sequence[float], floor: Sequence[float]) -> float:
    """Return the median over rounds of one by the other."""
    return round(statistics.median(a / b for a, b in zip(ours, floor, strict=True)), 2)


def measure_threads(
    rivals: Sequence[tuple[str, Callable[[int], object]]], *, threads: int, each: int, rounds: int
) -> list[Row]:
    """Time bursts of `each` operations in each of some threads at once, per operation."""

    def bursts(do: Callable[[int], object]) -> Callable[[int], object]:
        def run(i: int) -> None:
            if i % each:  # one block is one burst of all threads
                return
            together(
                [
                    lambda t=t: [do(t * 10**6 + i + j) for j in range(each)]  # type: ignore[misc]
                    for t in range(threads)
                ]
            )

        return run

    rows = measure([Rival(name, bursts(do)) for name, do in rivals], rounds=rounds, block=each)
    return [row.per(threads) for row in rows]


def together(actions: Sequence[Callable[[], object]]) -> None:
    """Run each action in a thread of its own, all at once; return when the last has ended."""
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def quantile(values: Sequence[float], q: float) -> float:
    """Return the value at a quantile, of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def show(done: int, of: int) -> None:
    """Draw how far a measurement is, on a terminal only."""
    if sys.stderr.isatty():
        width = 40 * (done + 1) // of
        end = "\n" if done + 1 == of else ""
        print(f"\r[{'#' * width:<40}] {done + 1}/{of}", end=end, file=sys.stderr, flush=True)


def machine() -> dict[str, object]:
    """Describe what this runs on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "lmdb": version("lmdb"),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def report(name: str, question: str, tables: dict[str, list[Row]], notes: str = "") -> None:
    """Print the tables, and write them to `results/NAME.json` and `.md`."""
    RESULTS.mkdir(exist_ok=True)
    facts = machine()
    lines = [f"# {question}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    for title, rows in tables.items():
        head = "| | median us | p99 us | CPU us | x floor | x floor, CPU |"
        lines += [f"## {title}", "", head, "|---|---|---|---|---|---|"]
        lines += [line_of(row) for row in rows]
        lines.append("")
    if notes:
        lines += [notes, ""]
    text = "\n".join(lines)
    print(text)
    (RESULTS / f"{name}.md").write_text(text)
    data = {
        "question": question,
        "machine": facts,
        "tables": {title: [asdict(row) for row in rows] for title, rows in tables.items()},
        "notes": notes,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def line_of(row: Row) -> str:
    """Return a row as a line of a Markdown table."""
    cpu = "" if row.cpu_us is None else f"{row.cpu_us:,}"
    cpu_ratio = "" if row.cpu_ratio is None else str(row.cpu_ratio)
    cells = (row.rival, f"{row.median_us:,}", f"{row.p99_us:,}", cpu, str(row.ratio), cpu_ratio)
    return f"| {' | '.join(cells)} |"


def seeded(name: str) -> random.Random:
    """Return the random source of a benchmark: the same workload in every run."""
    return random.Random(f"snapkv/{name}")
