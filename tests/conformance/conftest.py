"""The engines under test. A new engine joins by one line in `ENGINES`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conformance_driver import Driver
from etcd_server import EtcdPool

from snapkv.engine.base import Engine
from snapkv.engine.etcd import open_etcd
from snapkv.engine.lmdb import LmdbEngine
from snapkv.engine.memory import MemoryEngine

ENGINES: dict[str, Callable[[Path, Callable[[], str]], Engine]] = {
    # name: makes a new, empty engine from an unused name in a directory of the test, or from the
    # URL of a new etcd server
    "memory": lambda path, etcd_url: MemoryEngine(),
    "lmdb": lambda path, etcd_url: LmdbEngine(path, map_bytes=1 << 20, durability="none"),
    "etcd": lambda path, etcd_url: open_etcd(etcd_url()),
}


@pytest.fixture(params=list(ENGINES))
def make(
    request: pytest.FixtureRequest, tmp_path: Path, etcd_pool: EtcdPool
) -> Iterator[Callable[[], Driver]]:
    """Make new drivers of one kind of engine; all are checked and closed at the end."""
    made: list[Driver] = []
    numbers = itertools.count()
    with ExitStack() as servers:

        def etcd_url() -> str:
            return servers.enter_context(etcd_pool.taken()).url

        def new() -> Driver:
            path = tmp_path / f"engine-{next(numbers)}"
            driver = Driver(ENGINES[request.param](path, etcd_url))
            made.append(driver)
            return driver

        yield new
        for driver in made:
            driver.finish()


@pytest.fixture
def db(make: Callable[[], Driver]) -> Driver:
    """A driver of a new, empty engine."""
    return make()
