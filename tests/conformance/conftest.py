"""The engines under test. A new engine joins by one line in `ENGINES`."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from conformance_driver import Driver
from etcd_server import EtcdCluster, EtcdPool
from looped import in_loop
from sampling import SOAK

from snapkv.engine.contract import ALL_KEYS_END, Delete, Engine, Txn
from snapkv.engine.etcd.engine import open_etcd
from snapkv.engine.lmdb import LmdbEngine
from snapkv.engine.memory import MemoryEngine

ENGINES: dict[str, Callable[[Path, Callable[[], str]], Engine]] = {
    # name: makes a new, empty engine from an unused name in a directory of the test, or from the
    # URL of a new etcd server
    "memory": lambda path, etcd_url: MemoryEngine(),
    "lmdb": lambda path, etcd_url: LmdbEngine(path, map_bytes=1 << 20, durability="none"),
    "etcd": lambda path, etcd_url: open_etcd(etcd_url()),
    "asyncio etcd": lambda path, etcd_url: in_loop(open_etcd, etcd_url()),
    "three nodes": lambda path, etcd_url: emptied(open_etcd(three_nodes().url)),
}


@cache
def three_nodes() -> EtcdCluster:
    """One cluster for all tests: they count revisions from where they find it."""
    folder = tempfile.TemporaryDirectory(prefix="snapkv-cluster-")
    cluster = EtcdCluster(Path(folder.name))
    cluster.start()
    _ENDINGS.callback(folder.cleanup)
    _ENDINGS.callback(cluster.close)
    return cluster


_ENDINGS = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the cluster with the last of these tests: its idle nodes take a tenth of a processor."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _ENDINGS.close()
        three_nodes.cache_clear()


def emptied(engine: Engine) -> Engine:
    """Remove all keys of an engine; its history stays."""
    everything = Txn(success=(Delete(b"\0", ALL_KEYS_END),))
    engine.transact(lambda _: everything, b"-", timeout=30)
    return engine


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "new_engine: needs engines that nobody ever wrote to")
    config.addinivalue_line("markers", "large: writes 80 MB, in make test to one server")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run on all engines; on the cluster that all tests share, unless they need a new one.

    Its nodes are the server of the engine `etcd`: `make test` runs every sixth test there. In an
    asyncio loop the same code runs: every third one.
    """
    if "make" in metafunc.fixturenames:
        kinds: list[Any] = ["memory", "lmdb", "etcd"]
        marker = metafunc.definition.get_closest_marker
        number, large = crc32(metafunc.definition.nodeid.encode()), marker("large") is not None
        if SOAK or (number % 3 == 1 and not large):
            kinds.append("asyncio etcd")
        if (SOAK or (number % 6 == 0 and not large)) and marker("new_engine") is None:
            one_process = pytest.mark.xdist_group("three nodes")
            kinds.append(pytest.param("three nodes", marks=one_process))
        metafunc.parametrize("make", kinds, indirect=True)


@pytest.fixture
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
