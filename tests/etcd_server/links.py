"""One connection of a client through the proxy, and our connection to the server for it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from etcd_server.faults import Fault, meets
from etcd_server.frames import (
    DATA,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    FrameReader,
    Messages,
    Piece,
)

if TYPE_CHECKING:
    from etcd_server.proxy import EtcdProxy

RECORDED_BYTES_MAX = 16 << 20
WAITING_BYTES_MAX = 32 << 10
"""So much of a request waits until it is clear whether a hold is meant for it."""
UNDECIDED_S = 0.25
"""And so long: a stream may send its headers long before its first message."""
_RESET = struct.pack("ii", 1, 0)  # linger, for 0 seconds: closing sends RST


class End(asyncio.Protocol):
    """One socket of a link; reading stops while there are reasons to."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.transport: asyncio.Transport | None = None
        self._reasons: set[str] = set()
        self._later = deque[tuple[float, Callable[[], object]]]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._read_or_not()
        self.link.made(self)

    def data_received(self, data: bytes) -> None:
        self.link.received(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.link.lost(self)

    def pause_writing(self) -> None:
        self.link.other(self).stop_reading("full")

    def resume_writing(self) -> None:
        self.link.other(self).read_again("full")

    def stop_reading(self, reason: str) -> None:
        """Read nothing until the reason is taken back."""
        self._reasons.add(reason)
        self._read_or_not()

    def read_again(self, reason: str) -> None:
        """Take a reason back."""
        self._reasons.discard(reason)
        self._read_or_not()

    def send(self, data: bytes) -> None:
        """Write, after the proxy's latency, in order."""
        self._in_order(lambda: self.transport and self.transport.write(data))

    def close(self) -> None:
        """Close after what was sent."""
        self._in_order(lambda: self.transport and self.transport.close())

    def reset(self) -> None:
        """Close with RST, at once."""
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    def _in_order(self, act: Callable[[], object]) -> None:
        loop, latency_s = asyncio.get_running_loop(), self.link.proxy.latency_s
        if not self._later and not latency_s:
            act()
            return
        before = self._later[-1][0] if self._later else 0.0
        self._later.append((max(before, loop.time() + latency_s), act))
        if len(self._later) == 1:
            loop.call_at(self._later[0][0], self._send_due)

    def _send_due(self) -> None:
        """Do what is due: a timer for each would lose the order where a loop is late."""
        loop = asyncio.get_running_loop()
        while self._later and self._later[0][0] <= loop.time():
            self._later.popleft()[1]()
        if self._later:
            loop.call_at(self._later[0][0], self._send_due)

    def _read_or_not(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            if self._reasons:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()


class Link:
    """Client and server ends, and what was armed faults' doing between them."""

    def __init__(self, proxy: EtcdProxy) -> None:
        self.proxy = proxy
        self.client, self.server = End(self), End(self)
        self.client.stop_reading("no server yet")
        self.recorded: bytearray | None = bytearray()
        self.swallow = False
        self.connecting = False
        self._closed = False
        self._requests, self._answers = FrameReader(preface=PREFACE), FrameReader(preface=b"")
        self._streams: dict[int, Messages] = {}
        self._newest_stream = 0
        self._incomplete: list[tuple[Fault, int]] = []
        self._unanswered: list[Fault] = []
        self._waiting: deque[Piece] = deque()
        self._undecided: set[int] = set()  # streams that a hold could still meet
        self._held_requests: bytearray | None = None
        self._losing_requests = False
        self._held_answers: bytearray | None = None

    # --- what faults ask for ---

    def close(self) -> None:
        """Close both ends; nothing is passed on any more."""
        self._closed = True
        self.client.close()
        self.server.close()

    def reset(self) -> None:
        """Close both ends with RST."""
        self._closed = True
        self.client.reset()
        self.server.reset()

    def hold_requests(self, stream: int) -> None:
        """Keep what the client sends, from a stream's headers on; it may go, the server stays."""
        while self._waiting and not self._begins({stream}):
            self._pass(self._waiting.popleft())
        self._held_requests = bytearray()
        self._undecided.clear()
        self._pass_decided()

    def lose_requests(self) -> None:
        """Drop what the client sends from now on."""
        self._losing_requests = True

    def release_requests(self) -> None:
        """Deliver what was kept; the client's end closes, the server's stays."""
        if self._held_requests and not self._closed:
            self.server.send(bytes(self._held_requests))
            self._held_requests.clear()
            self.swallow = True
            self.client.close()

    def hold_answers(self) -> None:
        """Keep what the server sends."""
        if self._held_answers is None:
            self._held_answers = bytearray()

    def release_answers(self) -> None:
        """Deliver what the server sent, and go on."""
        if self._held_answers is not None and not self._closed:
            self.client.send(bytes(self._held_answers))
            self._held_answers = None

    # --- what the ends report ---

    def other(self, end: End) -> End:
        """Return the end across."""
        return self.server if end is self.client else self.client

    def made(self, end: End) -> None:
        """Begin; reading from the client waits for the server."""
        if end is self.client:
            self.proxy.opened(self)
        elif self._closed:
            end.reset()  # the client went while we connected
        else:
            self.client.read_again("no server yet")

    def received(self, end: End, data: bytes) -> None:
        """Take bytes of either end."""
        if end is self.client:
            for piece in self._requests.feed(data):
                self._request(piece)
            self._answers.opaque |= self._requests.opaque
        else:
            for piece in self._answers.feed(data):
                self._answer(piece)

    def lost(self, end: End) -> None:
        """Close the end across, unless it waits for requests of ours."""
        waits = end is self.client and self._held_requests is not None and not self._closed
        if not waits:
            self._closed = True
            self.other(end).close()
        if self.client.transport is None and self.server.transport is None:
            self.proxy.ended(self)

    # --- the way of a piece ---

    def _request(self, piece: Piece) -> None:
        if piece.kind == HEADERS and piece.stream > self._newest_stream:
            self._newest_stream = piece.stream
            self.proxy.requests += 1
            if self.proxy.holds_armed:
                self._undecided.add(piece.stream)
                self.proxy.later(UNDECIDED_S, lambda: self._decide(piece.stream))
        if self._losing_requests or self._closed:
            return
        if piece.kind in (DATA, None):
            self._match(piece)
            if self._closed:
                return
        self._waiting.append(piece)
        whole = piece.kind == DATA and self._streams[piece.stream].between
        if whole or piece.kind == RST_STREAM or piece.ends_stream:
            self._undecided.discard(piece.stream)
        if sum(len(waiting.raw) for waiting in self._waiting) > WAITING_BYTES_MAX:
            self._undecided.clear()
        self._pass_decided()

    def _decide(self, stream: int) -> None:
        self._undecided.discard(stream)
        if not self._closed:
            self._pass_decided()

    def _pass_decided(self) -> None:
        """Pass on up to the first headers whose message is still to come.

        Headers must not overtake each other, so everything behind them waits.
        """
        while self._waiting and not self._begins(self._undecided):
            self._pass(self._waiting.popleft())

    def _begins(self, streams: set[int]) -> bool:
        first = self._waiting[0]
        return first.kind == HEADERS and first.stream in streams

    def _pass(self, piece: Piece) -> None:
        if self._losing_requests or self._closed:
            return
        if self._held_requests is not None:
            self._held_requests += piece.raw
        else:
            self._record(piece)
            self.server.send(piece.raw)
        if piece.kind in (DATA, None):
            self._streams[piece.stream].passed += len(piece.payload)
        for fault, end in list(self._incomplete):
            if fault.stream == piece.stream and self._streams[piece.stream].passed >= end:
                self._incomplete.remove((fault, end))
                fault.on_whole(self)
        if piece.ends_stream:
            self._streams.pop(piece.stream, None)

    def _match(self, piece: Piece) -> None:
        messages = self._streams.get(piece.stream)
        if messages is None:
            framed = piece.kind is not None
            messages = self._streams[piece.stream] = Messages(framed=framed)
        messages.feed(piece.payload)
        for fault in self.proxy.armed:
            end = messages.find(fault.needle)
            if end is not None:
                self.proxy.armed.remove(fault)
                fault.link, fault.stream = self, piece.stream
                self._incomplete.append((fault, end))
                self._unanswered.append(fault)
                fault.on_match(self)
                return

    def _record(self, piece: Piece) -> None:
        # sent all at once, a client's pings are a flood: the server hangs up on the third
        if self.recorded is not None and piece.kind != PING:
            self.recorded += piece.raw
            if len(self.recorded) > RECORDED_BYTES_MAX:
                self.recorded = None

    def _answer(self, piece: Piece) -> None:
        for fault in [fault for fault in self._unanswered if meets(fault, piece)]:
            self._unanswered.remove(fault)
            fault.on_answer(self)
        if self.swallow or self._closed:
            return
        if self._held_answers is not None:
            self._held_answers += piece.raw
        else:
            self.client.send(piece.raw)


class Replay(asyncio.Protocol):
    """A connection that sends remembered bytes and drops the answers."""

    def __init__(self, data: bytes, fault: Fault) -> None:
        self._data, self._fault = data, fault
        self._reader = FrameReader(preface=b"")
        self._reader.opaque = not data.startswith(PREFACE)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        for piece in self._reader.feed(data):
            if meets(self._fault, piece):
                self._fault.answered.set()
                if self.transport is not None:
                    self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
