"""Random histories of a source, fed to a recorded sink as pipelines do it, and read again."""

import random
from itertools import islice
from pathlib import Path
from typing import Any

import snapkv
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors.prefix_source import Router
from cdcmeta.scheduler.executors.recorded_sink import folder_name, recorded_sink, store_name
from snapkv import Change, Changes, Commit, SnapshotKV

KINDS = ("memory", "lmdb", "archive")
TABLES = ["orders/", "заказы/", "s*r/%2F", "a/b/", "."]


class Source:
    """A store with two writers."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.stores = [snapkv.open(f"memory:{name}", writer=who) for who in ("ann", "bob")]
        self.store, self._rng = self.stores[0], rng

    def fill(self, commits: int) -> None:
        rng = self._rng
        for _ in range(commits):
            keys = [f"{rng.choice(TABLES)}{rng.randrange(6)}" for _ in range(rng.randrange(1, 6))]
            removed = rng.sample(keys, rng.randrange(0, 2))
            puts = {key: rng.randbytes(rng.randrange(5)) for key in keys if key not in removed}
            said = rng.choice([{}, {"note": "why"}, {"note": "почему", "meta": {"a": 1}}])
            rng.choice(self.stores).commit(puts=puts, deletes=removed, **said)

    def changes(self, table: str, since: int) -> list[Changes]:
        """The table's commits after a time, as a reader hands them to its pipeline."""
        router = Router({each: each for each in TABLES})
        with self.store.watch(since=since, timeout=0) as watch:
            parts = [router.split(each).get(table) for each in watch]
        return [each for each in parts if each is not None]

    def pages(self, table: str, at: int, keys: int = 2) -> list[Changes]:
        snapshot = self.store.at(at)
        commit, items = Commit(at, 0, snapshot.revision, None), iter(snapshot.items(table))
        found = []
        while page := list(islice(items, keys)):
            found.append(Changes(commit, tuple(Change(*item, commit) for item in page)))
        return found

    def state(self, table: str, at: int) -> dict[str, bytes]:
        return dict(self.store.at(at).items(table))

    def log(self, table: str, since: int) -> list[tuple]:
        return [
            (c.commit.ts, c.commit.writer, c.commit.note, c.commit.meta, c.commit.revision)
            for c in self.changes(table, since)
        ]

    def close(self) -> None:
        for store in self.stores:
            store.close()


class Place:
    """Where a sink records, and what is there."""

    def __init__(self, kind: str, folder: Path, source: Source, feed: str = "copy") -> None:
        self.kind, self._source, self._feed = kind, source, feed
        where = f"memory:{folder}" if kind == "memory" else f"{kind}:{folder}"
        self.url, self.folder = where, folder
        self._held = snapkv.open(where, name="held") if kind != "archive" else None
        self.sink = recorded_sink(f"record+{where}", "main", feed, source.store)

    def writer(self, table: str, number: int):
        return self.sink(table, Token(7, number))

    def open(self, table: str, **options: Any) -> SnapshotKV:
        if self.kind == "archive":
            return snapkv.open_archive(str(self.folder / folder_name(table)))
        return snapkv.open(self.url, name=store_name("main", table), create=False, **options)

    def log(self, table: str, since: int = 0) -> list[tuple]:
        """The recorded commits after a time: time, writer, note, meta, revision in the source."""
        with self.open(table) as target:
            return [
                (c.ts, c.writer or None, c.note, c.meta, self._revision(c))
                for c in target.commits()
                if c.ts > since
            ]

    def _revision(self, commit: Commit) -> int | None:
        return commit.revision if self.kind == "archive" else commit.source_revision

    def close(self) -> None:
        if self._held is not None:
            self._held.close()


def feed_state(source: Source, writer, table: str, at: int) -> None:
    for page in source.pages(table, at):
        writer.write([page], 0)
    writer.write([], at)


def feed(source: Source, writer, table: str, since: int, most: int = 256) -> None:
    """Write a table's commits after a time, some at once."""
    left = source.changes(table, since)
    while left:
        batch, left = left[:most], left[most:]
        writer.write(batch, batch[-1].commit.ts)
