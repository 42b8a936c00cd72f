"""Messages between processes by gRPC: one unary call carries what waits for a peer.

    a call's body    msgpack: [1, [[changefeed, message], ...]]; the answer is empty
    for each peer    one call at a time; meanwhile the newest heartbeats wait, and other messages

A call that fails loses its messages: the protocol repeats what matters, and gRPC connects again by
itself. Of what waits, an older heartbeat is replaced by a newer one, and beyond `WAITING_MAX` the
oldest other messages are lost. So a peer that does not answer costs bounded memory, and no thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import msgpack

from cdcmeta.errors import InvalidArgumentError, InvalidMessageError
from cdcmeta.scheduler.protocol import encoding
from cdcmeta.scheduler.protocol.messages import Announce, Envelope, Heartbeat, HeartbeatResponse
from snapkv.clock import monotonic

log = logging.getLogger("cdcmeta.scheduler")

SERVICE, METHOD = "cdcmeta.scheduler.v1.Post", "Deliver"
VERSION = 1
WAITING_MAX = 20_000
"""So many messages wait for a peer, or to be received, at most."""
CALL_BYTES = 8 << 20
"""A call carries about so much at most, or one message."""
CALL_S = 5.0
UNUSED_S = 60.0
"""A connection that was not used for so long is closed."""
THREADS = 4
_BEATS = (Announce, Heartbeat, HeartbeatResponse)
_OPTIONS = (
    ("grpc.max_receive_message_length", encoding.MESSAGE_BYTES_MAX + (1 << 20)),
    ("grpc.max_send_message_length", encoding.MESSAGE_BYTES_MAX + (1 << 20)),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True)
class Tls:
    """The files of mutual TLS, as PEM: both sides show a certificate of the same authority."""

    authority: str
    certificate: str
    key: str

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return what the files contain. Raises `OSError`."""
        ca, certificate, key = (
            Path(each).read_bytes() for each in (self.authority, self.certificate, self.key)
        )
        return ca, certificate, key


class GrpcPost:
    """Listens at an address, and sends to those of other captures.

    `listen` is `HOST:PORT`, with the port 0 for any free one. `advertise` is how other captures
    reach it, if that differs. Without `tls`, only addresses of this machine are allowed, unless
    `insecure=True`: any client that reaches the port could stop tables.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        advertise: str | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
    ) -> None:
        """Listen. Raises `InvalidArgumentError`, and `OSError` if the port is taken."""
        host, _ = split_address(listen)
        if tls is None and not insecure and not _is_local(host):
            raise InvalidArgumentError(
                f"{listen} can be reached from other machines: give the files of TLS, or allow it "
                "as insecure"
            )
        self._tls = tls
        self._arrived = deque[tuple[str, Envelope]](maxlen=WAITING_MAX)
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}
        self._closed = False
        self.refused = 0
        """How many messages were not understood."""
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="cdcmeta-post")
        self._server = grpc.server(self._pool, options=_OPTIONS)
        handler = grpc.unary_unary_rpc_method_handler(self._deliver)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        port = self._bound(listen)
        self.address = advertise or _joined(host, port)
        split_address(self.address)
        self._server.start()

    def send(self, address: str, feed: str, envelope: Envelope) -> None:
        """Send a message; it is encoded here, and leaves when the peer has answered the last."""
        raw = encoding.encode(envelope)
        beat = None
        if isinstance(envelope.body, _BEATS):
            beat = feed, envelope.header.to, type(envelope.body)
        with self._lock:
            if self._closed:
                return
            peer = self._peers.get(address)
            if peer is None:
                self._close_unused()
                peer = self._peers[address] = _Peer(self._channel(address))
        peer.put(beat, feed, raw)

    def receive(self) -> list[tuple[str, Envelope]]:
        """Return the messages that have arrived."""
        found = []
        while self._arrived:
            found.append(self._arrived.popleft())
        return found

    def close(self) -> None:
        """End the server and all connections."""
        with self._lock:
            self._closed = True
            peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.close()
        self._server.stop(0).wait(CALL_S)
        self._pool.shutdown(wait=True)

    def _bound(self, listen: str) -> int:
        try:
            if self._tls is None:
                return int(self._server.add_insecure_port(listen))
            ca, certificate, key = self._tls.read()
            credentials = grpc.ssl_server_credentials(
                [(key, certificate)], ca, require_client_auth=True
            )
            return int(self._server.add_secure_port(listen, credentials))
        except RuntimeError as e:
            raise OSError(f"cannot listen at {listen}: is the port taken?") from e

    def _channel(self, address: str) -> grpc.Channel:
        if self._tls is None:
            return grpc.insecure_channel(address, _OPTIONS)
        ca, certificate, key = self._tls.read()
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return grpc.secure_channel(address, credentials, _OPTIONS)

    def _close_unused(self) -> None:
        before = monotonic() - UNUSED_S
        for address, peer in list(self._peers.items()):
            if peer.used_at < before:
                del self._peers[address]
                peer.close()

    def _deliver(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            version, messages = msgpack.unpackb(raw)
            if version != VERSION:
                raise InvalidMessageError(f"version {version} of calls", "unsupported")
            found = [(str(feed), encoding.decode(each)) for feed, each in messages]
        except Exception as e:  # whatever a foreign sender makes of it
            self.refused += 1
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a call: {e}"[:200])
        self._arrived.extend(found)
        return b""


class _Peer:
    """What waits for one address, and the call under way."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._call: Any = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        self._lock = threading.Lock()
        self._beats: dict[Any, tuple[str, bytes]] = {}
        self._others = deque[tuple[str, bytes]](maxlen=WAITING_MAX)
        self._is_calling = self._closed = False
        self.used_at = monotonic()

    def put(self, beat: Any, feed: str, raw: bytes) -> None:
        """Send a message, or let it wait; `beat` identifies a heartbeat that replaces another."""
        self.used_at = monotonic()
        with self._lock:
            if beat is None:
                self._others.append((feed, raw))
            else:
                self._beats[beat] = feed, raw
            batch = self._next()
        if batch is not None:
            self._send(batch)

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._closed = True
        self._channel.close()

    def _next(self) -> bytes | None:
        """Return the body of the next call, None if one is under way or nothing waits."""
        if self._is_calling or self._closed or not (self._others or self._beats):
            return None
        batch: list[tuple[str, bytes]] = []
        size = 0
        while (self._others or self._beats) and (not batch or size < CALL_BYTES):
            if self._others:  # requests before the heartbeats that ask about them
                each = self._others.popleft()
            else:
                each = self._beats.pop(next(iter(self._beats)))
            batch.append(each)
            size += len(each[1])
        self._is_calling = True
        packed: bytes = msgpack.packb([VERSION, batch])
        return packed

    def _send(self, batch: bytes) -> None:
        try:
            self._call.future(batch, timeout=CALL_S).add_done_callback(self._done)
        except ValueError:  # the channel was closed
            with self._lock:
                self._is_calling = False

    def _done(self, _: Any) -> None:
        with self._lock:
            self._is_calling = False
            batch = self._next()
        if batch is not None:
            self._send(batch)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`. Raises `InvalidArgumentError`.

    >>> split_address("[::1]:7000")
    ('::1', 7000)
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgumentError(f"an address is HOST:PORT, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
