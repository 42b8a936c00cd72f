"""Bodies of requests: read and unpacked within bounds, and read to their end when unwanted."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdcmeta.couch_http.errors import HTTPError, bad_request
from cdcmeta.couch_http.limits import Limits

PIECE_BYTES = 256 << 10
"""How much is unpacked at once."""
RATIO_MAX = 200
RATIO_FREE_BYTES = 16 << 20
"""What is unpacked may be so many times larger than what came, or have so many bytes."""
READ_FIRST_BYTES = 1 << 20
"""A body that nobody wants is read before the answer if it is so small, otherwise after it."""
UNREAD_BYTES_MAX = 1 << 30
"""How much of a larger one is read after the answer; clients send it all before they look."""
CLOSE = (b"connection", b"close")
_GZIP = 16 + zlib.MAX_WBITS


async def read(
    request: Request, limits: Limits, bytes_max: int, take: Callable[[bytes], None]
) -> None:
    """Read the body of a request, and let `take` have each piece as it comes, unpacked.

    Raises `HTTPError`: 413 if it is too large, 408 if it is too slow, 415 if it has an encoding
    other than gzip, 400 if it ends early.
    """
    too_large = HTTPError(413, "too_large", "the request entity is too large")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > bytes_max:
        raise too_large
    unpack = _unpacker(request.headers.getlist("content-encoding"))
    size = 0
    try:
        async with asyncio.timeout(limits.body_s) as bound:
            async for chunk in request.stream():
                _prolong(bound, len(chunk), limits)
                for piece in unpack.pieces(chunk) if unpack else (chunk,):
                    size += len(piece)
                    if size > bytes_max:
                        raise too_large
                    take(piece)
                    if unpack:
                        await asyncio.sleep(0)  # unpacking takes its time
    except TimeoutError:
        reason = "the body did not come in time"
        raise HTTPError(408, "request_timeout", reason, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise bad_request("the body ended early") from None
    if unpack:
        unpack.check_end()


def _prolong(bound: asyncio.Timeout, size: int, limits: Limits) -> None:
    """Give the time for what came; who sent fast may not rest on that for long."""
    now, before = asyncio.get_running_loop().time(), bound.when()
    if size and before is not None:
        bound.reschedule(min(before + size / limits.body_bytes_per_s, now + limits.body_s))


def _unpacker(encodings: list[str]) -> _Unpacker | None:
    named = [each.strip().lower() for header in encodings for each in header.split(",")]
    named = [each for each in named if each not in ("", "identity")]
    if not named:
        return None
    if named not in (["gzip"], ["x-gzip"]):
        reason = f"Content-Encoding {', '.join(named):.80} is not supported: send gzip, or none"
        raise HTTPError(415, "bad_content_encoding", reason, {"Accept-Encoding": "gzip"})
    return _Unpacker()


class _Unpacker:
    """Unpacks gzip, a piece of a bounded size at a time."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)
        self._came = self._made = 0

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what a chunk unpacks to. Raises `HTTPError` (400, 413)."""
        self._came += len(chunk)
        while chunk:
            if self._stream.eof:
                self._stream = zlib.decompressobj(_GZIP)  # gzip allows several in a row
            try:
                piece = self._stream.decompress(chunk, PIECE_BYTES)
            except zlib.error as e:
                raise bad_request(f"the body is not valid gzip: {e}") from None
            chunk = self._stream.unconsumed_tail or self._stream.unused_data
            self._made += len(piece)
            if self._made > max(RATIO_FREE_BYTES, RATIO_MAX * self._came):
                reason = f"the body unpacks to more than {RATIO_MAX} times its size"
                raise HTTPError(413, "too_large", reason)
            yield piece

    def check_end(self) -> None:
        """Raise `HTTPError` (400) unless all of it came."""
        if not self._stream.eof:
            raise bad_request("the gzip body ended early")


class Drained:
    """An application whose answers reach clients that still send the body.

    A connection that is closed while a client sends is reset, and the client then never sees the
    answer. So the rest of the body is read, within bounds.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and read what the application left of its body."""
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        if headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._limits)
        rest_follows = False

        async def sent(message: Message) -> None:
            nonlocal rest_follows
            if message["type"] == "http.response.start" and body.more:
                size = headers.get(b"content-length", b"")
                if size.isdigit() and int(size[:20]) <= READ_FIRST_BYTES:
                    await body.read()
                rest_follows = body.more and CLOSE not in message["headers"]
                if body.more:
                    message = {**message, "headers": [*message["headers"], CLOSE]}
            elif rest_follows and not message.get("more_body"):
                await send({**message, "more_body": True})
                await body.read()
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, body.receive, sent)


class _Body:
    """What is left of a body; `more` says whether something is."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self.more = True

    async def receive(self) -> Message:
        message = await self._receive()
        self.more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def read(self) -> None:
        """Read it to its end, or as far as the bounds allow."""
        left = UNREAD_BYTES_MAX
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.body_s) as bound:
                while self.more and left > 0:
                    size = len((await self.receive()).get("body", b""))
                    _prolong(bound, size, self._limits)
                    left -= size
