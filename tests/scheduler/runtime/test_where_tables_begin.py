"""Wherever an owner and an operator interrupt each other, no table begins beyond what its sink has.

The records are those of a changefeed: the walk commits, replicates, updates the tables, writes
checkpoints late, and lets owners begin anew, in any order.
"""

import random
from dataclasses import replace

import pytest
from sampling import SOAK

from cdcmeta.scheduler import Barrier, Progress
from cdcmeta.scheduler.core.watermarks import ReportedProgress
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.changefeed_records import (
    Begin,
    Changefeed,
    floors_of,
    stored_checkpoint,
    updated,
)

pytestmark = pytest.mark.slow

START, WALKS, STEPS = 10, 3_000 if SOAK else 300, 60
PREFIXES = ("a/", "b/", "c/")


class Owner:
    """An owner of one epoch of a changefeed: where its tables are, and what it reports."""

    def __init__(self, feed, found):
        self.feed, self.progress = feed, ReportedProgress()
        self.look(found)
        self.at = {table: self.progress.floor_of(table).checkpoint for table in feed.tables()}

    def look(self, found):
        self.floors = floors_of(self.feed, found)
        self.progress.update_stored(stored_checkpoint(self.feed, found), self.floors)

    def report(self):
        """Return the record of a checkpoint that it would write, None if none."""
        progress = self.progress
        progress.advance([Progress(at, at) for at in self.at.values()], Barrier(0, ()))
        has_passed = bool(self.floors) and not progress.behind
        if progress.current.checkpoint <= progress.stored.checkpoint and not has_passed:
            return None
        epoch = self.feed.epoch if self.feed.begins else None
        return records.encoded_watermarks(progress.current, self.feed.created, epoch)


class World:
    def __init__(self, rng, *, with_state):
        self.rng, self.now = rng, START + 2
        self.feed = Changefeed(
            "f", "lmdb:s", "lmdb:t", ("a/",), START, with_state=with_state, epoch=1, created=1
        )
        self.found, self.late = None, []
        self.has = {}
        """By table, up to when the sink has all of it."""
        self.owner = Owner(self.feed, None)

    def commit(self):
        self.now += 1

    def replicate(self):
        """Let a table of the owner go on, first with its state."""
        owner = self.owner
        table = self.rng.choice(owner.feed.tables())
        at, state_at = owner.at[table], self.state_at(owner.feed, table)
        if at < state_at:
            owner.at[table] = self.has[table] = max(state_at, self.has.get(table, 0))
        elif at < self.now:
            assert at <= self.has.get(table, START), f"{table} lacks what is before {at}"
            owner.at[table] = at = at + 1
            self.has[table] = max(at, self.has.get(table, 0))

    def state_at(self, feed, table):
        return feed.begins.get(table, Begin(0, feed.state_at)).state_at

    def update(self):
        count = self.rng.randrange(1, 4)
        wanted = replace(self.feed, prefixes=tuple(sorted(self.rng.sample(PREFIXES, count))))
        after = updated(self.feed, wanted, self.found)
        self.feed = replace(after, epoch=self.feed.epoch + 1)

    def begin(self):
        """Let an owner see the changefeed as it is; what the one before wrote may land later."""
        self.owner = Owner(self.feed, self.found)

    def report(self):
        if (record := self.owner.report()) is not None:
            self.late.append(record)

    def store(self):
        if self.late:
            self.found = records.checkpoint_of(self.late.pop(0))
            self.owner.look(self.found)

    def check(self):
        """What is reported of the changefeed is in the sink, of all its tables."""
        floors = floors_of(self.feed, self.found)
        common = stored_checkpoint(self.feed, self.found)
        reported = min([common, *floors.values()])
        for table in self.feed.tables():
            floor = floors.get(table, common)
            if floor >= self.state_at(self.feed, table):
                assert floor <= self.has.get(table, START), f"{table} would begin at {floor}"
            assert reported <= max(self.has.get(table, 0), self.feed.first_checkpoint, floor)


def walk(seed, *, with_state):
    rng = random.Random(seed)
    world = World(rng, with_state=with_state)
    steps = [world.commit, world.replicate, world.replicate, world.replicate, world.report]
    steps += [world.report, world.store, world.update, world.begin]
    for _ in range(STEPS):
        rng.choice(steps)()
        world.check()
    return world


@pytest.mark.parametrize("with_state", [False, True], ids=["since", "state"])
def test_no_table_begins_beyond_what_its_sink_has(with_state):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    worlds = [walk(seed + n, with_state=with_state) for n in range(WALKS)]
    assert any(world.found and world.found.epoch for world in worlds)
    assert any(world.feed.begins and world.feed.stopped for world in worlds)


def test_a_checkpoint_that_does_not_name_its_update_is_not_enough(monkeypatch):
    """The walk finds the fault if a late checkpoint counts for tables that it did not know."""
    monkeypatch.setattr(records, "begins_of", lambda feed, found: {} if found else feed.begins)
    with pytest.raises(AssertionError, match=r"would begin at|lacks what is before"):
        [walk(seed, with_state=False) for seed in range(300)]


def test_records_of_the_version_before_are_read():
    feed = Changefeed("f", "lmdb:s", "lmdb:t", ("a/",), START)
    raw = feed.encode()
    assert b"begins" not in raw, "a reader of the version before finds what it wrote"
    assert b"stopped" not in raw
    assert records.feed_of(b"feed/f", raw, 0, 0) == feed
    found = records.checkpoint_of(b'{"checkpoint":50,"resolved":60,"synced":0,"created":1}')
    assert (found.epoch, floors_of(feed, found)) == (None, {})
    wanted = replace(feed, prefixes=("a/", "b/"))
    after = updated(feed, wanted, found._replace(created=0))
    assert after.begins == {"b/": Begin(START)}
    assert records.feed_of(b"feed/f", after.encode(), 0, 0) == after
