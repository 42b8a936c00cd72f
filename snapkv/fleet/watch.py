"""Following a fleet: all changes of one timestamp at a time, once every member is final there.

For example, two members are followed; numbers are timestamps, and "up to" is how far a watch is:

    a delivers      a up to   b delivers    b up to   returned
    10, 30             30     -                5      nothing: b may still commit at 7
                       30     30              30      10 (a), 30 (a and b), in two items
    -                  30     40              40      nothing: a may still commit at 35
    tick 50            50                     40      40 (b)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapkv.base.arguments import check_text
from snapkv.base.concurrency import ThreadCondition
from snapkv.base.lifecycle import Closing, renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.errors import StoreClosedError, another
from snapkv.fleet.follower import CATCH_UP_S, Follower
from snapkv.fleet.token import Cut, Place, encoded
from snapkv.model import Changes
from snapkv.reading.deadline import check_wait
from snapkv.reading.watch import deadline_of, left_of
from snapkv.times import TIMESTAMP_MAX

if TYPE_CHECKING:
    from snapkv.fleet.members import Members

HOLD_BYTES = 64 << 20
PATIENCE_S = 5.0
"""With `behind="leave out"`, a member that holds the watch back for so long is left out."""


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
        places: Mapping[str, Place],
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
            Follower(members.by_name[name], prefix, after, places.get(name), self) for name in names
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
            return encoded(Cut(self.timestamp, members, prefix=self._prefix or ""))

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
                self.changed.wait(_least(left, self._left_out_in()))

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

    @property
    def _waits_for_late(self) -> bool:
        """Whether members that an earlier watch left out have to come back first."""
        return not self._leave_out and any(each.left_out for each in self._followers)

    def _take(self) -> FleetChanges | Late | None:
        """Return the next item that is complete, if there is one."""
        self._leave_out_late()
        if (late := self._late_changes()) is not None:
            return late
        taking = [each for each in self._followers if not each.left_out]
        if not taking or self._waits_for_late:
            return None
        frontier = min(each.progress for each in taking)
        first = min((each.first for each in taking), default=TIMESTAMP_MAX)
        if first > frontier or first == TIMESTAMP_MAX:
            self._advance(frontier)
            return None
        found = {each.name: changes for each in taking if (changes := each.take(first)) is not None}
        missing = tuple(each.name for each in self._followers if each.left_out)
        self.timestamp = first
        self.changed.notify_all()  # there is room again
        return FleetChanges(first, found, missing)

    def _advance(self, frontier: int) -> None:
        if self.timestamp < frontier < TIMESTAMP_MAX:
            self.timestamp = frontier
            self.changed.notify_all()  # members that hold the watch back now may read on

    def _leave_out_late(self) -> None:
        """Leave out members that hold the watch back for too long."""
        for each, seconds in self._holding():
            if seconds <= 0:
                each.left_out, each.missing_since = True, each.progress

    def _left_out_in(self) -> float | None:
        """Return in how many seconds a member may have to be left out; None if none holds back."""
        seconds = min((seconds for _, seconds in self._holding()), default=None)
        return None if seconds is None else max(0.05, seconds)

    def _holding(self) -> list[tuple[Follower, float]]:
        """Return the members that hold the watch back, with the seconds until they are left out.

        What counts is how long other members wait for one that does not move, not for how long it
        has been quiet: all of them may have been.
        """
        found: list[tuple[Follower, float]] = []
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

    def has_room(self, follower: Follower) -> bool:
        """Return whether a follower may read on: the one that holds the watch back always may.

        It need not wait, either, to find out that the watch was closed.
        """
        held = sum(each.held for each in self._followers)
        is_needed = follower.progress <= self.timestamp or not follower.held
        return held < self._hold_bytes or is_needed or self._closed


def _least(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
