"""What the server says of itself over plain HTTP: its version, and the only clock it shows."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import SSLContext

from snapkv.clock import monotonic
from snapkv.errors import ServerWarning

TIMEOUT_S = 1.0
SAMPLE_S = 300.0
"""The server's clock is looked at so often; in between the local monotonic clock goes on."""
SAMPLE_AGAIN_S = 15.0
"""After a failure it is tried again so soon."""
DATE_GRAIN_MS = 1_000
BODY_BYTES_MAX = 65_536
DRIFT_PPM = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the server: its time in the middle of the exchange, and how wrong that may be."""

    at_s: float
    server_ms: int
    uncertainty_ms: int
    version: str

    def time_ms(self, now_s: float) -> tuple[int, int]:
        """Return the server's time now, and its uncertainty."""
        passed_ms = round((now_s - self.at_s) * 1_000)
        drift_ms = passed_ms * DRIFT_PPM // 1_000_000
        return self.server_ms + passed_ms, self.uncertainty_ms + drift_ms


def fetch(
    endpoint: str, context: SSLContext | None, path: str
) -> tuple[bytes, str | None, float, float]:
    """Return (body, date, began, ended) of one exchange with `host:port`.

    Raises `OSError` and `HTTPException`; each step takes `TIMEOUT_S` at most.
    """
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    connection = (
        HTTPConnection(host, int(port), timeout=TIMEOUT_S)
        if context is None
        else HTTPSConnection(host, int(port), timeout=TIMEOUT_S, context=context)
    )
    try:
        connection.connect()
        began = monotonic()
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read(BODY_BYTES_MAX), response.getheader("Date"), began, monotonic()
    finally:
        connection.close()


def sample(endpoint: str, context: SSLContext | None) -> Sample:
    """Ask `host:port` for its version; the answer carries a date. One exchange.

    Raises as `fetch`, and `ValueError` or `KeyError` when it does not answer like an etcd.
    """
    body, date, began, ended = fetch(endpoint, context, "/version")
    if date is None:
        raise ValueError("no date in the answer")
    server_ms = round(parsedate_to_datetime(date).timestamp() * 1_000) + DATE_GRAIN_MS // 2
    took_ms = round((ended - began) * 1_000)
    uncertainty_ms = DATE_GRAIN_MS // 2 + took_ms // 2 + 1
    version = str(json.loads(body)["etcdserver"])
    return Sample((began + ended) / 2, server_ms, uncertainty_ms, version)


class Server:
    """The newest look at the server, renewed now and then by whoever asks."""

    def __init__(
        self, addresses: Callable[[], tuple[str, ...]], context: SSLContext | None
    ) -> None:
        self._addresses, self._context = addresses, context
        self._sample: Sample | None = None
        self._next_at = 0.0
        self._sampling = threading.Lock()

    @property
    def version(self) -> str | None:
        """The server's version, None when it never said."""
        return None if self._sample is None else self._sample.version

    def tells_progress_truly(self) -> bool:
        """Return whether a watch's answer about its progress can be relied on."""
        found = None if self.version is None else numbers_of(self.version)
        return found is None or found >= TRUE_PROGRESS

    def time_ms(self) -> tuple[int, int] | None:
        """Return the server's clock and its uncertainty; None when it never told.

        One exchange every `SAMPLE_S`, otherwise none.
        """
        self.look()
        found = self._sample
        return None if found is None else found.time_ms(monotonic())

    def complaints(self) -> list[str]:
        """Return what the endpoints' health checks complain about; empty when all is well."""
        found = []
        for address in self._addresses():
            try:
                health = json.loads(fetch(address, self._context, "/health")[0])
                if str(health.get("health")) != "true":
                    found.append(f"{address} is not healthy: {health.get('reason') or health}")
            except (OSError, HTTPException, ValueError, AttributeError) as e:
                found.append(f"{address} does not tell how it is: {e}")
        return found

    def look(self) -> None:
        """Renew the look at the server, if it is time and nobody else is at it."""
        if monotonic() < self._next_at or not self._sampling.acquire(blocking=False):
            return
        try:
            for address in self._addresses():
                try:
                    found = sample(address, self._context)
                except (OSError, HTTPException, ValueError, KeyError, TypeError):
                    continue
                if self.version != found.version and (advice := advice_on(found.version)):
                    warnings.warn(advice, ServerWarning, stacklevel=2)
                self._sample, self._next_at = found, monotonic() + SAMPLE_S
                return
            self._next_at = monotonic() + SAMPLE_AGAIN_S
        finally:
            self._sampling.release()

    def after_fork(self) -> None:
        """Renew the lock."""
        self._sampling = threading.Lock()


TRUE_PROGRESS = (3, 5, 8)
"""Before this one, an answer to a progress request may overtake events (etcd #15220)."""


def numbers_of(version: str) -> tuple[int, int, int] | None:
    """Return a version as numbers, None for what is none.

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
