"""Serving metrics to Prometheus from a process that has no HTTP server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from snapkv.base.arguments import whole_number
from snapkv.errors import InvalidOptionError


class Served(NamedTuple):
    """What is served, and where."""

    registry: CollectorRegistry
    url: str


@contextmanager
def metrics_server(address: str) -> Iterator[Served]:
    """Serve a new registry at HOST:PORT, in a thread, until the block ends; port 0 means any.

    It also has the process's CPU, memory and files. It asks for no login: choose an address that
    only Prometheus can reach.

    Raises `InvalidOptionError` for an invalid address, or one that cannot be listened at.
    """
    host, _, port_text = address.rpartition(":")
    host, port = host.strip("[]"), whole_number(port_text)
    if not host or port is None or port >= 1 << 16:
        raise InvalidOptionError(f"{address!r} is not HOST:PORT, as in 127.0.0.1:9100")
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as e:
        raise InvalidOptionError(f"cannot serve metrics at {address}: {e.strerror}") from e
    shown = f"[{host}]" if ":" in host else host
    try:
        yield Served(registry, f"http://{shown}:{server.server_port}/metrics")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
