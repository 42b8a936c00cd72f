"""Calls of a fleet whose servers are silent, and rounds over servers that hold several members."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from etcd_server import EtcdPool, EtcdServer

import snapkv
from snapkv.clock import monotonic
from snapkv.errors import EngineUnavailableError
from snapkv.fleet import connection
from snapkv.timeline import Timeline

TIMEOUT_S = 0.5
LOOSELY_S = 3.0
"""Added to the bounds: the machine may be busy. A request without them would take 12 s."""

pytestmark = pytest.mark.kills_etcd


@pytest.fixture
def other(etcd_pool: EtcdPool) -> Iterator[EtcdServer]:
    """A second server."""
    with etcd_pool.taken() as server:
        yield server


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer, loosely."""
    began = monotonic()
    yield
    assert monotonic() - began < seconds + LOOSELY_S


# --- rounds ---


def test_two_prefixes_of_one_server_are_of_the_same_rounds(etcd: EtcdServer) -> None:
    members = {name: {"url": etcd.url, "prefix": f"/{name}/"} for name in ("pods", "events")}
    with snapkv.fleet(members) as fleet, fleet.ticker() as ticker:
        etcd.gateway.put(b"/pods/a", b"1")
        rounds = [ticker.tick() for _ in range(2)]
        for each in rounds:
            assert (each.ticked, each.refused, each.failed) == (("events", "pods"), {}, {})
        moment = fleet.at(rounds[0].timestamp)
        assert moment.spread == pytest.approx(rounds[0].spread, abs=1e-6)
        assert dict(moment.items()) == {("pods", "/pods/a"): b"1"}
