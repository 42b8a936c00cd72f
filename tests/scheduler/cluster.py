"""A cluster in one process: real coordinators and agents, simulated executors, one clock."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable

from simulated_captures import Durations, InProcessTransport, SimulatedExecutor

from cdcmeta.scheduler import (
    CANNOT_PROCEED,
    Agent,
    Barrier,
    Cluster,
    Coordinator,
    Envelope,
    KnownOwner,
    Limits,
    SetState,
    Token,
    Watermarks,
)
from cdcmeta.scheduler.core.policies import TOLERANCE
from cdcmeta.scheduler.owner.cluster import LEAST_SHARE
from cdcmeta.scheduler.protocol import encoding
from cdcmeta.scheduler.protocol.messages import DispatchTable

from .traffic import Traffic

TICK_US = 50_000
NEVER = 1 << 62
ROUNDING = 1e-9
"""What sums of the same weights may differ by."""
STEPS = ("prepare", "start", "stop")


class InjectedError(OSError):
    """What an executor raises because a test wants it to; agents may fail of nothing else."""


class Pipelines(SimulatedExecutor):
    """An executor that tells the cluster what it writes, and from where on."""

    def __init__(self, sim: SimCluster, barrier: Callable[[], Barrier]) -> None:
        super().__init__(source=lambda table: sim.now, durations=sim.durations, barrier=barrier)
        self._sim, self._told_barrier = sim, barrier
        self.refuses: Callable[[str], bool] = lambda table: False
        """The tables that cannot be added now."""
        self.tries = 0
        """How often it was asked to add one of those."""
        self.hangs: Callable[[str, str], bool] = lambda table, step: False
        """Whether a step of a table that begins now never ends; nor does what comes after it."""
        self.hung: set[str] = set()
        self._committed: set[str] = set()

    def add_table(self, table: str, start_ts: int, token: Token, *, is_prepare: bool) -> bool:
        if is_prepare and table not in self._pipelines:
            self.hung.discard(table)
            self._committed.discard(table)
        if self.refuses(table):
            self.tries += 1
            raise InjectedError(f"{table} is refused")
        done = self._sim.downstream[table]
        if not is_prepare and start_ts > done:  # an assertion would be the agent's to catch
            self._sim.complaints.append(f"{table} begins at {start_ts}, beyond {done}")
        is_added = super().add_table(table, start_ts, token, is_prepare=is_prepare)
        if not is_prepare:
            self._committed.add(table)
        self._maybe_hang(table, "prepare" if is_prepare else "start")
        return is_added

    def remove_table(self, table: str) -> bool:
        is_removed = super().remove_table(table)
        self._maybe_hang(table, "stop")
        return is_removed

    def wake(self) -> None:
        """Let what hangs and was told to write do so, all at once: nobody said that it stopped."""
        for table in self.hung & self._committed & self._pipelines.keys():
            self._pipelines[table].has_written = True

    def _maybe_hang(self, table: str, step: str) -> None:
        pipeline = self._pipelines.get(table)
        if pipeline is None or pipeline.state is pipeline.goal:
            return
        if table in self.hung or self.hangs(table, step):
            self.hung.add(table)
            pipeline.due = NEVER

    def written(self, table: str, checkpoint: int) -> None:
        downstream, barrier = self._sim.downstream, self._told_barrier()
        if checkpoint > downstream[table]:
            downstream[table] = checkpoint
        if not any(barrier):
            return
        for bound in (barrier.everywhere, dict(barrier.tables).get(table, 0)):
            if 0 < bound < checkpoint:
                self._sim.complaints.append(f"{table} is at {checkpoint}, beyond {bound}")


class Node:
    """A process: an agent with its executor, as long as it is registered."""

    def __init__(self, sim: SimCluster, name: str, epoch: int) -> None:
        self.sim, self.name, self.epoch = sim, name, epoch
        self.executor = sim.executor(sim, lambda: self.agent.barrier)
        owner = KnownOwner(sim.owner.name, sim.revision_of_owner) if sim.owner else KnownOwner()
        self.agent = Agent(name, self.executor, epoch=epoch, owner=owner)
        self.is_paused = False

    def tick(self) -> None:
        """Let time pass for the process."""
        self.executor.now = self.sim.now
        if not self.is_paused:
            inbox = self.sim.transport.receive(self.name, self.sim.now)
            self.sim.send(self.agent.tick(inbox))


class OwnerNode:
    """A coordinator, and what it sees of the store."""

    def __init__(self, sim: SimCluster, capture: str, revision: int) -> None:
        self.sim, self.capture, self.revision = sim, capture, revision
        self.name = f"owner-{revision}"
        self.coordinator = Coordinator(self.name, capture, revision=revision, limits=sim.limits)
        self.skew_us = 0
        self.is_paused = False
        self.is_behind = False
        """Whether it sees the registrations late."""
        self._view = len(sim.views) - 1

    def tick(self) -> None:
        """Let the owner decide."""
        sim = self.sim
        if self.is_paused:
            return
        inbox = sim.transport.receive(self.name, sim.now)
        revision, alive = self._looked()
        seen = Cluster(sim.now + self.skew_us, alive, sim.tables, sim.stored, revision, sim.barrier)
        self.last = self.coordinator.tick(inbox, seen)
        sim.send(self.last.messages, seen.now)
        for name, epoch in self.last.evict:
            sim.evict(name, epoch)
        if self is sim.owner:
            sim.told_by_owner(self)

    def _looked(self) -> tuple[int, dict[str, int]]:
        """Return the registrations and their revision: of now, or of a moment since the last."""
        newest = len(self.sim.views) - 1
        if not self.is_behind:
            self._view = newest
        elif self.sim.rng.random() < 0.1:
            self._view = self.sim.rng.randint(self._view, newest)
        return self.sim.views[self._view]


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
        rng: random.Random | None = None,
        encoded: float = 1 / 8,
        late_us: int = 0,
    ) -> None:
        """`encoded`: how many messages become bytes on their way; `late_us`: how late, at the
        most, what an owner tells is stored (where it is, a part of it is left out).
        """
        self.executor = executor
        self.rng, self.encoded, self.late_us = rng or random.Random(0), encoded, late_us
        self.views: list[tuple[int, dict[str, int]]] = []
        """The registrations as they were, and at which revision of the store."""
        self.now, self.revision = 1_000_000, 0
        self.limits, self.durations = limits or Limits(), durations
        self.transport = transport or InProcessTransport(rng=random.Random(0))
        self.nodes: dict[str, Node] = {}
        self.owners: list[OwnerNode] = []
        self.stored = self.claimed = 1
        self._storing: deque[tuple[int, Watermarks]] = deque()
        self._new: dict[str, int] = {}
        """Tables that the owner has not begun with, and what was told before they were wanted."""
        self.watermarks = CANNOT_PROCEED
        self.downstream: dict[str, int] = {}
        self.complaints: list[str] = []
        self.barrier = Barrier()
        self.tables: dict[str, float] = {}
        self.set_tables(tables)
        self.traffic = Traffic(self.limits.heartbeat_every_us)
        self.ticks = self.dispatched_at = 0
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

    def set_tables(self, tables: dict[str, float]) -> None:
        """Want these tables from now on; what is new is downstream as far as all others are.

        What was told before is not about it: the store may come to be there until it begins.
        """
        for table in tables:
            if table not in self.tables:
                self.downstream[table] = max(self.downstream.get(table, 0), self.stored)
                self._new[table] = max(self.stored, self.claimed)
        self._new = {table: told for table, told in self._new.items() if table in tables}
        self.tables = tables

    def start(self, name: str) -> Node:
        """Start a process, or start it again under the same name: what it did before has ended."""
        self.revision += 1
        self.transport.forget(name)
        self.nodes[name] = node = Node(self, name, self.revision)
        self._registered()
        return node

    def kill(self, name: str) -> None:
        """End a process and its registration."""
        self.revision += 1
        del self.nodes[name]
        self.transport.forget(name)
        self._registered()

    def evict(self, name: str, epoch: int) -> None:
        """Take away a registration: the process notices, ends and comes back."""
        if name in self.nodes and self.nodes[name].epoch == epoch:
            self.start(name)

    def elect(self, capture: str) -> OwnerNode:
        """Elect another owner; the one before goes on until `depose`, and stores nothing more."""
        self.revision += 1
        self._registered()
        self._storing.clear()
        self.claimed = self.stored
        owner = OwnerNode(self, capture, self.revision)
        self.owners.append(owner)
        return owner

    def depose(self) -> None:
        """Let earlier owners notice that they are none."""
        self.owners = self.owners[-1:]

    def alive(self) -> dict[str, int]:
        """Return the registrations."""
        return {name: node.epoch for name, node in self.nodes.items()}

    def _registered(self) -> None:
        self.views.append((self.revision, self.alive()))

    def send(self, envelopes: Iterable[Envelope], clock: int = 0) -> None:
        """Send what a process says in a tick, by its clock, some of it as bytes."""
        envelopes = list(envelopes)
        if not envelopes:
            return
        if self._checks:
            self.traffic.check(envelopes, clock)
        self.transport.send(map(self._carried, envelopes), self.now)

    def _carried(self, envelope: Envelope) -> Envelope:
        if self.rng.random() >= self.encoded:
            return envelope
        decoded = encoding.decode(encoding.encode(envelope))
        assert decoded == envelope, (decoded, envelope)
        return decoded

    # --- what is stored ---

    def told_by_owner(self, owner: OwnerNode) -> None:
        """Take what the owner tells: it is stored now, or some time later, or never."""
        if any(isinstance(body, DispatchTable) for _, body in owner.last.messages):
            self.dispatched_at = self.ticks
        sets = owner.coordinator.replication.sets
        for table in list(self._new):
            if table in sets and sets[table].state is not SetState.REMOVING:
                del self._new[table]
        watermarks = owner.last.watermarks
        if watermarks == CANNOT_PROCEED:
            return
        self.claimed = max(self.claimed, watermarks.checkpoint)
        if not self.late_us:
            self.store(watermarks)
        elif self.rng.random() < 0.8:
            at = self.now + self.rng.randrange(self.late_us)
            self._storing.append(
                (max(at, self._storing[-1][0] if self._storing else 0), watermarks)
            )

    def store(self, watermarks: Watermarks) -> None:
        """Store how far the changefeed is, as an owner does."""
        for table, told_before in self._new.items():
            done = min(watermarks.checkpoint, told_before)
            self.downstream[table] = max(self.downstream[table], done)
        if self._checks:
            before = self.watermarks
            assert watermarks.checkpoint >= before.checkpoint, (before, watermarks)
            done = self.downstream
            missing = [table for table in self.tables if done[table] < watermarks.checkpoint]
            assert not missing, (missing, [done[table] for table in missing], watermarks)
        self.watermarks = watermarks
        self.stored = max(self.stored, watermarks.checkpoint)

    # --- letting time pass ---

    def tick(self, us: int = TICK_US) -> None:
        """Let some time pass."""
        self.now += us
        self.ticks += 1
        while self._storing and self._storing[0][0] <= self.now:
            self.store(self._storing.popleft()[1])
        for node in list(self.nodes.values()):
            node.tick()
        if self._checks:
            self.check()
        for owner in list(self.owners):
            owner.tick()

    def run(self, until: Callable[[], bool], *, ticks_max: int, us: int = TICK_US) -> int:
        """Let time pass until a condition holds; return the ticks that it took."""
        for tick in range(ticks_max):
            if until():
                return tick
            self.tick(us)
        assert until(), f"not within {ticks_max} ticks: {self.told()}"
        return ticks_max

    def check(self) -> None:
        """Nobody writes what another writes, or begins beyond what is downstream."""
        assert not self.complaints, self.complaints
        writers: dict[str, str] = {}
        for name, node in self.nodes.items():
            failures = node.agent.failures.values()
            assert all(type(each) is InjectedError for each in failures), failures
            writing = node.executor.writing()
            for table in writing & writers.keys():
                raise AssertionError(f"{table}: {writers[table]} and {name} write")
            writers.update(dict.fromkeys(writing, name))

    def is_replicating(self) -> bool:
        """Return whether every table is written by whom the owner believes to write it.

        Others are gone, but for those whose stop hangs: nobody is evicted for what is not wanted.
        """
        assert self.owner is not None
        replication = self.owner.coordinator.replication
        if any(self.tables.keys() & replication.unsettled.keys()):
            return False
        for table in replication.sets.keys() - self.tables.keys():
            rset = replication.sets[table]
            if rset.state is not SetState.REMOVING or not all(
                each.capture in self.nodes and table in self.nodes[each.capture].executor.hung
                for each in rset.places
            ):
                return False
        writing = {name: node.executor.writing() for name, node in self.nodes.items()}
        for table in self.tables:
            rset = replication.sets.get(table)
            if rset is None or rset.primary is None:
                return False
            if table not in writing.get(rset.primary.capture, ()):
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
        """Return whether what the captures replicate is as even as `evening` promises."""
        assert self.owner is not None
        replication = self.owner.coordinator.replication
        weights = self.tables
        if is_counted := len(set(weights.values())) == 1:
            weights = dict.fromkeys(weights, 1.0)
        floor = LEAST_SHARE * sum(weights.values()) / len(weights)
        loads, lightest = [], []
        for name, node in self.nodes.items():
            if not node.agent.is_stopping:
                has = replication.primaries.get(name, {}).keys() & weights.keys()
                may_go = [table for table in has if len(replication.sets[table].places) == 1]
                loads.append(sum(max(weights[table], floor) for table in has))
                lightest.append(
                    min((max(weights[table], floor) for table in may_go), default=NEVER)
                )
        spread = 1.0 if is_counted else TOLERANCE * sum(loads) / len(loads)
        above = [load - min(loads) - ROUNDING for load in loads]
        return all(
            apart <= spread or least > apart - spread / 2
            for apart, least in zip(above, lightest, strict=True)
        )

    def told(self) -> str:
        """Return what the owner believes, for a reader."""
        assert self.owner is not None
        coordinator = self.owner.coordinator
        unsettled = [coordinator.replication.sets[t] for t in coordinator.replication.unsettled]
        return f"{len(unsettled)} unsettled, {unsettled[:3]}, {coordinator.captures.known}"
