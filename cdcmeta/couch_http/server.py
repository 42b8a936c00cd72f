"""The server itself: uvicorn, with an end that is bounded."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any

import uvicorn

from cdcmeta.couch_http.app import application
from cdcmeta.couch_http.connection import Connection
from cdcmeta.couch_http.limits import Limits
from cdcmeta.couch_http.login import Login
from cdcmeta.couch_http.origins import checked_origins
from cdcmeta.couch_http.service import Service
from cdcmeta.errors import InvalidArgumentError
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
    or by one of `allow_hosts`. Pages of `cors_origins` may use it from browsers.

    The store stays the caller's to close. Raises `InvalidArgumentError` when other machines can
    reach the address and there is neither a login nor `insecure`, and `OSError` when it cannot
    listen on the address.
    """

    def __init__(
        self,
        store: SnapshotKV,
        *,
        host: str = HOST,
        port: int = PORT,
        login: Login | None = None,
        allow_hosts: Iterable[str] = (),
        insecure: bool = False,
        cors_origins: Iterable[str] = (),
        limits: Limits | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        check_exposure(host, login, insecure=insecure)
        origins = checked_origins(cors_origins)
        limits = limits or Limits()
        self._service = Service(store, limits, login)
        self._ready = ready
        self._socket = _bound(host, port)
        hosts = {host, *allow_hosts} if self.local and login is None else None
        config = uvicorn.Config(
            application(self._service, hosts, origins),
            http=partial(Connection, limits=limits),  # type: ignore[arg-type]
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
        return _is_loopback(self._socket.getsockname())

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the end is wanted; then feeds end, and others have `stop_s` to."""
        try:
            super().run([self._socket])
        finally:
            self._socket.close()
            self._service.close()

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


def check_exposure(host: str, login: Login | None, *, insecure: bool = False) -> None:
    """Raise `InvalidArgumentError` if other machines could use a server without a login."""
    if login is None and not insecure and not _is_loopback(_address(host, 0)[4]):
        raise InvalidArgumentError(
            f"host {host!r} can be reached from other machines, and there is no login: set a user "
            "and a password, or allow everyone with --insecure (in Python: insecure=True)"
        )


def _address(host: str, port: int) -> tuple[int, int, int, str, Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]


def _is_loopback(address: tuple[Any, ...]) -> bool:
    return ip_address(address[0]).is_loopback


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, and not handed down to other programs."""
    family, kind, protocol, _, address = _address(host, port)
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError:
        found.close()
        raise
    return found
