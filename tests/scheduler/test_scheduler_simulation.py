"""Hundreds of tables through faults of all kinds: never two writers, nothing skipped, and back.

Coordinators and agents are the real ones; what is simulated is the network, the store's
registrations and elections, the clocks and the executors. Every tick `SimCluster.check` looks for
a table that two captures write, for one that began beyond what is downstream, and for a stored
checkpoint that is beyond it or goes back.
"""

import os
import random

import pytest

from cdcmeta.scheduler import Durations, InProcessTransport, Limits

from .cluster import TICK_US, SimCluster

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
SEEDS = 200 if SOAK else 12
LIMITS = Limits(
    add_batch=100,
    adds_per_capture=60,
    heartbeat_every_us=2 * TICK_US,
    mute_us=40 * TICK_US,
    balance_every_us=50 * TICK_US,
)
FAULTY_TICKS = 250
RECOVERY_TICKS = 200
"""Until all tables go on. Silence is noticed after 40; then slow ones stop, prepare and start."""
QUIET_TICKS = 3_000
"""Until the last move has ended: ten at a time, each batch as slow as its slowest table."""


class Faults:
    """Does something bad, or something people do, every few ticks."""

    def __init__(self, sim: SimCluster, rng: random.Random) -> None:
        self.sim, self.rng = sim, rng
        self.done: list[str] = []
        self._names = sorted(sim.nodes)
        self._weights = {
            self.kill: 3,
            self.restart: 3,
            self.start: 4,
            self.elect: 2,
            self.depose: 3,
            self.stale_view: 2,
            self.partition: 3,
            self.heal: 4,
            self.pause: 2,
            self.wake: 3,
            self.fail_tables: 4,
            self.move: 4,
            self.drain: 1,
            self.rebalance: 1,
            self.change_tables: 2,
            self.skew: 2,
        }

    def maybe(self) -> None:
        """Let something happen, or nothing."""
        if self.rng.random() < 0.3:
            (what,) = self.rng.choices(list(self._weights), list(self._weights.values()))
            what()
            self.done.append(f"{self.sim.ticks}: {what.__name__}")

    def end(self) -> None:
        """Let everything be well from now on."""
        self.heal()
        self.sim.transport.loss = self.sim.transport.doubling = 0.0
        for name in self._names:
            if name not in self.sim.nodes:
                self.sim.start(name)
        self.wake()
        self.sim.depose()
        self.sim.owner.sees = None

    def any(self) -> str:
        return self.rng.choice(self._names)

    def kill(self) -> None:
        if len(self.sim.nodes) > 1:
            self.sim.kill(self.rng.choice(sorted(self.sim.nodes)))

    def restart(self) -> None:
        self.sim.start(self.rng.choice(sorted(self.sim.nodes)))

    def start(self) -> None:
        if (name := self.any()) not in self.sim.nodes:
            self.sim.start(name)

    def elect(self) -> None:
        for owner in self.sim.owners:
            if owner.sees is None and self.rng.random() < 0.5:
                owner.sees = self.sim.alive()
        self.sim.elect(self.rng.choice(sorted(self.sim.nodes)))

    def depose(self) -> None:
        self.sim.depose()

    def stale_view(self) -> None:
        """An owner sees the registrations late."""
        owner = self.rng.choice(self.sim.owners)
        owner.sees = self.sim.alive() if owner.sees is None else None

    def partition(self) -> None:
        apart = set(self.rng.sample(self._names, 2))
        if self.rng.random() < 0.5:
            self.sim.transport.is_cut = lambda sender, to: sender in apart or to in apart
        else:  # one way only
            self.sim.transport.is_cut = lambda sender, to: to in apart

    def heal(self) -> None:
        self.sim.transport.is_cut = lambda sender, to: False

    def pause(self) -> None:
        self.sim.nodes[self.rng.choice(sorted(self.sim.nodes))].is_paused = True

    def wake(self) -> None:
        for node in self.sim.nodes.values():
            node.is_paused = False

    def fail_tables(self) -> None:
        node = self.sim.nodes[self.rng.choice(sorted(self.sim.nodes))]
        tables = sorted(node.executor.all_tables())
        for table in self.rng.sample(tables, min(5, len(tables))):
            node.executor.fail(table)

    def move(self) -> None:
        coordinator = self.sim.owner.coordinator
        for table in self.rng.sample(sorted(self.sim.tables), 5):
            capture = self.any()
            if table in coordinator.replication.sets and capture in coordinator.captures.known:
                coordinator.move(table, capture)

    def drain(self) -> None:
        capture, coordinator = self.any(), self.sim.owner.coordinator
        if capture in coordinator.captures.known:
            coordinator.drain(capture)

    def rebalance(self) -> None:
        self.sim.owner.coordinator.rebalance()

    def change_tables(self) -> None:
        tables = dict(self.sim.tables)
        for table in self.rng.sample(sorted(tables), 20):
            del tables[table]
        for n in self.rng.sample(range(400), 20):
            tables[f"t{n:03}"] = 1.0
        self.sim.want(tables)

    def skew(self) -> None:
        """Clocks differ; an owner's own goes on."""
        self.rng.choice(self.sim.owners).skew_us += self.rng.randrange(1, 100 * TICK_US)


def slow(rng: random.Random):
    """Return how long each table's steps take: most are quick, some slow, and stops slowest."""
    seed = rng.randrange(1 << 30)

    def durations(table: str) -> Durations:
        of_table = random.Random(f"{seed} {table}")
        scale = of_table.choice([0, 1, 1, 3, 10])
        return Durations(
            prepare_us=of_table.randrange(6) * scale * TICK_US,
            start_us=of_table.randrange(3) * scale * TICK_US // 2,
            stop_us=of_table.randrange(5) * scale * TICK_US,
        )

    return durations


def cluster(rng: random.Random) -> SimCluster:
    transport = InProcessTransport(
        rng=rng,
        delay_us=lambda rng: rng.choice([0, 0, 1, 2, 5]) * TICK_US // 2,
        loss=rng.choice([0.0, 0.01, 0.1]),
        doubling=rng.choice([0.0, 0.05]),
    )
    weights = rng.choice([[1.0], [1.0, 1.0, 5.0]])
    tables = {f"t{n:03}": rng.choice(weights) for n in range(300)}
    return SimCluster(
        rng.randint(3, 5), tables, transport=transport, limits=LIMITS, durations=slow(rng)
    )


@pytest.mark.parametrize("run", range(SEEDS))
def test_through_faults_and_back(run):
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    sim = cluster(rng)
    faults = Faults(sim, rng)
    try:
        for _ in range(FAULTY_TICKS):
            faults.maybe()
            sim.tick()
        faults.end()
        then = sim.now
        sim.run(lambda: sim.watermarks.checkpoint >= then, ticks_max=RECOVERY_TICKS)
        sim.run(sim.is_replicating, ticks_max=QUIET_TICKS)
        sim.run(lambda: sim.leaving() or sim.is_even(), ticks_max=QUIET_TICKS)
        sim.run(lambda: not any(sim.leaving().values()), ticks_max=QUIET_TICKS)
    except AssertionError as e:
        raise AssertionError(f"seed {seed}: {e}\n" + "\n".join(faults.done)) from e
