"""Watches of a store in an asyncio loop: one watch of the engine for all of a keyspace.

A `SharedWatch` follows the whole keyspace and gives each `Watch` the changes that match its prefix.
A watch that begins in the past first reads what the shared one has already passed:

    shared position             watch of prefix "a/", since 10
    30                         joins: what is delivered from now on goes to its queue
    30 -> 40  (b/x changes)    reads 20 (a/x) and 30 (a/y) from a watch of the engine of its own
    40 -> 50  (a/z changes)    50 arrives in the queue
                               takes 50: nothing twice, nothing missing

A queue that is full is not filled further: its watch leaves the shared one, returns what is queued,
and joins again as above. So one slow reader costs neither memory nor the time of other readers.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Collection, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self

from snapkv.aio.methods import Chunk, chunk_of
from snapkv.aio.resources import AsyncClosing
from snapkv.aio.runners import Runner
from snapkv.base.arguments import check_seconds
from snapkv.base.waiting import pause
from snapkv.errors import EngineUnavailableError, StoreClosedError, another
from snapkv.model import Change, Changes, K, KeysAndValues, V
from snapkv.reading.deadline import WAIT_S_MAX
from snapkv.reading.decoding import Decoding
from snapkv.reading.view import KeyspaceReads
from snapkv.times import When

if TYPE_CHECKING:
    from snapkv.reading.observed_prefix import Observed
    from snapkv.reading.view import View
    from snapkv.reading.watches import Watch as SyncWatch

QUEUE_MAX = 1_024
"""The most commits in the queue of one watch."""
QUEUE_BYTES_MAX = 16 << 20
POSTED_MAX = 1_024
"""The most commits on their way from the thread of a shared watch to its loop."""
LOOK_S = 1.0
"""The pause between two checks whether a watch still has followers, in seconds. Without commits,
each check passes the position of the watch on."""
CHUNK = 64
"""The most commits that a watch reads at once while it catches up."""


class SharedWatch(Generic[K]):
    """The watches of one keyspace in one loop, which share one watch of the engine."""

    def __init__(self, runner: Runner, view: View[K, Any] | Observed[K]) -> None:
        self.runner = runner
        self.view: View[K, Any] | Observed[K] = view
        self.position = 0
        """All commits up to this timestamp were delivered."""
        self._watch: SyncWatch[K] | None = None
        self._starting = asyncio.Lock()
        self._watches: weakref.WeakSet[Watch[K, Any]] = weakref.WeakSet()
        self._of_prefix: dict[K | None, weakref.WeakSet[Watch[K, Any]]] = {}
        self._lengths: set[int] | None = None  # of these prefixes; None: count them again
        self._sent = self._delivered = 0  # each counted by one thread
        self._closed = False

    async def join(self, watch: Watch[K, Any]) -> int:
        """Deliver to a watch from now on; return the position from which."""
        async with self._starting:
            if self._closed:
                raise StoreClosedError("the store was closed")
            if self._watch is None:
                self._watch = source = await self.runner.run(self.view.watch)
                self.position = source.timestamp
                self.runner.start(partial(self._feed, source), "snapkv aio watch")
        self._watches.add(watch)
        if watch.prefix not in self._of_prefix:
            self._of_prefix[watch.prefix], self._lengths = weakref.WeakSet(), None
        self._of_prefix[watch.prefix].add(watch)
        return self.position

    async def leave(self, watch: Watch[K, Any]) -> None:
        """Deliver nothing more to a watch; the last one ends the watch of the engine."""
        self.discard(watch)
        if not self._watches and (source := self._end()) is not None:
            await self.runner.run(source.close)

    async def close(self) -> None:
        """End all watches, which raise `StoreClosedError`."""
        self._closed = True
        source = self._end()
        self._fail_all(StoreClosedError("the store was closed"))
        if source is not None:
            await self.runner.run(source.close)

    def discard(self, watch: Watch[K, Any]) -> None:
        """Deliver nothing more to a watch; after the last one, the engine's watch ends soon."""
        self._watches.discard(watch)
        if (others := self._of_prefix.get(watch.prefix)) is not None:
            others.discard(watch)

    def _end(self) -> SyncWatch[K] | None:
        source, self._watch = self._watch, None
        return source

    # --- in the background ---

    def _feed(self, source: SyncWatch[K]) -> None:
        """Deliver what the watch of the engine returns, until it is closed."""
        try:
            while self._watch is source:
                changes = source.next(LOOK_S)
                while self._sent - self._delivered >= POSTED_MAX and self._watch is source:
                    pause(0.001)
                self._sent += 1
                self.runner.post(partial(self._deliver, source, changes, source.timestamp))
        except Exception as e:
            self.runner.post(partial(self._fail, source, e))
        except BaseException as e:  # a cancelled task: or the watches would wait for ever
            error = EngineUnavailableError(f"the shared watch ended with {type(e).__name__}")
            self.runner.post(partial(self._fail, source, error))
            raise
        finally:
            source.close()

    # --- in the loop ---

    def _deliver(self, source: SyncWatch[K], changes: Changes[K] | None, position: int) -> None:
        self._delivered += 1
        if self._watch is not source:
            return
        if changes is not None:
            self._spread(changes)
        self.position = position
        if not self._watches:  # the last one was garbage-collected
            self._watch = None

    def _spread(self, changes: Changes[K]) -> None:
        """Give each watch the changes that match its prefix; watches of one prefix share them."""
        if self._lengths is None:
            self._lengths = {len(prefix) for prefix in self._of_prefix if prefix is not None}
        for prefix, mine in matching(changes, self._of_prefix, self._lengths):
            size = sum(len(change.value or b"") for change in mine.changes)
            watches = list(self._of_prefix[prefix])
            for watch in watches:
                if not watch.put(mine, size):
                    self.discard(watch)
            if not watches:
                del self._of_prefix[prefix]
                self._lengths = None

    def _fail(self, source: SyncWatch[K], error: Exception) -> None:
        if self._watch is source:
            self._watch = None
            self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        watches = list(self._watches)
        self._watches.clear()
        self._of_prefix.clear()
        for watch in watches:  # one exception object must not be raised in two tasks
            watch.fail(another(error))


