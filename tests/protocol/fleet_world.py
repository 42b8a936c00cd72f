"""A fleet of two members, the processes that write to them, and all that may happen next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from itertools import chain

from fleet_exploration import Choices
from fleet_plan import Operation, Plan
from fleet_process import Held, Process
from fleet_servers import StillTime
from fleet_watching import Left, Watching
from fleet_writers import Writers

from snapkv.fleet.fleet_watch import PATIENCE_S, MemberFollower


class FleetWorld:
    """One run of a plan; see `World` of the exploration.

    `done` are checks that need not be made again in other runs: what a new process finds depends
    on nothing but the members and the token that it is given.
    """

    def __init__(self, plan: Plan, choices: Choices, time: StillTime, done: set[Hashable]) -> None:
        self.plan, self._choices, self._done = plan, choices, done
        self.trace: list[str] = []
        self.over = False
        self._inside, self._looks = plan.inside, plan.looks
        self._holds, self._leaves, self._waits = plan.holds, plan.leaves, plan.waits
        self._time = time
        self._calling = False
        self.writers = Writers(plan, time, self._between)
        self.servers = self.writers.servers
        self._started = 0
        self.process = self._process()
        self.held: Held | None = None
        self.left: Left | None = None
        self.watching = Watching(plan, self.process, self.servers)
        if plan.watches and plan.since is not None:
            self.watching.begin(plan.since)

    def _process(self) -> Process:
        """Start a process."""
        self._started += 1
        return Process(self._started, self.plan, self.servers, self._call)

    def key(self) -> Hashable:
        """Return all that later operations depend on, and all that was told to anybody."""
        held = self.held and tuple(self.held.seen.values())
        left = self.left and (self.left.token, self.left.line.key)
        budgets = self._looks, self._holds, self._leaves, self._waits, self._inside
        return self.writers.key, self.process.key, self.watching.ended, held, left, budgets

    def operations(self) -> list[Operation]:
        """Return what may happen next."""
        return list(chain(self._asked(), self._watched(), self.writers.operations()))

    # --- in the middle of a call ---

    @contextmanager
    def _call(self) -> Iterator[None]:
        for server in self.servers.values():
            server.watch_history()
        self._calling = True
        try:
            yield
        finally:
            self._calling = False

    def _between(self) -> None:
        """Let others go first, before a request of a fleet."""
        while self._calling and self._inside:
            operations = list(self.writers.operations())
            choice = self._choices.pick(len(operations) + 1) if operations else 0
            if not choice:
                return
            label, operation = operations[choice - 1]
            self._inside -= 1
            self._calling = False
            operation()
            self._calling = True
            self.trace.append(f"  inside of it: {label}")

    # --- moments ---

    def _asked(self) -> Iterator[Operation]:
        """Yield calls of the fleet; those that teach it something are counted.

        What it learns from the last ones is not followed: they end the run.
        """
        process, times = self.process, (*self.plan.times, None)
        if self._holds:
            for when in times:
                yield f"hold {when}", lambda w=when: self._hold(w)  # type: ignore[misc]
        if self._looks:
            for when in times:
                yield self._counted(f"look at {when}", lambda w=when: process.look(w))  # type: ignore[misc]
            if self.plan.finishes:
                for when in self.plan.times:
                    finish = lambda w=when: process.look(w, final=True)  # noqa: E731
                    yield self._counted(f"finish {when}", finish)
        if self.plan.asks:
            yield self._last("ask for all", self._ask_all)

    def _counted(self, label: str, ask: Callable[[], object]) -> Operation:
        def operation() -> None:
            before = self.process.key
            ask()
            self._looks -= self.process.key != before

        return label, operation

    def _last(self, label: str, ask: Callable[[], object]) -> Operation:
        def operation() -> None:
            before = self.process.key
            ask()
            self.over = self.process.key != before

        return label, operation

    def _ask_all(self) -> None:
        if (held := self.held) is not None:
            self.process.reread(held)
            self._once(held.token, lambda: self._process().reread_token(held))
        if not self._looks:
            for when in (*self.plan.times, None):
                self.process.look(when)
        self.process.check_policies()

    def _once(self, given: Hashable, check: Callable[[], object]) -> None:
        """Check what a new process finds."""
        key = self.writers.key, given
        if key not in self._done:
            self._done.add(key)
            check()

    def _hold(self, when: int | None) -> None:
        if (held := self.process.look(when)) is not None:
            self.held, self._holds = held, False

    # --- watches ---

    def _watched(self) -> Iterator[Operation]:
        watching, watch = self.watching, self.process.watch
        if watch is not None and not watching.ended:
            for follower in watch._followers:
                if follower.error is None:
                    yield f"step {follower.name}", lambda f=follower: self._step(f)  # type: ignore[misc]
            yield "take", watching.take  # type: ignore[misc]
            yield "check that nothing is missing", watching.check_quiet
            if self._leaves:
                yield "leave the watch", self._leave
            if self._waits:
                yield "wait", self._wait
        if self.plan.watches and watch is None and self.left is None:
            yield "watch from now on", self._begin
        if (left := self.left) is not None:
            self._once((left.token, left.line.key), lambda: self._resume_elsewhere(left))
            for by_token in self._ways if self.plan.resumes else ():
                for is_new in (True, False):
                    label = f"resume by {'token' if by_token else 'time'}{' elsewhere' * is_new}"
                    yield label, lambda t=by_token, n=is_new: self._resume(left, t, n)  # type: ignore[misc]

    def _begin(self) -> None:
        with self._call():
            self.watching.begin(None)

    def _step(self, follower: MemberFollower) -> None:
        with self._call():
            self.watching.step(follower)

    def _wait(self) -> None:
        self._waits -= 1
        self._time.now_s += PATIENCE_S

    def _leave(self) -> None:
        self._leaves -= 1
        self.left = self.watching.leave()

    @property
    def _ways(self) -> tuple[bool, ...]:
        """By token, and by time: but that names no members that were left out."""
        return (True,) if self.plan.leave_out else (True, False)

    def _resume(self, left: Left, by_token: bool, is_new: bool) -> None:
        if is_new:
            self.process = self._process()
        self.left = None
        self.watching = Watching(self.plan, self.process, self.servers)
        with self._call():
            self.watching.resume(left, by_token=by_token)

    def _resume_elsewhere(self, left: Left) -> None:
        """Go on in new processes, up to the end of what there is."""
        for by_token in self._ways:
            watching = Watching(self.plan, self._process(), self.servers)
            try:
                if watching.resume(left, by_token=by_token):
                    watching.drain()
            except AssertionError as e:
                e.add_note(f"in a new process that resumes by {'token' if by_token else 'time'}")
                raise
