"""How do processes that all save in tight loops get on, beside as many that send bare puts?"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Row, median_ratio, quantile, report, show
from benchmarks.servers import etcd_server, server_facts

ROOT = Path(__file__).parents[1]
PROCESSES, ROUNDS, ROUND_S = (1, 4, 16), 6, 1.5
APART_MS = 50
ANSWER_S = 120.0
KINDS = {
    "bare": "bare puts (floor)",
    "snapkv": "snapkv saves",
    "apart": f"snapkv saves, clocks {APART_MS} ms apart",
}

_WORKER = """
import json, sys, time
url, endpoint, kind, number, apart_ms = sys.argv[1:]
if kind == "bare":
    from benchmarks.servers import Bare
    bare = Bare(endpoint)
    save = lambda i: bare.put(b"p%s/%d" % (number.encode(), i), bytes(100))
else:
    import snapkv
    class Ahead(snapkv.SystemClock):
        def now_ms(self):
            return super().now_ms() + int(apart_ms) * (int(number) % 2)
    clock = Ahead() if kind == "apart" else None
    store = snapkv.open(url, name=kind, clock=clock, commit_timeout=60)
    save = lambda i: store.save(f"p{number}/{i}", bytes(100))
save(0)
print("ready", flush=True)
i = 1
for line in sys.stdin:
    took, cpu, until = [], time.process_time(), time.perf_counter() + float(line)
    while (began := time.perf_counter()) < until:
        save(i)
        took.append(round((time.perf_counter() - began) * 1e6))
        i += 1
    print(json.dumps([time.process_time() - cpu, took]), flush=True)
"""


@dataclass
class Found:
    """What the rounds of one kind came to."""

    took_us: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    rates: list[float] = field(default_factory=list)
    evenness: list[float] = field(default_factory=list)
    """Saves of the slowest process by those of the fastest, a round."""

    def add(self, answers: list[tuple[float, list[int]]]) -> None:
        """Take in a round: CPU seconds and the times of each process."""
        saves = [len(took) for _, took in answers]
        self.rates.append(max(sum(saves), 1) / ROUND_S)
        self.evenness.append(min(saves) / max(*saves, 1))
        self.cpu_s += sum(cpu for cpu, _ in answers)
        self.took_us += [each for _, took in answers for each in took]

    def __str__(self) -> str:
        tail = quantile(self.took_us, 0.99) / statistics.fmean(self.took_us)
        rate, even = statistics.median(self.rates), statistics.median(self.evenness)
        return f"{rate:,.0f}/s, slowest by fastest process {even:.2f}, p99 by mean {tail:.1f}"


def main() -> None:
    """Let 1, 4 and 16 processes of each kind save, a kind at a time, in rounds."""
    tables, notes = {}, []
    for processes in PROCESSES:
        with etcd_server() as server:
            found = _rounds(server.url, server.endpoint, processes)
        what = "process" if processes == 1 else "processes"
        tables[f"{processes} {what}, one thread each, as fast as they can"] = _rows(found)
        notes += [f"{processes} {what}, {KINDS[kind]}: {found[kind]}." for kind in found]
    facts = (
        f"{server_facts()} Times are those of one save in its process; `x floor` is the floor's "
        "commits per second by the rival's, in the same round. The kinds take turns of "
        f"{ROUND_S} s; who does not save waits. With clocks apart every second process is ahead by "
        f"{APART_MS} ms. Processes contend for the timestamp key; who loses a round tries again. "
    )
    report(
        "etcd_processes", "How do processes that all save get on?", tables, facts + " ".join(notes)
    )


def _rounds(url: str, endpoint: str, count: int) -> dict[str, Found]:
    found = {kind: Found() for kind in KINDS if count > 1 or kind != "apart"}
    with ExitStack() as stack:
        crowds = {
            kind: [
                stack.enter_context(_worker(url, endpoint, kind, number)) for number in range(count)
            ]
            for kind in found
        }
        for workers in crowds.values():
            for worker in workers:
                assert _line(worker) == "ready\n"
        for round_ in range(-1, ROUNDS):
            show(round_ + 1, ROUNDS + 1)
            for kind in found if round_ % 2 else reversed(found):
                answers = _saved(crowds[kind])
                if round_ >= 0:
                    found[kind].add(answers)
    return found


@contextmanager
def _worker(url: str, endpoint: str, kind: str, number: int) -> Iterator[subprocess.Popen[str]]:
    words = (url, endpoint, kind, str(number), str(APART_MS))
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield worker
    finally:
        try:
            worker.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.communicate()


def _line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline()


def _saved(workers: list[subprocess.Popen[str]]) -> list[tuple[float, list[int]]]:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{ROUND_S}\n")
        worker.stdin.flush()
    return [tuple(json.loads(_line(worker))) for worker in workers]  # type: ignore[misc]


def _rows(found: dict[str, Found]) -> list[Row]:
    floor = found["bare"]
    floor_cpu_us = floor.cpu_s * 1e6 / len(floor.took_us)
    rows = []
    for kind, each in found.items():
        cpu_us = each.cpu_s * 1e6 / len(each.took_us)
        rows.append(
            Row(
                KINDS[kind],
                quantile(each.took_us, 0.5),
                quantile(each.took_us, 0.99),
                median_ratio(floor.rates, each.rates),
                round(cpu_us, 1),
                round(cpu_us / floor_cpu_us, 2),
            )
        )
    return rows
