"""Fixtures: a database on each engine, on a clock that stands still."""

import pytest
from store.engines import ENGINES, START_MS, Place, assert_sound

from cdcmeta import ChangesDB
from snapkv import ManualClock

from .sound import assert_database_sound


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
def db(store):
    db = ChangesDB(store, "db").create()
    yield db
    assert_database_sound(db)