def matching(
    changes: Changes[K], prefixes: Collection[K | None], lengths: set[int]
) -> list[tuple[K | None, Changes[K]]]:
    """Return the prefixes that match some changes, each with these; None matches all.

    `lengths` are the prefixes' lengths. O(changes x lengths), however many prefixes there are.
    """
    found: dict[K, list[Change[K]]] = {}
    for change in changes.changes:
        for length in lengths:
            prefix = change.key[:length]
            if prefix in prefixes:
                found.setdefault(prefix, []).append(change)
    matches: list[tuple[K | None, Changes[K]]] = [(None, changes)] if None in prefixes else []
    return matches + [
        (prefix, Changes(changes.commit, tuple(mine))) for prefix, mine in found.items()
    ]


class Watch(AsyncClosing, KeysAndValues[K, V]):
    """The commits after a moment that changed a key with a prefix, as an asynchronous iterator.

    `await store.watch(...)`, `async with` and the first step begin it: "now" is then.
    `timestamp` is the timestamp of the newest commit seen, matching or not: a new watch from there
    continues without gap or repetition. Iteration waits for ever, or ends after `timeout` seconds
    without a change, but never before it has returned all commits that are older than its
    beginning. Use it from one task. Errors as of `snapkv.Watch`.
    """

    def __init__(
        self,
        shared: SharedWatch[K],
        prefix: K | None,
        since: When | None,
        timeout: float | None,
        decoding: Decoding[V] | None = None,
    ) -> None:
        if timeout is not None:
            check_seconds("timeout", timeout)
        self._shared: SharedWatch[K] = shared
        self.prefix: K | None = prefix
        self._since, self._timeout = since, timeout
        self._decoding: Decoding[V] | None = decoding
        self.timestamp = 0
        self._queue: deque[tuple[Changes[K], int]] = deque()
        self._queued_bytes = 0
        self._news: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._past: SyncWatch[K] | None = None  # what is read before the queue
        self._past_end = 0
        self._reading: asyncio.Task[Chunk[Changes[K]]] | None = None
        self._read: deque[Changes[K]] = deque()
        self._began = self._joined = self._closed = False

    # --- for the shared watch ---

    def put(self, changes: Changes[K], size: int) -> bool:
        """Queue changes of `size` bytes; return False if the queue is full: join again."""
        full = len(self._queue) >= QUEUE_MAX or self._queued_bytes + size > QUEUE_BYTES_MAX
        if full and self._queue:
            self._joined = False
        else:
            self._queue.append((changes, size))
            self._queued_bytes += size
        self._wake()
        return self._joined

    def fail(self, error: Exception) -> None:
        """Raise an error after what is queued."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # --- beginning ---

    def __await__(self) -> Generator[object, None, Self]:
        return self._begin().__await__()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def _begin(self) -> Self:
        if not self._began:
            shared = self._shared
            reader: KeyspaceReads[K] = shared.view
            if self.prefix is not None:  # checked before anything begins
                reader.keyspace.range_of(self.prefix)
            if self._since is None:
                head = await shared.runner.run(reader.reader.timeline.head)
                self.timestamp = head.timestamp
            else:
                self.timestamp = await shared.runner.run(reader.timestamp_of, self._since)
            await self._join(is_past=self._since is not None)
            self._began = True
        return self

    async def _join(self, *, is_past: bool) -> None:
        """Join the shared watch, and read from the past what it delivered before."""
        shared, run = self._shared, self._shared.runner.run
        self._drop_queue()
        self._joined = True
        try:
            position = await shared.join(self)
            if is_past or self.timestamp < position:
                head = await run(shared.view.reader.timeline.head)
                past = await run(shared.view.watch, self.prefix, self.timestamp, timeout=0)
                self._past, self._past_end = past, max(position, head.timestamp)
        except BaseException:  # the next call joins again
            shared.discard(self)
            self._drop_queue()  # it follows a gap
            self._joined = False
            raise

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    # --- following ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changes[K, V]:
        try:
            found = await self.next(self._timeout)
        except StoreClosedError:
            if not self._closed or self._error is not None:
                raise
            found = None
        if found is None:
            raise StopAsyncIteration
        return found

    async def next(self, timeout: float | None = None) -> Changes[K, V] | None:
        """Return the next commit's changes; None if `timeout` seconds bring none."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        await self._begin()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None or timeout > WAIT_S_MAX else loop.time() + timeout
        while True:
            if self._closed:
                raise StoreClosedError("the watch was closed")
            if (found := self._take()) is not None:
                if self._decoding is not None:
                    return self._decoding.changes(found)
                return found  # type: ignore[return-value]  # of bytes
            if self._past is not None:
                await self._read_past(self._past)
            elif self._error is not None:
                raise another(self._error)
            elif not self._joined:
                await self._join(is_past=False)
            else:
                self.timestamp = max(self.timestamp, self._shared.position)
                if not await self._hear(loop, deadline):
                    return None

    async def _hear(self, loop: asyncio.AbstractEventLoop, deadline: float | None) -> bool:
        """Wait for news; return False if the deadline comes first."""
        self._news = loop.create_future()
        timer = None
        if deadline is not None:
            if deadline <= loop.time():
                return False
            timer = loop.call_at(deadline, self._wake)
        try:
            await self._news
        finally:
            self._news = None
            if timer is not None:
                timer.cancel()
        return bool(deadline is None or loop.time() < deadline or self._queue or self._error)

    def _take(self) -> Changes[K] | None:
        """Return the next changes of the past, then of the queue, none of them twice."""
        if self._read:
            found = self._read.popleft()
            self.timestamp = found.commit.ts
            return found
        while self._queue and self._past is None:
            found, size = self._queue.popleft()
            self._queued_bytes -= size
            if found.commit.ts > self.timestamp:
                self.timestamp = found.commit.ts
                return found
        return None

    async def _read_past(self, past: SyncWatch[K]) -> None:
        """Read a chunk of the past; a call that is cancelled leaves it to the next one."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._shared.runner.run(chunk_of, past, CHUNK))
        chunk, error = await asyncio.shield(self._reading)
        self._reading = None
        mine = [changes for changes in chunk if changes.commit.ts <= self._past_end]
        self._read.extend(mine)
        if error is not None:
            self._drop_queue()  # it comes after what cannot be read
            self._error, self._past = error, None
            await self._shared.leave(self)
        elif len(mine) < CHUNK:
            self._past = None
            if not mine:
                self.timestamp = max(self.timestamp, self._past_end)
        if self._past is None:
            await self._shared.runner.run(past.close)

    async def aclose(self) -> None:
        """End the watch; a task that waits in it ends its iteration. May be repeated."""
        self._closed, past = True, self._past
        self._past = None
        self._wake()
        if self._began:
            await self._shared.leave(self)
        if past is not None:
            await self._shared.runner.run(past.close)
        if self._reading is not None:
            self._reading.cancel()
