"""A process that notes when each key of a store arrives in its watch.

`python -m benchmarks.captures_watching watch URL NAME`, `... watch-eagerly URL NAME` and
`... watch-raw HOST:PORT` follow a store until the standard input ends, then print when each key
arrived; `... copy URL NAME FOLDER` and `... copy-raw HOST:PORT` also write it, by hand.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import lmdb

import snapkv
from benchmarks.captures import ROOT, WAIT_S, until
from benchmarks.servers import Bare
from snapkv.engine.etcd import etcd_pb2 as pb

_KEY = re.compile(rb"t\d+/\S+$")
_ASK_S = 0.0005


class Watching:
    """A process that notes when each key of a store arrives in its watch."""

    def __init__(self, *words: str) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", __name__, *words]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise OSError(f"no watch: {words}")

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)

    def until(self, key: str) -> None:
        """Wait until a key has arrived."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{key}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def end(self) -> dict[str, int]:
        """End it; return the nanosecond of each key's first arrival."""
        found: dict[str, int] = json.loads(self._process.communicate(timeout=WAIT_S)[0])
        return found


def _watch(url: str, name: str, note: Callable[[str], None]) -> None:
    watch = snapkv.open(url, name=name).watch()
    print("ready", flush=True)
    for changes in watch:
        for each in changes:
            note(each.key)


def _watch_eagerly(url: str, name: str, note: Callable[[str], None]) -> None:
    """Ask a watch all the time: on lmdb, one that waits looks after pauses of up to 50 ms."""
    watch = snapkv.open(url, name=name).watch()
    print("ready", flush=True)
    while True:
        for each in watch.next(0) or ():
            note(each.key)
        time.sleep(_ASK_S)


def _watch_raw(endpoint: str, note: Callable[[str], None]) -> None:
    """Watch all keys of a node with gRPC's own client."""
    channel = grpc.insecure_channel(endpoint, [("grpc.max_receive_message_length", -1)])
    call = channel.stream_stream(
        "/etcdserverpb.Watch/Watch",
        request_serializer=pb.WatchRequest.SerializeToString,
        response_deserializer=pb.WatchResponse.FromString,
    )
    create = pb.WatchCreateRequest(key=b"\0", range_end=b"\0")

    def requests() -> Iterator[Any]:
        yield pb.WatchRequest(create_request=create)
        threading.Event().wait()

    for response in call(requests()):
        if response.created:
            print("ready", flush=True)
        for event in response.events:
            if (found := _KEY.search(event.kv.key)) is not None:
                note(found[0].decode())


def _copy(url: str, name: str, path: str, note: Callable[[str], None]) -> None:
    """Write each key that a watch returns with py-lmdb, and note it when it is durable."""
    with lmdb.open(path, map_size=1 << 30) as env:

        def put(key: str) -> None:
            with env.begin(write=True) as txn:
                txn.put(key.encode(), b"")
            note(key)

        _watch(url, name, put)


def _copy_raw(endpoint: str, note: Callable[[str], None]) -> None:
    """Put each key that a bare watch returns first, and note it when etcd has answered."""
    bare, seen = Bare(endpoint), set[str]()

    def put(key: str) -> None:
        if key not in seen:
            seen.add(key)
            bare.put(b"copied/%d" % len(seen), b"")
            note(key)

    _watch_raw(endpoint, put)


_WATCHES: dict[str, Callable[..., None]] = {
    "watch": _watch,
    "watch-eagerly": _watch_eagerly,
    "watch-raw": _watch_raw,
    "copy": _copy,
    "copy-raw": _copy_raw,
}


def watch_until_end(what: str, *words: str) -> None:
    """Watch until the standard input ends; each of its lines is a key that is waited for."""
    first: dict[str, int] = {}

    def note(key: str) -> None:
        first.setdefault(key, time.monotonic_ns())

    run = _WATCHES[what]
    threading.Thread(target=run, args=(*words, note), daemon=True).start()
    for line in sys.stdin:
        until(partial(first.__contains__, line.strip()), line, pause=0.005)
        print("arrived", flush=True)
    print(json.dumps(first), flush=True)
    os._exit(0)


if __name__ == "__main__":
    watch_until_end(*sys.argv[1:])
