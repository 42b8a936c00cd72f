"""What does a stream cost while nothing changes? Without a trigger, Spark asks again at once."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import snapkv
from benchmarks.harness import RESULTS, machine
from snapkv.spark.local import local_session

SECONDS, SETTLE_S = 20, 5
TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Let streams into the noop sink idle, each in a process of its own."""
    rows = {kind: _measured(kind) for kind in ("text", "snapkv")}
    question = "What does an idle stream cost?"
    lines = ["| | processors |", "|---|---|", *(f"| {k} | {v:.3f} |" for k, v in rows.items())]
    facts = machine()
    notes = (
        f"The CPU time of Java and of all Python processes, over {SECONDS} seconds, less that of "
        "the same session before the stream. No trigger. The format text is Spark's own, which "
        "lists a folder of one file; the store is on lmdb."
    )
    head = [f"# {question}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    text = "\n".join([*head, *lines, "", notes, ""])
    print(text)
    (RESULTS / "spark_idle.md").write_text(text)
    data = {"question": question, "machine": facts, "processors": rows, "notes": notes}
    (RESULTS / "spark_idle.json").write_text(json.dumps(data, indent=1) + "\n")


def _measured(kind: str) -> float:
    """Return how many processors an idle stream keeps busy."""
    command = [sys.executable, "-m", "benchmarks.spark_idle", kind]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(found.stdout.split()[-1])


def stream(kind: str) -> None:
    """Print how many processors a stream keeps busy."""
    with tempfile.TemporaryDirectory() as folder, local_session() as spark:
        place = f"{folder}/text" if kind == "text" else f"lmdb:{folder}/meta"
        if kind == "text":
            Path(place).mkdir()
            Path(place, "a").write_text("1\n")
        else:
            with snapkv.open(place) as store:
                store.save("a", b"1")
        time.sleep(SETTLE_S)
        without = _busy()
        source = spark.readStream.format(kind)
        if kind == "snapkv":
            source = source.option("readChangeFeed", "true")
        sink = source.load(place).writeStream.format("noop")
        query = sink.option("checkpointLocation", f"{folder}/c").start()
        query.processAllAvailable()
        time.sleep(SETTLE_S)
        busy = _busy()
        query.stop()
    print(busy - without)


def _busy() -> float:
    """Return the share of a processor that this process and its children use for some seconds."""
    before, started = _cpu_s(), time.monotonic()
    time.sleep(SECONDS)
    return (_cpu_s() - before) / (time.monotonic() - started)


def _cpu_s() -> float:
    """Return the CPU time so far of this session's processes."""
    total = 0.0
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        times[number] = (int(fields[11]) + int(fields[12])) / TICK
    for number in times:
        each = number
        while each not in (0, os.getpid()):
            each = parents.get(each, 0)
        if each:
            total += times[number]
    return total


if __name__ == "__main__":
    if len(sys.argv) > 1:
        stream(sys.argv[1])
    else:
        main()
