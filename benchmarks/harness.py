"""Run rivals in turn, and write what came out."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Rival:
    """One contestant: `run(i)` does the i-th operation; equal i means equal work for all."""

    name: str
    run: Callable[[int], object]


@dataclass(frozen=True)
class Row:
    """What one rival took, per operation; `ratio` is the median over rounds of self / floor."""

    rival: str
    median_us: float
    p99_us: float
    ratio: float


def measure(rivals: Sequence[Rival], *, rounds: int, block: int = 1, warmup: int = 3) -> list[Row]:
    """Time rivals in interleaved rounds of `block` operations; the first is the floor."""
    times: dict[str, list[float]] = {rival.name: [] for rival in rivals}
    for round_ in range(-warmup, rounds):
        show(round_ + warmup, rounds + warmup)
        for rival in rivals if round_ % 2 else list(reversed(rivals)):
            first, run = (round_ + warmup) * block, rival.run
            started = time.perf_counter_ns()
            for i in range(first, first + block):
                run(i)
            if round_ >= 0:
                times[rival.name].append((time.perf_counter_ns() - started) / block / 1_000)
    floor = times[rivals[0].name]
    return [
        Row(
            rival.name,
            round(statistics.median(times[rival.name]), 3),
            round(quantile(times[rival.name], 0.99), 3),
            round(
                statistics.median(a / b for a, b in zip(times[rival.name], floor, strict=True)), 2
            ),
        )
        for rival in rivals
    ]


def measure_threads(
    rivals: Sequence[tuple[str, Callable[[int], object]]], *, threads: int, each: int, rounds: int
) -> list[Row]:
    """Time bursts of `each` operations in each of some threads at once, per operation."""

    def bursts(do: Callable[[int], object]) -> Callable[[int], object]:
        def run(i: int) -> None:
            if i % each:  # one block is one burst of all threads
                return
            burst = [
                threading.Thread(target=lambda t=t: [do(t * 10**6 + i + j) for j in range(each)])
                for t in range(threads)
            ]
            for thread in burst:
                thread.start()
            for thread in burst:
                thread.join()

        return run

    rows = measure([Rival(name, bursts(do)) for name, do in rivals], rounds=rounds, block=each)
    return [
        Row(r.rival, round(r.median_us / threads, 3), round(r.p99_us / threads, 3), r.ratio)
        for r in rows
    ]


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
    }


def report(name: str, question: str, tables: dict[str, list[Row]], notes: str = "") -> None:
    """Print the tables, and write them to `results/NAME.json` and `.md`."""
    RESULTS.mkdir(exist_ok=True)
    facts = machine()
    lines = [f"# {question}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    for title, rows in tables.items():
        lines += [f"## {title}", "", "| | median us | p99 us | x floor |", "|---|---|---|---|"]
        lines += [f"| {r.rival} | {r.median_us:,} | {r.p99_us:,} | {r.ratio} |" for r in rows]
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


def seeded(name: str) -> random.Random:
    """Return the random source of a benchmark: the same workload in every run."""
    return random.Random(f"snapkv/{name}")
