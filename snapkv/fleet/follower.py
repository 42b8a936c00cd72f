"""One member of a fleet that is followed: a thread reads its watch into a queue."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from itertools import chain
from typing import Any, NamedTuple, Protocol

from snapkv.base.concurrency import ThreadCondition
from snapkv.base.waiting import monotonic
from snapkv.errors import CompactedError, SnapKVError, StoreClosedError
from snapkv.fleet.link import AWAY
from snapkv.fleet.member import named
from snapkv.fleet.open_member import Connection
from snapkv.fleet.token import Place, check_store
from snapkv.layout import Mark
from snapkv.model import Changes
from snapkv.store.observe import Keys
from snapkv.times import TIMESTAMP_MAX

RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0
LOOK_S = 5.0
"""A thread looks this often whether its watch is still there, while a member brings nothing."""
CATCH_UP_S = 0.05
CHANGE_BYTES = 200
"""What a change takes in memory beside its key and value, about."""


class Step(NamedTuple):
    """A commit of a member; `changes` is None if it changed no key that is watched."""

    mark: Mark
    changes: Changes[str] | None
    size: int


class Group(Protocol):
    """The watch that followers read for: its lock, and how far it is."""

    changed: ThreadCondition
    timestamp: int

    def has_room(self, follower: Follower) -> bool:
        """Return whether a follower may read on."""
        ...


class Follower:
    """Keys the watch of one member in a thread; `FleetWatch` has the lock that it changes under.

    The thread ends when nothing refers to the `FleetWatch` any more, or with `close`.
    `progress` is the timestamp up to which all its changes are in the queue or were taken. `held`
    is what the queue takes in memory. `error` ended it. `left_out`, `missing_since` and
    `holds_since` are the watch's.
    """

    def __init__(
        self,
        connection: Connection,
        prefix: str | None,
        after: int,
        place: Place | None,
        group: Group,
    ) -> None:
        self.name, self._connection = connection.name, connection
        self._prefix = connection.member.longer(prefix)
        self._may_change = connection.member.may_have(prefix)
        self._group, self._changed = weakref.ref(group), group.changed
        self.left_out = place is not None and place.state == "behind"
        if place is not None and self.left_out:
            after = place.timestamp
        self.progress = self.missing_since = max(after, connection.member.joined - 1)
        self._place = place
        self._given: Mark | None = None
        self._base: Mark | None = None  # the newest commit at the beginning
        self._witness = connection.newest if place is None else place.witness
        self._queue: deque[Step] = deque()
        self.held = 0
        self.error: SnapKVError | None = None
        self.moved_at = monotonic()
        self.holds_since: float | None = None
        self.has_caught_up = False
        self._head = 0  # the newest timestamp when the watch was made
        self._watch: Any = None
        self._ends = TIMESTAMP_MAX  # where the watch ends, if it is that of an archive
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"snapkv fleet {self.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        if self.progress >= self._connection.member.left:
            self.progress, self.has_caught_up = TIMESTAMP_MAX, True
            return
        self._thread.start()

    def close(self) -> None:
        """End the thread; may be repeated."""
        self._closed = True
        watch = self._watch
        if watch is not None:
            watch.close()

    # --- for the watch, under its lock ---

    @property
    def first(self) -> int:
        """The timestamp of the first changes in the queue; the largest one without any."""
        for step in self._queue:
            if step.changes is not None:
                return step.mark.timestamp
        return TIMESTAMP_MAX

    def take(self, timestamp: int) -> Changes[str] | None:
        """Remove what is in the queue up to a timestamp; return the changes of that one."""
        found = self.take_up_to(timestamp)
        return found[-1] if found else None

    def take_up_to(self, timestamp: int) -> tuple[Changes[str], ...]:
        """Remove what is in the queue up to a timestamp, and return it."""
        found: list[Changes[str]] = []
        while self._queue and self._queue[0].mark.timestamp <= timestamp:
            step = self._queue.popleft()
            self._given = step.mark
            self.held -= step.size
            if step.changes is not None:
                found.append(step.changes)
        return tuple(found)

    def place(self, timestamp: int) -> Place:
        """Return the newest commit at or below a timestamp that was taken, for a token."""
        store_id = self._connection.store_id or b""
        if not self.left_out:
            self._drop_empty(timestamp)
        given, state = self._given, "behind" if self.left_out else "seen"
        witness = self._final_by(self.missing_since if self.left_out else timestamp)
        if given is None and self._place is not None:
            return self._place._replace(state=state, witness=witness)
        if given is None and not self.left_out:
            given = self._base
        if given is None:
            return Place(store_id, state, self.missing_since, 0, 0, witness)
        later = None if witness == given else witness
        return Place(store_id, state, given.timestamp, given.ordinal, given.revision, later)

    def _final_by(self, timestamp: int) -> Mark | None:
        """Return the first commit that was read at or above a time, or the newest one known."""
        read = chain([self._given], (step.mark for step in self._queue))
        above = (mark for mark in read if mark is not None and mark.timestamp >= timestamp)
        return next(above, self._witness)

    def _drop_empty(self, timestamp: int) -> None:
        """Take commits without changes that come before the next changes."""
        while (
            self._queue
            and self._queue[0].changes is None
            and self._queue[0].mark.timestamp <= timestamp
        ):
            self._given = self._queue.popleft().mark

    # --- the thread ---

    def _run(self) -> None:
        pause_s = RETRY_S_MIN
        while not self._closed and self.error is None:
            if self._group() is None:
                self.close()
            elif self.step(LOOK_S):
                pause_s = RETRY_S_MIN
            else:
                self._wait(pause_s)
                pause_s = min(RETRY_S_MAX, pause_s * 2)

    def step(self, wait_s: float) -> bool:
        """Take the next commit of the member, if it comes within some seconds.

        Returns False if the member is away for now. An error that ends it becomes `error`.
        """
        try:
            if self._watch is None:
                self._open()
            self._follow_on(wait_s)
        except AWAY:
            self._fail_for_now()
            return False
        except StoreClosedError as e:
            if not self._closed:
                self._end(named(e, self.name))
        except SnapKVError as e:
            self._end(named(e, self.name))
        except Exception as e:  # a bug must not look like a member that is away
            self._end(named(SnapKVError(f"following {self.name} failed: {e!r}"), self.name), e)
        return True

    def _open(self) -> None:
        """Watch from where this follower is; raise if that is of another history now."""
        ends = TIMESTAMP_MAX
        try:
            watch = self._connection.ask(self._opened)
        except CompactedError as e:
            watch, ends = self._connection.archived_watch(self._prefix, self.progress, e)
        with self._changed:
            self._watch, self._ends = watch, ends
            self._base = self._base or watch.mark  # it may have been opened before
            self._witness = self._witness or self._connection.newest
            self._move(max(self.progress, watch.timestamp))
        if self._closed:
            watch.close()

    def _opened(self, reads: Keys) -> Any:
        timeline, place = reads.reader.timeline, self._place
        self._head = timeline.head().timestamp
        if place is not None:
            check_store(self._connection, place)
            if self._witness is not None:
                timeline.verify(self._witness)
            elif place.ordinal:
                timeline.verify(Mark(place.timestamp, place.revision, place.ordinal))
        return reads.watch(self._prefix, self.progress)  # each step checks the history

    def _leave(self) -> None:
        """End the watch that is open; the next step opens one where it ended."""
        watch, self._watch = self._watch, None
        watch.close()

    def _follow_on(self, wait_s: float) -> None:
        with self._changed:
            if not self._has_room():
                self._changed.wait(wait_s)
                return
        if self._watch.timestamp >= self._ends:
            self._leave()  # all of the archive was read
            return
        try:
            found = self._watch.step(monotonic() + wait_s)
        except CompactedError:
            self._leave()  # the archive may have what it has not read yet
            return
        if found is None:
            self._connection.check()
            with self._changed:
                self._move(max(self.progress, self._watch.timestamp))
            return
        changes = found if found.changes and self._may_change else None
        mark, left = self._watch.mark, self._connection.member.left
        self._connection.check_gaps(self.progress, mark.timestamp)
        try:
            self._connection.saw(mark)
        except AWAY:
            self._leave()  # it will be read again
            raise
        if self._witness is None or mark.ordinal > self._witness.ordinal:
            self._witness = mark
        size = 0 if changes is None else sum(map(_size, changes.changes))
        with self._changed:
            queue = self._queue
            if mark.timestamp <= left:
                if changes is None and queue and queue[-1].changes is None:
                    queue.pop()
                queue.append(Step(mark, changes, size))
                self.held += size
            if mark.timestamp < left:
                self._move(self._watch.timestamp)
            else:  # nothing that follows is of the fleet
                self._move(TIMESTAMP_MAX)
                self._closed = True
                self._watch.close()

    def _has_room(self) -> bool:
        group = self._group()
        return group is not None and group.has_room(self)

    def _move(self, progress: int) -> None:
        """Note how far the watch is, and wake the reader. With the lock."""
        before, group = self.progress, self._group()
        if progress > before:
            self.progress, self.moved_at = progress, monotonic()
        if not self.has_caught_up and progress >= self._head:
            self.has_caught_up = True
            self._changed.notify_all()
        elif self.left_out or (group is not None and before <= group.timestamp):
            self._changed.notify_all()  # else another one is waited for

    def _fail_for_now(self) -> None:
        with self._changed:
            self.has_caught_up = True  # an iteration with a timeout does not wait for it
            self._changed.notify_all()

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    def _end(self, error: SnapKVError, cause: BaseException | None = None) -> None:
        error.__cause__ = cause or error.__cause__
        with self._changed:
            self.error, self.has_caught_up = error, True
            self._changed.notify_all()


def _size(change: Any) -> int:
    return CHANGE_BYTES + len(change.key) + len(change.value or b"")
