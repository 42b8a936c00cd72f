"""The engines that every test of a store runs on, and places to open stores in."""

from __future__ import annotations

import itertools
import unittest.mock
from dataclasses import dataclass, field

from etcd_server import shared_pool

import snapkv
from snapkv.engine import memory
from snapkv.engine.contract import Delete, Put, Range, Txn
from snapkv.engine.etcd.server import ServerClock
from snapkv.errors import StoreClosedError
from snapkv.store.location import open_engine

START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class EngineKind:
    """An engine by its URL, in which {folder} and {unique} are filled in, and its options.

    Without a URL it is a new server of the pool.
    """

    url: str | None
    options: dict = field(default_factory=dict)
    processes: bool = False  # whether several processes can share one
    ttl_s: float = 0.3  # the shortest time to live of a lease


ENGINES = {
    "memory": EngineKind("memory:{unique}"),
    "lmdb": EngineKind("lmdb:{folder}/lmdb-{unique}", {"durability": "none"}, processes=True),
    "etcd": EngineKind(None, processes=True, ttl_s=1.0),
}

SHARED = [name for name, kind in ENGINES.items() if kind.processes]
EMBEDDED = [name for name, kind in ENGINES.items() if kind.url]
"""For `@pytest.mark.parametrize("place", ..., indirect=True)` where not every engine can do it."""

_numbers = itertools.count()


class Place:
    """Where stores of one test live: one engine, opened as often as the test likes."""

    def __init__(self, kind: EngineKind, folder) -> None:
        self.kind, self._opened, self._server = kind, [], None
        if kind.url is not None:
            self.url = kind.url.format(folder=folder, unique=f"test-{next(_numbers)}")
            return
        self._server = shared_pool().take()
        self.url = self._server.url
        # Tests live on clocks that stand still; the server's own clock has tests of its own.
        self._clock = unittest.mock.patch.object(ServerClock, "time_ms", return_value=None)
        self._clock.start()

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error) -> None:
        for thing in reversed(self._opened):
            thing.close()
        memory._shared.pop(self.url, None)
        if self._server is not None:
            self._clock.stop()
            shared_pool().give_back(self._server)

    def open(self, **options) -> snapkv.SnapshotKV:
        """Open a store of this place; it is closed with the test."""
        store = snapkv.open(self.url, **(self.kind.options | options))
        self._opened.append(store)
        return store

    def engine(self):
        """Open the bare engine of this place, past all rules of stores."""
        engine = open_engine(self.url, create=True, options=self.kind.options)
        self._opened.append(engine)
        return engine

    def revision(self) -> int:
        """The newest revision of the engine."""
        engine = open_engine(self.url, create=True, options=self.kind.options)
        try:
            return engine.read([Range(b"x")]).header.revision
        finally:
            engine.close()


def write_raw(engine, *ops: Put | Delete) -> int:
    """Write past the store, without a timestamp, as another program would; return the revision."""
    answer = engine.transact(lambda _: Txn(success=ops), b"-", timeout=10)
    return answer.header.revision


def assert_sound(store: snapkv.SnapshotKV) -> None:
    """Check everything there is to check, unless the test closed the store."""
    try:
        report = store.check()
    except StoreClosedError:
        return
    assert report.problems == ()
