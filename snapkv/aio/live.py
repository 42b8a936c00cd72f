"""Leased keys whose calls are awaited."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Self

from snapkv.aio.coordination import Session
from snapkv.aio.following import Following
from snapkv.aio.runners import Runner
from snapkv.coordination.live_watch import LiveChange
from snapkv.errors import InvalidTypeError, StoreClosedError

if TYPE_CHECKING:
    from snapkv.coordination.live import LeasedKey as SyncLeasedKey
    from snapkv.coordination.live import Live as SyncLive
    from snapkv.coordination.live import LiveItems
    from snapkv.coordination.live_watch import LiveWatch as SyncLiveWatch


class LeasedKey:
    """A key that its caller has put under a lease: `snapkv.LeasedKey`, awaited."""

    def __init__(self, runner: Runner, leased: SyncLeasedKey) -> None:
        self._runner, self._sync = runner, leased
        self.key, self.ttl_s = leased.key, leased.ttl_s

    @property
    def revision(self) -> int:
        """The revision of the engine that wrote it."""
        return self._sync.revision

    def __repr__(self) -> str:
        return f"<aio {repr(self._sync)[1:]}"

    async def renew(self) -> float:
        """Start the time of the key anew; return its seconds."""
        return await self._runner.write(self._sync.renew)

    async def revoke(self) -> None:
        """Remove the key now, unless another `put` has replaced it; may be repeated."""
        await self._runner.write(self._sync.revoke)


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
        put = partial(self._sync.put, session=None if session is None else session.sync)
        return LeasedKey(self._runner, await self._runner.write(put, key, value, ttl))

    async def get(
        self, key: str, default: bytes | None = None, *, timeout: float | None = None
    ) -> bytes | None:
        """Return the value of a live key, `default` if it is absent."""
        return await self._runner.run(self._sync.get, key, default, timeout=timeout)

    async def items(self, prefix: str = "", *, timeout: float | None = None) -> LiveItems:
        """Return the live keys with a prefix and their values, at the list's `revision`."""
        return await self._runner.run(self._sync.items, prefix, timeout=timeout)

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


class _BegunLater:
    """A watch that its first call begins; its calls run where the store's calls run."""

    def __init__(self, make: Callable[[], SyncLiveWatch]) -> None:
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
