"""Fixtures on the system's clock: a log of generations with one of them, and a member."""

import pytest

from cdcmeta.generations import GenerationLog, Sharding
from snapkv import SystemClock

RING = {(n << 61) + 1: Sharding(2) for n in range(-4, 4)}


@pytest.fixture
def clock():
    return SystemClock()


@pytest.fixture
def log(store):
    found = GenerationLog(store, propagation_delay=0.0, leeway=0.2)
    found.make(RING)
    return found


@pytest.fixture
def member(log):
    with log.member("node") as member:
        yield member
