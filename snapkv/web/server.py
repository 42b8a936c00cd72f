"""The server: uvicorn with a bounded shutdown, and connections with limits."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from snapkv.web.client_connection import Connection, Limits
from snapkv.web.listener import Listener

KEEP_ALIVE_S = 60
CANCEL_S = 1.0
"""How long answers may take to end after the server hung up on their clients."""


def _nothing() -> None:
    pass


class Server(uvicorn.Server):
    """Serves an application until `stop`, or in the main thread until SIGINT or SIGTERM.

    It calls `ready` when it serves, and `stopping` before it waits for answers: that call ends the
    answers which would never end by themselves. Both run in the event loop.

    >>> from starlette.responses import Response
    >>> server = Server(Response("hello"), Listener("127.0.0.1", 0))
    >>> server.stop(); server.run()
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: Listener,
        *,
        limits: Limits | None = None,
        ready: Callable[[], None] = _nothing,
        stopping: Callable[[], None] = _nothing,
    ) -> None:
        limits = limits or Limits()
        self._listener, self._stop_s = listener, limits.stop_s
        self._ready, self._stopping = ready, stopping
        config = uvicorn.Config(
            app,
            http=partial(Connection, limits=limits),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=limits.stop_s + CANCEL_S,  # type: ignore[arg-type]
        )
        super().__init__(config)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Its URL for clients on this machine."""
        return self._listener.url

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self._listener.local

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`. Then it ends the answers within `Limits.stop_s`."""
        try:
            super().run([self._listener.socket])
        finally:
            self._listener.socket.close()

    def stop(self) -> None:
        """Stop serving; may be called from any thread."""
        self.should_exit = True

    # --- what uvicorn calls ---

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `ready`."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the answers that would never end by themselves, then wait for the rest.

        After `stop_s` it hangs up on clients, so that answers to them end. uvicorn alone would
        cancel the answers, log tracebacks, and leave connections to a closed loop.
        """
        self._stopping()
        late = asyncio.get_running_loop().call_later(self._stop_s, self._hang_up)
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first SIGINT or SIGTERM; the second has its former handler.

        uvicorn's own method raises the signals again at the end, before the caller closes what it
        served.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in numbers}

        def stop(number: int, frame: object) -> None:
            self.stop()
            signal.signal(number, before[number])

        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
