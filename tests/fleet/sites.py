"""The members of a test's fleets: stores on one clock, each in an engine of its own."""

from __future__ import annotations

import itertools
import time
import unittest.mock
from collections.abc import Callable
from contextlib import ExitStack, nullcontext

from etcd_server import shared_pool
from store.engines import START_MS, write_raw

import snapkv
from snapkv import ManualClock, pack
from snapkv.engine import memory
from snapkv.engine.contract import Delete, Put
from snapkv.engine.etcd.server import ServerClock
from snapkv.store.location import open_engine

WAIT_S = 20
_numbers = itertools.count()


class Sites:
    """Stores by the names that they have in a fleet, and all that is closed with the test."""

    def __init__(self, folder) -> None:
        self.folder, self.clock = folder, ManualClock(START_MS)
        self.urls: dict[str, str] = {}
        self.stores: dict[str, snapkv.SnapshotKV] = {}
        self._open = ExitStack()
        self.passed = nullcontext
        """In what engines are opened that always answer: see `Servers`."""

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *error) -> None:
        self._open.close()
        for url in self.urls.values():
            memory._shared.pop(url, None)

    def keep(self, thing):
        """Close a thing with the test; return it."""
        self._open.callback(thing.close)
        return thing

    # --- members ---

    def add(self, *names: str, kind: str = "memory", **options) -> list[snapkv.SnapshotKV]:
        """Make a store for each name."""
        for name in names:
            unique = f"site-{next(_numbers)}"
            urls = {"memory": f"memory:{unique}", "lmdb": f"lmdb:{self.folder}/{unique}"}
            self.urls[name] = urls.get(kind) or self._server_url()
            self.stores[name] = self.open(name, **options)
        return [self.stores[name] for name in names]

    def _server_url(self) -> str:
        """Return the URL of a new etcd server, which ends with the test."""
        # tests live on clocks that stand still
        self._open.enter_context(
            unittest.mock.patch.object(ServerClock, "time_ms", return_value=None)
        )
        return self._open.enter_context(shared_pool().taken()).url

    def open(self, name: str, **options) -> snapkv.SnapshotKV:
        """Open the store of a member once more."""
        full = {"clock": self.clock} | self.engine_options(name) | options
        with self.passed():
            return self.keep(snapkv.open(self.urls[name], **full))

    def engine_options(self, name: str) -> dict:
        """Return the options of the engine of a member."""
        return {"durability": "none"} if self.urls[name].startswith("lmdb:") else {}

    def __getitem__(self, name: str) -> snapkv.SnapshotKV:
        return self.stores[name]

    def archive(self, name: str, folder: str = "archives") -> str:
        """Record what a store has until now; return the folder of its archive."""
        path = f"{self.folder}/{folder}/{name}"
        options = self.engine_options(name)
        with self.passed():
            snapkv.record(self.urls[name], into=path, clock=self.clock, options=options).catch_up()
        return path

    def write_raw(self, name: str, key: str, value: bytes | None) -> None:
        """Write as another program does, into the engine of a member."""
        engine = open_engine(self.urls[name], create=True, options=self.engine_options(name))
        op = Delete(key.encode()) if value is None else Put(key.encode(), value)
        write_raw(engine, op)
        engine.close()

    # --- fleets ---

    def fleet(self, members=None, **options) -> snapkv.fleet.Fleet:
        """Open a fleet: of all members by their URLs, or of the ones given."""
        options.setdefault("clock", self.clock)
        return self.keep(
            snapkv.fleet.open(self.described() if members is None else members, **options)
        )

    def described(self, *names: str, **options) -> dict[str, dict]:
        """Return descriptions of some members, or of all, with the same options."""
        return {name: self.described_as(name, **options) for name in names or self.urls}

    def described_as(self, name: str, **options) -> dict:
        """Return the description of one member."""
        url = self.urls[name]
        return {
            "url": url,
            **({"durability": "none"} if url.startswith("lmdb:") else {}),
            **options,
        }

    def written(self, text: str, name: str = "fleet.toml"):
        """Write the file of a fleet; return its path."""
        path = self.folder / name
        path.write_text(text)
        return path

    # --- time ---

    @property
    def now(self) -> int:
        """The present millisecond as a timestamp."""
        return pack(self.clock.now_ms())

    def later(self, ms: int = 1_000) -> int:
        """Move the clock; return its time."""
        self.clock.advance(ms)
        return self.now

    def tick(self, *names: str) -> dict[str, int]:
        """Tick some members, or all; return their timestamps."""
        return {name: self.stores[name].tick().ts for name in names or self.stores}


def eventually(condition: Callable[[], object], what: str = "it does not happen"):
    """Wait until a condition holds; return what it returned."""
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
    return found
