"""A world in which every interleaving and every fault is somebody's choice.

A `World` runs *tasks* (threads that call stores) one at a time. A task hands over at each request
to the server, at each pause and at each wait; what goes on then, and what becomes of a request, is
one `choose` after the other: a random generator's for simulations, a script's for exhaustive
exploration. Time is virtual. So a run is repeated exactly by its choices alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import pytest
from protocol_remote import (
    Message,
    Network,
    Remote,
    deliver,
    patched_time,
    remote_scheme,
    stamp_in,
    writes_anyway,
)

import snapkv
from snapkv.committer.queue import Call, CommitQueue
from snapkv.engine.contract import (
    KeyValue,
    OutcomeUnknown,
    Range,
    ReadResult,
    Refused,
    Txn,
    TxnResult,
)
from snapkv.errors import EngineUnavailableError, NoSpaceError
from snapkv.timeline import continuity

STEPS_MAX = 20_000
SWITCH_WAIT_S = 30.0


class Crash(BaseException):
    """The process of this task is gone."""


class Chooser(Protocol):
    def pick(self, what: str, count: int) -> int:
        """Choose one of `count` continuations of a run."""
        ...

    def fate(self, world: World, message: Message) -> str:
        """Choose what becomes of a message."""
        ...

    def read_fails(self, world: World) -> bool: ...


class Worker:
    """A thread that runs one task after another: starting a thread for each task costs more.

    It waits for a task's first turn in `turn`, as the task does for the next ones.
    """

    _idle: ClassVar[list[Worker]] = []

    def __init__(self) -> None:
        self._body: Callable[[], None] = lambda: None
        self.turn, self._ended = threading.Lock(), threading.Lock()
        self.turn.acquire()
        threading.Thread(target=self._run, daemon=True).start()

    @classmethod
    def taken(cls, body: Callable[[], None]) -> Worker:
        """Return an idle worker, or a new one; it runs `body` when it is its turn."""
        worker = cls._idle.pop() if cls._idle else cls()
        worker._body = body
        worker._ended.acquire()
        return worker

    def _run(self) -> None:
        while True:
            self.turn.acquire()
            self._body()
            self._ended.release()

    def join(self) -> bool:
        """Wait for the end of the body, then become idle; return False if it does not end."""
        if not self._ended.acquire(timeout=SWITCH_WAIT_S):
            return False
        self._ended.release()
        self._idle.append(self)
        return True


class Task:
    """A function that runs, in a thread of its own, only when it is its turn."""

    def __init__(self, world: World, name: str, process: str, body: Callable[[], None]) -> None:
        self.world, self.name, self.process, self._body = world, name, process, body
        self.event: SimEvent | None = None
        self.wake_at: float | None = None
        self.doomed = self.done = self.at_request = False
        self._worker = Worker.taken(self._run)
        self.turn = self._worker.turn

    def _run(self) -> None:
        try:
            if not self.doomed:
                self._body()
        except Crash:
            pass
        except BaseException as e:
            self.world.failure = self.world.failure or e
        finally:
            self.done = True
            self.world.hand_over(self)

    def _await_turn(self) -> None:
        if not self.turn.acquire(timeout=SWITCH_WAIT_S):
            self.world.failure = AssertionError(f"{self.name} never got its turn")

    def step_aside(self) -> None:
        """Let others run until it is this task's turn again."""
        self.world.hand_over(self)
        if self.doomed:
            raise Crash

    def join(self) -> None:
        assert self._worker.join(), f"{self.name} hangs"


