"""Sessions, elections and leased keys whose calls are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Generic, Self, TypeVar

from snapkv.aio.methods import awaited, same, written
from snapkv.aio.resources import AsyncClosing, Shown
from snapkv.aio.runners import Runner
from snapkv.base.waiting import monotonic
from snapkv.coordination.election import Election as SyncElection
from snapkv.coordination.election import Leader as Leader
from snapkv.coordination.leased_keys import LeasedKey as SyncLeasedKey
from snapkv.coordination.leased_keys import Live as SyncLive
from snapkv.coordination.leased_keys import LiveChange
from snapkv.coordination.leased_keys import LiveWatch as SyncLiveWatch
from snapkv.coordination.session import Session as SyncSession
from snapkv.errors import InvalidTypeError, StoreClosedError
from snapkv.model import Held
from snapkv.reading.deadline import check_wait
from snapkv.reading.watches import Steps

T = TypeVar("T")

# --- watches of the engine as asynchronous iterators: a cancelled `next` loses nothing ---
# A step is read by a task of its own. A `next` that is cancelled leaves that task to the next call:
#
#     first next()    starts a task, which waits for a change; is cancelled
#     (a change)      the task has it
#     second next()   finds the task, and returns the change

LOOK_S = 1.0
"""The longest that a thread waits before it checks whether its task still runs, in seconds."""


class Following(AsyncClosing, Generic[T]):
    """The steps of a watch, as an asynchronous iterator. Use it from one task.

    Iteration waits for ever, or ends after `timeout` seconds without a step.
    """

    def __init__(self, runner: Runner, source: Steps[T], timeout: float | None) -> None:
        check_wait(timeout)
        self._runner, self._timeout = runner, timeout
        self._source: Steps[T] = source
        self._reading: asyncio.Task[T | None] | None = None
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            step = await self.next(self._timeout)
        except StoreClosedError:
            if not self._closed:
                raise
            step = None
        if step is None:
            raise StopAsyncIteration
        return step

    async def next(self, timeout: float | None = None) -> T | None:
        """Return the next step; None if `timeout` seconds (None: no bound) bring none."""
        check_wait(timeout)
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if self._closed:
                raise StoreClosedError("the watch was closed")
            left_s = LOOK_S if deadline is None else min(LOOK_S, deadline - monotonic())
            if self._reading is None:  # else one that a cancelled call has left
                self._reading = asyncio.create_task(self._read(max(0.0, left_s)))
                self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            done = self._reading
            await asyncio.wait({done})  # if this call is cancelled, the next one waits for it
            self._reading = None
            if done.cancelled():  # by `aclose`
                raise StoreClosedError("the watch was closed")
            step = done.result()
            if step is not None or (deadline is not None and monotonic() >= deadline):
                return step

    async def _read(self, seconds: float) -> T | None:
        return await self._runner.wait(partial(self._source.next, seconds), self._source.close)

    async def aclose(self) -> None:
        """End the watch; a task that waits in it ends its iteration. May be repeated."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        with suppress(StoreClosedError):  # the store has closed it
            await self._runner.run(self._source.close)


# --- sessions and elections ---


class Session(Shown, AsyncClosing):
    """A process's sign of life in a store: `snapkv.Session`, awaited."""

    def __init__(self, runner: Runner, session: SyncSession) -> None:
        self._runner, self._sync = runner, session
        self.id, self.ttl_s, self.value = session.id, session.ttl_s, session.value
        self.revision = session.revision

    alive: bool = same(SyncSession.alive)
    left_s: float = same(SyncSession.left_s)
    guard: Held = same(SyncSession.guard)

    def check(self) -> None:
        """Raise `SessionLostError` if the session is not alive. No round trip."""
        self._sync.check()

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the session is lost or closed; False if `timeout` seconds pass first."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            left_s = LOOK_S if deadline is None else min(LOOK_S, deadline - monotonic())
            wait = partial(self._sync.wait_lost, max(0.0, left_s))
            if await self._runner.wait(wait, lambda: None):
                return True
            if deadline is not None and monotonic() >= deadline:
                return False

    async def aclose(self) -> None:
        """End the session: its keys vanish at once. May be repeated."""
        await self._runner.write(self._sync.close)


