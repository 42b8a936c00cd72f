"""The option --metrics of commands that run for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from snapkv.cli.terminal import tell
from snapkv.hooks import Hooks

MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus at this address, without a login.",
    ),
]


@contextmanager
def metrics_served(address: str | None) -> Iterator[Hooks | None]:
    """Yield hooks whose metrics are served at an address; None without one.

    Raises `MissingExtraError` without the extra `metrics`, `InvalidOptionError`.
    """
    if address is None:
        yield None
        return
    from snapkv.metrics import Metrics, metrics_server

    with metrics_server(address) as served:
        tell(f"snapkv: metrics at {served.url}")
        yield Metrics(served.registry)
