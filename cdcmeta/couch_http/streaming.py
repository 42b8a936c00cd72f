"""Answers: streamed in pieces no faster than the client reads, or one JSON value."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Self

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cdcmeta.couch_http.http_errors import HTTPError, answer_of
from cdcmeta.couch_http.service import Limits

log = logging.getLogger(__name__)
JSON = "application/json"
SENT_BYTES = 64 << 10
"""The bytes that are passed to the connection at once: it copies what it cannot send yet."""


class Streamed(Response):
    """An answer in pieces; each is produced after the one before it was sent.

    `beat` is sent after each `heartbeat` seconds without a piece. A piece for which `is_last` is
    true is sent together with the end. When a piece after the first fails, the connection is
    closed, so that the client does not take the answer for complete.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        first: bytes,
        *,
        is_last: Callable[[], bool] = lambda: False,
        heartbeat: float | None = None,
        beat: bytes = b"\n",
        media_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._pieces, self._first, self._is_last = pieces, first, is_last
        self._heartbeat, self._beat = math.inf if heartbeat is None else heartbeat, beat
        self._to_end = False  # all pieces were sent, but not the end

    @classmethod
    async def started(cls, pieces: AsyncIterator[bytes], **how: object) -> Self:
        """Return the answer with its first piece; an error before it gets an answer of its own."""
        assert isinstance(pieces, AsyncGenerator)
        first = await anext(pieces, b"")
        return cls(pieces, first, **how)  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it until its end, or until the client hangs up."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._pieces), anyio.create_task_group() as tasks:
            tasks.start_soon(self._hung_up, receive, tasks.cancel_scope)
            await send(start)
            if scope["method"] == "HEAD":
                self._to_end = True
            else:
                await self._send(send)
            if self._to_end:
                await send({"type": "http.response.body"})
            tasks.cancel_scope.cancel()

    async def _hung_up(self, receive: Receive, sending: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()

    async def _send(self, send: Send) -> None:
        if self._heartbeat < math.inf:
            await self._send_beating(send)
            return
        async with aclosing(self._all()) as pieces:
            async for piece in pieces:
                is_last = self._is_last()
                await _send_piece(send, piece, more=not is_last)
                del piece
                if is_last:
                    return

    async def _send_beating(self, send: Send) -> None:
        made, taken = anyio.create_memory_object_stream[bytes](0)
        sent = anyio.Semaphore(0)
        async with anyio.create_task_group() as tasks, taken:
            tasks.start_soon(self._make, made, sent)
            while True:
                piece = self._beat
                with anyio.move_on_after(self._heartbeat) as silence:
                    try:
                        piece = await taken.receive()
                    except anyio.EndOfStream:
                        return
                is_last = not silence.cancelled_caught and self._is_last()
                await _send_piece(send, piece, more=not is_last)
                del piece
                if is_last:
                    tasks.cancel_scope.cancel()
                    return
                if not silence.cancelled_caught:
                    sent.release()

    async def _make(self, made: MemoryObjectSendStream[bytes], sent: anyio.Semaphore) -> None:
        async with made:
            async for piece in self._all():
                await made.send(piece)
                del piece
                await sent.acquire()

    async def _all(self) -> AsyncGenerator[bytes, None]:
        """Yield all non-empty pieces, up to the first error."""
        first, self._first = self._first, b""
        yield first
        del first
        try:
            async for piece in self._pieces:
                if piece:
                    yield piece
                    del piece
            self._to_end = True
        except Exception as e:
            answer = answer_of(e)
            if answer is None:
                raise
            log.warning("an answer ended early: %s", answer)


async def _send_piece(send: Send, piece: bytes, *, more: bool) -> None:
    size = len(piece)
    for at in range(0, size or not more, SENT_BYTES):  # also an end without a body
        behind = at + SENT_BYTES
        more_body = more or behind < size
        body = piece[at:behind]
        await send({"type": "http.response.body", "body": body, "more_body": more_body})


# --- answers of one JSON value ---

_ENCODER = json.JSONEncoder(separators=(",", ":"))


def encoded(value: Any) -> bytes:
    """Return a value as JSON."""
    return _ENCODER.encode(value).encode()


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer of a JSON value, with a newline for people."""
    return Response(encoded(value) + b"\n", status, headers, JSON)


def error_answer(error: HTTPError) -> Response:
    """Return the answer for an error."""
    return answer(error.body, error.status, error.headers)


# --- the size of batches and pieces ---


class BatchSize:
    """The number of documents to read at once, by the sizes of the ones before; at first one.

    It at most doubles from one step to the next. The sizes of the next documents are unknown:
    where large documents follow small ones, up to `Limits.docs` of them are read together, once.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.docs = 1

    def after(self, size: int) -> None:
        """Adapt to the size in bytes of the documents of the last step; 0 changes nothing."""
        if size:
            fits = self.docs * self._limits.step_bytes // size
            self.docs = max(1, min(fits, 2 * self.docs, self._limits.docs))


def pieces_of(rows: deque[bytes], size: int) -> Iterator[bytes]:
    """Yield rows in pieces of `size` bytes, rounded up to whole rows; yielded rows are freed."""
    while rows:
        yield b"".join(_taken(rows, size))


def _taken(rows: deque[bytes], size: int) -> Iterator[bytes]:
    while rows and size > 0:
        size -= len(rows[0])
        yield rows.popleft()
