"""Fixtures: a log of generations on each engine, in a store as the store's own tests have it."""

import pytest
from store.conftest import clock as clock
from store.conftest import place as place
from store.conftest import store as store

from cdcmeta.generations import GenerationLog

DELAY_S, LEEWAY_S = 10.0, 5.0


@pytest.fixture
def log(store):
    return GenerationLog(store, propagation_delay=DELAY_S, leeway=LEEWAY_S)
