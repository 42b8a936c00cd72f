"""Fixtures: a place on each engine, a clock that stands still, an open store in that place."""

import pytest

from snapkv import ManualClock

from .engines import ENGINES, START_MS, Place, assert_sound
from .observed import Cluster


@pytest.fixture(params=ENGINES)
def place(request, tmp_path):
    with Place(ENGINES[request.param], tmp_path) as place:
        yield place


@pytest.fixture
def clock():
    return ManualClock(START_MS)


@pytest.fixture
def store(place, clock):
    store = place.open(clock=clock, writer="ann@test")
    yield store
    assert_sound(store)


@pytest.fixture
def engine(place):
    return place.engine()


@pytest.fixture
def cluster(place, clock):
    return Cluster(place, clock)
