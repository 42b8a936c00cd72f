"""Every schedule of a few small worlds: who goes next, what is lost, when the late ones arrive.

The real committer runs in each; the choices are enumerated depth first. Between two requests to
the server processes do not see each other, so requests are where schedules differ.
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable

import pytest
from protocol_checker import Judge, Told
from protocol_remote import Message
from protocol_world import World, opened, worlds
from sampling import SOAK

import snapkv
from snapkv import Absent, CommitUnknownError, ConflictError, HeadAt
from snapkv.errors import SnapKVError

pytestmark = pytest.mark.slow

FATES = ("arrives", "lost", "answer lost", "delayed")
REFUSALS = ("arrives", "answered, applied", "answered, not applied", "delayed", "refused")
"""As of a server out of space, which refuses what it applied, and fences too."""


class Script:
    """Follows a script of choices, then takes the first of each; remembers how many there were."""

    def __init__(self, script: list[int], faults_max: int, fates: tuple[str, ...] = FATES) -> None:
        self.script, self.faults_left, self.fates = script, faults_max, fates
        self.taken: list[int] = []
        self.counts: list[int] = []

    def pick(self, what: str, count: int) -> int:
        at = len(self.taken)
        choice = self.script[at] if at < len(self.script) else 0
        self.taken.append(choice)
        self.counts.append(count)
        return choice

    def fate(self, world: World, message: Message) -> str:
        if not self.faults_left:
            return "arrives"
        choice = self.pick("fate", len(self.fates))
        self.faults_left -= choice > 0
        return self.fates[choice]

    def read_fails(self, world: World) -> bool:
        return False

    def next(self) -> list[int] | None:
        """Return the next script in depth-first order, None after the last."""
        for at in reversed(range(len(self.taken))):
            if self.taken[at] + 1 < self.counts[at]:
                return [*self.taken[:at], self.taken[at] + 1]
        return None


class Small(World):
    """A world of a few calls."""

    def __init__(self, script: Script) -> None:
        super().__init__(script, coarse=True)
        self.calls: list[Told] = []
        self.timeout_s = 1.0

    def client(self, process: str, at_ms: int, *threads: list[tuple[dict, tuple, tuple]]) -> None:
        """A process whose threads commit (puts, deletes, guards) one after the other."""
        store = opened(self, process, at_ms)
        for i, commits in enumerate(threads):
            self.spawn(f"{process}{i}", process, lambda c=commits, i=i: self.work(store, i, c))

    def work(self, store: snapkv.SnapshotKV, thread: int, commits) -> None:
        for n, (puts, deletes, guards) in enumerate(commits):
            process = store._core.committer.writer
            told = Told(f"{process}{thread}{n}", process, guards)
            self.calls.append(told)
            try:
                told.commit = store.commit(told.build(puts, deletes), timeout=self.timeout_s)
                self.say(f"{told.token}: {told.commit}")
            except (SnapKVError, KeyboardInterrupt) as e:
                told.error = e
                self.say(f"{told.token}: {e!r}")

    def finish(self) -> None:
        is_open = any(isinstance(told.error, CommitUnknownError) for told in self.calls)
        alive = any(map(self.network.would_apply, self.network.late))
        if is_open and alive and self.chooser.pick("late ones first", 2):
            self.network.arrive()
        last = opened(self, "last", 1_000)
        for told in self.calls:
            e = told.error
            if isinstance(e, CommitUnknownError):
                try:
                    told.resolved.append(last.resolve(e.timestamp, e.nonce, guards=e.guards))
                except (ConflictError, CommitUnknownError) as verdict:
                    told.resolved.append(verdict)
        self.network.arrive()
        Judge(self.network.journal, compacted=False).judge(self.calls)


PUT = ({"k": b""}, (), ())
REMOVE = ({}, ("k",), ())
NEW = ({}, (), (Absent("k"),))
MINE = ({"k": b""}, (), (Absent("k"),))
PLAIN = ({}, (), ())
HEAD = ({}, (), (HeadAt(2),))

Clients = Callable[[Small], None]


def two(a_ms: int, b_ms: int, a: list, b: list) -> Clients:
    def clients(world: Small) -> None:
        world.client("A", a_ms, a)
        world.client("B", b_ms, b)

    return clients


def impatient(clients: Clients) -> Clients:
    """With a deadline that the first lost answer breaks."""

    def hurried(world: Small) -> None:
        world.timeout_s = 5e-5
        clients(world)

    return hurried


def group(a_ms: int, b_ms: int, *threads: list, b: list) -> Clients:
    def clients(world: Small) -> None:
        world.client("A", a_ms, *threads)
        world.client("B", b_ms, b)

    return clients


PUT_REMOVE = [PUT, REMOVE]
WORLDS: dict[str, tuple[Clients, int]] = {
    "insert against put and remove, ahead": (two(30, 10, [NEW], PUT_REMOVE), 1),
    "insert against put and remove, behind": (two(10, 30, [NEW], PUT_REMOVE), 1),
    "insert against put and remove, equal": (two(10, 10, [NEW], PUT_REMOVE), 1),
    "both insert the same": (two(10, 10, [MINE], [MINE]), 2),
    "both insert the same, one ahead": (two(10, 20, [MINE], [MINE]), 2),
    "two each": (two(10, 20, [PUT, NEW], [REMOVE, PLAIN]), 1),
    "head guards": (two(10, 20, [HEAD], [HEAD]), 2),
    "a group of two": (group(30, 10, [PLAIN], [NEW], [PLAIN], b=[PUT]), 1),
    "a group that disturbs itself": (group(10, 30, [PLAIN], [NEW], [PUT], b=[REMOVE]), 1),
    "impatient, ahead": (impatient(two(30, 10, [NEW, MINE], PUT_REMOVE)), 1),
    "impatient, behind": (impatient(two(10, 30, [MINE, PLAIN], PUT_REMOVE)), 1),
    "impatient, three in line": (impatient(two(10, 10, [NEW, PLAIN, MINE], [MINE])), 1),
    "an impatient group": (impatient(group(20, 10, [PLAIN], [NEW], [PLAIN], b=[PUT])), 2),
}


def explore(
    clients: Clients, faults_max: int, runs_max: int, fates: tuple[str, ...] = FATES
) -> tuple[Counter, int, bool]:
    told: Counter = Counter()
    script: list[int] | None = []
    with worlds() as begin:
        for runs in itertools.count(1):
            chooser = Script(script, faults_max, fates)
            world = begin(Small(chooser))
            clients(world)
            try:
                world.run()
                world.finish()
            except BaseException as e:
                e.add_note(f"script {chooser.taken}\n" + "\n".join(world.trace))
                raise
            for call in world.calls:
                told[call.outcome] += 1
            script = chooser.next()
            if script is None or runs == runs_max:
                return told, runs, script is None
    raise AssertionError


ONE_FAULT = [name for name, (_, faults_max) in WORLDS.items() if faults_max > 1]


@pytest.mark.parametrize("name", ONE_FAULT)
def test_every_schedule_with_one_fault(name: str) -> None:
    told, _, whole = explore(WORLDS[name][0], 1, 30_000)
    assert whole, "not all of them were tried"
    assert told["Commit"] > 0


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in ONE_FAULT else []) for name in WORLDS],
)
def test_every_schedule(name: str) -> None:
    clients, faults_max = WORLDS[name]
    faults_max = int(os.environ.get("PROTOCOL_FAULTS", faults_max + SOAK))
    started = time.monotonic()
    told, runs, whole = explore(clients, faults_max, 100_000 if SOAK else 30_000)
    took_s = time.monotonic() - started
    print(f"{name}: {runs} schedules with {faults_max} faults, {took_s:.1f} s, {told}")
    assert whole or SOAK, "not all of them were tried"
    assert told["Commit"] > 0


@pytest.mark.parametrize(
    "name", ["insert against put and remove, behind", "two each", "a group of two"]
)
def test_every_schedule_out_of_space(name: str) -> None:
    clients, faults_max = WORLDS[name]
    told, runs, whole = explore(clients, faults_max, 30_000, REFUSALS)
    print(f"{name}: {runs} schedules, {told}")
    assert whole, "not all of them were tried"
    assert told["Commit"] > 0
    assert told["NoSpaceError"] > 0
