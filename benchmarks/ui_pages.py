"""How long do the pages of a large store take?"""

from __future__ import annotations

import contextlib
import json
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import snapkv
from benchmarks.harness import Rival, Row, measure, quantile, report, seeded
from snapkv import ManualClock
from snapkv.ui import Source
from snapkv.ui.commit_list import commit_at, steps_back
from snapkv.ui.key_differences import differences
from snapkv.ui.key_listings import level, search
from snapkv.ui.key_versions import versions_back
from snapkv.ui.page_source import Budget
from snapkv.ui.time_bar import bar, span_of

KEYS, COMMITS = 200_000, 100_000
FIRST_MS, DAYS = 1_790_000_000_000, 30
GOAL_US = 200_000
ROUNDS, WARMUP = 60, 5
PAGES_SETTLING, PAGES = 300, 1_000
FOLLOWERS, FOLLOWED = 50, 40
WAIT_S = 30.0
EMPTY = """
from starlette.responses import Response
from snapkv.web import Listener, Server
listener = Listener("127.0.0.1", 0)
page = Response("<!doctype html><title>empty</title>", media_type="text/html")
Server(page, listener, ready=lambda: print("open", listener.url, flush=True)).run()
"""
"""The floor: a page without content, by the same server."""


def key(number: int) -> str:
    """Return a key of a catalogue: 100 databases of 100 tables of 20 columns."""
    return f"db/{number // 2_000:03}/table-{number // 20 % 100:02}/column-{number % 20:02}"


def value(number: int, edit: int) -> bytes:
    """Return a value of about 100 bytes."""
    fields = {"name": key(number), "version": edit, "owner": f"team-{edit % 7}", "flags": [1, edit]}
    return json.dumps(fields).encode()


