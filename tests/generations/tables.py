"""What tests of consumers share: a table with rows whose time the test moves, and its reading."""

from __future__ import annotations

from cdcmeta.generations import CdcLog, Generations, StreamConsumer

STEP_MS = 1_000


class Site:
    """A table, its log of generations and its clock; `written` are its log rows, in order.

    `reading` are options of its consumers.
    """

    def __init__(self, log, store, clock, *, keys=7, **reading):
        self.log, self.store, self.clock = log, store, clock
        self.keys, self.reading = keys, reading
        self.generations = Generations(clock=clock)
        self.rows = CdcLog(store, self.generations)
        self.written = []

    def switch(self, ring):
        made = self.log.make(ring)
        self.generations.insert(made.time, self.log.topology(made))
        return made

    def write(self, count=1, step_ms=STEP_MS):
        for _ in range(count):
            self.clock.advance(step_ms)
            number = len(self.written)
            self.written.append(self.rows.write(b"k%d" % (number % self.keys), b"%d" % number))

    def consumer(self, name="c", **more):
        return StreamConsumer(self.log, self.rows, name, **self.reading | more)


def rows_of(consumer):
    return [row for window in consumer for row in window.rows]
