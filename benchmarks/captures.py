"""Processes of `cdcmeta capture` for benchmarks: how they are started, and what they use.

All processes of a machine share CLOCK_MONOTONIC: times of arrival are compared by it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import snapkv
from benchmarks.harness import RESULTS, machine, quantile
from benchmarks.servers import etcd_server
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.runtime import Changefeeds
from cdcmeta.scheduler.runtime.changefeed_records import capture_of, space_of

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
FOLDER = "BENCHMARKS_ARRIVALS"
SOURCE, SINK = "shop", "mirror"
"""The names of the two stores beside that of the records."""
WAIT_S = 120.0
TTL_S = 3.0
_TICKS = os.sysconf("SC_CLK_TCK")
_CLONE_NEWNET, _SIOCSIFFLAGS, _IFF_UP = 0x40000000, 0x8914, 1
_HEADER_BYTES = 66
"""Of Ethernet, IP and TCP with timestamps, as the loopback device counts them."""


def until(condition: Callable[[], T], what: str, wait_s: float = WAIT_S, pause: float = 0.02) -> T:
    """Return the first true answer of a condition. Raises `TimeoutError`."""
    deadline = time.monotonic() + wait_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {wait_s:.0f} s for {what}")
        time.sleep(pause)
    return found


# --- the sink that is a function of this module ---


def arrived(
    table: str, token: Token, commits: Sequence[snapkv.Changes[str]], checkpoint: int
) -> None:
    """Note when each key arrived, in a file for each process; the sink `call:arrived`."""
    now = time.monotonic_ns()
    lines = "".join(f"{now} {each.key}\n" for commit in commits for each in commit.changes)
    path = os.path.join(os.environ[FOLDER], str(os.getpid()))
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, lines.encode())
    finally:
        os.close(file)


def arrivals(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield the nanosecond and the key of each arrival, of one process after another."""
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            at, key = line.split(" ", 1)
            yield int(at), key


def first_arrivals(found: Iterable[tuple[int, str]]) -> dict[str, int]:
    """Return when each key arrived first."""
    first: dict[str, int] = {}
    for at, key in found:
        first[key] = min(at, first.get(key, at))
    return first


# --- stores and captures ---


class Places(NamedTuple):
    """Where records, source and sink are; on etcd, records and source share a node."""

    folder: Path
    records: str
    source: str
    sink: str


