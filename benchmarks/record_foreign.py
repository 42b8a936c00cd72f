"""Does a recorder keep up with 2,000 writes a second of other programs, for ten minutes?

`python -m benchmarks.record_foreign SECONDS RATE` takes another time than ten minutes each, and
another rate, whose results have a file of their own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc

import snapkv
from benchmarks.harness import RESULTS, machine, quantile, seeded, show
from benchmarks.servers import Bare, etcd_server, server_facts
from snapkv.engine.etcd import etcd_pb2 as pb

PREFIX = "/registry/"
KEYS, VALUE_BYTES = 500, 300
RATE, SECONDS, WARMUP_S = 2_000, 600, 10
WINDOW = 256
"""Puts that wait for their answer at most."""
SAMPLE_S = 0.1
FOLLOWERS = {
    "raw watch": "watch",
    "recorder into an archive": "{folder}/archive",
    "recorder into another store (lmdb)": "lmdb:{folder}/copy",
}


class Sample(NamedTuple):
    """Where a follower was: the time, the newest revision it had, its own memory and CPU so far."""

    at: float
    revision: int
    memory_mb: float
    cpu_s: float


def main(seconds: int, rate: int) -> None:
    """Let each follower in turn follow a writer; write what it took."""
    lines = [
        "| | writes/s | lag median ms | p99 | largest | at the end | CPU, of one core "
        "| memory, MB after 1 minute | largest, first half | second half |",
        "|---" * 10 + "|",
    ]
    found = {}
    for number, (name, into) in enumerate(FOLLOWERS.items()):
        show(number, len(FOLLOWERS))
        with tempfile.TemporaryDirectory() as folder, etcd_server(fsync=False) as server:
            found[name] = _followed(server.url, into.format(folder=folder), seconds, rate)
        lines.append(f"| {name} | {' | '.join(f'{n:,}' for n in found[name].values())} |")
    question = f"Does a recorder keep up with {rate:,} writes a second of other programs?"
    facts = machine()
    notes = (
        f"{server_facts(fsync=False)} For each follower {seconds} seconds: one client puts values "
        f"of {VALUE_BYTES} bytes under {KEYS} keys, each in a revision of its own, while a process "
        "follows from the beginning. Lag is the age of the oldest acknowledged write that the "
        f"follower does not have, each {SAMPLE_S * 1_000:.0f} ms; 0 if it has all. What an "
        "archive's recorder has is durable at the next flush, each minute. Its memory holds what "
        "is not durable yet. Memory is the process's own (RssAnon): no pages of LMDB's file."
    )
    head = [f"# {question}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    text = "\n".join([*head, *lines, "", notes, ""])
    print(text)
    name = "record_foreign" if rate == RATE else f"record_foreign_{rate}"
    (RESULTS / f"{name}.md").write_text(text)
    data = {"question": question, "machine": facts, "followers": found, "notes": notes}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def _followed(url: str, into: str, seconds: int, rate: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.record_foreign", "follow", url, into]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdout.readline()
            started = time.time()
            revisions, acked = _write(url, seconds, rate)
            ended = time.time()
            time.sleep(1)
            child.stdin.close()
            samples = [Sample(*row) for row in json.loads(child.stdout.readline())]
        finally:
            child.kill()
    during = [s for s in samples if started + WARMUP_S <= s.at <= ended]
    lags = [_lag_ms(sample, revisions, acked) for sample in during]
    cpu = (during[-1].cpu_s - during[0].cpu_s) / (during[-1].at - during[0].at)
    halves = len(during) // 2
    first, second = during[:halves], during[halves:]
    minute = next((s for s in during if s.at >= started + 60), during[-1])
    return {
        "writes/s": round(len(revisions) / (ended - started)),
        "lag median ms": round(quantile(lags, 0.5)),
        "lag p99 ms": round(quantile(lags, 0.99)),
        "lag largest ms": round(max(lags)),
        "lag at the end ms": round(_lag_ms(samples[-1], revisions, acked)),
        "CPU": round(cpu, 2),
        "memory MB after 1 minute": round(minute.memory_mb),
        "memory MB, largest in the first half": round(max(s.memory_mb for s in first)),
        "memory MB, largest in the second half": round(max(s.memory_mb for s in second)),
    }


def _lag_ms(sample: Sample, revisions: list[int], acked: list[float]) -> float:
    """Return the age of the oldest acknowledged write that a follower did not have."""
    missing = bisect_left(revisions, sample.revision + 1)
    if missing == len(revisions) or acked[missing] >= sample.at:
        return 0.0
    return (sample.at - acked[missing]) * 1_000


def _write(url: str, seconds: int, rate: int) -> tuple[list[int], list[float]]:
    """Put at the rate; return the revisions, and when each was acknowledged."""
    rng = seeded("record_foreign")
    bare, waiting = Bare(url.removeprefix("etcd://")), deque[Callable[[], Any]]()
    revisions: list[int] = []
    acked: list[float] = []
    started = time.time()
    for number in range(rate * seconds):
        key, value = f"{PREFIX}pods/default/web-{rng.randrange(KEYS)}", rng.randbytes(VALUE_BYTES)
        waiting.append(bare.put_later(key.encode(), value))
        ahead = started + (number + 1) / rate - time.time()
        while waiting and (len(waiting) >= WINDOW or ahead > 0):
            revisions.append(waiting.popleft()().header.revision)
            acked.append(time.time())
            ahead = started + (number + 1) / rate - time.time()
        if ahead > 0:
            time.sleep(ahead)
    for answer in waiting:
        revisions.append(answer().header.revision)
        acked.append(time.time())
    bare.close()
    order = sorted(range(len(revisions)), key=revisions.__getitem__)
    return [revisions[i] for i in order], [acked[i] for i in order]


# --- the process that follows ---


def follow(url: str, into: str) -> None:
    """Follow until the standard input ends, and print the samples."""
    revision = _watch(url) if into == "watch" else _record(url, into)
    samples: list[Sample] = []
    stop = threading.Event()
    sampler = threading.Thread(target=_sample, args=(revision, samples, stop))
    sampler.start()
    print("ready", flush=True)
    sys.stdin.read()
    stop.set()
    sampler.join()
    print(json.dumps(samples), flush=True)
    os._exit(0)


def _sample(revision: Callable[[], int], samples: list[Sample], stop: threading.Event) -> None:
    while not stop.wait(SAMPLE_S):
        used = resource.getrusage(resource.RUSAGE_SELF)
        status = Path("/proc/self/status").read_text()
        kib = int(status.partition("RssAnon:")[2].split()[0])
        cpu_s = used.ru_utime + used.ru_stime
        samples.append(Sample(time.time(), revision(), kib / 1_024, cpu_s))


def _watch(url: str) -> Callable[[], int]:
    """Watch with gRPC's own client."""
    newest, created = [0], threading.Event()
    channel = grpc.insecure_channel(
        url.removeprefix("etcd://"), options=[("grpc.max_receive_message_length", -1)]
    )
    call = channel.stream_stream(
        "/etcdserverpb.Watch/Watch",
        request_serializer=pb.WatchRequest.SerializeToString,
        response_deserializer=pb.WatchResponse.FromString,
    )
    end = PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)
    create = pb.WatchCreateRequest(key=PREFIX.encode(), range_end=end.encode())

    def requests() -> Iterator[Any]:
        yield pb.WatchRequest(create_request=create)
        threading.Event().wait()

    def read() -> None:
        for response in call(requests()):
            created.set()
            for event in response.events:
                newest[0] = event.kv.mod_revision

    threading.Thread(target=read, daemon=True).start()
    created.wait(30)
    return lambda: newest[0]


def _record(url: str, into: str) -> Callable[[], int]:
    started = threading.Event()

    def note(status: Any) -> None:
        if status.state == "recording":
            started.set()

    recorder = snapkv.record(url, into=into, observe=PREFIX, report=note)
    threading.Thread(target=recorder.run, args=(threading.Event(),), daemon=True).start()
    started.wait(60)
    return lambda: recorder.status.seen_revision


if __name__ == "__main__":
    if sys.argv[1:2] == ["follow"]:
        follow(*sys.argv[2:])
    else:
        given = [int(each) for each in sys.argv[1:3]]
        main(*given, *(SECONDS, RATE)[len(given) :])
