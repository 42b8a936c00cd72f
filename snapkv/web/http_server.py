"""The server: the socket that it listens on, a bounded shutdown, and connections with limits."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from snapkv.errors import InvalidOptionError
from snapkv.web.client_connection import ClientLimits, HttpConnection
from snapkv.web.login import Login

# --- the address; other machines reach it only behind a login ---

HOST = "127.0.0.1"
"""The address of a server, unless another one is given: only this machine can reach it."""


class Listener:
    """A socket that is bound to an address, and that child processes do not inherit.

    It listens on `host` only. Port 0 takes any free port, which `port` returns. The server closes
    the socket.

    >>> listener = Listener(HOST, 0)
    >>> listener.local, listener.url == f"http://127.0.0.1:{listener.port}/"
    (True, True)
    >>> listener.socket.close()

    Raises `InvalidOptionError` when other machines can reach the address without a login and
    without `insecure`, and `OSError`, which names the address, when it cannot bind to it.
    """

    def __init__(
        self, host: str, port: int, login: Login | None = None, *, insecure: bool = False
    ) -> None:
        check_exposure(host, login, insecure=insecure)
        self.login, self._host = login, host
        self.socket = _bound(host, port)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Its URL for clients on this machine."""
        host = str(self.socket.getsockname()[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return _is_loopback(self.socket.getsockname())

    def host_names(self, allowed: Iterable[str] = ()) -> set[str] | None:
        """Return the names that Host headers may have beside this machine's; None for any name.

        Any name will do if there is a login, which pages of other sites cannot send, or if other
        machines can reach the address.
        """
        return {self._host, *allowed} if self.local and self.login is None else None


def check_exposure(host: str, login: Login | None, *, insecure: bool = False) -> None:
    """Raise `InvalidOptionError` if other machines could use the server without a login."""
    if login is None and not insecure and not _is_loopback(_address(host, 0)[4]):
        raise InvalidOptionError(
            f"other machines can reach host {host!r}, and the server has no login: set a user and "
            "a password, or allow everyone with --insecure (in Python: insecure=True)"
        )


def _address(host: str, port: int) -> tuple[int, int, int, str, Any]:
    with _named(host):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Name the address in an `OSError`."""
    try:
        yield
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            why = "another process has that port; end it, or choose another port"
        else:
            why = f"{e.strerror or e}; choose another host or port"
        raise OSError(e.errno, f"cannot listen at {place}: {why}") from e


def _is_loopback(address: tuple[Any, ...]) -> bool:
    return ip_address(address[0]).is_loopback


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = _address(host, port)
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _named(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"):
            found.bind(address)
    except OSError:
        found.close()
        raise
    return found


# --- the server: uvicorn with a bounded shutdown ---

KEEP_ALIVE_S = 60
CANCEL_S = 1.0
"""The longest that answers may take to end after the server hung up on their clients, in
seconds."""


class Server(uvicorn.Server):
    """Serves an application until `stop`, or in the main thread until SIGINT or SIGTERM.

    It calls `ready` when it serves, and `stopping` before it waits for answers: that call ends the
    answers which would never end by themselves. Both run in the event loop. `route_of` returns the
    route of a path, one of a fixed number, for metrics.

    >>> from starlette.responses import Response
    >>> server = Server(Response("hello"), Listener("127.0.0.1", 0))
    >>> server.stop(); server.run()
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: Listener,
        *,
        limits: ClientLimits | None = None,
        ready: Callable[[], None] = lambda: None,
        stopping: Callable[[], None] = lambda: None,
        route_of: Callable[[str], str] = lambda path: "other",
    ) -> None:
        limits = limits or ClientLimits()
        self._listener, self._stop_s = listener, limits.stop_s
        self._ready, self._stopping, self.route_of = ready, stopping, route_of
        config = uvicorn.Config(
            app,
            http=partial(HttpConnection, limits=limits),  # type: ignore[arg-type]
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
        """Serve until `stop`. Then it ends the answers within `ClientLimits.stop_s`."""
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
