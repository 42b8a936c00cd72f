"""What does scheduling cost: a first placement, a heartbeat, a failover, a move?"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulated_captures import Durations, InProcessTransport, SimulatedExecutor

from benchmarks.harness import Rival, Row, measure, report
from cdcmeta.scheduler import Agent, Cluster, Coordinator, KnownOwner, Limits
from cdcmeta.scheduler.protocol import encoding
from cdcmeta.scheduler.protocol.messages import DispatchTable, Envelope

CAPTURES = 8
PLACED, BEATING, FAILING = 150_000, 100_000, 100_000
TICK_US = 50_000
MESSAGES_PER_TABLE = 4
SPEC_LIMITS = Limits(heartbeat_every_us=20 * TICK_US, balance_every_us=10**12, mute_us=10**12)
ROUND_TRIP_US = 20_000


class InProcess:
    """Owner and captures in one process; what they send is carried as bytes, or as it is."""

    def __init__(
        self,
        tables: int,
        *,
        limits: Limits = SPEC_LIMITS,
        as_bytes: bool = False,
        transport: InProcessTransport | None = None,
        durations: Callable[[str], Durations] = lambda table: Durations(),
        captures: int = CAPTURES,
    ) -> None:
        self.tables = {f"table-{n:06}": 1.0 for n in range(tables)}
        self.now, self.ticks, self.limits = 1_000_000, 0, limits
        self.transport, self.as_bytes = transport or InProcessTransport(), as_bytes
        self.executors = {
            f"c{n}": SimulatedExecutor(source=lambda table: self.now, durations=durations)
            for n in range(captures)
        }
        self.agents = {
            name: Agent(name, executor, epoch=n + 1, owner=KnownOwner())
            for n, (name, executor) in enumerate(self.executors.items())
        }
        self.revision = captures
        self.elect()

    def elect(self) -> None:
        """Begin with another owner."""
        self.revision += 1
        self.name = f"owner-{self.revision}"
        self.owner = Coordinator(self.name, "c0", revision=self.revision, limits=self.limits)

    def kill(self, name: str) -> None:
        """End a capture."""
        del self.agents[name]
        del self.executors[name]

    def tick(self, us: int = TICK_US) -> list[Envelope]:
        """Let everybody do once what there is to do; return what the owner says."""
        self.now += us
        self.ticks += 1
        transport, now = self.transport, self.now
        for name, agent in self.agents.items():
            self.executors[name].now = now
            self._send(agent.tick(transport.receive(name, now)))
        alive = {name: agent.epoch for name, agent in self.agents.items()}
        seen = Cluster(now, alive, self.tables, 1, self.revision)
        said = self.owner.tick(transport.receive(self.name, now), seen).messages
        self._send(said)
        return said

    def place(self) -> InProcess:
        """Go on until every table is replicated."""
        while self.owner.replication.unsettled or not self.owner.replication.sets:
            self.tick()
        return self

    def _send(self, envelopes: list[Envelope]) -> None:
        if self.as_bytes:
            envelopes = [encoding.decode(encoding.encode(each)) for each in envelopes]
        self.transport.send(envelopes, self.now)


def main() -> None:
    """Place, beat, fail over and move."""
    placed, ticks = _placement()
    beating, linear = _heartbeats()
    gaps = _moves()
    tables = {
        f"{PLACED:,} tables placed on {CAPTURES} captures": placed,
        f"one round of heartbeats and answers, per table, {CAPTURES} captures": beating,
        f"another owner for {FAILING:,} tables, to its first decision": _failover(),
    }
    notes = (
        f"One core. The floor of the first is {MESSAGES_PER_TABLE} tuples made, queued and put "
        "into a dict for each table. Placed: all tables replicating, as values and as bytes (each "
        f"message encoded and decoded), in {ticks} ticks: at {TICK_US // 1_000} ms each that is "
        f"{ticks * TICK_US / 1e6:.1f} s more when they are not run back to back. A heartbeat of "
        f"{BEATING:,} tables costs {linear} times as much per table as one of 1,000 (after "
        "`gc.freeze()`; what is beyond 1 is mostly Python's collector of garbage). Failover: "
        "the new owner announces itself, gets the status of all tables, and places those of a "
        "capture that went with the old one. Moves, with "
        f"{ROUND_TRIP_US // 1_000} ms for a round trip: "
        f"{gaps}."
    )
    report("scheduler", "What does scheduling cost?", tables, notes)


def _placement() -> tuple[list[Row], int]:
    ticks = 0

    def floor(_: int) -> None:
        queue: deque[tuple[object, ...]] = deque()
        done: dict[str, tuple[object, ...]] = {}
        for n in range(PLACED):
            for message in range(MESSAGES_PER_TABLE):
                queue.append((f"table-{n:06}", message, n))
        while queue:
            told = queue.popleft()
            done[str(told[0])] = told

    def placed(as_bytes: bool) -> None:
        nonlocal ticks
        ticks = InProcess(PLACED, as_bytes=as_bytes).place().ticks

    rivals = [
        Rival("four messages for each table (floor)", floor),
        Rival("placed", lambda _: placed(False)),
        Rival("placed, as bytes", lambda _: placed(True)),
    ]
    return measure(rivals, rounds=2, warmup=0), ticks


def _heartbeats() -> tuple[list[Row], float]:
    limits = Limits(heartbeat_every_us=1, balance_every_us=10**12, mute_us=10**12)
    few = InProcess(1_000, limits=limits).place()
    many = InProcess(BEATING, limits=limits).place()
    gc.freeze()

    def few_rounds(_: int) -> None:
        for _ in range(BEATING // 1_000):
            few.tick()

    def without_collector(_: int) -> None:
        gc.disable()
        many.tick()
        gc.enable()

    rows = measure(
        [
            Rival("1,000 tables (floor)", few_rounds),
            Rival(f"{BEATING:,} tables", lambda _: many.tick()),
            Rival(f"{BEATING:,} tables, without Python's collector", without_collector),
        ],
        rounds=7,
        warmup=1,
    )
    gc.unfreeze()
    return [row.per(BEATING) for row in rows], rows[1].ratio


def _failover() -> list[Row]:
    clusters = [InProcess(FAILING).place() for _ in range(3)]
    for cluster in clusters:
        cluster.as_bytes = True

    def full(i: int) -> None:
        """Get the status of all tables, and decide nothing."""
        cluster = clusters[i]
        cluster.elect()
        while not cluster.owner.captures.is_initialized:
            cluster.tick()

    def failover(i: int) -> None:
        cluster = clusters[i]
        cluster.kill("c7")
        cluster.elect()
        while not any(isinstance(each.body, DispatchTable) for each in cluster.tick()):
            pass

    # in this order for each cluster: the second finds it as the first left it
    rivals = [Rival("all tables reported (floor)", full), Rival("first decision", failover)]
    return measure(rivals, rounds=2, warmup=1)


def _moves() -> str:
    """Return how long nobody writes a table that moves, in round trips."""
    told = []
    for what, prepare_us in (("quick", 0), ("10 s", 10_000_000)):
        gap = _gap_us(prepare_us) / ROUND_TRIP_US
        told.append(f"a table with a {what} preparation is without a writer for {gap:.2f} of them")
    return ", ".join(told)


def _gap_us(prepare_us: int) -> int:
    transport = InProcessTransport(delay_us=lambda rng: ROUND_TRIP_US // 2)
    cluster = InProcess(
        1,
        captures=2,
        transport=transport,
        durations=lambda table: Durations(prepare_us=prepare_us),
    ).place()
    (table,) = cluster.tables
    (source,) = (n for n, e in cluster.executors.items() if e.writing())
    (target,) = cluster.executors.keys() - {source}
    cluster.owner.move(table, target)
    stopped = 0
    while not cluster.executors[target].writing():
        cluster.tick(100)
        if not stopped and not cluster.executors[source].writing():
            stopped = cluster.now
    return cluster.now - stopped


if __name__ == "__main__":
    main()
