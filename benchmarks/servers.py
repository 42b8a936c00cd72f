"""Servers for benchmarks: etcd with a disk that is waited for, `cdcmeta serve`, express-pouchdb."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import grpc
from etcd_server import EtcdCluster, EtcdServer, etcd_version
from etcd_server.programs import etcdctl

import snapkv
from benchmarks.harness import show
from snapkv.engine.etcd import etcd_pb2 as pb

T = TypeVar("T")
EXPRESS = Path(__file__).parent / "express"


@contextmanager
def etcd_server(*flags: str, fsync: bool = True) -> Iterator[EtcdServer]:
    """Run one node; with `fsync`, writes reach the disk before they are answered."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EtcdServer(Path(folder) / "etcd", fsync=fsync, flags=flags) as server,
    ):
        yield server


@contextmanager
def etcd_cluster() -> Iterator[EtcdCluster]:
    """Run three nodes without fsync, which a busy machine does not part."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EtcdCluster(Path(folder), heartbeat_ms=100, election_ms=1_000) as cluster,
    ):
        yield cluster


class Bare:
    """The floor: gRPC's own client, which sends the request and decodes the answer.

    Its messages are those of `etcd.proto` as protobuf made them; nothing else of snapkv is used.
    """

    def __init__(self, endpoint: str) -> None:
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        self._channel = grpc.insecure_channel(endpoint, options=options)
        self._put = self._method("Put", pb.PutRequest, pb.PutResponse)
        self._txn = self._method("Txn", pb.TxnRequest, pb.TxnResponse)
        self._range = self._method("Range", pb.RangeRequest, pb.RangeResponse)

    def _method(self, name: str, request: Any, answer: Any) -> Any:
        return self._channel.unary_unary(
            f"/etcdserverpb.KV/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )

    def put(self, key: bytes, value: bytes) -> None:
        """Put one key."""
        self._put(pb.PutRequest(key=key, value=value), timeout=30)

    def put_later(self, key: bytes, value: bytes) -> Callable[[], object]:
        """Send a put, and return what waits for its answer."""
        return self._put.future(pb.PutRequest(key=key, value=value), timeout=30).result  # type: ignore[no-any-return]

    def txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """Send one transaction."""
        return self._txn(request, timeout=30)

    def range(self, key: bytes, **rest: Any) -> pb.RangeResponse:
        """Read a key or a range."""
        return self._range(pb.RangeRequest(key=key, **rest), timeout=60)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def put_all(bare: Bare, pairs: Iterable[tuple[bytes, bytes]], count: int) -> None:
    """Put that many keys, 128 in a transaction."""
    for at, some in enumerate(batched(pairs, 128)):
        show(min((at + 1) * 128, count) - 1, count)
        puts = [pb.RequestOp(request_put=pb.PutRequest(key=k, value=v)) for k, v in some]
        bare.txn(pb.TxnRequest(success=puts))


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of a size; the last one may be shorter."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def server_facts(*, fsync: bool = True) -> str:
    """Say which server it was."""
    version = ".".join(map(str, etcd_version()))
    disk = "fsync on" if fsync else "without fsync"
    return f"etcd {version}, one node on this machine's loopback, {disk}."


def etcdctl_of(server: EtcdServer) -> str:
    """Return the beginning of a command line of etcdctl."""
    return f"{etcdctl()} --endpoints {server.endpoint}"


@contextmanager
def _lmdb_store() -> Iterator[snapkv.SnapshotKV]:
    with tempfile.TemporaryDirectory() as folder, snapkv.open(f"lmdb:{folder}/meta") as store:
        yield store


@contextmanager
def _etcd_store() -> Iterator[snapkv.SnapshotKV]:
    with etcd_server() as server, snapkv.open(server.url) as store:
        yield store


DURABLE = {"lmdb": _lmdb_store, "etcd": _etcd_store}
"""Stores that lose nothing they acknowledged, each empty."""


@contextmanager
def cdcmeta_server(folder: str, *options: str) -> Iterator[int]:
    """Run `cdcmeta serve` on a new lmdb store, which is durable, and yield its port."""
    command = [sys.executable, "-m", "cdcmeta.cli", "serve", "--store", f"lmdb:{folder}/meta"]
    with _printed([*command, "--port", "0", *options], "stderr", r":(\d+)/$") as port:
        yield port


@contextmanager
def express_server(folder: str, durability: str) -> Iterator[int]:
    """Run express-pouchdb on LevelDB and yield its port.

    `durability` is "sync" (each batch waits for the disk) or "nosync" (none does, as it comes).
    Its packages are installed once, below this folder; their scripts do not run.
    """
    if not (EXPRESS / "node_modules").exists():
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit"], cwd=EXPRESS, check=True)
    os.makedirs(folder, exist_ok=True)
    command = ["node", str(EXPRESS / "server.js"), folder, durability]
    with _printed(command, "stdout", r"^(\d+)$") as port:
        yield port


@contextmanager
def _printed(command: list[str], where: str, pattern: str) -> Iterator[int]:
    """Run a server whose first line names its port."""
    pipe = {where: subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipe) as process:  # type: ignore[call-overload]
        try:
            found = re.search(pattern, getattr(process, where).readline().rstrip())
            if found is None:
                raise ConnectionError(f"{command[0]} did not start")
            yield int(found[1])
        finally:
            process.terminate()
