"""The engines under test. A new engine joins by one line in `ENGINES`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conformance_driver import Driver

from snapkv.engine.base import Engine
from snapkv.engine.lmdb import LmdbEngine
from snapkv.engine.memory import MemoryEngine

ENGINES: dict[str, Callable[[Path], Engine]] = {
    # name: makes a new, empty engine; the path is an unused name in a directory of the test
    "memory": lambda path: MemoryEngine(),
    "lmdb": lambda path: LmdbEngine(path, map_bytes=1 << 20, durability="none"),
}


@pytest.fixture(params=list(ENGINES))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Driver]]:
    """Make new drivers of one kind of engine; all are checked and closed at the end."""
    made: list[Driver] = []
    numbers = itertools.count()

    def new() -> Driver:
        driver = Driver(ENGINES[request.param](tmp_path / f"engine-{next(numbers)}"))
        made.append(driver)
        return driver

    yield new
    for driver in made:
        driver.finish()


@pytest.fixture
def db(make: Callable[[], Driver]) -> Driver:
    """A driver of a new, empty engine."""
    return make()
