"""What all requests of a server share: the store, threads for its calls, and the wakers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, ParamSpec, TypeVar

from cdcmeta.changes import ChangesDB, Edited
from cdcmeta.couch_http.errors import HTTPError
from cdcmeta.couch_http.limits import Limits
from cdcmeta.couch_http.login import Cookies, Login
from cdcmeta.couch_http.threads import Threads
from cdcmeta.couch_http.wakeup import Hub
from cdcmeta.errors import EditUnknownError
from snapkv import SnapshotKV

P = ParamSpec("P")
T = TypeVar("T")
DATABASES_MAX = 256
"""Databases of which is kept what their edits need to know."""
PARSED_MAX = 65
"""The most bytes of memory that are taken for a byte of JSON."""


class Service:
    """A store, served. Its calls wait for disks and networks, so they run in threads.

    `database` returns a database by its name. It remembers the record, which every edit guards:
    so it may be out of date, and saves a round trip while it is not.
    """

    def __init__(self, store: SnapshotKV, limits: Limits, login: Login | None = None) -> None:
        self.store, self.limits, self.login = store, limits, login
        self.hub = Hub(store, limits.followed)
        self.room = Room(max(limits.bodies_bytes, limits.body_bytes), limits.small_bodies_share)
        self.parsed_room = Room(max(limits.parsed_bytes, PARSED_MAX * limits.body_bytes))
        self.database = lru_cache(DATABASES_MAX)(partial(ServedDB, store, self.hub))
        self.id: str = store.info()["store_id"]
        self.cookies = None if login is None else Cookies(login, self.id)
        self._callers = Threads(limits.callers, "cdcmeta caller")
        self._readers = Threads(limits.readers, "cdcmeta reader")

    async def call(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that is answered at once."""
        return await self._callers.run(partial(do, *args, **kwargs))

    async def read(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a step of a feed or a listing; they have threads apart, and take turns for them."""
        return await self._readers.run(partial(do, *args, **kwargs))

    async def stepped(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield what an iterator reads, a step after the other."""
        while (piece := await self.read(next, pieces, None)) is not None:
            yield piece

    def close(self) -> None:
        """End its threads; the loop has ended."""
        self.hub.close()
        self._callers.close()
        self._readers.close()


class ServedDB(ChangesDB):
    """A database whose edits wake who waits for them here, before the follower finds them."""

    def __init__(self, store: SnapshotKV, hub: Hub, name: str) -> None:
        super().__init__(store, name)
        self._hub = hub

    def bulk(
        self, docs: Iterable[Mapping[str, Any]], *, timeout: float | None = None
    ) -> list[Edited]:
        """Store documents, and wake who waits."""
        return self._waking(super().bulk(docs, timeout=timeout))

    def replicate(
        self, docs: Iterable[Mapping[str, Any]], *, timeout: float | None = None
    ) -> list[Edited]:
        """Store revisions made elsewhere, and wake who waits."""
        return self._waking(super().replicate(docs, timeout=timeout))

    def _waking(self, found: list[Edited]) -> list[Edited]:
        self._hub.committed(self.name, (each.seq.timestamp for each in found if each.seq))
        return found


class Room:
    """Room for all requests together, in bytes; used by the event loop only."""

    def __init__(self, size: int, kept_share: float = 0.0) -> None:
        self.size = self._left = size
        self._kept = int(size * kept_share)

    @property
    def size_of_large(self) -> int:
        """How much of it `large` bodies may take together."""
        return self.size - self._kept

    def take(self, size: int, *, large: bool = False) -> None:
        """Take some bytes of it; a `large` body leaves alone what is kept for others.

        Raises `HTTPError` (503) when they are not there.
        """
        if size > self._left - (self._kept if large else 0):
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
