"""Wakeups of feeds that wait for a database to change.

One thread follows each database, however many feeds wait.

Edits of this server wake them at once (`Wakeups.committed`); the thread then skips these commits.

A *wakeup* has a version that grows with each commit of its database. It carries no changes: a woken
feed reads on from its own place. Everything but the thread's loop runs in the event loop.

    event                                  version  covered  feeds
    a feed waits, the thread follows       1        -        reads, then waits for version 2
    this server commits at time 10         2        10       woken by `committed`, reads
    the thread sees the commit at 10       2        10       not woken again
    another server commits at time 12      2        10       the thread has not seen it yet
    the thread sees the commit at 12       3        12       woken, reads
    the database is deleted                4        12       `ended`: the feed ends
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple, TypeAlias

import anyio

from cdcmeta.changes import Change, ChangesDB, Checkpoint
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.changes.feed import FeedWalk
from cdcmeta.changes.sequence import Sequence
from cdcmeta.couch_http.http_errors import HTTPError
from snapkv import SnapshotKV

# --- one state for many feeds: the same question is answered once ---

QUESTIONS_MAX = 8
"""The most different questions to one state that share answers; more are answered one by one."""


class WalkStart(NamedTuple):
    """A walk and its first changes; if these are all, `end` is its `last_seq` and `pending`."""

    walk: FeedWalk
    changes: list[Change]
    end: tuple[Sequence, int] | None


class SharedState:
    """A state, and the answers that feeds share; used by the event loop only."""

    def __init__(self, state: DatabaseState) -> None:
        self.state = state
        self._locks: dict[Hashable, anyio.Lock] = {}
        self._started: dict[Hashable, WalkStart | None] = {}

    def keep(self, question: Hashable, started: WalkStart) -> None:
        """Keep an answer for feeds with the same question, unless its walk has more to read."""
        self._locks.setdefault(question, anyio.Lock())
        self._started[question] = started if started.walk.ended else None

    async def started(
        self, question: Hashable, begin: Callable[[], Awaitable[WalkStart]]
    ) -> WalkStart:
        """Return what `begin` returns; feeds with the same question share a walk that ended.

        A longer walk is not shared, because it is read at the pace of one client.
        """
        if question not in self._locks and len(self._locks) == QUESTIONS_MAX:
            return await begin()
        async with self._locks.setdefault(question, anyio.Lock()):
            if question not in self._started:
                started = await begin()
                self.keep(question, started)
                return started
        return self._started[question] or await begin()


StartWalk: TypeAlias = Callable[[DatabaseState], WalkStart]
Read: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a call in a thread."""
SLICE_S = 0.5
"""The longest single wait of the thread, in seconds, so the longest that it may run on after
`stop`."""
REST_S = 0.02
"""The pause of the thread after a commit of this server, in seconds, so that it does not compete
with the answers. It pauses only after this server's newest commit, and may see the next commit of
another server that much later."""
LINGER_S = 5.0
"""The time for which the thread continues without waiting feeds, in seconds: clients of a longpoll
return at once."""
TOO_MANY = "Too many databases are followed at once: try again."


