"""The server of a store: a web server that runs the application."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from cdcmeta.couch_http.app import application
from cdcmeta.couch_http.auth import checked_origins
from cdcmeta.couch_http.errors import own_errors
from cdcmeta.couch_http.service import Limits, Service
from snapkv import SnapshotKV, web
from snapkv.web import HOST, Listener, Login

PORT = 5984


class Server(web.Server):
    """Serves a store until `stop`, or in the main thread until SIGINT or SIGTERM.

    >>> import snapkv
    >>> server = Server(snapkv.open("memory:"), port=0)
    >>> server.stop(); server.run()

    It listens on `host` only. Port 0 takes any free port, which `port` returns. If only this
    machine can reach it and it has no login, it rejects requests whose Host header is not a name
    of this machine, `host`, or one of `allow_hosts`. Pages of `cors_origins` may use it from
    browsers.

    The caller closes the store. Raises `InvalidArgumentError` when other machines can reach the
    address without a login and without `insecure`, and `OSError` when it cannot listen on the
    address.
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
        origins = checked_origins(cors_origins)
        limits = limits or Limits()
        self._service = Service(store, limits, login)
        with own_errors():
            listener = Listener(host, port, login, insecure=insecure)
        super().__init__(
            application(self._service, listener.host_names(allow_hosts), origins),
            listener,
            limits=limits,
            ready=ready,
            stopping=self._service.wakeups.stop,
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`. Then feeds end at once, other requests within `stop_s`."""
        try:
            super().run(sockets)
        finally:
            self._service.close()
