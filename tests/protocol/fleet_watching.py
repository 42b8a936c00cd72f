"""The watch of a process: its followers step by step, what it gives, and going on elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from chains import check_ends
from fleet_claims import Line
from fleet_histories import Committed, floor_of, newest_of
from fleet_keys import watch_key
from fleet_plan import NAMES, Plan
from fleet_process import Process
from fleet_servers import Server

from snapkv.errors import SnapKVError
from snapkv.fleet.fleet_watch import FleetChanges, MemberFollower

ROUNDS_MAX = 50
QUIET = {*NAMES, "take"}


class Left(NamedTuple):
    """The place at which a watch was left."""

    process: Process
    timestamp: int
    token: str
    line: Line


class Watching:
    """Follows the watch of one process; `ended` is whether an error has ended it."""

    def __init__(self, plan: Plan, process: Process, servers: dict[str, Server]) -> None:
        self.plan, self.process, self._servers = plan, process, servers
        self.ended = False
        self._idle: set[str] = set()
        self._idle_at: object = None

    # --- beginning, and going on elsewhere ---

    def begin(self, since: int | None) -> None:
        """Make the watch of the process; without a time, all members are final where it begins."""
        try:
            watch = self.process.fleet.watch(since=since, **self._options)
        except SnapKVError as e:
            check_ends(e)
            self.process.check_error(e)
            return
        line = self._line(watch.timestamp)
        if since is None:
            line.base = dict(self._bases(watch.timestamp))
        self._begun(watch, line)

    def _bases(self, timestamp: int) -> Iterator[tuple[str, Committed | None]]:
        """Yield the newest commits of members that were final at a time, during the whole call."""
        for name, server in self._servers.items():
            if timestamp >= self.plan.joined_at(name):
                final = [each for each in server.lately if each and newest_of(each) >= timestamp]
                assert final, f"{name} was not final at {timestamp}"
                floors = {floor_of(each, timestamp) for each in final}
                if len(floors) == 1:
                    yield name, floors.pop()

    def _line(self, since: int) -> Line:
        return Line.after(since, {name: self.plan.joined_at(name) for name in NAMES})

    def _begun(self, watch: object, line: Line) -> None:
        process = self.process
        process.watch, process.line = watch, line  # type: ignore[assignment]
        process.claims.lines.append(line)

    def leave(self) -> Left:
        """Close the watch; return where it was."""
        process, watch, line = self.process, self.process.watch, self.process.line
        assert watch is not None
        assert line is not None
        left = Left(process, watch.timestamp, watch.token, line.copy())
        watch.close()
        process.watch = process.line = None
        return left

    def resume(self, left: Left, *, by_token: bool) -> bool:
        """Go on at a place; return False if a member was restored."""
        line, options = left.line.copy(), self._options
        restored = any(server.lost is not None for server in self._servers.values())
        if not by_token and left.process is not self.process and restored:
            line = self._line(left.timestamp)  # nothing shows which history it was of
        options |= {"resume": left.token} if by_token else {"since": left.timestamp}
        try:
            watch = self.process.fleet.watch(**options)
        except SnapKVError as e:
            check_ends(e)
            self.process.check_error(e)
            self.ended = True
            return False
        self._begun(watch, line)
        self.process.claims.continues = left.process is not self.process
        return True

    @property
    def _options(self) -> dict[str, Any]:
        behind = "leave out" if self.plan.leave_out else "error"
        return {"hold_bytes": self.plan.hold_bytes, "behind": behind}

    # --- one step after the other ---

    def step(self, follower: MemberFollower) -> None:
        """Let a follower do what its thread does next."""
        assert self.process.watch is not None
        before = watch_key(self.process.watch)
        follower.step(0)
        self._note(follower.name, is_idle=watch_key(self.process.watch) == before)
        self._watched()

    def take(self) -> bool:
        """Take an item; return whether there was one."""
        process = self.process
        assert process.watch is not None
        assert process.line is not None
        before = watch_key(process.watch)
        try:
            item = process.watch.next(0)
        except SnapKVError as e:
            check_ends(e)
            process.check_error(e)
            self.ended = True
            return False
        if isinstance(item, FleetChanges):
            process.line.take(item)
        elif item is not None:
            process.line.take_late(item)
        self._note("take", is_idle=watch_key(process.watch) == before)
        self._watched()
        return item is not None

    def _note(self, what: str, *, is_idle: bool) -> None:
        """Note whether a step has brought something since the members were as they are."""
        now = [(each.history, each.lost) for each in self._servers.values()]
        if not is_idle or now != self._idle_at:
            self._idle, self._idle_at = set(), now
        if is_idle:
            self._idle.add(what)

    def _watched(self) -> None:
        watch, line = self.process.watch, self.process.line
        assert watch is not None
        assert line is not None
        line.reach(watch.timestamp, [each.name for each in watch._followers if each.left_out])
        self.process.claims.check()

    # --- nothing is missing ---

    def check_quiet(self) -> None:
        """Check that nothing is missing, if neither a step nor the watch has brought anything."""
        watch = self.process.watch
        assert watch is not None
        failed = {each.name for each in watch._followers if each.error is not None}
        now = [(each.history, each.lost) for each in self._servers.values()]
        if not failed and self._idle == QUIET and self._idle_at == now:
            self._check_complete()

    def drain(self) -> None:
        """Follow all members until nothing new comes; check that nothing is missing."""
        watch = self.process.watch
        assert watch is not None
        for _ in range(ROUNDS_MAX):
            before = watch_key(watch)
            for follower in watch._followers:
                if follower.error is None:
                    self.step(follower)
            while self.take():
                pass
            if self.ended:
                return
            if watch_key(watch) == before:
                self._check_complete()
                return
        raise AssertionError("a watch goes on for ever")

    @property
    def _without_room(self) -> set[str]:
        """Members that are not read on until the watch has returned what waits in it."""
        watch = self.process.watch
        assert watch is not None
        return {each.name for each in watch._followers if not watch.has_room(each)}

    def _check_complete(self) -> None:
        line, final = self.process.line, []
        assert line is not None
        for name, server in self._servers.items():
            possible = self.process.claims.possible(name, of_moments=False)
            is_read = name not in self._without_room
            assert server.lost is None or server.history in possible or not is_read, (
                f"{name} was restored, and the watch does not notice"
            )
            joined = self.plan.joined_at(name)
            final.append(max(newest_of(server.history or ()), joined - 1))
        assert line.reached >= min(final), f"the watch is at {line.reached}, not {min(final)}"
