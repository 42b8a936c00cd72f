"""Fixtures: a place on each engine, a clock that stands still, an open store in that place."""

import pytest

from snapkv import ManualClock

from .campaigns import LONG_S, WAIT_S, Campaign, stood
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
def waiting(store, place, engine):
    """A leader, and one that waits in a thread."""
    leader = store.election("e", ttl=LONG_S).campaign(b"A")
    second = place.open().election("e", ttl=LONG_S)
    with stood(engine, 2):
        campaign = Campaign(second, b"B")
    yield leader, second, campaign
    leader.close()
    second.close()
    campaign.join(WAIT_S)


@pytest.fixture
def cluster(place, clock):
    return Cluster(place, clock)
