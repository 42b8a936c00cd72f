"""The commits that live pages follow: one watch in one thread, and any number of event streams."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import anyio.to_thread

from snapkv.base.waiting import monotonic
from snapkv.errors import (
    CompactedError,
    EngineBusyError,
    EngineUnavailableError,
    SnapKVError,
    StoreClosedError,
)
from snapkv.model import Changes
from snapkv.reading.deadline import within
from snapkv.reading.watches import Watch
from snapkv.times import format_time
from snapkv.ui.page_source import Source

EVENTS_MAX = 1_024
"""The most commits that are kept for followers; one that is further behind has a gap."""
KEYS_MAX = 20
"""The most keys that are shown of a commit."""
KEYS_KEPT_MAX = 200_000
"""The most keys that are kept of all commits together; beyond, the oldest commits are dropped."""
NOT_KEPT = "commits in between are not kept here: open the list of commits"
LOOK_S = 0.5
PROBE_S = 2.0
"""The time without a commit after which the engine is asked whether it still answers, and the
longest wait for that answer, in seconds."""
RETRY_S = 2.0
LINGER_S = 30.0
"""The time for which the watch continues after its last follower has left, in seconds."""


class Touch(NamedTuple):
    """A key that a commit wrote: the size of its value (None: removed), and the revision."""

    key: str
    size: int | None
    revision: int


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """A commit with all its keys, or a gap: commits up to `timestamp` that the watch lost."""

    timestamp: int
    revision: int = 0
    writer: str | None = None
    note: str | None = None
    keys: tuple[Touch, ...] = ()
    more: int = 0
    first: int = 0
    gap: str | None = None

    def of(self, prefix: str) -> LiveEvent | None:
        """Return what a follower of a prefix is shown of it, None if it has nothing there.

        That are the first keys with the prefix, the number of `more`, and the `first` and the last
        `revision` that wrote one: several if it is a tick that stamps writes of other programs.
        """
        if self.gap:
            return self
        keys = [each for each in self.keys if each.key.startswith(prefix)]
        if not keys:
            return None if prefix else self
        return replace(
            self,
            keys=tuple(keys[:KEYS_MAX]),
            more=max(0, len(keys) - KEYS_MAX),
            first=min(each.revision for each in keys),
            revision=max(each.revision for each in keys),
        )


class LiveCommits:
    """The newest commits of a source, and a thread that waits for more while a page follows.

    Safe for threads. A follower has no queue of its own: it has the number of the event that it
    wants next, so a slow one costs no memory, and finds out that it missed some.
    """

    def __init__(
        self,
        source: Source,
        *,
        events_max: int = EVENTS_MAX,
        keys_max: int = KEYS_KEPT_MAX,
        linger_s: float = LINGER_S,
    ) -> None:
        self._source, self._linger_s = source, linger_s
        self._events: deque[LiveEvent] = deque()
        self._events_max, self._keys_max, self._keys = events_max, keys_max, 0
        self._first = 0  # the number of the oldest event that is kept
        self._wakers: set[Callable[[], None]] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watch: Watch[str] | None = None
        self._base = 0  # the newest timestamp before the oldest event that is kept
        self._why = NOT_KEPT
        self._left_at, self._closed = 0.0, False
        self._trouble: str | None = None
        self.watches = 0
        """Watches opened since the beginning."""

    def join(self, waker: Callable[[], None], since: int | None) -> tuple[int, str | None]:
        """Add a follower that `waker` wakes; return the number of its next event.

        With it, why commits after `since` (None: now) are missing, None if none is. Begins to watch
        if nothing does. Raises as `watch`.
        """
        with self._lock:
            self._wakers.add(waker)
            if self._thread is None and not self._closed:
                self._begin(since)
            return self._place(since)

    def leave(self, waker: Callable[[], None]) -> None:
        """Remove a follower."""
        with self._lock:
            self._wakers.discard(waker)
            self._left_at = monotonic()

    def after(self, number: int) -> tuple[list[LiveEvent], int, bool]:
        """Return the events from a number on, the number after them, and whether some are lost."""
        with self._lock:
            lost = number < self._first
            at = max(0, number - self._first)
            return list(self._events)[at:], self._first + len(self._events), lost

    @property
    def trouble(self) -> str | None:
        """Why no commits come now: the engine does not answer; None if it does."""
        return self._trouble

    def close(self) -> None:
        """End the watch, and wake all followers; may be repeated."""
        with self._lock:
            self._closed = True
            watch, thread = self._watch, self._thread
        if watch is not None:
            watch.close()
        if thread is not None:
            thread.join()
        self._wake()

    # --- the watch ---

    def _begin(self, since: int | None) -> None:
        """Open a watch after a moment, or after now if that was compacted; the lock is held."""
        self._first += len(self._events)
        self._why, self._trouble = NOT_KEPT, None
        self._events.clear()
        self._keys = 0
        try:
            self._watch = self._new_watch(since)
        except CompactedError as e:
            self._watch, self._why = self._new_watch(None), str(e)
        self._base = self._watch.timestamp
        self._thread = threading.Thread(target=self._run, name="snapkv-ui-live", daemon=True)
        self._thread.start()

    def _new_watch(self, since: int | None) -> Watch[str]:
        self.watches += 1
        return self._source.keys.watch(since=since)

    def _place(self, since: int | None) -> tuple[int, str | None]:
        newest = self._first + len(self._events)
        if since is None:
            return newest, None
        if since < self._base:
            return self._first, self._why
        for number, event in enumerate(self._events, self._first):
            if event.timestamp > since:
                return number, None
        return newest, None

    def _run(self) -> None:
        watch, heard = self._watch, monotonic()
        while watch is not None:
            try:
                found = watch.next(LOOK_S)
                if found is not None:
                    self._add(event_of(found))
                    self._report(None)
                    heard = monotonic()
                elif monotonic() - heard > PROBE_S:
                    self._probe()
                    heard = monotonic()
            except StoreClosedError:
                break
            except SnapKVError as e:
                watch.close()
                watch = self._again(watch.timestamp, e)
            if self._idle():
                break
        if watch is not None:
            watch.close()

    def _probe(self) -> None:
        """Ask the engine for its newest commit: a watch alone waits for it without an error."""
        try:
            with within(PROBE_S):
                self._source.reader.timeline.head()
        except (EngineUnavailableError, EngineBusyError) as e:
            self._report(str(e))
        else:
            self._report(None)

    def _report(self, trouble: str | None) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._wake()

    def _again(self, since: int, error: SnapKVError) -> Watch[str] | None:
        """Return a new watch: from where the last one was, or from now on after a gap."""
        compacted = isinstance(error, CompactedError)
        while not self._idle():
            try:
                watch = self._new_watch(None if compacted else since)
            except CompactedError:
                compacted = True
            except StoreClosedError:
                return None
            except SnapKVError as e:
                error = e
                self._report(str(e))
                threading.Event().wait(RETRY_S)
            else:
                self._report(None)
                if compacted:
                    self._add(LiveEvent(watch.timestamp, gap=f"{error}"))
                self._watch = watch
                return watch
        return None

    def _idle(self) -> bool:
        """Return whether to end, because no follower is left; then forget the thread."""
        with self._lock:
            over = not self._wakers and monotonic() - self._left_at > self._linger_s
            if over or self._closed:
                self._thread = self._watch = None
                return True
            return False

    def _add(self, event: LiveEvent) -> None:
        with self._lock:
            self._events.append(event)
            self._keys += len(event.keys)
            while len(self._events) > 1 and (
                len(self._events) > self._events_max or self._keys > self._keys_max
            ):
                oldest = self._events.popleft()
                self._base, self._keys = oldest.timestamp, self._keys - len(oldest.keys)
                self._first += 1
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            wakers = list(self._wakers)
        for wake in wakers:
            wake()


def event_of(found: Changes[str]) -> LiveEvent:
    """Return a commit of a watch as an event."""
    commit = found.commit
    keys = tuple(
        Touch(each.key, None if each.value is None else len(each.value), each.commit.revision)
        for each in found.changes
    )
    return LiveEvent(commit.ts, commit.revision, commit.writer, commit.note, keys)


def as_fields(event: LiveEvent) -> dict[str, object]:
    """Return an event as a JSON object; times as text."""
    return {
        "timestamp": str(event.timestamp),
        "time": format_time(event.timestamp),
        "revision": event.revision,
        "writer": event.writer,
        "note": event.note,
        "first": event.first,
        "keys": [each._asdict() for each in event.keys],
        "more": event.more,
    }


# --- server-sent events: what pages that follow are sent, and how they wait ---

FOLLOWERS_MAX = 200
BEAT_S = 15.0
"""The time without an event after which a comment is sent, in seconds: it finds connections that
ended."""
RETRY_MS = 2_000


class EventStreams:
    """The streams of all pages that follow a server, in one event loop."""

    def __init__(self) -> None:
        self._woken: set[asyncio.Event] = set()
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether the server takes no more followers."""
        return len(self._woken) >= FOLLOWERS_MAX

    async def events(
        self, commits: LiveCommits, since: int | None, prefix: str
    ) -> AsyncIterator[bytes]:
        """Yield what a follower of commits after `since` (None: now) is sent, until it leaves."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        self._woken.add(woken)
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            try:
                number, gap = await anyio.to_thread.run_sync(commits.join, wake, since)
            except SnapKVError as e:
                yield _sent("gap", {"reason": str(e)})
                return
            if gap is not None:
                yield _sent("gap", {"reason": gap})
            trouble: str | None = None
            while not self._closed:
                woken.clear()
                if commits.trouble != trouble:
                    trouble = commits.trouble
                    yield _sent("trouble", {"reason": trouble})
                events, number, lost = commits.after(number)
                if lost:
                    yield _sent("gap", {"reason": "this page was too slow for all commits"})
                for event in events:
                    if (part := _event(event, since, prefix)) is not None:
                        yield part
                if not events and not await _waited(woken):
                    yield b": \n\n"
        finally:
            self._woken.discard(woken)
            commits.leave(wake)

    def close(self) -> None:
        """End all followers; called in the event loop."""
        self._closed = True
        for woken in self._woken:
            woken.set()


async def _waited(woken: asyncio.Event) -> bool:
    """Wait until something happens; return False if nothing does for a while."""
    try:
        await asyncio.wait_for(woken.wait(), BEAT_S)
    except TimeoutError:
        return False
    return True


def _event(event: LiveEvent, since: int | None, prefix: str) -> bytes | None:
    """Return what a follower is sent of an event, None for nothing."""
    if event.gap is not None:
        return _sent("gap", {"reason": event.gap}, event.timestamp)
    if since is not None and event.timestamp <= since:
        return None
    found = event.of(prefix)
    return None if found is None else _sent("commit", as_fields(found), found.timestamp)


def _sent(kind: str, fields: dict[str, object], number: int | None = None) -> bytes:
    """Return an event; its data is JSON in ASCII on one line."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(fields)}\n\n".encode()
