"""The server itself: uvicorn, with an end that is bounded."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import uvicorn

from cdcmeta.http.app import application
from cdcmeta.http.auth import Login
from cdcmeta.http.limits import Limits
from cdcmeta.http.service import Service
from snapkv import SnapshotKV

HOST, PORT = "127.0.0.1", 5984
KEEP_ALIVE_S = 60


class Server(uvicorn.Server):
    """Serves a store until `stop`, or in the main thread until SIGINT or SIGTERM.

    >>> import snapkv
    >>> server = Server(snapkv.open("memory:"), port=0)
    >>> server.stop(); server.run()

    It listens on `host` only; port 0 takes any that is free, which `port` tells. Where only this
    machine reaches it and there is no login, it must be asked by a name of this machine, by `host`
    or by one of `allow_hosts`. The store stays the caller's to close. Raises `OSError` when the
    address cannot be had.
    """

    def __init__(
        self,
        store: SnapshotKV,
        *,
        host: str = HOST,
        port: int = PORT,
        login: Login | None = None,
        allow_hosts: Iterable[str] = (),
        limits: Limits | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        limits = limits or Limits()
        self._service = Service(store, limits)
        self._ready = ready
        self._socket = _bound(host, port)
        hosts = {host, *allow_hosts} if self.local and login is None else None
        config = uvicorn.Config(
            application(self._service, login, hosts),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=limits.stop_s,  # type: ignore[arg-type]
        )
        super().__init__(config)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where clients on this machine find it."""
        host = str(self._socket.getsockname()[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        return ip_address(self._socket.getsockname()[0]).is_loopback

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the end is wanted; then feeds end, and others have `stop_s` to."""
        try:
            super().run([self._socket])
        finally:
            self._socket.close()
            self._service.hub.close()

    def stop(self) -> None:
        """Let it end; from any thread."""
        self.should_exit = True

    # --- what uvicorn calls ---

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell when it is ready."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the feeds first: they would go on for ever."""
        self._service.hub.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear the signals that end it; a second one does what it did before.

        uvicorn's own raises them again at the end, before the store is closed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in numbers}

        def hear(number: int, frame: object) -> None:
            self.stop()
            signal.signal(number, before[number])

        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, and not handed down to other programs."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError:
        found.close()
        raise
    return found