@contextmanager
def places(engine: str, *, fsync: bool = True, sink_node: bool = False) -> Iterator[Places]:
    """Make room on lmdb or etcd; with `sink_node`, etcd's sink has a node of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if engine == "lmdb":
            yield Places(folder, *(f"lmdb:{folder}/{each}" for each in ("meta", SOURCE, SINK)))
            return
        node = stack.enter_context(etcd_server(fsync=fsync))
        sink = stack.enter_context(etcd_server(fsync=fsync)) if sink_node else node
        yield Places(folder, node.url, node.url, sink.url)


class Fleet:
    """Captures on one store, each a process; all are ended at the end."""

    def __init__(self, where: Places, ttl: float = TTL_S) -> None:
        self.where, self._ttl = where, ttl
        self.arrived = where.folder / "arrived"
        self.arrived.mkdir(exist_ok=True)
        self.store = snapkv.open(where.records)
        self.source = snapkv.open(where.source, name=SOURCE)
        self.feeds = Changefeeds(self.store)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(WAIT_S)
        self.store.close()
        self.source.close()

    def start(self, *labels: str) -> None:
        """Start captures, and wait until they are registered."""
        for label in labels:
            words = [sys.executable, "-m", "cdcmeta", "capture", "--store", self.where.records]
            words += ["--label", label, "--ttl", f"{self._ttl}", "--verbose"]
            words += ["--function", f"arrived={__name__}:arrived"]
            environment = {**os.environ, FOLDER: str(self.arrived)}
            with (self.where.folder / f"{label}.log").open("ab") as log:
                self.processes[label] = subprocess.Popen(
                    words, stdout=log, stderr=log, env=environment, cwd=ROOT
                )
        until(lambda: set(labels) <= self.names().keys(), f"captures {labels} to register")
        until(lambda: self.leader() is not None, "a capture to lead")

    def create(self, sink: str, tables: Sequence[str], start: int | None = None) -> None:
        """Create the changefeed `copy` of all changes after `start`, by default after now."""
        after = self.source.save("other", b"") if start is None else start
        self.feeds.create(
            "copy", self.where.source, sink, tables, start=after, source_name=SOURCE, sink_name=SINK
        )

    def names(self) -> dict[str, str]:
        """Return the name of each registered capture, by its label."""
        return {said.label: name for name, said in self.feeds.captures().items()}

    def leader(self) -> str | None:
        """Return the label of the capture that leads."""
        found = self.store.election(space_of("default")).leader()
        if found is None:
            return None
        said = self.feeds.captures().get(capture_of(found.value.decode()))
        return said.label if said is not None else None

    def tables_of(self, label: str) -> set[str]:
        """Return the tables that a capture has, as the owner recorded it."""
        name = self.names()[label]
        return {each.table for each in self.feeds.places("copy") if each.capture == name}

    def until_placed(self, tables: int) -> None:
        """Wait until the records have a capture for each table."""

        def placed() -> bool:
            present = set(self.names().values())
            return sum(each.capture in present for each in self.feeds.places("copy")) == tables

        until(placed, f"{tables} tables on captures", pause=0.2)

    def until_quiet(self) -> int:
        """Commit, and wait until the checkpoint has it: all tables then replicate."""
        at = self.source.tick().ts
        until(lambda: self.feeds.checkpoint("copy").checkpoint >= at, "a checkpoint", pause=0.1)
        return at

    def kill(self, label: str) -> int:
        """End a capture with -9; return its session."""
        session = int(self.names()[label].rpartition("-")[2], 16)
        process = self.processes.pop(label)
        process.kill()
        process.wait(WAIT_S)
        return session

    def end(self, label: str) -> None:
        """End a capture as an operator does."""
        process = self.processes.pop(label)
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)


def table_names(count: int) -> list[str]:
    """Return prefixes of keys, which are tables."""
    return [f"t{n}/" for n in range(count)]


# --- what processes use ---


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS


def memory_mb(pid: int, what: str = "VmRSS") -> float:
    """Return a line of a process's `status`, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) / 1_024


@contextmanager
def own_network() -> Iterator[bool]:
    """Give this thread, and what it starts, a loopback device of its own; False if it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as before:
        if libc.unshare(_CLONE_NEWNET) != 0:
            yield False
            return
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                request = struct.pack("16sH14x", b"lo", _IFF_UP)
                fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
            yield True
        finally:
            if libc.setns(before.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "the network cannot be left")


def loopback_bytes() -> int:
    """Return how many bytes the loopback device has sent so far."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise OSError("no loopback device")


def port_bytes(port: int) -> int:
    """Return the bytes that TCP connections to and from a port have sent, with their headers."""
    words = ["ss", "-tinH", f"( sport = :{port} or dport = :{port} )"]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    sent, segments = (
        sum(map(int, re.findall(rf"\b{what}:(\d+)", found))) for what in ("bytes_sent", "segs_out")
    )
    return sent + segments * _HEADER_BYTES


# --- what came out ---


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Return the median, p99 and the largest."""
    found = quantile(values, 0.5), quantile(values, 0.99), max(values)
    return dict(zip(("median", "p99", "largest"), (round(n, digits) for n in found), strict=True))


Table = Mapping[str, Mapping[str, float | str]]
"""The columns of each row."""


def write(name: str, question: str, tables: Mapping[str, Table], notes: str) -> None:
    """Print tables, and write them to `results/NAME.md` and `.json`."""
    facts = machine()
    lines = [f"# {question}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        lines += [f"## {title}", "", f"| | {' | '.join(columns)} |"]
        lines += ["|---" * (len(columns) + 1) + "|"]
        for row, values in rows.items():
            cells = [_cell(values.get(column, "")) for column in columns]
            lines.append(f"| {row} | {' | '.join(cells)} |")
        lines.append("")
    text = "\n".join([*lines, notes, ""])
    print(text)
    (RESULTS / f"{name}.md").write_text(text)
    data = {"question": question, "machine": facts, "tables": tables, "notes": notes}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"
