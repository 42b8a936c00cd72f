"""Fixtures: a database on each engine, in a store as the store's own tests have it."""

import pytest
from store.conftest import clock as clock
from store.conftest import place as place
from store.conftest import store as store

from cdcmeta import ChangesDB

from .sound import assert_database_sound


@pytest.fixture
def db(store):
    db = ChangesDB(store, "db").create()
    yield db
    assert_database_sound(db)
