"""What does one short command cost?"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import snapkv
from benchmarks.harness import Times, report, rows_of, show
from benchmarks.servers import etcd_server, server_facts

ROUNDS, WARMUP = 40, 2
PROGRAM = str(Path(sys.executable).with_name("snapkv"))


def main() -> None:
    """Run short commands in turn, each as a process of its own; their CPU time is the answer."""
    with tempfile.TemporaryDirectory() as folder, etcd_server(fsync=False) as server:
        lmdb = f"lmdb:{Path(folder) / 'meta'}"
        for url in (lmdb, server.url):
            with snapkv.open(url) as store:
                store.save("k", b"1")
        rivals: dict[str, Sequence[str]] = {
            "python -c pass (floor)": [sys.executable, "-c", "pass"],
            "python -S -c pass": [sys.executable, "-S", "-c", "pass"],
            "python -c 'import snapkv'": [sys.executable, "-c", "import snapkv"],
            "python -c 'import typer'": [sys.executable, "-c", "import typer"],
            "snapkv --version": [PROGRAM, "--version"],
            "snapkv get, lmdb": [PROGRAM, "get", "k", "--store", lmdb],
            "snapkv log, lmdb": [PROGRAM, "log", "--store", lmdb],
            "snapkv get, etcd": [PROGRAM, "get", "k", "--store", server.url],
        }
        if etcdctl := shutil.which("etcdctl"):
            rivals["etcdctl get"] = [etcdctl, "--endpoints", server.endpoint, "get", "k"]
        times = _measured(rivals)
    notes = (
        f"{server_facts(fsync=False)} Every command is a process of its own; CPU is its user and "
        "system time. Modules are compiled before."
    )
    question = "What does one short command cost?"
    report("cli_start", question, {"one process": rows_of(times)}, notes)


def _measured(rivals: Mapping[str, Sequence[str]]) -> dict[str, Times]:
    """Run every command in each round, in turned order."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    times = {name: Times([], []) for name in rivals}
    for round_ in range(-WARMUP, ROUNDS):
        show(round_ + WARMUP, ROUNDS + WARMUP)
        for name in list(rivals) if round_ % 2 else reversed(list(rivals)):
            before, started = _children_s(), time.perf_counter()
            subprocess.run(
                rivals[name], check=True, stdout=subprocess.DEVNULL, env=environment, timeout=60
            )
            wall, cpu = time.perf_counter() - started, _children_s() - before
            if round_ >= 0:
                times[name].wall.append(wall * 1e6)
                times[name].cpu.append(cpu * 1e6)
    return times


def _children_s() -> float:
    """Return the CPU time in seconds of all processes that this one waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
