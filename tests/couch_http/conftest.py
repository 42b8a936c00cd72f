"""Fixtures: a server on each engine, shared by tests that have a database of their own each."""

from contextlib import ExitStack

import pytest
from etcd_server import shared_pool

import snapkv

from .pouched import installed
from .served import Database, Served

ENGINES = ("memory", "lmdb", "etcd")
EMBEDDED = ("memory", "lmdb")


@pytest.fixture(scope="session", params=EMBEDDED)
def served(request, tmp_path_factory):
    with ExitStack() as stack:
        url = "memory:"
        if request.param == "etcd":
            url = stack.enter_context(shared_pool().taken()).url
        elif request.param == "lmdb":
            url = f"lmdb:{tmp_path_factory.mktemp('couch') / 'meta'}"
        store = stack.enter_context(snapkv.open(url))
        yield stack.enter_context(Served(store))


@pytest.fixture(scope="session")
def packages(pytestconfig):
    """Return the folder of the clients of Node.js."""
    return installed(pytestconfig.rootpath / ".pytest_cache" / "pouch")


@pytest.fixture
def db(served) -> Database:
    return served.database()


@pytest.fixture
def http(served):
    return served.http


@pytest.fixture
def own(tmp_path):
    """Serve a store of the test's own: `own(limits=..., login=..., clock=...)`."""
    opened = []

    def serve(engine=None, clock=None, **options) -> Served:
        store = snapkv.open(f"lmdb:{tmp_path / 'own'}", clock=clock, **(engine or {}))
        opened.append(store)
        served = Served(store, **options)
        served.__enter__()
        opened.append(served)
        return served

    yield serve
    for thing in reversed(opened):
        thing.__exit__(None, None, None)