def fill(url: str, keys: int, commits: int, rng: random.Random) -> list[int]:
    """Make the store: all keys in commits of 1,000, then a commit for each change."""
    clock, made = ManualClock(FIRST_MS), []
    first = -(-keys // 1_000)
    step_ms = DAYS * 86_400_000 // commits
    with snapkv.open(url, clock=clock, durability="none", writer="loader") as store:
        for low in range(0, keys, 1_000):
            puts = {key(n): value(n, 0) for n in range(low, min(keys, low + 1_000))}
            made.append(store.commit(puts=puts, note="first load").ts)
        for edit in range(commits - first):
            clock.advance(rng.randrange(1, 2 * step_ms))
            number = rng.randrange(keys)
            note = f"change {edit}" if edit % 5 == 0 else None
            made.append(store.commit(puts={key(number): value(number, edit)}, note=note).ts)
    return made


class Served:
    """A server in a process of its own, and one connection to it that stays open."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "open http" in line, line
        self.port = int(line.rstrip("/\n ").rpartition(":")[2])
        self.connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def get(self, path: str) -> bytes:
        """Return a page."""
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status in (200, 303), f"{path}: {answer.status} {body[:500]!r}"
        return body

    def memory_mb(self) -> float:
        """Return the resident memory of the process."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    def close(self) -> None:
        """Stop the server."""
        self.connection.close()
        self.process.terminate()
        self.process.wait(WAIT_S)


@contextlib.contextmanager
def served(*command: str) -> Iterator[Served]:
    """Run a server for a block."""
    server = Served(*command)
    try:
        yield server
    finally:
        server.close()


Query = Callable[[Source, int, int, str], object]


def budget() -> Budget:
    """Return what a page has."""
    return Budget(0.1)


def span(source: Source, at: int, text: str) -> object:
    """Return the time bar that ends at a moment."""
    return bar(source, *span_of(source, text, at >> 18))


PAGES_AND_QUERIES: dict[str, tuple[str, Query]] = {
    "commits": ("/?at={at}", lambda s, at, since, k: steps_back(s, at, budget=budget())),
    "commits of a prefix": (
        "/?at={at}&prefix={database}",
        lambda s, at, since, k: steps_back(s, at, prefix=k[:7], budget=budget()),
    ),
    "time bar of all": ("/health?span=all", lambda s, at, since, k: span(s, at, "all")),
    "time bar of a day": ("/health?at={at}&span=24h", lambda s, at, since, k: span(s, at, "24h")),
    "changes of an hour": (
        "/changes?at={at}&from={since}",
        lambda s, at, since, k: differences(s, since, at, budget=budget()),
    ),
    "changes of all": (
        "/changes?at={at}",
        lambda s, at, since, k: differences(s, 0, at, budget=budget()),
    ),
    "keys": (
        "/keys?at={at}&prefix=db/",
        lambda s, at, since, k: level(s, at, "db/", budget=budget()),
    ),
    "keys with what changed": (
        "/keys?at={at}&from={since}&prefix=db/",
        lambda s, at, since, k: level(s, at, "db/", since=since, compared=True, budget=budget()),
    ),
    "a key": ("/key?key={key}", lambda s, at, since, k: versions_back(s, k, None, budget=budget())),
    "blame": (
        "/key?key={key}&tab=blame",
        lambda s, at, since, k: versions_back(s, k, None, limit=200, budget=budget()),
    ),
    "a commit": ("/commit?at={at}", lambda s, at, since, k: commit_at(s, at, limit=200)),
    "search": (
        "/search?q=team-3&at={at}",
        lambda s, at, since, k: search(s, at, "team-3", budget=budget()),
    ),
}


def main(keys: int = KEYS, commits: int = COMMITS, rounds: int = ROUNDS) -> None:
    """Measure each page, the memory over many pages, and live followers."""
    rng = seeded("ui_pages")
    with tempfile.TemporaryDirectory() as folder:
        url = f"lmdb:{folder}/meta"
        made = fill(url, keys, commits, rng)
        command = ("-m", "snapkv", "ui", "--store", url, "--port", "0")
        with (
            served(*command) as ours,
            served("-c", EMPTY) as empty,
            snapkv.open(url, create=False) as store,
        ):
            tables = pages(Source(store), ours, empty, made, keys, rounds)
            before, after = memory(ours, made, keys)
            live = followers(store, ours)
    slowest = max(tables.items(), key=lambda each: each[1][-1].median_us)
    notes = (
        f"lmdb, {keys:,} keys, {commits:,} commits in {DAYS} days. Each operation is of another "
        "moment or key, over one connection; the server is a process of its own. The floor is a "
        "page without content by the same server; the query is what the page asks, without HTML, "
        "in the process of the benchmark. Every page has the time bar, too. Goal: "
        f"{GOAL_US / 1_000:g} ms at the median; the slowest page, {slowest[0]}, takes "
        f"{slowest[1][-1].median_us / 1_000:.0f} ms. Pages that count or search stop after 100 ms, "
        "say so, and offer to go on. Memory of the server (RSS) after "
        f"{PAGES_SETTLING} pages {before:.1f} MB, after {PAGES:,} more {after:.1f} MB. "
        f"{FOLLOWERS} live followers, {FOLLOWED} commits one after the other: from the commit to "
        f"the last follower's event {quantile(live, 0.5):.1f} ms at the median, "
        f"{quantile(live, 0.99):.1f} ms at p99."
    )
    report("ui_pages", "How long do the pages of a large store take?", tables, notes)


def pages(
    source: Source, ours: Served, empty: Served, made: list[int], keys: int, rounds: int
) -> dict[str, list[Row]]:
    """Return a table for each page: the floor, the bare query, the page."""
    tables = {}
    for name, (path, query) in PAGES_AND_QUERIES.items():
        words = [
            words_of(made, keys, seeded(f"ui_pages/{name}/{i}")) for i in range(rounds + WARMUP)
        ]

        def page(i: int, path: str = path, words: list[dict[str, object]] = words) -> object:
            return ours.get(path.format(**words[i]))

        def asked(i: int, query: Query = query, words: list[dict[str, object]] = words) -> object:
            return query(source, words[i]["at"], words[i]["since"], words[i]["key"])  # type: ignore[arg-type]

        rivals = [
            Rival("an empty page (floor)", lambda i: empty.get("/")),
            Rival("the query alone", asked),
            Rival("the page", page),
        ]
        tables[name] = measure(rivals, rounds=rounds, warmup=WARMUP, cpu=False)
    return tables


def words_of(made: list[int], keys: int, rng: random.Random) -> dict[str, object]:
    """Return what a URL names: a moment, one an hour before it, a key and its database."""
    at, name = rng.choice(made[len(made) // 100 :]), key(rng.randrange(keys))
    return {"at": at, "since": at - (3_600_000 << 18), "key": name, "database": name[:7]}


def memory(ours: Served, made: list[int], keys: int) -> tuple[float, float]:
    """Return the server's memory in MB before and after many pages."""
    rng, paths = seeded("ui_pages/memory"), [path for path, _ in PAGES_AND_QUERIES.values()]

    def visit(count: int) -> float:
        for _ in range(count):
            ours.get(rng.choice(paths).format(**words_of(made, keys, rng)))
        return ours.memory_mb()

    return visit(PAGES_SETTLING), visit(PAGES)


def followers(store: snapkv.SnapshotKV, ours: Served) -> list[float]:
    """Return, for each commit, the milliseconds until the last follower has its event."""
    selector, found = selectors.DefaultSelector(), list[float]()
    opened = [socket.create_connection(("127.0.0.1", ours.port), WAIT_S) for _ in range(FOLLOWERS)]
    since = store.resolved()
    for each in opened:
        each.sendall(b"GET /live/events?since=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % since)
        selector.register(each, selectors.EVENT_READ, bytearray())
    for number in range(FOLLOWED + 1):
        started = time.perf_counter()
        ts = store.save("live", b"%d" % number)
        wanted, waiting = b"id: %d\n" % ts, FOLLOWERS
        while waiting:
            ready = selector.select(WAIT_S)
            assert ready, "no event"
            for ready_key, _ in ready:
                held: bytearray = ready_key.data
                held += ready_key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if wanted in held:
                    held.clear()
                    waiting -= 1
        if number:  # the first one opens the watch
            found.append((time.perf_counter() - started) * 1_000)
    for each in opened:
        each.close()
    return sorted(found)


if __name__ == "__main__":
    main()
