"""The parts that all requests share: the store, limits, threads for its calls, and wakeups."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

import anyio

from cdcmeta.changes import ChangesDB, Edited
from cdcmeta.couch_http.http_errors import HTTPError
from cdcmeta.couch_http.wakeup import Wakeups
from cdcmeta.errors import EditUnknownError
from snapkv import SnapshotKV, web
from snapkv.web import Cookies, Login

P = ParamSpec("P")
T = TypeVar("T")
COOKIE = "AuthSession"
"""The name of CouchDB's cookie."""
DATABASES_MAX = 256
"""The most databases that keep their record, which edits guard, in memory."""
PARSED_MAX = 65
"""The most estimated bytes of memory for one byte of JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(web.ClientLimits):
    """Limits of a server; each name ends with its unit, or is a count.

    Limits of any server's connections are included: `head_s`, `unread_s`, `connections`, `stop_s`.
    """

    body_bytes: int = 8_000_000
    """The largest document (CouchDB's `max_document_size`), and the largest body of a request."""
    bulk_bytes: int = 128_000_000
    """The largest body of `_bulk_docs`, which is split before it is parsed."""
    bulk_docs_max: int = 250_000
    """The most documents of `_bulk_docs`."""
    bodies_bytes: int = 320_000_000
    """The bodies of all unanswered requests together (at least one); beyond it is 503."""
    small_bodies_share: float = 0.2
    """The share of `bodies_bytes` that is reserved for bodies of up to `body_bytes`."""
    parsed_bytes: int = 512_000_000
    """The estimated memory of the values parsed from them; beyond it is 503."""
    body_s: float = 60.0
    """The longest that a client may send nothing of a body, or less than `body_bytes_per_s`."""
    body_bytes_per_s: int = 100_000
    """How fast a client has to send a body that takes longer than `body_s`."""
    callers: int = 16
    """Threads for requests that do not wait."""
    followed: int = 100
    """Databases that are followed at once, with one or a few threads each; one more is 503."""
    readers: int = 8
    """Threads that read for feeds, in turn."""
    rows: int = 256
    """Rows of a feed that are read at once."""
    docs: int = 64
    """Documents that are read at once."""
    step_bytes: int = 256 << 10
    """The target size of documents read at once; a single document may be larger."""
    piece_bytes: int = 64 << 10
    """The size of a piece that is sent at once."""
    bulk_docs: int = 1_000
    """The most documents of `_bulk_docs` in one commit."""
    commit_bytes: int = 8_000_000
    """The most bytes of `_bulk_docs` in one commit, unless one document is larger."""
    wait_ms: int = 60_000
    """The longest timeout and heartbeat of a feed, and the default of the former."""


class Service:
    """A served store. Its calls wait for disks and networks, so they run in threads.

    `database` returns a database by its name. It keeps the record, which every edit guards. An
    outdated record costs a retry, a current one saves a round trip.
    """

    def __init__(self, store: SnapshotKV, limits: Limits, login: Login | None = None) -> None:
        self.store, self.limits = store, limits
        self.wakeups = Wakeups(store, limits.followed)
        self.body_budget = ByteBudget(
            max(limits.bodies_bytes, limits.body_bytes), limits.small_bodies_share
        )
        self.parsed_budget = ByteBudget(max(limits.parsed_bytes, PARSED_MAX * limits.body_bytes))
        self.database = lru_cache(DATABASES_MAX)(partial(ServedDB, store, self.wakeups))
        self.id: str = store.info()["store_id"]
        self.cookies = None if login is None else Cookies(login, self.id, name=COOKIE)
        self._callers = CallThreads(limits.callers, "cdcmeta caller")
        self._readers = CallThreads(limits.readers, "cdcmeta reader")

    async def call(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that does not wait for changes."""
        return await self._callers.run(partial(do, *args, **kwargs))

    async def read(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a step of a feed or a listing, in turn, in threads of their own."""
        return await self._readers.run(partial(do, *args, **kwargs))

    async def stepped(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield what an iterator reads, one step at a time."""
        while (piece := await self.read(next, pieces, None)) is not None:
            yield piece

    def close(self) -> None:
        """End its threads, after the event loop ended."""
        self.wakeups.close()
        self._callers.close()
        self._readers.close()


class ServedDB(ChangesDB):
    """A database whose edits wake its waiting feeds at once, before the follower sees them."""

    def __init__(self, store: SnapshotKV, wakeups: Wakeups, name: str) -> None:
        super().__init__(store, name)
        self._wakeups = wakeups

    def _many(self, *edits: Any) -> list[Edited]:
        found = super()._many(*edits)
        self._wakeups.committed(self.name, (each.seq.timestamp for each in found if each.seq))
        return found


class ByteBudget:
    """Bytes that all requests share; used by the event loop only."""

    def __init__(self, size: int, kept_share: float = 0.0) -> None:
        self.size = self._left = size
        self._kept = int(size * kept_share)
        self.size_for_large = size - self._kept
        """The bytes that `large` bodies may take together."""

    def take(self, size: int, *, large: bool = False) -> None:
        """Take some bytes; a `large` body may not take the bytes reserved for small ones.

        Raises `HTTPError` (503) when too few are left.
        """
        if size > self._left - (self._kept if large else 0):
            raise HTTPError(503, "service_unavailable", "Too many bodies at once: try again.")
        self._left -= size

    def give_back(self, size: int) -> None:
        """Give bytes back."""
        self._left += size


def run_edit(db: ChangesDB, edit: Callable[[], list[Edited]]) -> list[Edited]:
    """Return the results of edits; if their outcome is unknown, find it out.

    Raises `HTTPError` (503) when they were not made, and what `ChangesDB.resolve` raises.
    """
    try:
        return edit()
    except EditUnknownError as e:
        found = db.resolve(e)
        if found is None:
            raise HTTPError(503, "service_unavailable", "It did not happen: try again.") from e
        return found


# --- threads for calls that wait for disks and networks ---

_Job: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class CallThreads:
    """Up to `most` threads that run calls in turn; used by the event loop only.

    anyio's threads take two more turns of the event loop for each call, to allow cancelling.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = self._running = 0

    async def run(self, do: Callable[[], T]) -> T:
        """Return what a call returns, or raise what it raises.

        A cancelled caller waits until the call ends: it may use what the caller would close.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._running += 1
        if self._running > self._threads < self._most:
            self._threads += 1
            name = f"{self._name} {self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put((do, future))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([future])
            if future.done() and not future.cancelled():
                future.exception()  # retrieve it, or asyncio logs it as an error
            raise
        finally:
            self._running -= 1

    def close(self) -> None:
        """End the threads after their current calls."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            do, future = job
            result, error = None, None
            try:
                result = do()
            except BaseException as e:
                error = e
            with suppress(RuntimeError):  # the loop was closed
                future.get_loop().call_soon_threadsafe(_finish, future, result, error)
            del job, do, future, result, error  # free it: the next call may take long to come


def _finish(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # a future does not accept it
        error = RuntimeError("a call raised StopIteration")
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
