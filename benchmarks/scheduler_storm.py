"""How many messages does a start that takes long cost?

Beside the scheduler as it is, the one of the commit `BEFORE` is measured in the same run: its
package is taken out of this clone's history, and runs in a process of its own.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulated_captures import Durations, InProcessTransport, SimulatedExecutor

from benchmarks.harness import RESULTS, machine
from cdcmeta.scheduler import Agent, Cluster, Coordinator, Envelope, KnownOwner

BEFORE = "32fa41e"
"""The last commit that answers each report with a commit, and each commit with a report."""
ROOT = Path(__file__).parent.parent
TICK_US = 50_000
FOREVER_US = 10**12
SECONDS = (1, 5, 30)
MESSAGES_MAX = 10_000
"""Where a tick sends more, there is no going on."""


class Case(NamedTuple):
    """What is measured: tables whose start hangs, on a network that doubles some messages."""

    tables: int
    doubling: float

    def __str__(self) -> str:
        tables = "1 table" if self.tables == 1 else f"{self.tables} tables"
        return f"{tables}, {self.doubling:.0%} doubled" if self.doubling else tables


CASES = (Case(1, 0.0), Case(100, 0.0), Case(1, 0.05), Case(100, 0.05))


def storm(case: Case) -> dict[str, float]:
    """Return the messages a tick, owner and agent together, in the last second before each time.

    Only up to the first tick with too many: that one is told as it is.
    """
    transport = InProcessTransport(rng=random.Random(1), doubling=case.doubling)
    executor = SimulatedExecutor(durations=lambda table: Durations(start_us=FOREVER_US))
    agent = Agent("c0", executor, epoch=1, owner=KnownOwner())
    owner = Coordinator("owner", "c0", revision=2)
    tables = {f"table-{n}": 1.0 for n in range(case.tables)}
    found: dict[str, float] = {}
    counts: list[int] = []
    for tick in range(1, max(SECONDS) * 1_000_000 // TICK_US + 1):
        now = executor.now = tick * TICK_US
        said: list[Envelope] = agent.tick(transport.receive("c0", now))
        transport.send(said, now)
        seen = Cluster(now, {"c0": 1}, tables, 1, 2)
        told = owner.tick(transport.receive("owner", now), seen).messages
        transport.send(told, now)
        counts.append(len(said) + len(told))
        if counts[-1] > MESSAGES_MAX:
            found[f"stopped at {now / 1e6:.1f}"] = counts[-1]
            break
        if now % 1_000_000 == 0 and now // 1_000_000 in SECONDS:
            last = counts[-1_000_000 // TICK_US :]
            found[str(now // 1_000_000)] = round(sum(last) / len(last), 2)
    return found


def measured() -> dict[str, dict[str, float]]:
    """Return what each case comes to, with the scheduler that this process has."""
    return {str(case): storm(case) for case in CASES}


def measured_before() -> dict[str, dict[str, float]]:
    """Return the same of an earlier commit."""
    git = ("git", "-C", str(ROOT), "archive", BEFORE, "cdcmeta", "snapkv")
    archive = subprocess.run(git, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        code = (
            "import json, cdcmeta, sys; from benchmarks import scheduler_storm\n"
            f"assert cdcmeta.__file__.startswith({folder!r}), cdcmeta.__file__\n"
            "print(json.dumps(scheduler_storm.measured()))"
        )
        paths = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        ran = subprocess.run(
            [sys.executable, "-c", code], env=paths, cwd=folder, capture_output=True, check=True
        )
    result: dict[str, dict[str, float]] = json.loads(ran.stdout)
    return result


def main() -> None:
    """Measure both, and write what came out."""
    question = "How many messages does a start that takes long cost?"
    both = {f"before ({BEFORE})": measured_before(), "now": measured()}
    facts = machine()
    head = " | ".join(f"after {second} s" for second in SECONDS)
    lines = [f"# {question}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    lines += [f"| messages a tick | | {head} |", "|---" * (len(SECONDS) + 2) + "|"]
    for case in map(str, CASES):
        for which, cases in both.items():
            found = cases[case]
            end = next((f"{n:,} ({at} s)" for at, n in found.items() if "stopped" in at), "")
            cells = (f"{found[str(s)]:,}" if str(s) in found else end for s in SECONDS)
            lines.append(f"| {case} | {which} | {' | '.join(cells)} |")
    notes = (
        "Owner and agent together, the mean of the second before; ticks of "
        f"{TICK_US // 1_000} ms, heartbeats every second tick. The tables are prepared at once "
        "and told to replicate; their start does not end. A run is stopped in the tick that has "
        f"more than {MESSAGES_MAX:,} messages. These are counts, the same on every machine."
    )
    text = "\n".join([*lines, "", notes, ""])
    print(text)
    (RESULTS / "scheduler_storm.md").write_text(text)
    data = {"question": question, "machine": facts, "messages a tick": both, "notes": notes}
    (RESULTS / "scheduler_storm.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
