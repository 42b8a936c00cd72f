"""What does opening a store cost on etcd, when it has a million commits?"""

from __future__ import annotations

import re
import urllib.request
from collections import deque
from collections.abc import Callable

import snapkv
from benchmarks.harness import Rival, measure, report, show
from benchmarks.servers import Bare, etcd_server, server_facts
from snapkv.layout import StampRecord

FEW, MANY, SAVED = 100, 1_000_000, 1_100
IN_FLIGHT = 256
COUNTED = 20
STARTED = re.compile(rb'grpc_server_started_total\{grpc_method="(\w+)".*\} (\S+)')


def main() -> None:
    """Open and close two stores in one etcd; count what the server was asked."""
    with etcd_server("--quota-backend-bytes=4294967296", fsync=False) as server:
        bare = Bare(server.endpoint)
        stores = {FEW: "few", MANY: "many"}
        for commits, name in stores.items():
            with snapkv.open(server.url, name=name) as store:
                store.save("k", b"1")
                # One version is the store's creation, one the save above.
                _fill(bare, f"{name}/sys/ts".encode(), commits - SAVED - 2)
                for i in range(min(SAVED, commits - 2)):
                    newest = store.save("k", b"%d" % i)
            versions = bare.range(f"{name}/sys/ts".encode()).kvs[0].version
            assert versions == commits, f"{versions} versions"

        def opened(name: str, act: Callable[[snapkv.SnapshotKV], object]) -> Callable[[int], None]:
            def run(_: int) -> None:
                with snapkv.open(server.url, name=name) as store:
                    act(store)

            return run

        def raw(_: int) -> None:
            client = Bare(server.endpoint)
            client.range(b"many/sys/ts")
            client.close()

        rivals = [Rival("a connection and one bare read (floor)", raw)]
        counted = []
        for commits, name in stores.items():
            acts: dict[str, Callable[[snapkv.SnapshotKV], object]] = {
                "open, close": lambda store: None,
                "open, load(key), close": lambda store: store.load("k"),
                "open, save, close": lambda store: store.save("k", b"x"),
            }
            if commits == MANY:
                acts["open, load(key, ts of the newest), close"] = lambda s: s.load("k", newest)
            for what, act in acts.items():
                run = opened(name, act)
                rivals.append(Rival(f"{commits:,} commits: {what}", run))
                counted.append(f"{commits:,} commits: {what}: {_round_trips(server.endpoint, run)}")
        rows = measure(rivals, rounds=60)
        bare.close()
    notes = (
        f"{server_facts(fsync=False)} Of the larger store all but the first two and the last "
        f"{SAVED:,} versions of the timestamp key are raw puts of one stamp, many in flight. "
        "Requests to the server, each time, as its own metrics count "
        f"them: {'; '.join(counted)}."
    )
    title = f"{FEW:,} and {MANY:,} commits"
    report("etcd_open", "What does opening a store cost on etcd?", {title: rows}, notes)


def _fill(bare: Bare, key: bytes, versions: int) -> None:
    """Put a key very often, with some requests in flight."""
    value = StampRecord(1, b"nonce", "filled").encode()
    flying: deque[Callable[[], object]] = deque()
    for i in range(versions):
        if (i + 1) % 10_000 == 0 or i + 1 == versions:
            show(i, versions)
        if len(flying) == IN_FLIGHT:
            flying.popleft()()
        flying.append(bare.put_later(key, value))
    for answer in flying:
        answer()


def _round_trips(endpoint: str, run: Callable[[int], None]) -> str:
    before = _started(endpoint)
    for i in range(COUNTED):
        run(i)
    after = _started(endpoint)
    counts = {name: (after[name] - before.get(name, 0)) / COUNTED for name in after}
    return ", ".join(f"{count:g} {name}" for name, count in sorted(counts.items()) if count)


def _started(endpoint: str) -> dict[str, float]:
    """Return how often the server was asked for each method, by its metrics."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=30) as answer:
        return {name.decode(): float(count) for name, count in STARTED.findall(answer.read())}
