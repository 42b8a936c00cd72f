"""A cluster in one process: real coordinators and agents, simulated executors, one clock."""

from __future__ import annotations

import random
from collections.abc import Callable

from cdcmeta.scheduler import (
    CANNOT_PROCEED,
    Agent,
    Barrier,
    Cluster,
    Coordinator,
    Durations,
    InProcessTransport,
    KnownOwner,
    Limits,
    SimulatedExecutor,
    Watermarks,
)
from cdcmeta.scheduler.policies.rebalance import TOLERANCE

TICK_US = 50_000


class Pipelines(SimulatedExecutor):
    """An executor that tells the cluster what it writes, and from where on."""

    def __init__(self, sim: SimCluster) -> None:
        super().__init__(source=self._write, durations=sim.durations)
        self._sim = sim

    def add_table(self, table: str, start_ts: int, *, is_prepare: bool) -> bool:
        done = self._sim.downstream[table]
        if not is_prepare and start_ts > done:  # an assertion would be the agent's to catch
            self._sim.complaints.append(f"{table} begins at {start_ts}, beyond {done}")
        return super().add_table(table, start_ts, is_prepare=is_prepare)

    def _write(self, table: str) -> int:
        self._sim.downstream[table] = self._sim.now
        return self._sim.now


class Node:
    """A process: an agent with its executor, as long as it is registered."""

    def __init__(self, sim: SimCluster, name: str, epoch: int) -> None:
        self.sim, self.name, self.epoch = sim, name, epoch
        self.executor = sim.executor(sim)
        owner = KnownOwner(sim.owner.name, sim.revision_of_owner) if sim.owner else KnownOwner()
        self.agent = Agent(name, self.executor, epoch=epoch, owner=owner)
        self.skew_us = 0
        self.is_paused = False

    def tick(self) -> None:
        """Let time pass for the process."""
        self.executor.now = self.sim.now
        if not self.is_paused:
            inbox = self.sim.transport.receive(self.name, self.sim.now)
            self.sim.transport.send(self.agent.tick(inbox), self.sim.now)


class OwnerNode:
    """A coordinator, and what it sees of the store."""

    def __init__(self, sim: SimCluster, capture: str, revision: int) -> None:
        self.sim, self.capture, self.revision = sim, capture, revision
        self.name = f"owner-{revision}"
        self.coordinator = Coordinator(self.name, capture, revision=revision, limits=sim.limits)
        self.skew_us = 0
        self.sees: dict[str, int] | None = None
        """What it sees of the registrations, where that is not how they are."""

    def tick(self) -> None:
        """Let the owner decide."""
        sim = self.sim
        inbox = sim.transport.receive(self.name, sim.now)
        alive = self.sees if self.sees is not None else sim.alive()
        seen = Cluster(sim.now + self.skew_us, alive, sim.tables, sim.stored, sim.barrier)
        self.last = self.coordinator.tick(inbox, seen)
        sim.transport.send(self.last.messages, sim.now)
        for name, epoch in self.last.evict:
            sim.evict(name, epoch)
        if self is sim.owner and self.last.watermarks != CANNOT_PROCEED:
            sim.store(self.last.watermarks)


