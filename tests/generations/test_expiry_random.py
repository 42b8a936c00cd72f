"""Expiry after any history: what is old and was read goes, and nothing else, not one row."""

import random

import pytest

from cdcmeta.generations import CdcLog, GenerationLog, Generations, Sharding, StreamConsumer
from cdcmeta.generations.consumer import rows_between
from cdcmeta.generations.log_rows import SLOTS
from snapkv import pack

LEEWAY_S = 5.0
RETENTIONS_S = 0.0, 20.0, 60.0
STEPS = 120


class Table:
    """A table in a store, its consumers, and what was made and written: when, and with what id."""

    def __init__(self, store, clock, rng):
        self.store, self.clock, self.rng = store, clock, rng
        self.log = GenerationLog(store, propagation_delay=0.0, leeway=LEEWAY_S)
        self.generations = Generations(clock=clock)
        self.rows = CdcLog(store, self.generations)
        self.rows.bind(self.log.space)
        self.begun, self.written, self.consumers = [], [], {}

    def switch(self):
        ring = {self.rng.randrange(-(1 << 62), 1 << 62): Sharding(2) for _ in range(4)}
        made = self.log.make(ring)
        self.generations.insert(made.time, self.log.topology(made))
        self.clock.set(max(self.clock.now_ms(), (made.time >> 18) + 1))
        self.begun.append(made.time)

    def write(self):
        self.clock.advance(self.rng.choice([1, 1_000, 9_000]))
        self.rows.write(self.rng.randbytes(2), b"v")
        self.written.append(self.store.resolved())

    def read(self):
        name = self.rng.choice("ab")
        if name not in self.consumers:
            self.consumers[name] = StreamConsumer(self.log, self.rows, name, window=3.0)
        for _ in self.consumers[name]:
            pass

    def expire(self):
        """Expire, and compare with what should be left."""
        retention = self.rng.choice(RETENTIONS_S)
        now = pack(self.clock.now_ms())
        read = min((each.position for each in self.log.consumers().values()), default=now)
        old = now - pack(round((LEEWAY_S + retention) * 1_000))
        gone = [
            begun
            for begun, later in zip(self.begun, self.begun[1:], strict=False)
            if later <= old and later - 1 <= read
        ]
        expired = self.log.expire(retention)
        assert [each.time for each in expired.removed] == gone
        self.begun = [begun for begun in self.begun if begun not in gone]
        assert [each.time for each in self.log.generations()] == self.begun
        rows = [ts for ts in self.written if ts >= self.begun[0]]
        assert len(self.written) - len(rows) == expired.rows
        self.written = rows
        assert len(self.left()) == len(rows)

    def left(self):
        snapshot = self.rows.at()
        return rows_between(snapshot, range(SLOTS), 0, snapshot.timestamp, 10**9)[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long_after(1)
def test_expiry_removes_what_is_old_and_was_read_and_nothing_else(store, clock, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    table = Table(store, clock, rng)
    table.switch()
    for _ in range(STEPS):
        rng.choice(
            [table.switch, table.write, table.write, table.write, table.read, table.expire]
        )()
    clock.advance(1_000_000)
    table.expire()
