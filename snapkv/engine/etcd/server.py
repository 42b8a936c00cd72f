"""The server's version and clock, mostly by HTTP: the only way etcd shows its clock."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import SSLContext
from typing import NamedTuple

from snapkv.base.concurrency import Work, here
from snapkv.base.waiting import bounded, in_thread, monotonic
from snapkv.errors import ServerWarning, SnapKVError

# --- one plain HTTP exchange with an endpoint, in bounded time whatever the endpoint does ---

TIMEOUT_S = 1.0
"""The longest that connecting, or waiting for the next bytes, may take, in seconds."""
EXCHANGE_S = 3.0
"""The longest time of the whole exchange, in seconds, with the lookup of the name and bytes that
come slowly."""
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
    host, _, port = endpoint.rpartition(":")
    place = host.strip("[]"), int(port)
    connection = (
        HTTPConnection(*place, timeout=TIMEOUT_S)
        if context is None
        else HTTPSConnection(*place, timeout=TIMEOUT_S, context=context)
    )
    sockets, given_up = list[socket.socket](), threading.Event()

    def exchange() -> Answer:
        with contextlib.closing(connection):
            connection.connect()
            sockets.append(connection.sock)  # which the connection may forget before the end
            if given_up.is_set():
                raise TimeoutError("too late")
            began_s = monotonic()
            connection.request("GET", path)
            # an answer without a length is no longer the connection's to close
            with connection.getresponse() as response:
                body = response.read(BODY_BYTES_MAX)
                return Answer(body, response.getheader("Date"), began_s, monotonic())

    try:
        return in_thread(exchange, "snapkv exchange", EXCHANGE_S)
    except TimeoutError:  # end an exchange that is still running
        given_up.set()
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        raise


# --- version and clock ---

SAMPLE_S = 300.0
"""The pause between two reads of the server's clock, in seconds; in between the local monotonic
clock is added."""
SAMPLE_AGAIN_S = 15.0
"""The pause before the clock is read again after a failure, in seconds."""
OPENING_S = 2 * TIMEOUT_S
"""The longest that opening waits for the first look, in seconds. If it has not ended by then, gRPC
is asked for the version, which takes a second more at most."""
FRESH_S = 1.0
"""The least pause between two reads of the clock with `fresh`, in seconds."""
FRESH_WAIT_S = 1.0
ASK_AGAIN_S = 1.0
"""The pause before the version is requested again after a request without an answer, in seconds."""
DATE_GRAIN_MS = 1_000
NO_ETCD = (ValueError, KeyError, TypeError, OverflowError)
"""The errors that parsing raises for the answer of another server than etcd."""
DRIFT_PPM = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """The server's time in the middle of one exchange, and its uncertainty."""

    at_s: float
    server_ms: int | None
    uncertainty_ms: int
    version: str

    def time_ms(self, now_s: float) -> tuple[int, int] | None:
        """Return the server's time now, and its uncertainty; None if it is unknown."""
        if self.server_ms is None:
            return None
        passed_ms = round((now_s - self.at_s) * 1_000)
        drift_ms = passed_ms * DRIFT_PPM // 1_000_000
        return self.server_ms + passed_ms, self.uncertainty_ms + drift_ms


