"""How much does a recorder slow sixteen threads that save, and how far does it fall behind?"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from typing import IO, Any

import snapkv
from benchmarks.harness import Row, Times, quantile, report, rows_of, show, together
from benchmarks.servers import DURABLE, server_facts
from snapkv.times import physical_ms

THREADS, SAVES_EACH, ROUNDS, WARMUP = 16, 100, 20, 2
SAMPLE_S = 0.02
INTO = {"an archive": "{folder}/archive", "another store (lmdb)": "lmdb:{folder}/copy"}
ALONE, BESIDE = "no recorder (floor)", "beside a recorder"


def main() -> None:
    """Save from sixteen threads in rounds, with a recorder in another process and without."""
    tables, behind = {}, []
    for source, opened in DURABLE.items():
        for target, into in INTO.items():
            with tempfile.TemporaryDirectory() as folder, opened() as store:
                lags_ms: list[float] = []
                rows = _table(store, into.format(folder=folder), lags_ms)
            title = f"{THREADS * SAVES_EACH} saves on {source}, recorded into {target}"
            tables[f"{title} (per save)"] = rows
            median, p99 = (quantile(lags_ms, q) for q in (0.5, 0.99))
            behind.append(f"{source} into {target}: median {median:.0f} ms, p99 {p99:.0f} ms")
    notes = (
        f"{server_facts()} The recorder runs in a process of its own; for the rounds of the floor "
        f"it is stopped, and catches up before the next one. Each {SAMPLE_S * 1_000:.0f} ms while "
        "the threads saved, the age of the newest commit that it had taken: "
        f"{'; '.join(behind)}."
    )
    report("record_beside_saves", "How much does a recorder slow the writers?", tables, notes)


def _table(store: snapkv.SnapshotKV, into: str, lags_ms: list[float]) -> list[Row]:
    times = {ALONE: Times([], []), BESIDE: Times([], [])}
    store.save("k0", b"")
    with _Child(store._core.url, into) as child:
        for round_ in range(-WARMUP, ROUNDS):
            show(round_ + WARMUP, ROUNDS + WARMUP)
            for name in times if round_ % 2 else reversed(times):
                if name == BESIDE:
                    child.say("start")
                taken_s = _saves(store, round_)
                found = child.say("stop") if name == BESIDE else []
                if round_ >= 0:
                    times[name].wall.append(taken_s * 1e6)
                    lags_ms += found
    return [row.per(THREADS * SAVES_EACH) for row in rows_of(times)]


def _saves(store: snapkv.SnapshotKV, round_: int) -> float:
    """Save from all threads, and return the seconds that it took."""
    value = bytes(100)

    def save(first: int) -> None:
        for i in range(first, first + SAVES_EACH):
            store.save(f"k{round_}/{i}", value)

    started = time.perf_counter()
    together([partial(save, thread * SAVES_EACH) for thread in range(THREADS)])
    return time.perf_counter() - started


class _Child:
    """A process that records between the words `start` and `stop`."""

    def __init__(self, url: str, into: str) -> None:
        command = [sys.executable, "-m", "benchmarks.record_beside_saves", url, into]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def say(self, word: str) -> list[float]:
        """Send a word, and return the answer: ages in milliseconds."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(word, file=stdin, flush=True)
        answer: list[float] = json.loads(stdout.readline())
        return answer


def record(url: str, into: str, words: IO[str]) -> None:
    """Record from each line `start` to the line `stop` after it; answer both."""
    for _ in words:
        stop, started = threading.Event(), threading.Event()
        recorder = snapkv.record(url, into=into, report=partial(_note_start, started))
        recorder.catch_up()
        started.clear()
        thread = threading.Thread(target=recorder.run, args=(stop,))
        thread.start()
        started.wait(60)
        print("[]", flush=True)
        ages: list[float] = []
        sampler = threading.Thread(target=_sample, args=(recorder.status, stop, ages))
        sampler.start()
        words.readline()
        stop.set()
        sampler.join()
        thread.join(60)
        print(json.dumps(ages), flush=True)


def _note_start(started: threading.Event, status: Any) -> None:
    if status.state == "recording":
        started.set()


def _sample(status: Any, stop: threading.Event, ages: list[float]) -> None:
    time.sleep(10 * SAMPLE_S)  # the first commits of the round are on their way
    while not stop.wait(SAMPLE_S):
        ages.append(max(0.0, time.time() * 1_000 - physical_ms(status.seen)))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        record(sys.argv[1], sys.argv[2], sys.stdin)
    else:
        main()
