"""The processes that write to the members, and what becomes of the members' servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from fleet_histories import newest_of
from fleet_plan import NAMES, Operation, Plan, Step, Streams
from fleet_servers import RESTORE_S, Server, StillTime, copied

import snapkv
from snapkv.engine.memory import MemoryEngine


@cache
def created(name: str, timestamp: int) -> MemoryEngine:
    """Return an engine with a store of a member; it has a commit at a timestamp, 0 for none."""
    server = Server(None, lambda: None)
    store = server.open(f"creator of {name}")
    if timestamp:
        store._core.clock.merge(timestamp - 1)
        store.commit(puts={"k": b"from before"})
    return server.base


class Writers:
    """One writer for each member, a slow one, and one after a restore, each in its own process."""

    def __init__(self, plan: Plan, time: StillTime, on_request: Callable[[], None]) -> None:
        self._plan, self._time = plan, time
        self.servers = {name: Server(self._base(name), on_request) for name in NAMES}
        self._stores: dict[str, snapkv.SnapshotKV] = {}
        self._written = dict.fromkeys(NAMES, 0)
        self._left_after = dict.fromkeys(NAMES, 0)  # commits after a restore
        self._delayed = plan.delayed

    def _base(self, name: str) -> MemoryEngine | None:
        if name in self._plan.created_late:
            return None
        engine = created(name, self._plan.before.get(name, 0))
        return copied(engine, engine.read([]).header.revision)

    @property
    def key(self) -> object:
        """What later operations depend on."""
        servers = [
            (each.history, each.lost, tuple(message.client for message in each.late))
            for each in self.servers.values()
        ]
        written = *self._written.values(), *self._left_after.values(), self._delayed
        return tuple(servers), written

    def operations(self) -> Iterator[Operation]:
        """Yield what may happen to the members."""
        for name, server in self.servers.items():
            if (step := self._next(name)) is not None:
                label = f"{'tick' if step.is_tick else 'commit'} {name} at {step.timestamp}"
                yield label, lambda n=name, s=step: self._write(n, s)  # type: ignore[misc]
                if self._delayed and not step.is_tick:
                    yield f"send: {label}", lambda n=name, s=step: self._send(n, s)  # type: ignore[misc]
            if server.late:
                yield f"arrives at {name}", server.arrive  # type: ignore[misc]
            if name in self._plan.restored and server.lost is None and server.history:
                yield from self._restores(name, server)

    def _next(self, name: str) -> Step | None:
        """Return what the member's writer writes next.

        After a restore, timestamps are odd: none of those that were lost comes again.
        """
        history, lost = self.servers[name].history, self.servers[name].lost
        if lost is None:
            steps = self._plan.steps[name]
            return steps[self._written[name]] if self._written[name] < len(steps) else None
        if not self._left_after[name]:
            return None
        floors = [newest_of(history or ()), newest_of(lost) if self._plan.later else 0]
        floor = max(*floors, min(self._plan.times))
        return Step(floor + 1 + floor % 2)

    def _write(self, name: str, step: Step) -> None:
        server = self.servers[name]
        writer = f"writer of {name}" if server.lost is None else f"next writer of {name}"
        if writer not in self._stores:
            self._stores[writer] = server.open(writer)
        store = self._stores[writer]
        store._core.clock.merge(step.timestamp - 1)
        if step.is_tick:
            store.tick()
        else:
            store.commit(**self._content(name, writer))
        self._count(name)

    def _send(self, name: str, step: Step) -> None:
        writer, server = f"slow writer of {name}", self.servers[name]
        store = server.open(writer)
        store._core.clock.merge(step.timestamp - 1)
        self._delayed -= 1
        server.send(writer, store, **self._content(name, writer))
        self._count(name)

    def _content(self, name: str, writer: str) -> dict[str, Any]:
        """Return operations that no other commit has; they remove what the one before wrote."""
        number = self._written[name] + 10 * self._left_after[name]
        value = f"{number} by the {writer}".encode()
        if number % 2:
            return {"puts": {"k": value}, "deletes": ["p"]}
        return {"puts": {"k": value, "p": value}}

    def _count(self, name: str) -> None:
        if self.servers[name].lost is None:
            self._written[name] += 1
        else:
            self._left_after[name] -= 1

    def _restores(self, name: str, server: Server) -> Iterator[Operation]:
        assert server.history
        creation = server.history[0].revision - 1
        for revision in [creation, *(each.revision for each in server.history)][:-1]:
            for streams in self._plan.streams:
                label = f"restore {name} to {revision}{streams.value}"
                yield label, lambda r=revision, s=streams: self._restore(name, r, s)  # type: ignore[misc]

    def _restore(self, name: str, revision: int, streams: Streams) -> None:
        server = self.servers[name]
        server.restore(revision, streams)
        assert server.lost is not None
        assert not any(each.timestamp % 2 for each in server.lost), "it could be written again"
        self._left_after[name] = 1 + sum(each.revision > revision for each in server.lost)
        self._time.now_s += RESTORE_S