class Election(Shown, AsyncClosing):
    """One candidate of an election: `snapkv.Election`, awaited.

    As an asynchronous context manager it resigns at the end.
    """

    def __init__(self, runner: Runner, election: SyncElection) -> None:
        self._runner, self._sync = runner, election
        self.name = election.name

    leading: bool = same(SyncElection.leading)
    guard: Held = same(SyncElection.guard)
    revision: int = same(SyncElection.revision)

    async def campaign(self, value: bytes = b"", timeout: float | None = None) -> Election:
        """Take part until this candidate leads; a cancelled campaign resigns."""
        campaign = partial(self._sync.campaign_since, self._sync.resigned, value, timeout)
        await self._runner.wait(campaign, self._sync.close)
        return self

    proclaim = written(SyncElection.proclaim)
    resign = written(SyncElection.resign)

    async def aclose(self) -> None:
        """Resign; never fails."""
        await self._runner.write(self._sync.close)

    end_session = written(SyncElection.end_session)
    leader = awaited(SyncElection.leader)

    async def watch_leader(self, timeout: float | None = None) -> Leaders:
        """Return an asynchronous iterator of the leaders, from the present one on."""
        made = await self._runner.run(self._sync.watch_leader, timeout)
        return Leaders(self._runner, made, timeout)


class Leaders(Following["Leader"]):
    """The leaders of an election, the present one first: `snapkv.coordination.Leaders`, awaited."""


# --- leased keys ---


class LeasedKey(Shown):
    """A key that its caller has put under a lease: `snapkv.LeasedKey`, awaited."""

    def __init__(self, runner: Runner, leased: SyncLeasedKey) -> None:
        self._runner, self._sync = runner, leased
        self.key, self.ttl_s = leased.key, leased.ttl_s

    revision: int = same(SyncLeasedKey.revision)
    renew = written(SyncLeasedKey.renew)
    revoke = written(SyncLeasedKey.revoke)


class Live:
    """The leased keys of a store: `snapkv.Live`, awaited; `store.live`."""

    def __init__(self, runner: Runner, live: SyncLive) -> None:
        self._runner, self._sync = runner, live

    async def put(
        self, key: str, value: bytes, ttl: float | None = None, *, session: Session | None = None
    ) -> LeasedKey:
        """Write a key that vanishes after `ttl` seconds without `renew`, or with a session."""
        if session is not None and not isinstance(session, Session):
            raise InvalidTypeError(
                f"session must be a Session of snapkv.aio, not {type(session).__name__}"
            )
        put = partial(self._sync.put, session=None if session is None else session._sync)
        return LeasedKey(self._runner, await self._runner.write(put, key, value, ttl))

    get = awaited(SyncLive.get)
    items = awaited(SyncLive.items)

    def watch(
        self, prefix: str = "", since: int | None = None, *, timeout: float | None = None
    ) -> LiveWatch:
        """Return an asynchronous iterator of what happens to live keys after a revision.

        `await` begins it; otherwise its first step does. Each has a watch of the engine of its own.
        """
        return LiveWatch(self._runner, partial(self._sync.watch, prefix, since), timeout)


class LiveWatch(Following[LiveChange]):
    """The changes of live keys, none missing, none twice: `snapkv.LiveWatch`, awaited.

    `await store.live.watch(...)`, `async with` and the first step begin it: "now" is then.
    """

    def __init__(
        self, runner: Runner, watch: Callable[[], SyncLiveWatch], timeout: float | None
    ) -> None:
        self._later = _BegunLater(watch)
        super().__init__(runner, self._later, timeout)

    def __await__(self) -> Generator[object, None, Self]:
        return self._begun().__await__()

    async def __aenter__(self) -> Self:
        return await self._begun()

    async def _begun(self) -> Self:
        await self._runner.run(self._later.begin)
        return self


class _BegunLater(Steps[LiveChange]):
    """A watch that its first call begins; its calls run where the store's calls run."""

    def __init__(self, make: Callable[[], SyncLiveWatch]) -> None:
        super().__init__(None)
        self._make = make
        self._watch: SyncLiveWatch | None = None
        self._closed = False

    def begin(self) -> SyncLiveWatch:
        """Begin the watch, once."""
        if self._watch is None:
            made = self._make()
            if self._watch is None and not self._closed:
                self._watch = made
            else:  # meanwhile another call has begun or closed it
                made.close()
        if self._watch is None:
            raise StoreClosedError("the watch was closed")
        return self._watch

    def next(self, timeout: float | None = None) -> LiveChange | None:
        """Return the next change; None if `timeout` seconds bring none."""
        return self.begin().next(timeout)

    def close(self) -> None:
        """End the watch; may be repeated."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()