def sample(endpoint: str, context: SSLContext | None) -> Sample:
    """Ask `host:port` for its version; the answer carries a date. One exchange.

    Raises as `fetch`, and `ValueError` or `KeyError` when it does not answer like an etcd.
    """
    answer = fetch(endpoint, context, "/version")
    version = str(json.loads(answer.body)["etcdserver"])
    middle_s = (answer.began_s + answer.ended_s) / 2
    if answer.date is None:
        return Sample(middle_s, None, 0, version)
    server_ms = round(parsedate_to_datetime(answer.date).timestamp() * 1_000) + DATE_GRAIN_MS // 2
    took_ms = round((answer.ended_s - answer.began_s) * 1_000)
    return Sample(middle_s, server_ms, DATE_GRAIN_MS // 2 + took_ms // 2 + 1, version)


class ServerClock:
    """The newest sample of the server's clock and version; a short-lived thread takes samples.

    `ask_version` requests the version without HTTP: it returns the version, an empty text when
    the answer has none, and None without an answer. `expects_clock` says whether the lack of a
    clock, and the version, are worth a warning.
    """

    def __init__(
        self,
        addresses: Callable[[], tuple[str, ...]],
        context: SSLContext | None,
        ask_version: Callable[[], str | None] = lambda: None,
        expects_clock: Callable[[], bool] = lambda: True,
    ) -> None:
        self._addresses, self._context, self._ask_version = addresses, context, ask_version
        self._expects_clock = expects_clock
        self._sample: Sample | None = None
        self._version: str | None = None  # what `ask_version` found
        self._next_at = self._fresh_at = self._ask_at = -math.inf
        self._looking: Work | None = None
        self._clockless = False  # the last look found servers, but no clock
        self._advised = self._warned = False  # of the version, of the clock
        self._lock = threading.Lock()

    @property
    def version(self) -> str | None:
        """The server's version, None if unknown; one round trip while it is unknown."""
        if self._sample is not None:
            return self._sample.version
        if self._version is None and monotonic() >= self._ask_at:
            self._ask()
        return self._version or None

    def _ask(self) -> str | None:
        """Ask for the version by gRPC; keep and return it, None when nothing was answered."""
        version = None
        with contextlib.suppress(SnapKVError):
            version = self._ask_version()
        self._ask_at = monotonic() + ASK_AGAIN_S
        if version is not None:
            self._version = version
        return version

    def tells_progress_truly(self) -> bool:
        """Return whether a watch's answer about its progress is reliable.

        It is not while the version is unknown. A server that hides its version, by HTTP and by
        gRPC, is trusted: otherwise reading history would wait for minutes.
        """
        version = self.version
        if version is None:
            return self._version is not None
        found = numbers_of(version)
        return found is None or found >= TRUE_PROGRESS

    def time_ms(self, *, fresh: bool = False) -> tuple[int, int] | None:
        """Return the server's clock and its uncertainty; None if it is unknown.

        Every `SAMPLE_S` a thread takes a new sample. With `fresh` one is taken now (but not twice
        in `FRESH_S`), and the call waits for it. Gives the warnings of `look` that come late.
        """
        looking = self._look(fresh)
        if fresh and looking is not None:
            looking.join(bounded(FRESH_WAIT_S))
        found = self._sample
        if found is None or found.server_ms is None or not self._advised:
            self._warn(etcd=True)
            found = self._sample
        return None if found is None else found.time_ms(monotonic())

    def look(self) -> None:
        """Take the first sample; `OPENING_S` seconds and a request by gRPC at most.

        Warns with `ServerWarning` of versions with known bugs, and of a server without a clock:
        once each, here or at the first `time_ms` after it becomes known.
        """
        looking = self._look(False)
        if looking is not None:
            looking.join(bounded(OPENING_S))
        version = self.version  # by gRPC if HTTP has not returned it
        self._warn(etcd=version is not None)

    def _warn(self, *, etcd: bool) -> None:
        """Give the warnings that are due, each once; without `etcd` it may be another server."""
        if not self._expects_clock():
            return
        found, clockless = self._sample, not self._addresses() or (etcd and self._clockless)
        version = self._version if found is None else found.version
        if version and not self._advised:
            self._advised = True
            if advice := advice_on(version):
                warnings.warn(advice, ServerWarning, stacklevel=4)
        if clockless and not self._warned:
            self._warned = True
            message = (
                "the server shows no clock by HTTP: snapkv cannot check the local clock against it"
            )
            warnings.warn(message, ServerWarning, stacklevel=4)

    def _look(self, fresh: bool) -> Work | None:
        """Begin a sample if it is due; return the thread that takes it, if any."""
        with self._lock:
            if self._looking is not None and self._looking.is_alive():
                return self._looking
            now = monotonic()
            if now < (self._fresh_at if fresh else self._next_at):
                return None
            self._next_at = now + SAMPLE_AGAIN_S
            if fresh:
                self._fresh_at = now + FRESH_S
            try:
                self._looking = here().start(self._sample_one, "snapkv clock")
            except RuntimeError:  # no more threads, or the process ends: another time
                self._looking = None
            return self._looking

    def _sample_one(self) -> None:
        """Take a sample from the first endpoint that shows a clock; else the earlier one stays."""
        for address in self._addresses():
            with contextlib.suppress(OSError, HTTPException, *NO_ETCD):
                found = sample(address, self._context)
                if found.server_ms is not None:
                    self._sample, self._next_at = found, found.at_s + SAMPLE_S
                    self._clockless = False
                    return
                if self._sample is None:
                    self._sample = found
        if self._sample is not None:
            self._clockless = self._sample.server_ms is None
        elif not (self._warned and self._version):  # no server, or one without HTTP
            self._clockless = self._ask() is not None

    def complaints(self) -> list[str]:
        """Return the problems in health checks; `EXCHANGE_S` seconds an endpoint at most."""
        found = []
        for address in self._addresses():
            try:
                health = json.loads(fetch(address, self._context, "/health")[0])
                if str(health.get("health")) != "true":
                    found.append(f"{address} is not healthy: {health.get('reason') or health}")
            except (OSError, HTTPException, ValueError, AttributeError) as e:
                found.append(f"{address} does not report its health: {e}")
        return found

    def after_fork(self) -> None:
        """Renew the lock; a thread that was looking is not here."""
        self._lock, self._looking = threading.Lock(), None


TRUE_PROGRESS = (3, 5, 8)
"""The first version whose answers to progress requests do not overtake events (etcd #15220)."""


def numbers_of(version: str) -> tuple[int, int, int] | None:
    """Return a version as numbers, None if it is not one.

    >>> numbers_of("3.6.0-rc.1")
    (3, 6, 0)
    """
    try:
        major, minor, patch = (int(part.split("-")[0]) for part in version.split(".")[:3])
    except ValueError:
        return None
    return major, minor, patch


def advice_on(version: str) -> str | None:
    """Return what to say about a server version with known corruption or stale reads.

    >>> advice_on("3.5.30") is None, advice_on("3.5.1")[:9]
    (True, 'etcd 3.5.')

    Source: etcd's changelogs and postmortems, see `docs/etcd.md`.
    """
    found = numbers_of(version)
    if found is None:
        return None
    recommended = "3.5.33, 3.6.14, 3.7.1 or newer is recommended"
    if found < (3, 5, 0):
        return f"etcd {version} is older than what was ever tried; {recommended}"
    if found < (3, 5, 3):
        return f"etcd {version} is known to corrupt data after a crash; {recommended}"
    if found < (3, 5, 28) or (3, 6, 0) <= found < (3, 6, 9):
        return f"etcd {version} has known bugs (stale reads, lost watch events); {recommended}"
    return None
