"""A server, or a proxy before it, that ends a call well and sends no answer."""

from __future__ import annotations

import asyncio
import socketserver
import struct
import threading
from collections.abc import Iterator

import pytest

import snapkv
import snapkv.aio
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.grpc_client import TXN, CallFailed, Channel
from snapkv.engine.etcd.security import Security
from snapkv.errors import EngineUnavailableError

pytestmark = pytest.mark.slow

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS, PING, ACK, END_STREAM, END_HEADERS = 1, 4, 6, 1, 1, 4
WAIT_S = 10.0


def header(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


STATUS_200 = b"\x88"
TRAILERS = STATUS_200 + header(b"content-type", b"application/grpc") + header(b"grpc-status", b"0")


class Ends(socketserver.StreamRequestHandler):
    """Speaks as much HTTP/2 as it needs to end each call with the status OK, and nothing else."""

    def send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        length = struct.pack(">I", len(payload))[1:]
        self.wfile.write(length + bytes([kind, flags]) + struct.pack(">I", stream) + payload)

    def handle(self) -> None:
        assert self.rfile.read(len(PREFACE)) == PREFACE
        self.send(SETTINGS, 0, 0)
        while len(head := self.rfile.read(9)) == 9:
            length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            stream, payload = int.from_bytes(head[5:]), self.rfile.read(length)
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.send(kind, ACK, 0, payload if kind == PING else b"")
            elif kind == HEADERS:
                self.send(HEADERS, END_STREAM | END_HEADERS, stream, TRAILERS)


@pytest.fixture
def endpoint() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Ends) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(WAIT_S)


def test_a_call_without_an_answer_failed(endpoint: str) -> None:
    channel = Channel.to(endpoint, Security())
    try:
        with pytest.raises(CallFailed, match="ended without an answer"):
            channel.call(TXN, pb.TxnRequest(), WAIT_S, ())
    finally:
        channel.close()


def test_a_store_raises_that_the_engine_is_unavailable(endpoint: str) -> None:
    with pytest.raises(EngineUnavailableError, match="no answer from"):
        snapkv.open(f"etcd://{endpoint}", read_timeout=1.0)


def test_a_store_of_a_loop_does_so_too(endpoint: str) -> None:
    async def main() -> None:
        with pytest.raises(EngineUnavailableError, match="no answer from"):
            await snapkv.aio.open(f"etcd://{endpoint}", read_timeout=1.0)

    asyncio.run(main())
