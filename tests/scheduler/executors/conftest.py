"""Fixtures: a server that all tests share, and a database for each; a proxy in front of it."""

import pytest
from couch_http.served import Served

import snapkv

from .between import Between
from .mirror import Mirror


@pytest.fixture(scope="session")
def served():
    with snapkv.open("memory:") as store, Served(store) as served:
        yield served


@pytest.fixture
def mirror(served):
    mirror = Mirror(served.server.url)
    yield mirror
    mirror.close()


@pytest.fixture
def between(served):
    with Between(served.server.url) as between:
        yield between
