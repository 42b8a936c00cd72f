"""The watch of a fleet: all changes of one timestamp at once, when every member is final there.

For example, two members are followed; numbers are timestamps, and "up to" is how far a watch is:

    a delivers      a up to   b delivers    b up to   returned
    10, 30             30     -                5      nothing: b may still commit at 7
                       30     30              30      10 (a), 30 (a and b), in two items
    -                  30     40              40      nothing: a may still commit at 35
    tick 50            50                     40      40 (b)
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from snapkv.base.arguments import check_text
from snapkv.base.concurrency import ThreadCondition
from snapkv.base.lifecycle import Closing, renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.errors import CompactedError, SnapKVError, StoreClosedError, another
from snapkv.fleet.member import named
from snapkv.fleet.member_link import AWAY
from snapkv.fleet.open_member import OpenMember
from snapkv.fleet.token import TokenCut, TokenPlace, check_store, encoded
from snapkv.layout import Mark
from snapkv.model import Changes
from snapkv.reading.deadline import check_wait
from snapkv.reading.watches import deadline_of, left_of
from snapkv.store.open import Keys
from snapkv.times import TIMESTAMP_MAX

if TYPE_CHECKING:
    from snapkv.fleet.members import Members


RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0
LOOK_S = 5.0
"""The pause between two checks of a thread whether its watch still exists, while a member brings
nothing, in seconds."""
CATCH_UP_S = 0.05
CHANGE_BYTES = 200
"""The bytes of memory, about, that a change takes beside its key and value."""


class FollowedCommit(NamedTuple):
    """A commit of a member; `changes` is None if it changed no key that is watched."""

    mark: Mark
    changes: Changes[str] | None
    size: int


class MemberFollower:
    """Reads the watch of one member in a thread; `FleetWatch` has the lock that it changes under.

    The thread ends when nothing refers to the `FleetWatch` any more, or with `close`.
    `progress` is the timestamp up to which all its changes are in the queue or were taken. `held`
    is what the queue takes in memory. `error` ended it. `left_out`, `missing_since` and
    `holds_since` are the watch's.
    """

    def __init__(
        self,
        connection: OpenMember,
        prefix: str | None,
        after: int,
        place: TokenPlace | None,
        watch: FleetWatch,
    ) -> None:
        self.name, self._connection = connection.name, connection
        self._prefix = connection.member.longer(prefix)
        self._may_change = connection.member.may_have(prefix)
        self._fleet_watch, self._changed = weakref.ref(watch), watch.changed
        self.left_out = place is not None and place.state == "behind"
        if place is not None and self.left_out:
            after = place.timestamp
        self.progress = self.missing_since = max(after, connection.member.joined - 1)
        self._place = place
        self._given: Mark | None = None
        self._base: Mark | None = None  # the newest commit at the beginning
        self._witness = connection.newest if place is None else place.witness
        self._queue: deque[FollowedCommit] = deque()
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

    def place(self, timestamp: int) -> TokenPlace:
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
            return TokenPlace(store_id, state, self.missing_since, 0, 0, witness)
        later = None if witness == given else witness
        return TokenPlace(store_id, state, given.timestamp, given.ordinal, given.revision, later)

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
            if self._fleet_watch() is None:
                self.close()
            elif self.step(LOOK_S):
                pause_s = RETRY_S_MIN
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, pause_s)
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
            with self._changed:
                self.has_caught_up = True  # an iteration with a timeout does not wait for it
                self._changed.notify_all()
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
            watch = self._connection.ask(self._open_watch)
        except CompactedError as e:
            watch, ends = self._connection.archived_watch(self._prefix, self.progress, e)
        with self._changed:
            self._watch, self._ends = watch, ends
            self._base = self._base or watch.mark  # it may have been opened before
            self._witness = self._witness or self._connection.newest
            self._move(max(self.progress, watch.timestamp))
        if self._closed:
            watch.close()

    def _open_watch(self, reads: Keys) -> Any:
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
                queue.append(FollowedCommit(mark, changes, size))
                self.held += size
            if mark.timestamp < left:
                self._move(self._watch.timestamp)
            else:  # nothing that follows is of the fleet
                self._move(TIMESTAMP_MAX)
                self._closed = True
                self._watch.close()

    def _has_room(self) -> bool:
        watch = self._fleet_watch()  # not a variable of a call that waits: it must be collectable
        return watch is not None and watch.has_room(self)

    def _move(self, progress: int) -> None:
        """Note how far the watch is, and wake the reader. With the lock."""
        before, watch = self.progress, self._fleet_watch()
        if progress > before:
            self.progress, self.moved_at = progress, monotonic()
        if not self.has_caught_up and progress >= self._head:
            self.has_caught_up = True
            self._changed.notify_all()
        elif self.left_out or (watch is not None and before <= watch.timestamp):
            self._changed.notify_all()  # else another one is waited for

    def _end(self, error: SnapKVError, cause: BaseException | None = None) -> None:
        error.__cause__ = cause or error.__cause__
        with self._changed:
            self.error, self.has_caught_up = error, True
            self._changed.notify_all()


def _size(change: Any) -> int:
    return CHANGE_BYTES + len(change.key) + len(change.value or b"")


HOLD_BYTES = 64 << 20
PATIENCE_S = 5.0
"""The longest that a member may hold the watch back with `behind="leave out"`, in seconds; then it
is left out."""


@dataclass(frozen=True, slots=True)
class FleetChanges:
    """All changes of one timestamp: of each member that changed, its `Changes`.

    `missing` are the members that were left out at that time: what they changed comes as `Late`.
    """

    timestamp: int
    members: Mapping[str, Changes[str]]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Late:
    """What a member that was left out changed in (since, until], while the watch went on."""

    member: str
    since: int
    until: int
    changes: tuple[Changes[str], ...]


class FleetWatch(Closing):
    """An iterator of `FleetChanges`, and of `Late` if members may be left out.

    `timestamp` is how far it is: no item at or below it will come. `waits_for` names the members
    that hold it back. Iteration waits for ever, or ends after `timeout` seconds without an item,
    but not before all changes that are older than this watch were returned. `next(timeout=...)`
    waits so long once. Use it from one thread; any thread may call `close()`, which ends the
    iteration. Its threads end with it, or some seconds after nothing refers to it any more. Not
    usable in a forked child.

    Errors name the `member`: `CompactedError` if its next changes were compacted and its archive
    does not have them, `HistoryGapError` if they are in a gap of its archive,
    `StoreRestoredError` if its engine was restored (no change of the other history is returned),
    `StoreRecreatedError`. Items that were complete before come first.
    """

    def __init__(
        self,
        members: Members,
        names: list[str],
        prefix: str | None,
        after: int,
        places: Mapping[str, TokenPlace],
        leave_out: bool,
        timeout: float | None,
        hold_bytes: int,
    ) -> None:
        check_wait(timeout)
        if prefix is not None:
            check_text("prefix", prefix)
        self._timeout, self._leave_out, self._hold_bytes = timeout, leave_out, hold_bytes
        self._prefix = prefix
        self.timestamp = after
        self.changed = ThreadCondition()
        self._closed = self._forked = False
        self._late: deque[Late] = deque()
        self._followers = [
            MemberFollower(members.by_name[name], prefix, after, places.get(name), self)
            for name in names
        ]
        for follower in self._followers:
            follower.start()
        members.watches.add(self)
        renew_in_children(self)

    def after_fork(self) -> None:
        """End it: the threads are the parent's."""
        self.changed = ThreadCondition()
        self._forked = True

    @property
    def token(self) -> str:
        """How far the watch is on each member, as a JSON text; `watch(resume=...)` goes on there.

        The new watch raises `StoreRestoredError` if a member was restored meanwhile.
        """
        with self.changed:
            members = {each.name: each.place(self.timestamp) for each in self._followers}
            return encoded(TokenCut(self.timestamp, members, prefix=self._prefix or ""))

    def next(self, timeout: float | None = None) -> FleetChanges | Late | None:
        """Return the next item; None if `timeout` seconds bring none."""
        check_wait(timeout)
        deadline = deadline_of(timeout)
        with self.changed:
            while True:
                self._check()
                if (found := self._take()) is not None:
                    return found
                self._raise_error()
                left = left_of(deadline)
                if left is not None and left <= 0:
                    return None
                bounds = [] if left is None else [left]
                bounds += (max(0.05, seconds) for _, seconds in self._holding())
                self.changed.wait(min(bounds, default=None))

    def __iter__(self) -> Iterator[FleetChanges | Late]:
        return self

    def __next__(self) -> FleetChanges | Late:
        try:
            found = self.next(self._timeout)
            while found is None:
                is_last = self.has_caught_up  # first: until then items may come
                found = self.next(0 if is_last else CATCH_UP_S)
                if is_last:
                    break
        except StoreClosedError:
            if not self._closed:
                raise
            found = None
        if found is None:
            raise StopIteration
        return found

    def close(self) -> None:
        """End the watch; may be repeated."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        for follower in self._followers:
            follower.close()

    def _check(self) -> None:
        if self._forked:
            raise StoreClosedError("the watch is the parent's: make a new one in this process")
        if self._closed:
            raise StoreClosedError("the watch was closed")

    @property
    def has_caught_up(self) -> bool:
        """Whether all changes that are older than the watch have come, or wait to be returned."""
        with self.changed:
            strict = not self._leave_out
            return all(
                each.has_caught_up for each in self._followers if strict or not each.left_out
            )

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The members for which changes wait that have come: they are not final there yet."""
        with self.changed:
            taking = [each for each in self._followers if not each.left_out or not self._leave_out]
            first = min((each.first for each in taking), default=TIMESTAMP_MAX)
            if first == TIMESTAMP_MAX:
                return ()
            return tuple(each.name for each in taking if each.left_out or each.progress < first)

    # --- with the lock ---

    def _take(self) -> FleetChanges | Late | None:
        """Return the next item that is complete, if there is one."""
        for each, seconds in self._holding():
            if seconds <= 0:
                each.left_out, each.missing_since = True, each.progress
        if (late := self._late_changes()) is not None:
            return late
        taking = [each for each in self._followers if not each.left_out]
        missing = tuple(each.name for each in self._followers if each.left_out)
        if not taking or (missing and not self._leave_out):  # an earlier watch left them out
            return None
        frontier = min(each.progress for each in taking)
        first = min((each.first for each in taking), default=TIMESTAMP_MAX)
        if first > frontier or first == TIMESTAMP_MAX:
            self._advance(frontier)
            return None
        found = {each.name: changes for each in taking if (changes := each.take(first)) is not None}
        self.timestamp = first
        self.changed.notify_all()  # there is room again
        return FleetChanges(first, found, missing)

    def _advance(self, frontier: int) -> None:
        if self.timestamp < frontier < TIMESTAMP_MAX:
            self.timestamp = frontier
            self.changed.notify_all()  # members that hold the watch back now may read on

    def _holding(self) -> list[tuple[MemberFollower, float]]:
        """Return the members that hold the watch back, with the seconds until they are left out."""
        # what counts is how long members wait for one, not for how long it was quiet
        found: list[tuple[MemberFollower, float]] = []
        if not self._leave_out:
            return found
        now, most = monotonic(), max(each.progress for each in self._followers)
        for each in self._followers:
            if each.left_out or each.progress > self.timestamp or each.progress == most:
                each.holds_since = None
                continue
            if each.holds_since is None:
                each.holds_since = now
            found.append((each, max(each.holds_since, each.moved_at) + PATIENCE_S - now))
        return found

    def _late_changes(self) -> Late | None:
        """Return what a member that was left out has delivered, up to how far the watch is."""
        for each in self._followers:
            if not each.left_out or each.progress <= each.missing_since:
                continue
            until = min(each.progress, self.timestamp)
            since, each.missing_since = each.missing_since, max(until, each.missing_since)
            changes = each.take_up_to(until)
            if each.progress >= self.timestamp:
                each.left_out = False
            if changes or not each.left_out:
                self.changed.notify_all()
                return Late(each.name, since, max(until, since), changes)
        return None

    def _raise_error(self) -> None:
        for each in self._followers:
            if each.error is not None:
                raise another(each.error)

    def has_room(self, follower: MemberFollower) -> bool:
        """Return whether a follower may read on: the one that holds the watch back always may.

        It need not wait, either, to find out that the watch was closed.
        """
        held = sum(each.held for each in self._followers)
        is_needed = follower.progress <= self.timestamp or not follower.held
        return held < self._hold_bytes or is_needed or self._closed
