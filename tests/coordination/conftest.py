"""Fixtures: a store on each engine; a leader and its successor."""

import pytest
from store.conftest import clock as clock
from store.conftest import engine as engine
from store.conftest import place as place
from store.conftest import store as store

from .campaigns import LONG_S, WAIT_S, Campaign, stood


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