class SimCluster:
    """Everything; `run` lets time pass, tick by tick, and checks what must hold after each."""

    def __init__(
        self,
        captures: int,
        tables: dict[str, float],
        *,
        transport: InProcessTransport | None = None,
        limits: Limits | None = None,
        durations: Callable[[str], Durations] = lambda table: Durations(),
        checks: bool = True,
        executor: type[Pipelines] = Pipelines,
    ) -> None:
        self.executor = executor
        self.now, self.revision = 1_000_000, 0
        self.limits, self.durations = limits or Limits(), durations
        self.transport = transport or InProcessTransport(rng=random.Random(0))
        self.nodes: dict[str, Node] = {}
        self.owners: list[OwnerNode] = []
        self.stored = 1
        self.watermarks = CANNOT_PROCEED
        self.downstream: dict[str, int] = {}
        self.complaints: list[str] = []
        self.barrier = Barrier()
        self.tables: dict[str, float] = {}
        self.want(tables)
        self.ticks = 0
        self._checks = checks
        for n in range(captures):
            self.start(f"c{n}")
        self.elect("c0")

    @property
    def owner(self) -> OwnerNode | None:
        """The owner; those before it may still believe that they are."""
        return self.owners[-1] if self.owners else None

    @property
    def revision_of_owner(self) -> int:
        """The revision of the newest election."""
        return self.owners[-1].revision if self.owners else 0

    # --- what happens ---

    def want(self, tables: dict[str, float]) -> None:
        """Want these tables from now on; what is new is downstream as far as all others are."""
        for table in tables:
            if table not in self.tables:
                self.downstream[table] = max(self.downstream.get(table, 0), self.stored)
        self.tables = tables

    def start(self, name: str) -> Node:
        """Start a process, or start it again under the same name: what it did before has ended."""
        self.revision += 1
        self.transport.forget(name)
        self.nodes[name] = node = Node(self, name, self.revision)
        return node

    def kill(self, name: str) -> None:
        """End a process and its registration."""
        del self.nodes[name]
        self.transport.forget(name)

    def evict(self, name: str, epoch: int) -> None:
        """Take away a registration: the process notices, ends and comes back."""
        if name in self.nodes and self.nodes[name].epoch == epoch:
            self.start(name)

    def elect(self, capture: str) -> OwnerNode:
        """Elect another owner; the one before goes on until `depose`."""
        self.revision += 1
        owner = OwnerNode(self, capture, self.revision)
        self.owners.append(owner)
        return owner

    def depose(self) -> None:
        """Let earlier owners notice that they are none."""
        self.owners = self.owners[-1:]

    def alive(self) -> dict[str, int]:
        """Return the registrations."""
        return {name: node.epoch for name, node in self.nodes.items()}

    def store(self, watermarks: Watermarks) -> None:
        """Store how far the changefeed is, as an owner does."""
        if self._checks:
            before = self.watermarks
            assert watermarks.checkpoint >= before.checkpoint, (before, watermarks)
            for table in self.tables:
                done = self.downstream[table]
                assert watermarks.checkpoint <= done, (table, done, watermarks)
        self.watermarks = watermarks
        self.stored = max(self.stored, watermarks.checkpoint)

    # --- letting time pass ---

    def tick(self, us: int = TICK_US) -> None:
        """Let some time pass."""
        self.now += us
        self.ticks += 1
        for node in list(self.nodes.values()):
            node.tick()
        if self._checks:
            self.check()
        for owner in list(self.owners):
            owner.tick()

    def run(self, until: Callable[[], bool], *, ticks_max: int) -> int:
        """Let time pass until a condition holds; return the ticks that it took."""
        for tick in range(ticks_max):
            if until():
                return tick
            self.tick()
        assert until(), f"not within {ticks_max} ticks: {self.told()}"
        return ticks_max

    def check(self) -> None:
        """Nobody writes what another writes, or begins beyond what is downstream."""
        assert not self.complaints, self.complaints
        writers: dict[str, str] = {}
        for name, node in self.nodes.items():
            assert not node.agent.failures, node.agent.failures
            for table in node.executor.writing():
                assert table not in writers, f"{table}: {writers[table]} and {name} write"
                writers[table] = name

    def is_replicating(self) -> bool:
        """Return whether every table is written by whom the owner believes to write it."""
        assert self.owner is not None
        replication = self.owner.coordinator.replication
        if replication.unsettled or len(replication.sets) != len(self.tables):
            return False
        for table, rset in replication.sets.items():
            node = self.nodes.get(rset.primary.capture) if rset.primary else None
            if node is None or table not in node.executor.writing():
                return False
        return True

    def leaving(self) -> dict[str, int]:
        """Return who is to leave, and how many tables it still has; not the owner's own."""
        assert self.owner is not None
        primaries = self.owner.coordinator.replication.primaries
        return {
            name: len(primaries.get(name, ()))
            for name, node in self.nodes.items()
            if node.agent.is_stopping and name != self.owner.capture
        }

    def is_even(self) -> bool:
        """Return whether what the captures replicate weighs about the same."""
        assert self.owner is not None
        primaries = self.owner.coordinator.replication.primaries
        weights = [
            sum(self.tables.get(table, 0.0) for table in primaries.get(name, ()))
            for name, node in self.nodes.items()
            if not node.agent.is_stopping
        ]
        about = max(*self.tables.values(), TOLERANCE * sum(weights) / len(weights))
        return max(weights) - min(weights) <= about

    def told(self) -> str:
        """Return what the owner believes, for a reader."""
        assert self.owner is not None
        coordinator = self.owner.coordinator
        unsettled = [coordinator.replication.sets[t] for t in coordinator.replication.unsettled]
        return f"{len(unsettled)} unsettled, {unsettled[:3]}, {coordinator.captures.known}"
