"""Fleets for tests: two stores on LMDB and an archive, which change at random on one clock."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from archive.histories import recorder
from direct import Planned
from reading.tabled import Writing
from stream_queries import Checkpoint, Query

import snapkv
from snapkv import ManualClock, SnapshotKV

STORES = ("eu", "us")
NAMES = ("eu", "old", "us")
"""The members of a `Grown`, of which `old` is an archive."""


class Grown:
    """A fleet that is described by a file, and the stores behind it."""

    def __init__(self, folder: Path, clock: ManualClock, seed: int = 0) -> None:
        self.folder, self.clock, self.rng = folder, clock, random.Random(seed)
        self.stores: dict[str, SnapshotKV] = {}
        self.writing: dict[str, Writing] = {}
        for name in NAMES:
            store = snapkv.open(f"lmdb:{folder / name}", clock=clock, writer="ann@test")
            self.stores[name] = store
            self.writing[name] = Writing(store, clock, self.rng)
        self._recorder = recorder(self.stores["old"], str(folder / "archive"))
        self.urls = {name: f"lmdb:{folder / name}" for name in STORES}
        self.urls["old"] = f"archive:{folder / 'archive'}"
        self.tick()

    @property
    def path(self) -> str:
        return fleet_file(self.folder / "fleet.toml", self.urls)

    def close(self) -> None:
        for store in self.stores.values():
            store.close()

    def save(self, name: str, key: str, value: bytes) -> int:
        """Save a key of a member; return the timestamp."""
        plain = self.writing[name].plain
        commit = self.stores[name].commit(puts={key: value})
        changes = plain.effect({key: value}, [], [])
        plain.add(commit.ts, commit.revision, changes, None, commit.writer)
        return commit.ts

    def steps(self, count: int) -> None:
        """Commit to members at random, often at one time."""
        for _ in range(count):
            self.writing[self.rng.choice(NAMES)].steps(1)

    def tick(self) -> int:
        """Make one time final on all members; return it."""
        self.clock.advance(1)
        for name in NAMES:
            self.writing[name].tick()
        self._recorder.catch_up()
        return self.stores["eu"].resolved()

    def compact(self, name: str) -> None:
        """Remove all history of a store but its newest state."""
        store = self.stores[name]
        store.reader.engine.compact(store.info()["newest_revision"])

    def recreate(self, name: str) -> None:
        """Put another store into the place of one."""
        self.stores[name].close()
        (self.folder / name).rename(self.folder / f"{name} before")
        self.stores[name] = snapkv.open(f"lmdb:{self.folder / name}", clock=self.clock)
        self.stores[name].save("k", b"another")

    @contextmanager
    def restored(self, name: str) -> Iterator[None]:
        """Restore a store to where it was before the block, and commit as often as in it."""
        backup = self.folder / f"{name} backup"
        self.stores[name].backup(str(backup))
        yield
        revision = self.stores[name].info()["newest_revision"]
        self.stores[name].close()
        (self.folder / name).rename(self.folder / f"{name} before")
        backup.rename(self.folder / name)
        store = self.stores[name] = snapkv.open(f"lmdb:{self.folder / name}", clock=self.clock)
        while store.tick().revision <= revision:
            self.clock.advance(1)


def fleet_file(path: Path, members: Mapping[str, Any]) -> str:
    """Write the file of a fleet; return its path."""
    lines = [f'"{name}" = {_toml(member)}' for name, member in members.items()]
    path.write_text("\n".join(["[members]", *lines, ""]))
    return str(path)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(value)


class FleetFrame(Planned):
    """A DataFrame of a fleet, without Spark."""

    def __init__(self, path: str, schema: list[tuple] | None = None, **options: Any) -> None:
        super().__init__("", schema, fleet=path, **options)


def read(path: str, schema: list[tuple] | None = None, **options: Any) -> list[tuple]:
    """All rows of a DataFrame of a fleet."""
    return FleetFrame(path, schema, **options).reader().rows()


def items(path: str, **options: Any) -> list[tuple]:
    """The member, key and value of each row."""
    return read(path, columns="member,key,value", **options)


class FleetQuery(Query):
    """A stream of a fleet, without Spark."""

    usual: ClassVar[dict[str, str]] = {"readChangeFeed": "true"}

    def __init__(self, path: str, checkpoint: Checkpoint | None = None, **options: Any) -> None:
        super().__init__("", checkpoint, fleet=path, **options)
