"""Databases that change at random, and their feed as the format `cdcmeta.changes` has it."""

from __future__ import annotations

import json
import random
from typing import Any

from direct import Planned
from stream_queries import Checkpoint, Query

from cdcmeta import ChangesDB
from cdcmeta.changes import Change
from cdcmeta.spark import ChangesDataSource
from snapkv import ManualClock, SnapshotKV, to_datetime

DATABASE = "cat"
IDS = ("a", "a/1", "a/2", "b", "béta", "c")


class FeedFrame(Planned):
    """A DataFrame of a feed, without Spark."""

    format = ChangesDataSource

    def __init__(self, url: str, schema: list[tuple] | None = None, **options: Any) -> None:
        super().__init__(url, schema, **({"database": DATABASE} | options))


def feed(url: str, schema: list[tuple] | None = None, **options: Any) -> list[tuple]:
    """All rows of a DataFrame of a feed."""
    return FeedFrame(url, schema, **options).reader().rows()


class FeedQuery(Query):
    """A stream of a feed, without Spark."""

    format = ChangesDataSource
    usual = {"database": DATABASE}  # noqa: RUF012

    def __init__(self, url: str, checkpoint: Checkpoint | None = None, **options: Any) -> None:
        super().__init__(url, checkpoint, **options)


def rows_of(changes: list[Change] | tuple[Change, ...]) -> list[tuple]:
    """The rows that tell of changes."""
    return [
        (
            str(change.seq),
            change.id,
            change.rev,
            list(change.revs),
            change.deleted,
            None if change.doc is None else text_of(change.doc),
            to_datetime(change.seq.timestamp),
        )
        for change in changes
    ]


def text_of(doc: dict[str, Any]) -> str:
    return json.dumps(doc, ensure_ascii=False, separators=(",", ":"))


class Editing:
    """Edits at random: new documents, revisions, conflicts, removals, what peers replicate.

    `told` has the row of each edit, as it stood then; `moments` the timestamps in between.
    """

    def __init__(self, store: SnapshotKV, clock: ManualClock, rng: random.Random) -> None:
        self.store, self.clock, self.rng = store, clock, rng
        self.db = ChangesDB(store, DATABASE).create()
        self.moments = [store.resolved()]
        self.told: list[tuple] = []

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()

    def step(self) -> None:
        since = self.db.state().end
        self.rng.choices(
            (self.edit, self.remove, self.replicate, self.bulk, self.elsewhere), (5, 2, 3, 2, 1)
        )[0]()
        self.clock.advance(self.rng.choice((0, 1, 1_000)))
        self.told += rows_of(self.db.changes(since, style="all_docs", include_docs=True).rows)
        self.moments.append(self.store.resolved())

    def doc(self, id: str) -> dict[str, Any]:
        return {"_id": id, "n": self.rng.randrange(1_000), "text": "ü\n" * self.rng.randrange(3)}

    def edited(self, id: str) -> dict[str, Any]:
        """The next revision of some leaf, or a new document."""
        leaves = [d for d in self.db.open_revs(id) if isinstance(d, dict) and "_deleted" not in d]
        base = {"_rev": self.rng.choice(leaves)["_rev"]} if leaves else {}
        return self.doc(id) | base

    def edit(self) -> None:
        self.db.put(self.edited(self.rng.choice(IDS)))

    def remove(self) -> None:
        doc = self.edited(self.rng.choice(IDS))
        if "_rev" in doc:
            self.db.remove(doc["_id"], doc["_rev"])

    def bulk(self) -> None:
        self.db.bulk([self.edited(id) for id in self.rng.sample(IDS, 3)])

    def replicate(self) -> None:
        """Somebody else's revisions, which are in conflict with ours at times."""
        docs = []
        for id in self.rng.sample(IDS, 2):
            path = [f"{self.rng.randrange(4):032x}" for _ in range(self.rng.randint(1, 3))]
            docs.append(
                self.doc(id)
                | {"_revisions": {"start": len(path), "ids": path}}
                | ({"_deleted": True} if self.rng.random() < 0.3 else {})
            )
        self.db.replicate(docs)

    def elsewhere(self) -> None:
        """Write what is none of the database's business."""
        self.rng.choice((self.store.tick, lambda: self.store.save("k", b"1")))()
