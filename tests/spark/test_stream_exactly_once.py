"""Random commits, limits, crashes and compactions: the sink gets every change once, in order."""

import json
import random

import pytest
from reading.tabled import FOREVER, Writing, changes_of
from stream_queries import Checkpoint, Query

from snapkv import to_datetime
from snapkv.spark.micro_batches import LIMITS_KNOWN

pytestmark = pytest.mark.slow

STEPS = 50
STARTS = ({}, {}, {"startingVersion": "latest"}, {"startingVersion": 1}, {"startingVersion": 20})


class Life:
    """A query whose drivers die at random, beside a writer, and compaction behind what is done."""

    def __init__(self, store, place, clock, seed: int, passes_start: bool) -> None:
        self.rng = random.Random(seed)
        self.place, self.passes_start = place, passes_start
        self.writing = Writing(store, clock, self.rng)
        self.checkpoint = Checkpoint()
        self.prefix = self.rng.choice(("", "", "a/", "b/1", "zz"))
        self.start = self.rng.choice(STARTS)
        self.preimages, self.deletes = self.rng.random() < 0.3, self.rng.random() < 0.7
        self.limits: dict[str, int] = {}
        self.logged_with: int | None = None
        self.writing.steps(20)
        self.live()

    def live(self) -> None:
        """Let a driver die, and another one begin, with other limits."""
        some = {name: self.rng.choice((1, 3, 10, 100)) for name in ("Rows", "Bytes")}
        limited = self.passes_start and LIMITS_KNOWN
        names = self.rng.choice(((), ("Rows",), ("Bytes",), ("Rows", "Bytes")))
        self.limits = {name: some[name] for name in names if limited}
        self.query = Query(
            self.place.url,
            self.checkpoint,
            passes_start=self.passes_start,
            keyPrefix=self.prefix,
            preimages=self.preimages,
            ignoreDeletes=not self.deletes,
            **{f"max{name}PerTrigger": limit for name, limit in self.limits.items()},
            **self.start,
        )
        if self.rng.random() < 0.1 and self.passes_start:
            self.query.reader.prepareForTriggerAvailableNow()

    def go_on(self) -> None:
        """Do what comes next in a driver's life."""
        done = self.checkpoint
        if len(done.offsets) == done.done:
            if self.query.log():
                self.logged_with = self.limits.get("Rows")
        elif len(done.batches) == done.done or self.rng.random() < 0.3:
            rows = [row for task in self.query.run() for row in task]
            self.check_limit(rows)
        else:
            self.query.commit()

    def check_limit(self, rows: list[tuple]) -> None:
        """Only what cannot be parted is more than the limit under which a batch was logged."""
        parts = {row[3] if row[4] is not None else row for row in rows}
        limit = self.logged_with
        assert limit is None or len(rows) <= limit or len(parts) == 1, (limit, rows)

    def compact(self) -> None:
        """Forget what is done with: up to the commit from which the next batch goes on."""
        if self.checkpoint.done:
            offset = json.loads(self.checkpoint.offsets[self.checkpoint.done - 1])
            engine = self.place.engine()
            if not offset["snapshot"] and offset["rev"] > engine.compacted_revision():
                engine.compact(offset["rev"])

    def expected(self) -> list[tuple]:
        first = json.loads(self.checkpoint.offsets[0])
        plain, since = self.writing.plain, first["ts"]
        rows = []
        if isinstance(version := self.start.get("startingVersion"), int):
            since = max([row.ts for row in plain.rows if row.revision < version], default=0)
        if not self.start:
            at = first["rev"], None, to_datetime(since)
            state = plain.state(since).items()
            rows = [(k, v, "insert", *at) for k, v in state if k.startswith(self.prefix)]
        changes = changes_of(plain, since, FOREVER, self.prefix, preimages=self.preimages)
        return rows + [row for row in changes if self.deletes or row[2] != "delete"]


@pytest.mark.long_after(2)
@pytest.mark.parametrize("passes_start", [True, False], ids=["4.2", "4.0"])
@pytest.mark.parametrize("seed", range(3))
def test_every_change_once(store, place, clock, seed, passes_start):
    life = Life(store, place, clock, seed, passes_start)
    for _ in range(STEPS):
        life.rng.choices(
            (life.go_on, life.writing.write, life.writing.tick, life.live, life.compact),
            (12, 4, 1, 2, 1),
        )[0]()
    life.live()
    life.query.drained()
    assert life.checkpoint.rows() == life.expected()
    told = [
        {row[3] for task in batch for row in task if row[4] is not None}
        for batch in life.checkpoint.batches
    ]
    versions = [version for batch in told for version in batch]
    assert len(versions) == len(set(versions)), "a commit comes in one batch"
