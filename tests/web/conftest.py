"""Fixtures: any application, served on a free port of this machine."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import httpx
import pytest
from starlette.types import ASGIApp

from snapkv.web import HOST, ClientLimits, Listener, Login, Server

WAIT_S = 20.0
"""Longer than anything takes that goes well."""
LOGIN = Login("ann", "pass:word ä")


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for the effect of another thread."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@dataclass
class Served:
    """An application behind a server of this process, and a client of it."""

    server: Server
    http: httpx.Client
    thread: threading.Thread

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()

    def connected(self) -> socket.socket:
        return socket.create_connection((HOST, self.server.port), WAIT_S)

    def sent(self, raw: bytes) -> bytes:
        """Send bytes; return all that comes until the server closes the connection."""
        found = b""
        with self.connected() as client, suppress(ConnectionError):
            client.sendall(raw)
            while piece := client.recv(1 << 16):
                found += piece
        return found

    @property
    def idle(self) -> bool:
        """Whether no client is connected and no request is being answered."""
        state = self.server.server_state
        return not state.connections and not state.tasks


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve what `app` returns for a listener: `serve(app, login=..., limits=..., ...)`."""
    with ExitStack() as stack:

        def start(
            app: Callable[[Listener], ASGIApp],
            login: Login | None = None,
            limits: ClientLimits | None = None,
            stopping: Callable[[], None] = lambda: None,
        ) -> Served:
            started = threading.Event()
            listener = Listener(HOST, 0, login)
            server = Server(
                app(listener), listener, limits=limits, ready=started.set, stopping=stopping
            )
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()
            assert started.wait(WAIT_S)

            http = stack.enter_context(httpx.Client(base_url=server.url, timeout=WAIT_S))
            served = Served(server, http, thread)
            stack.callback(served.stop)
            return served

        yield start