class SimEvent:
    """What a waiting caller is woken with."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float) -> bool:
        task = self._world.current
        if not self._is_set and task is not None:
            task.event, task.wake_at = self, self._world.now + timeout
            task.step_aside()
            task.event = task.wake_at = None
        return self._is_set


class SimRuntime:
    """Makes what a task of a world waits with."""

    def __init__(self, inside: dict[str, Any]) -> None:
        self._inside = inside

    def condition(self) -> SimCondition:
        return SimCondition(self._inside)


class SimCondition:
    """A condition of tasks; it needs no lock, because one task runs at a time."""

    def __init__(self, inside: dict[str, Any]) -> None:
        self._inside = inside
        self._waiting: list[SimEvent] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float) -> bool:
        news = SimEvent(self._inside["world"])
        self._waiting.append(news)
        return news.wait(timeout)

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            news.set()


class World:
    """One run.

    In a `coarse` world only requests that write are places where others may go first, and late
    arrivals that would be refused do not come: what is left out makes no difference to anybody.
    """

    def __init__(self, chooser: Chooser, *, embedded: bool = False, coarse: bool = False) -> None:
        self.chooser, self.embedded, self.coarse = chooser, embedded, coarse
        self.network = SimNetwork(self)
        self.now = 1_000.0
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.trace: list[str] = []
        self.failure: BaseException | None = None
        self.steps = 0
        self._main = threading.Lock()
        self._main.acquire()

    # --- what the committer sees ---

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        task = self.current
        if task is None or self.coarse:
            self.now += max(seconds, 1e-4)
            return
        task.wake_at = self.now + max(seconds, 1e-4)
        task.step_aside()
        task.wake_at = None

    # --- tasks ---

    def say(self, text: str) -> None:
        who = self.current.name if self.current else "world"
        self.trace.append(f"{len(self.trace):4} {self.now - 1_000:8.3f} {who:6} {text}")

    def spawn(self, name: str, process: str, body: Callable[[], None]) -> None:
        self.tasks.append(Task(self, name, process, body))

    def step_aside(self) -> None:
        if self.current is not None:
            self.current.step_aside()

    def run(self) -> None:
        """Run until all tasks are done; raise the first failure."""
        self.hand_over(None)
        if self.failure is not None:
            self._abandon()
        for task in self.tasks:
            task.join()
        if self.failure is not None:
            raise self.failure

    def _abandon(self) -> None:
        for task in self.tasks:
            if not task.done:
                task.doomed = True
                self.current = task
                task.turn.release()
                self._main.acquire(timeout=SWITCH_WAIT_S)
        self.current = None

    def kill(self, process: str) -> None:
        """A process ends between two instructions; nothing of it runs any more."""
        for task in self.tasks:
            if task.process == process and not task.done:
                task.doomed = True

    def hand_over(self, me: Task | None) -> None:
        """Choose who goes on; return when it is this task's turn again."""
        try:
            chosen = None if self.failure is not None else self._choose()
        except BaseException as e:
            self.failure, chosen = self.failure or e, None
        self.current = chosen
        if chosen is me and (me is None or not me.done):
            return
        if chosen is None:
            self._main.release()
        else:
            chosen.turn.release()
        if me is None:
            assert self._main.acquire(timeout=4 * SWITCH_WAIT_S), "\n".join(self.trace)
            self.current = None
        elif not me.done:
            me._await_turn()
            self.current = me

    def _choose(self) -> Task | None:
        """Run what is not a task's until a task is chosen; None when all are done."""
        while True:
            self.steps += 1
            assert self.steps < STEPS_MAX, "no end of it"
            self.current = None
            self.act()
            living = [task for task in self.tasks if not task.done]
            if not living:
                return None
            doomed = [task for task in living if task.doomed]
            if doomed:
                return doomed[0]
            ready = [t for t in living if t.event is None or t.event.is_set()]
            waiting = [task for task in living if task not in ready]
            if waiting and (gone := self.gives_up(waiting)) is not None:
                self.now = max(self.now, gone.wake_at or 0.0)
                return gone
            late = self.network.late
            if self.coarse:
                late = [message for message in late if self.network.would_apply(message)]
                between = [task for task in ready if not task.at_request]
                if between:
                    return between[0]
            count = len(ready) + len(late)
            if not ready:  # only waiting callers: the first deadline passes
                first = min(living, key=lambda t: t.wake_at or 0.0)
                self.now = max(self.now, first.wake_at or 0.0)
                return first
            at = self.chooser.pick("next", count) if count > 1 else 0
            if at >= len(ready):
                message = late[at - len(ready)]
                self.network.late.remove(message)
                self.say(f"late arrival from {message.client}: {describe(message)}")
                self.say(f"  {'applied' if message.deliver().succeeded else 'refused'}")
                continue
            task = ready[at]
            if task.event is None and task.wake_at is not None:
                self.now = max(self.now, task.wake_at)
            return task

    def gives_up(self, waiting: list[Task]) -> Task | None:
        """Return a waiting caller whose deadline passes now; overridden by simulations."""
        return None

    def act(self) -> None:
        """What the world does between two steps; overridden by simulations."""


def describe(message: Message) -> str:
    ts, _, fence_of = stamp_in(message.txn)
    kind = "commit" if fence_of is None else "fence"
    return f"{kind} T={ts >> 18}.{ts & 0x3FFFF} in {len(message.txn.success)}"


