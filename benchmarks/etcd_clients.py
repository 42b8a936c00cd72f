"""What does the package etcd3 cost beside snapkv's own client?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.servers import Bare, etcd_server, put_all, server_facts

ROOT = Path(__file__).parents[1]
KEYS, SINGLES = 20_000, 50

_WORKER = """
import sys
kind, endpoint = sys.argv[1:]
host, _, port = endpoint.rpartition(":")
if kind == "bare":
    from benchmarks.servers import Bare
    bare = Bare(endpoint)
    acts = {
        "put": lambda i: bare.put(b"w/%d" % i, bytes(100)),
        "get": lambda i: bare.range(b"k/%07d" % i).kvs[0].value,
        "list": lambda i: [(kv.key, kv.value) for kv in bare.range(b"k/", range_end=b"k0").kvs],
    }
elif kind == "etcd3":
    import etcd3
    client = etcd3.client(
        host=host, port=int(port), grpc_options=[("grpc.max_receive_message_length", -1)]
    )
    acts = {
        "put": lambda i: client.put(b"w/%d" % i, bytes(100)),
        "get": lambda i: client.get(b"k/%07d" % i)[0],
        "list": lambda i: [(meta.key, value) for value, meta in client.get_prefix(b"k/")],
    }
else:
    from snapkv.engine.contract import Range
    from snapkv.engine.etcd.engine import open_etcd
    if kind == "ours":
        engine = open_etcd("etcd://" + endpoint)
    else:
        import etcd3
        import snapkv
        engine = snapkv.from_etcd3(etcd3.client(host=host, port=int(port)))._core.engine
    acts = {
        "get": lambda i: engine.read([Range(b"k/%07d" % i)]).results[0].kvs[0].value,
        "list": lambda i: [
            (kv.key, kv.value) for page in engine.scan(b"k/", b"k0", revision=0) for kv in page
        ],
    }
found = acts["list"](0)
print(len(found), sum(len(value) for _, value in found), flush=True)
for line in sys.stdin:
    what, first, count = line.split()
    for i in range(int(first), int(first) + int(count)):
        acts[what](i)
    print("done", flush=True)
"""


def main() -> None:
    """Read, put and list with each client, in a process of its own."""
    with etcd_server() as server, ExitStack() as stack:
        bytes_all = _fill(Bare(server.endpoint))
        floor, etcd3, ours, borrowed = (
            stack.enter_context(_worker(kind, server.endpoint, bytes_all))
            for kind in ("bare", "etcd3", "ours", "from_etcd3")
        )
        named = [
            ("protobuf of today (floor)", floor),
            ("etcd3", etcd3),
            ("snapkv's engine", ours),
            ("snapkv's engine, from_etcd3", borrowed),
        ]
        tables = {
            "read one key": _table("get", named, SINGLES, 60),
            "put one key": _table("put", named[:2], SINGLES, 60),
            f"list {KEYS:,} keys of 100 bytes": _table("list", named, 1, 15),
        }
    notes = (
        f"{server_facts()} etcd3 {version('etcd3')} needs the runtime of protobuf that is written "
        f"in Python (protobuf {version('protobuf')} here), so each client has a process of its "
        "own. What is borrowed from etcd3 shares that runtime, where all messages are slow. "
        "etcd3 cannot read a key at a revision, so all read the newest state."
    )
    report("etcd_clients", "What does the package etcd3 cost?", tables, notes)


def _fill(bare: Bare) -> int:
    rng = seeded("etcd_clients")
    put_all(bare, ((b"k/%07d" % i, rng.randbytes(100)) for i in range(KEYS)), KEYS)
    return KEYS * 100


@contextmanager
def _worker(kind: str, endpoint: str, bytes_all: int) -> Iterator[subprocess.Popen[str]]:
    """Run a client that listed the very values that stand there."""
    runtime = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"} if "etcd3" in kind else {}
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, kind, endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | runtime,
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline().split() == [str(KEYS), str(bytes_all)]
        yield worker
    finally:
        worker.communicate(timeout=30)


def _table(
    what: str, workers: list[tuple[str, subprocess.Popen[str]]], block: int, rounds: int
) -> list[Row]:
    def asking(worker: subprocess.Popen[str]) -> object:
        def run(i: int) -> None:
            if i % block == 0:  # a block is one question to the worker
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write(f"{what} {i % KEYS} {block}\n")
                worker.stdin.flush()
                assert worker.stdout.readline() == "done\n"

        return run

    rivals = [Rival(name, asking(worker)) for name, worker in workers]  # type: ignore[arg-type]
    return measure(rivals, rounds=rounds, block=block, cpu=False)
