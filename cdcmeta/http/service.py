"""What all requests of a server share: the store, threads for its calls, and the wakers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import lru_cache, partial
from typing import ParamSpec, TypeVar

import anyio
from anyio.to_thread import run_sync

from cdcmeta.changes import ChangesDB, Edited
from cdcmeta.errors import EditUnknownError
from cdcmeta.http.errors import HTTPError
from cdcmeta.http.limits import Limits
from cdcmeta.http.waking import Hub
from snapkv import SnapshotKV

P = ParamSpec("P")
T = TypeVar("T")
DATABASES_MAX = 256
"""Databases of which is kept what their edits need to know."""


class Service:
    """A store, served. Its calls wait for disks and networks, so they run in threads.

    `database` returns a database by its name. It remembers the record, which every edit guards:
    so it may be out of date, and saves a round trip while it is not.
    """

    def __init__(self, store: SnapshotKV, limits: Limits) -> None:
        self.store, self.limits = store, limits
        self.hub = Hub(store, limits.followed)
        self.room = Room(max(limits.bodies_bytes, limits.body_bytes))
        self.database = lru_cache(DATABASES_MAX)(partial(ChangesDB, store))
        self.id: str = store.info()["store_id"]
        self._callers = anyio.CapacityLimiter(limits.callers)
        self._readers = anyio.CapacityLimiter(limits.readers)

    async def call(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that is answered at once."""
        return await run_sync(lambda: do(*args, **kwargs), limiter=self._callers)

    async def read(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a step of a feed or a listing; they have threads apart, and take turns for them."""
        return await run_sync(lambda: do(*args, **kwargs), limiter=self._readers)

    async def stepped(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield what an iterator reads, a step after the other."""
        while (piece := await self.read(next, pieces, None)) is not None:
            yield piece


class Room:
    """Room for the bodies of all requests together; used by the event loop only."""

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> None:
        """Take some bytes of it. Raises `HTTPError` (503) when they are not there."""
        if size > self._left:
            raise HTTPError(503, "service_unavailable", "Too many bodies at once: try again.")
        self._left -= size

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        self._left += size


def settled(db: ChangesDB, edit: Callable[[], list[Edited]]) -> list[Edited]:
    """Return what became of edits; where the answer was lost, it is looked up.

    Raises `HTTPError` (503) when they never happened, else what `ChangesDB.resolve` raises.
    """
    try:
        return edit()
    except EditUnknownError as e:
        found = db.resolve(e)
        if found is None:
            raise HTTPError(503, "service_unavailable", "It did not happen: try again.") from e
        return found