class SimNetwork(Network):
    """A network whose faults are chosen, one message at a time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def post(self, client: str, txn: Txn, timeout: float) -> TxnResult:
        world, message = self._world, Message(self, client, txn, timeout)
        if world.current is None:  # the end of a run is calm
            return deliver(message)
        world.current.at_request = True
        world.step_aside()
        world.current.at_request = False
        fate = world.chooser.fate(world, message)
        if fate in ("arrives twice", "arrives, copy later") and not writes_anyway(message):
            fate = "arrives"
        world.say(f"{describe(message)}: {fate}")
        return self.meet(fate, message)

    def would_apply(self, message: Message) -> bool:
        """Return whether a late message would still find its guard to hold."""
        stored = self.journal.stamps[-1].ts
        return message.txn.compare[0].operand > stored.to_bytes(8, "big")

    def meet(self, fate: str, message: Message) -> TxnResult:
        """Let a message meet the fate of that name."""
        world = self._world
        late = fate.removesuffix(" slowly")
        if late != fate:
            world.now += message.timeout
        match late:
            case "arrives":
                return message.deliver()
            case "arrives twice":
                answer = message.deliver()
                message.deliver()
                return answer
            case "arrives, copy later":
                self.late.append(message)
                return message.deliver()
            case "lost":
                raise OutcomeUnknown("connection reset", retry=True)
            case "answer lost":
                message.deliver()
                raise OutcomeUnknown("connection reset", retry=True)
            case "delayed":
                self.late.append(message)
                raise OutcomeUnknown("connection reset", retry=True)
            case "refused":
                raise Refused(NoSpaceError("quota"))
            case "unreadable answer":
                message.deliver()
                raise OutcomeUnknown("too large", retry=False, cause=NoSpaceError("answer"))
            case "answered, applied" | "answered, not applied":
                if late == "answered, applied":
                    message.deliver()
                no_space = NoSpaceError("quota, perhaps applied")
                raise OutcomeUnknown("quota", retry=False, cause=no_space, answered=True)
            case "broken":
                self.late.append(message)
                raise OutcomeUnknown("I/O error", retry=False, cause=NoSpaceError("broken"))
            case "bug":
                self.late.append(message)
                raise ValueError("a bug in the engine")
            case "interrupted before":
                self.late.append(message)
                raise KeyboardInterrupt
            case "interrupted after":
                message.deliver()
                raise KeyboardInterrupt
        raise AssertionError(fate)

    def read(self, client: str, ranges: Sequence[Range]) -> ReadResult:
        world = self._world
        if world.current is not None and not world.coarse:
            world.step_aside()
            if world.chooser.read_fails(world):
                world.say("read fails")
                raise EngineUnavailableError("no endpoint answers")
        return self.base.read(ranges)


class Embedded(Remote):
    """An engine that looks before it sends, as one with a write lock does."""

    remote = False

    def transact(
        self, prepare: Callable[[KeyValue | None], Txn], peek: bytes, *, timeout: float
    ) -> TxnResult:
        found = self.network.base.read([Range(peek)]).results[0].kvs
        return super().transact(
            lambda _: prepare(found[0] if found else None), peek, timeout=timeout
        )


@contextmanager
def worlds() -> Iterator[Callable[[World], World]]:
    """Make the library run in a world; call the result with each new one."""
    inside: dict[str, Any] = {}

    class Time:
        def monotonic(self) -> float:
            return inside["world"].monotonic()

        def pause(self, seconds: float) -> None:
            inside["world"].pause(seconds)

    join = CommitQueue.join

    def joining(self: CommitQueue, call: Call[Any]) -> None:
        join(self, call)
        if call.woken is not None:
            call.woken = SimEvent(inside["world"])

    def begin(world: World) -> World:
        inside["world"] = world
        return world

    with remote_scheme(), patched_time(Time()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitQueue, "join", joining)
        patch.setattr(continuity, "here", lambda: SimRuntime(inside))
        yield begin


def opened(world: World, process: str, at_ms: int, **options: Any) -> snapkv.SnapshotKV:
    """Open a store of a world."""
    store = world.network.open(process, at_ms, **options)
    store._core.committer._rng.seed(0)  # how long it pauses is part of a run
    if world.embedded:
        store._core.engine.__class__ = Embedded
    return store
