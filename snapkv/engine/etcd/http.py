"""One plain HTTP exchange with an endpoint, in bounded time whatever the endpoint does."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.client import HTTPConnection, HTTPSConnection
from ssl import SSLContext
from typing import NamedTuple

from snapkv.base.concurrency import here
from snapkv.base.waiting import bounded, monotonic

TIMEOUT_S = 1.0
"""How long connecting, or waiting for the next bytes, may take."""
EXCHANGE_S = 3.0
"""How long all of it may take, resolving the name and bytes that trickle in included."""
BODY_BYTES_MAX = 65_536


class Answer(NamedTuple):
    """The answer, and the times of the request and of its end (monotonic seconds)."""

    body: bytes
    date: str | None
    began_s: float
    ended_s: float


def fetch(endpoint: str, context: SSLContext | None, path: str) -> Answer:
    """Get a path of `host:port`; `EXCHANGE_S` seconds at most.

    Raises `OSError`, `HTTPException`, and `ValueError` for an invalid name.
    """
    exchange = _Exchange(endpoint, context, path)
    try:
        exchange.start()
    except RuntimeError as e:  # no more threads, or the process ends
        raise OSError(str(e)) from e
    here().join(exchange, bounded(EXCHANGE_S))
    return exchange.result()


class _Exchange(threading.Thread):
    """An exchange in a thread that may be left behind: resolving a name cannot be interrupted."""

    def __init__(self, endpoint: str, context: SSLContext | None, path: str) -> None:
        super().__init__(name="snapkv exchange", daemon=True)
        host, _, port = endpoint.rpartition(":")
        host = host.strip("[]")
        self._connection = (
            HTTPConnection(host, int(port), timeout=TIMEOUT_S)
            if context is None
            else HTTPSConnection(host, int(port), timeout=TIMEOUT_S, context=context)
        )
        self._path = path
        self._socket: socket.socket | None = None
        self._outcome: Answer | Exception | None = None
        self._given_up = False

    def run(self) -> None:
        """Exchange, and keep the outcome."""
        try:
            self._outcome = self._exchanged()
        except Exception as e:
            self._outcome = e
        finally:
            self._connection.close()

    def _exchanged(self) -> Answer:
        self._connection.connect()
        self._socket = self._connection.sock  # which the connection may forget before the end
        if self._given_up:
            raise TimeoutError("too late")
        began_s = monotonic()
        self._connection.request("GET", self._path)
        # an answer without a length is no longer the connection's to close
        with self._connection.getresponse() as response:
            body = response.read(BODY_BYTES_MAX)
            return Answer(body, response.getheader("Date"), began_s, monotonic())

    def result(self) -> Answer:
        """Return the answer or raise the error; end an exchange that is still running."""
        outcome = self._outcome
        if isinstance(outcome, Answer):
            return outcome
        if outcome is not None:
            raise outcome
        self._given_up = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        raise TimeoutError(f"no complete answer in {EXCHANGE_S:g} s")
