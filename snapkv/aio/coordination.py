"""Sessions and elections whose calls are awaited."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from snapkv.aio.following import LOOK_S, Following
from snapkv.aio.resources import AsyncClosing
from snapkv.aio.runners import Runner
from snapkv.base.waiting import monotonic
from snapkv.model import Held

if TYPE_CHECKING:
    from snapkv.coordination.election import Election as SyncElection
    from snapkv.coordination.leader import Leader
    from snapkv.coordination.session import Session as SyncSession
    from snapkv.coordination.session import SessionInfo


class Session(AsyncClosing):
    """A process's sign of life in a store: `snapkv.Session`, awaited."""

    def __init__(self, runner: Runner, session: SyncSession) -> None:
        self._runner, self.sync = runner, session
        self.id, self.ttl_s, self.value = session.id, session.ttl_s, session.value
        self.revision = session.revision

    def __repr__(self) -> str:
        return f"<aio {repr(self.sync)[1:]}"

    @property
    def alive(self) -> bool:
        """Whether the session can be relied on; no round trip."""
        return self.sync.alive

    @property
    def left_s(self) -> float:
        """Seconds that the session lives without another renewal; 0 if it is lost."""
        return self.sync.left_s

    @property
    def guard(self) -> Held:
        """A guard: a commit with it raises `ConflictError` once the session has ended."""
        return self.sync.guard

    def check(self) -> None:
        """Raise `SessionLostError` if the session is not alive. No round trip."""
        self.sync.check()

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the session is lost or closed; False if `timeout` seconds pass first."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            left_s = LOOK_S if deadline is None else min(LOOK_S, deadline - monotonic())
            wait = partial(self.sync.wait_lost, max(0.0, left_s))
            if await self._runner.wait(wait, lambda: None):
                return True
            if deadline is not None and monotonic() >= deadline:
                return False

    async def aclose(self) -> None:
        """End the session: its keys vanish at once. May be repeated."""
        await self._runner.write(self.sync.close)


class Election(AsyncClosing):
    """One candidate of an election: `snapkv.Election`, awaited.

    As an asynchronous context manager it resigns at the end.
    """

    def __init__(self, runner: Runner, election: SyncElection) -> None:
        self._runner, self._sync = runner, election
        self.name = election.name

    def __repr__(self) -> str:
        return f"<aio {repr(self._sync)[1:]}"

    @property
    def leading(self) -> bool:
        """Whether this process leads, as far as it knows; no round trip."""
        return self._sync.leading

    @property
    def guard(self) -> Held:
        """A guard: a commit with it succeeds only while this candidate leads."""
        return self._sync.guard

    @property
    def revision(self) -> int:
        """The revision at which this candidate's key was made."""
        return self._sync.revision

    async def campaign(self, value: bytes = b"", timeout: float | None = None) -> Election:
        """Take part until this candidate leads; a cancelled campaign resigns."""
        campaign = partial(self._sync.campaign_since, self._sync.resigned, value, timeout)
        await self._runner.wait(campaign, self._sync.close)
        return self

    async def proclaim(self, value: bytes) -> None:
        """Change the leader's value; the leadership and its guard stay."""
        await self._runner.write(self._sync.proclaim, value)

    async def resign(self) -> None:
        """Give up the leadership, or the candidacy that another task waits with."""
        await self._runner.write(self._sync.resign)

    async def aclose(self) -> None:
        """Resign; never fails."""
        await self._runner.write(self._sync.close)

    async def end_session(self, session: SessionInfo) -> bool:
        """End another process's session if this leadership holds; return whether this call did."""
        return await self._runner.write(self._sync.end_session, session)

    async def leader(self) -> Leader | None:
        """Return the leader, None without a candidate."""
        return await self._runner.run(self._sync.leader)

    async def watch_leader(self, timeout: float | None = None) -> Leaders:
        """Return an asynchronous iterator of the leaders, from the present one on."""
        made = await self._runner.run(self._sync.watch_leader, timeout)
        return Leaders(self._runner, made, timeout)


class Leaders(Following["Leader"]):
    """The leaders of an election, the present one first: `snapkv.coordination.Leaders`, awaited."""
