"""One connection of a client: what it may send at once, and how long it may take."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from dataclasses import dataclass
from typing import Any

import httptools
from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of clients; each name ends with its unit, or is a count."""

    head_s: float = 20.0
    """The longest that a client may take to send the head of a request."""
    unread_s: float = 60.0
    """The longest that a client may read nothing of an answer."""
    connections: int = 4_000
    """Clients at once; one more is answered 503."""
    stop_s: float = 5.0
    """The longest that clients may take to receive the end of answers when the server stops."""


HEAD_BYTES_MAX = 64 << 10
"""The largest head, and the largest framing around pieces of a body; one read may exceed it."""
QUEUED_MAX = 64
"""The most requests that may wait on one connection for the answer to the one before."""


class HttpConnection(HttpToolsProtocol):
    """A connection with limits on heads, pipelined requests, and unread answers."""

    def __init__(self, *args: Any, limits: ClientLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._bare_bytes = 0  # received since the last head or piece of a body
        self._in_head = False
        self._answered: RequestResponseCycle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first head."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Parse requests; the rest of a head must arrive within `head_s` of its first byte."""
        if self._deadline is None and not self._answering:
            self._expect_head()
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._parsed(data)
        except httptools.HttpParserError as e:
            self.logger.warning("no valid HTTP request: %s", e.__context__ or e)
            self._reject()
        if self._answering:
            self._forget_deadline()

    def on_response_complete(self) -> None:
        """Expect the next head; a part of it may have arrived already."""
        if self.pipeline:
            self._answered = self.pipeline[-1][0]
        super().on_response_complete()
        if self._answering:
            self._forget_deadline()
        if self.transport.is_closing():
            self._expect_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the request being answered: uvicorn wakes only the newest one."""
        self._forget_deadline()
        self._forget_unread()
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close it; the client may still read the answers sent so far."""
        self._close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self._limits.head_s, self._close)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self.transport.close()
        self._expect_reading()

    # --- parsing ---

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; ignore one after the body, which comes too late for the application."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer a request, or queue it."""
        self._in_head, self._bare_bytes = False, 0
        if self.parser.should_upgrade():
            return  # `_parsed` feeds this head again
        super().on_headers_complete()
        if len(self.pipeline) > QUEUED_MAX:
            raise httptools.HttpParserError(f"more than {QUEUED_MAX} requests at once")
        if self._answered is None or self._answered.response_complete:
            self._answered = self.cycle
        if self.scope["http_version"] != "1.1":
            self.cycle.send = _unchunked(self.cycle)  # type: ignore[assignment,method-assign]

    def on_body(self, body: bytes) -> None:
        """Add a piece of a body."""
        self._bare_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a body."""
        self._bare_bytes = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _parsed(self, data: bytes) -> bytes:
        """Parse received bytes; return the bytes to parse again.

        After a head with `Upgrade`, the parser takes what follows for another protocol. Java's
        clients send that header with any body. So the head is parsed again without it.
        """
        self._bare_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            method, version = self.parser.get_method(), self.parser.get_http_version()
            if method == b"CONNECT":
                raise httptools.HttpParserError("CONNECT is for proxies") from None
            head = [b"%b %b HTTP/%b\r\n" % (method, self.url, version.encode())]
            head += [b"%b: %b\r\n" % each for each in self.headers if each[0] != b"upgrade"]
            return b"%b\r\n%b" % (b"".join(head), data[e.args[0] :])
        if self._bare_bytes > HEAD_BYTES_MAX:
            raise httptools.HttpParserError(f"a head of more than {HEAD_BYTES_MAX} bytes")
        return b""

    def _reject(self) -> None:
        """Answer 400; hang up instead if an earlier request is still being answered."""
        before = self._answered if self._answering else None
        if before is not None and (before is not self.cycle or before.response_started):
            self._close()
        else:
            self.send_400_response("Invalid HTTP request received.")
            self._expect_reading()

    # --- answers that the client does not read ---

    def pause_writing(self) -> None:
        """Expect the client to read some of what it was sent."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Expect nothing: the client reads."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._forget_unread()

    def _expect_reading(self) -> None:
        if self._unread is None:
            self._check_later(self._unsent())

    def _check_later(self, left: int) -> None:
        self._unread = self.loop.call_later(self._limits.unread_s, self._check_reading, left)

    def _check_reading(self, left_before: int) -> None:
        """Hang up unless less is unsent than before; nothing was added since."""
        left = self._unsent()
        if left < left_before:
            self._check_later(left)
        else:
            self.transport.abort()

    def _unsent(self) -> int:
        """Return how many bytes the client has not acknowledged, in our buffer and the kernel's."""
        found = bytearray(4)
        descriptor = self.transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return 0  # it is closed
        try:
            fcntl.ioctl(descriptor, termios.TIOCOUTQ, found)
        except OSError:
            return 0
        (kernels,) = struct.unpack("i", found)
        return int(kernels) + self.transport.get_write_buffer_size()

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _unchunked(cycle: RequestResponseCycle) -> Send:
    """Return a `send` without chunked encoding, which HTTP/1.0 lacks: closing ends the answer."""
    send = cycle.send

    async def sent(message: Any) -> None:
        cycle.chunked_encoding = False
        cycle.expected_content_length = len(message.get("body", b""))  # it checks each by itself
        await send(message)

    return sent