class Wakeup:
    """The version of one database, and the feeds that wait for the next; for the event loop only.

    `ended` is True when no version follows, `error` is the reason if it failed.
    """

    def __init__(self, db: ChangesDB) -> None:
        self._db, self._loop = db, asyncio.get_running_loop()
        self._stop = threading.Event()
        self._sleepers: dict[anyio.Event, None] = {}
        self._rng = Random()
        self._reading = anyio.Lock()
        self._asked = self._answered = 0
        self._moment: SharedState | None = None
        self._covered = self._own = -1
        self.version = 0
        self.waiting = 0
        self.ended = False
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._follow, name=f"wakeup {db.name}", daemon=True)
        self.thread.start()

    async def wait(self, version: int) -> None:
        """Return when the version differs, or none follows."""
        while self.version == version and not self.ended:
            woken = anyio.Event()
            self._sleepers[woken] = None
            try:
                await woken.wait()
            finally:
                self._sleepers.pop(woken, None)

    async def started(self, question: Hashable, begin: StartWalk, read: Read) -> WalkStart:
        """Return what `begin` returns for the newest state of the database.

        All feeds that asked before a state is read share that state. The same call of a thread
        answers the first feed's question, since switching threads costs more than reading.
        """
        self._asked += 1
        number = self._asked
        async with self._reading:
            if self._moment is None or self._answered < number:
                asked = self._asked
                found: WalkStart
                state, found = await read(partial(_read, self._db, begin))
                self._moment, self._answered = SharedState(state), asked
                self._moment.keep(question, found)
                return found
            moment = self._moment
        return await moment.started(question, partial(read, partial(begin, moment.state)))

    def committed(self, timestamp: int) -> None:
        """Wake all for a commit of this server, unless a newer one woke them; from any thread."""
        self._own = timestamp
        self._run(self._wake_for, timestamp)

    def stop(self) -> None:
        """End the thread, and wake all."""
        self._stop.set()
        self._end(None)

    def _wake_for(self, timestamp: int) -> None:
        """Wake all for a commit, unless a later one woke them: they then read both."""
        if timestamp > self._covered:
            self._covered = timestamp
            self._wake()

    def _wake(self) -> None:
        """Wake all, in random order: the first one is answered first."""
        self.version += 1
        sleepers = list(self._sleepers)
        self._rng.shuffle(sleepers)
        for woken in sleepers:
            woken.set()

    def _end(self, error: Exception | None) -> None:
        if not self.ended:
            self.ended, self.error = True, error
            self._wake()

    # --- in the thread ---

    def _follow(self) -> None:
        try:
            follower = self._db.follower("now")
            try:
                self._run(self._wake)  # it follows: every commit from now on wakes
                changed = False
                while not self._stop.is_set():
                    found = follower.next_within(SLICE_S)
                    changed |= isinstance(found, Change)
                    if isinstance(found, Checkpoint) and found.restarted:
                        self._run(self._wake)
                    elif isinstance(found, Checkpoint) and changed:
                        self._run(self._wake_for, found.seq.timestamp)
                        if found.seq.timestamp == self._own:  # it is up to date
                            self._stop.wait(REST_S)
                    changed &= not isinstance(found, Checkpoint)
            finally:
                follower.close()
        except Exception as e:
            self._run(self._end, e)

    def _run(self, what: object, *args: object) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(what, *args)  # type: ignore[arg-type]


def _read(db: ChangesDB, begin: StartWalk) -> tuple[DatabaseState, WalkStart]:
    state = db.state()
    return state, begin(state)


class Wakeups:
    """The wakeups of a store's databases; each lives while feeds wait, and `LINGER_S` longer.

    Used by the event loop only, except `close`. At most `followed_max` exist at once, because each
    has threads.
    """

    def __init__(self, store: SnapshotKV, followed_max: int) -> None:
        self._store, self._followed_max = store, followed_max
        self._by_name: dict[str, Wakeup] = {}
        self.stopping = False

    def __len__(self) -> int:
        return len(self._by_name)

    def follows(self, name: str) -> bool:
        """Return whether a database is followed; then it exists, or did a moment ago."""
        return name in self._by_name and not self._by_name[name].ended

    @asynccontextmanager
    async def wakeup(self, name: str) -> AsyncIterator[Wakeup]:
        """Provide the wakeup of a database to a `with` block, once its thread follows.

        If it cannot follow, it has `ended`, and has the `error`. Raises `HTTPError` (503) when too
        many databases are followed.
        """
        wakeup = self._by_name.get(name)
        if wakeup is None or wakeup.ended:
            if sum(not each.ended for each in self._by_name.values()) >= self._followed_max:
                raise HTTPError(503, "service_unavailable", TOO_MANY)
            wakeup = self._by_name[name] = Wakeup(ChangesDB(self._store, name))
            if self.stopping:
                wakeup.stop()
        wakeup.waiting += 1
        try:
            await wakeup.wait(0)
            yield wakeup
        finally:
            wakeup.waiting -= 1
            if not wakeup.waiting:
                asyncio.get_running_loop().call_later(LINGER_S, self._leave, name, wakeup)

    def committed(self, name: str, timestamps: Iterable[int]) -> None:
        """Wake the feeds of a database after commits of this server; from any thread."""
        wakeup = self._by_name.get(name)
        if wakeup is not None:
            for newest in sorted(timestamps)[-1:]:
                wakeup.committed(newest)

    def stop(self) -> None:
        """End all feeds, waiting and new ones."""
        self.stopping = True
        for wakeup in self._by_name.values():
            wakeup.stop()

    def close(self) -> None:
        """Wait until all threads have ended, after the event loop ended."""
        for wakeup in self._by_name.values():
            wakeup.thread.join(2 * SLICE_S)

    def _leave(self, name: str, wakeup: Wakeup) -> None:
        if not wakeup.waiting:
            wakeup.stop()
            if self._by_name.get(name) is wakeup:
                del self._by_name[name]
