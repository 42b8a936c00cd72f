"""The engines that every test of a store runs on, and places to open stores in."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import snapkv
from snapkv.engine import memory
from snapkv.engine.base import Delete, Put, Range, Txn
from snapkv.errors import StoreClosedError
from snapkv.opening import open_engine

START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class EngineKind:
    """An engine by its URL, in which {folder} and {unique} are filled in, and its options."""

    url: str
    options: dict = field(default_factory=dict)
    processes: bool = False  # whether several processes can share one


ENGINES = {
    "memory": EngineKind("memory:{unique}"),
    "lmdb": EngineKind("lmdb:{folder}/lmdb-{unique}", {"durability": "none"}, processes=True),
}

_numbers = itertools.count()


class Place:
    """Where stores of one test live: one engine, opened as often as the test likes."""

    def __init__(self, kind: EngineKind, folder) -> None:
        self.kind = kind
        self.url = kind.url.format(folder=folder, unique=f"test-{next(_numbers)}")
        self._opened = []

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error) -> None:
        for thing in reversed(self._opened):
            thing.close()
        memory._shared.pop(self.url, None)

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
