"""What a proxy sees of HTTP/2: frames, and the gRPC messages inside them.

A frame is 3 bytes length, 1 type, 1 flags, 4 stream, then its payload (RFC 9113, 4.1); a gRPC
message is 1 byte of compression, 4 bytes length, then protobuf, spread over DATA frames. Headers
are compressed and stay closed to us.
"""

from __future__ import annotations

from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, PING, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x6, 0x8
END_STREAM, PADDED = 0x1, 0x8
NEEDLE_BYTES_MAX = 256


class Piece(NamedTuple):
    """A frame, or (`kind` None) bytes that are none: the preface, HTTP/1, TLS."""

    raw: bytes
    kind: int | None = None
    flags: int = 0
    stream: int = 0

    @property
    def payload(self) -> bytes:
        """What is in a frame, without padding."""
        if self.kind is None:
            return self.raw
        body = self.raw[9:]
        return body[1 : len(body) - body[0]] if self.flags & PADDED else body

    @property
    def ends_stream(self) -> bool:
        """Whether it is the sender's last on the stream."""
        return self.kind in (DATA, HEADERS) and bool(self.flags & END_STREAM)

    @property
    def answers(self) -> bool:
        """Whether a server that sends this has done its work on the stream."""
        return self.kind in (DATA, RST_STREAM, None) or self.ends_stream


def window_update(increment: int) -> bytes:
    """Return a frame that lets the other side send more, over all streams."""
    return b"\0\0\4" + bytes([WINDOW_UPDATE]) + b"\0" * 5 + increment.to_bytes(4, "big")


class FrameReader:
    """Cuts a stream of bytes into frames; hands through what is not HTTP/2."""

    def __init__(self, *, preface: bytes) -> None:
        self._expected = preface
        self._waiting = b""
        self.opaque = False

    def feed(self, data: bytes) -> list[Piece]:
        """Return what is complete now; the rest waits."""
        if self.opaque:
            return [Piece(data)]
        self._waiting += data
        pieces = []
        if self._expected:
            if not self._waiting.startswith(self._expected[: len(self._waiting)]):
                self.opaque = True
                whole, self._waiting = self._waiting, b""
                return [Piece(whole)]
            if len(self._waiting) < len(self._expected):
                return []
            pieces.append(Piece(self._expected))
            self._waiting = self._waiting[len(self._expected) :]
            self._expected = b""
        at = 0
        while len(self._waiting) - at >= 9:
            end = at + 9 + int.from_bytes(self._waiting[at : at + 3], "big")
            if end > len(self._waiting):
                break
            raw = self._waiting[at:end]
            pieces.append(Piece(raw, raw[3], raw[4], int.from_bytes(raw[5:9], "big") & 0x7FFFFFFF))
            at = end
        self._waiting = self._waiting[at:]
        return pieces


class Messages:
    """The messages of one stream, of which it keeps only where they end, and a tail."""

    def __init__(self, *, framed: bool) -> None:
        self._framed = framed
        self.seen = 0  # bytes so far
        self.passed = 0  # of them given on; whoever does so counts
        self._tail = b""  # before the newest payload: a needle may be cut in two
        self._newest = b""
        self._ends = [0]  # of messages that reach into the newest payload
        self._head = b""  # of a message whose length is not known yet
        self._left = 0  # bytes missing of the message that is coming

    def feed(self, payload: bytes) -> None:
        """Take the next bytes."""
        self._tail = (self._tail + self._newest)[-(NEEDLE_BYTES_MAX - 1) :]
        self._newest = payload
        start, at = self.seen, 0
        self.seen += len(payload)
        self._ends = self._ends[-1:]
        while self._framed and at < len(payload):
            if self._left:
                taken = min(self._left, len(payload) - at)
                self._left -= taken
                at += taken
                continue
            missing = 5 - len(self._head)
            self._head += payload[at : at + missing]
            at += missing
            if len(self._head) == 5:
                self._left = int.from_bytes(self._head[1:], "big")
                self._head = b""
                self._ends.append(start + at + self._left)

    @property
    def between(self) -> bool:
        """Whether no message is half here."""
        return not self._left and not self._head

    def find(self, needle: bytes) -> int | None:
        """Return where the message ends whose needle the newest payload completed."""
        tail = self._tail[-(len(needle) - 1) :] if len(needle) > 1 else b""
        found = (tail + self._newest).find(needle)
        if found < 0:
            return None
        position = self.seen - len(self._newest) - len(tail) + found + len(needle)
        return next((end for end in self._ends if end >= position), position)
