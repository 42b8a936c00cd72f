"""A client of HTTP that costs little: bare sockets, so that a benchmark times the server."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Iterable
from types import TracebackType

IDLE_S = 3.0


class Connection:
    """One connection that is kept alive; a request, then its answer."""

    def __init__(self, port: int) -> None:
        self._port, self._read = port, bytearray()
        self._open()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, raw: bytes) -> None:
        """Send a request; over a new connection where the server may be closing an idle one."""
        if time.monotonic() - self._used > IDLE_S:
            self.socket.close()
            self._open()
        self.socket.sendall(raw)

    def receive(self) -> bytes:
        """Wait for the answer, and return its body. Raises `ConnectionError` for a refusal."""
        while (body := self.more()) is None:
            pass
        return body

    def more(self) -> bytes | None:
        """Read what has come; return the body once it is whole."""
        some = self.socket.recv(1 << 20)
        if not some:
            raise ConnectionError("the server hung up")
        self._used = time.monotonic()
        self._read += some
        return self._answer()

    def ask(self, raw: bytes) -> bytes:
        """Send a request and return the body of its answer."""
        self.send(raw)
        return self.receive()

    def _open(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._port), timeout=600)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used = time.monotonic()

    def _answer(self) -> bytes | None:
        read = self._read
        behind = read.find(b"\r\n\r\n") + 4
        if behind == 3:
            return None
        head = bytes(read[:behind]).lower()
        if b"\r\ntransfer-encoding: chunked" in head:
            body = _unchunked(read, behind) if read.endswith(b"\r\n0\r\n\r\n") else None
        else:
            size = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
            body = bytes(read[behind:]) if len(read) == behind + size else None
        if body is not None:
            read.clear()
            if not head.startswith(b"http/1.1 2"):
                raise ConnectionError(f"{head!r} {body[:200]!r}")
        return body


def _unchunked(read: bytearray, at: int) -> bytes:
    found = []
    while True:
        line = read.index(b"\r\n", at)
        size = int(read[at:line], 16)
        if not size:
            return b"".join(found)
        found.append(bytes(read[line + 2 : line + 2 + size]))
        at = line + 4 + size


def request(method: str, path: str, body: object = None) -> bytes:
    """Return a request, with a body of JSON unless that is None."""
    raw = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    kind = "" if body is None else "Content-Type: application/json\r\n"
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


def all_at_once(connections: Iterable[Connection], requests: Iterable[bytes]) -> None:
    """Send requests over some connections, on each the next one when the last was answered."""
    left = iter(requests)
    with selectors.DefaultSelector() as ready:
        for connection in connections:
            if (raw := next(left, None)) is not None:
                connection.send(raw)
                ready.register(connection.socket, selectors.EVENT_READ, connection)
        while ready.get_map():
            for key, _ in ready.select():
                if key.data.more() is None:
                    continue
                if (raw := next(left, None)) is None:
                    ready.unregister(key.fileobj)
                else:
                    key.data.send(raw)
