"""Sending piece by piece, no faster than the client reads, until it hangs up."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Self

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cdcmeta.couch_http.errors import answer_of

log = logging.getLogger(__name__)
JSON = "application/json"
SENT_BYTES = 64 << 10
"""How much is handed to the connection at once: it copies what the client does not take."""


class Streamed(Response):
    """An answer made of pieces; the next is made when the one before it was taken.

    `beat` is sent after each `heartbeat` seconds without a piece, whatever they are waiting for. A
    piece for which `is_last` is true is sent together with the end.
    When a piece fails after the first, the connection is closed, so that nobody takes the half
    for the whole.
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
        self._to_end = False  # all pieces were sent, and the end was not

    @classmethod
    async def begun(cls, pieces: AsyncIterator[bytes], **how: object) -> Self:
        """Return the answer with its first piece: what fails before is an answer of its own."""
        assert isinstance(pieces, AsyncGenerator)
        first = await anext(pieces, b"")
        return cls(pieces, first, **how)  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all, or what the client takes of it."""
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
        """Yield all pieces that are not empty, as long as nothing goes wrong."""
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
    for at in range(0, size or not more, SENT_BYTES):  # an end without a body, too
        behind = at + SENT_BYTES
        more_body = more or behind < size
        body = piece[at:behind]
        await send({"type": "http.response.body", "body": body, "more_body": more_body})
