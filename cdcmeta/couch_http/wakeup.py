"""Waking who waits for a database to change: one thread follows it, however many wait.

Edits that this server makes wake them at once (`Hub.committed`), and the thread passes over those.

A *waker* has a version that grows with each commit of its database, and nothing else to tell: who
is woken reads from where it was. All but the thread's own loop happens in the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any, TypeAlias

import anyio

from cdcmeta.changes import Change, ChangesDB, Checkpoint
from cdcmeta.changes.state import State
from cdcmeta.couch_http.errors import HTTPError
from cdcmeta.couch_http.moments import Begun, Moment
from snapkv import SnapshotKV

Begin: TypeAlias = Callable[[State], Begun]
Read: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a call in a thread."""
SLICE_S = 0.5
"""How long the thread waits at once: the longest it goes on after it was told to end."""
REST_S = 0.02
"""How long the thread rests after a commit of this server, which woke all: so it does not compete
with those who are answering. It rests behind the newest one made here only, so the next commit of
another server is seen so much later at most."""
LINGER_S = 5.0
"""How long it goes on when nobody waits: clients of a longpoll come again at once."""
TOO_MANY = "Too many databases are followed at once: try again."


class Waker:
    """The version of one database, and those who wait for the next; used by the event loop only.

    `error` is why it ended, and `ended` that there will be no more versions.
    """

    def __init__(self, db: ChangesDB) -> None:
        self._db, self._loop = db, asyncio.get_running_loop()
        self._stop = threading.Event()
        self._sleepers: dict[anyio.Event, None] = {}
        self._rng = Random()
        self._reading = anyio.Lock()
        self._asked = self._answered = 0
        self._moment: Moment | None = None
        self._covered = self._own = -1
        self.version = 0
        self.waiting = 0
        self.ended = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._follow, name=f"waker {db.name}", daemon=True)
        self._thread.start()

    async def wait(self, version: int) -> None:
        """Return when the version is another one, or there will be none."""
        while self.version == version and not self.ended:
            woken = anyio.Event()
            self._sleepers[woken] = None
            try:
                await woken.wait()
            finally:
                self._sleepers.pop(woken, None)

    async def begun(self, question: Hashable, begin: Begin, read: Read) -> Begun:
        """Return what `begin` does with the database as it stands now.

        One reading serves all who asked before it, and does what the first of them asks, too: what
        it takes to change threads is most of what it takes.
        """
        self._asked += 1
        number = self._asked
        async with self._reading:
            if self._moment is None or self._answered < number:
                asked = self._asked
                found: Begun
                state, found = await read(partial(_read, self._db, begin))
                self._moment, self._answered = Moment(state), asked
                self._moment.keep(question, found)
                return found
            moment = self._moment
        return await moment.begun(question, partial(read, partial(begin, moment.state)))

    def committed(self, timestamp: int) -> None:
        """Wake all for a commit made here, unless they were woken behind it; from any thread."""
        self._own = timestamp
        self._tell(self._wake_for, timestamp)

    def stop(self) -> None:
        """Let the thread end, and wake all who wait."""
        self._stop.set()
        self._end(None)

    def join(self, timeout: float) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout)

    def _wake_for(self, timestamp: int) -> None:
        """Wake all for a commit: those whom a later one woke have read it, too."""
        if timestamp > self._covered:
            self._covered = timestamp
            self._wake()

    def _wake(self) -> None:
        """Wake all, in any order: who wakes first is served first, and that should not be fixed."""
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
                self._tell(self._wake)  # it follows: what comes from now on wakes
                changed = False
                while not self._stop.is_set():
                    found = follower.next_within(SLICE_S)
                    changed |= isinstance(found, Change)
                    if isinstance(found, Checkpoint) and found.restarted:
                        self._tell(self._wake)
                    elif isinstance(found, Checkpoint) and changed:
                        self._tell(self._wake_for, found.seq.timestamp)
                        if found.seq.timestamp == self._own:  # it has caught up
                            self._stop.wait(REST_S)
                    changed &= not isinstance(found, Checkpoint)
            finally:
                follower.close()
        except Exception as e:
            self._tell(self._end, e)

    def _tell(self, what: object, *args: object) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(what, *args)  # type: ignore[arg-type]


def _read(db: ChangesDB, begin: Begin) -> tuple[State, Begun]:
    state = db.state()
    return state, begin(state)


class Hub:
    """The wakers of a store's databases; each is there while somebody waits, and a little longer.

    Used by the event loop only, but for `close`. There are `followed_max` at once, for each has
    threads.
    """

    def __init__(self, store: SnapshotKV, followed_max: int) -> None:
        self._store, self._followed_max = store, followed_max
        self._wakers: dict[str, Waker] = {}
        self.stopping = False

    def __len__(self) -> int:
        return len(self._wakers)

    def follows(self, name: str) -> bool:
        """Return whether a database is followed now; so it is there, or was a moment ago."""
        return name in self._wakers and not self._wakers[name].ended

    @asynccontextmanager
    async def waker(self, name: str) -> AsyncIterator[Waker]:
        """Lend the waker of a database to a block, once it follows.

        Whatever keeps it from following ends it, with the error in it. Raises `HTTPError` (503)
        when too many are followed already.
        """
        waker = self._wakers.get(name)
        if waker is None or waker.ended:
            self._check_room()
            waker = self._wakers[name] = Waker(ChangesDB(self._store, name))
            if self.stopping:
                waker.stop()
        waker.waiting += 1
        try:
            await waker.wait(0)
            yield waker
        finally:
            waker.waiting -= 1
            if not waker.waiting:
                asyncio.get_running_loop().call_later(LINGER_S, self._leave, name, waker)

    def committed(self, name: str, timestamps: Iterable[int]) -> None:
        """Wake who waits for a database, of which this server made commits; from any thread."""
        waker = self._wakers.get(name)
        if waker is not None:
            for newest in sorted(timestamps)[-1:]:
                waker.committed(newest)

    def stop(self) -> None:
        """End all feeds: those who wait are told, and so is whoever comes now."""
        self.stopping = True
        for waker in self._wakers.values():
            waker.stop()

    def close(self) -> None:
        """Wait until all threads have ended; the loop has."""
        for waker in self._wakers.values():
            waker.join(2 * SLICE_S)

    def _check_room(self) -> None:
        if sum(not waker.ended for waker in self._wakers.values()) >= self._followed_max:
            raise HTTPError(503, "service_unavailable", TOO_MANY)

    def _leave(self, name: str, waker: Waker) -> None:
        if not waker.waiting:
            waker.stop()
            if self._wakers.get(name) is waker:
                del self._wakers[name]
