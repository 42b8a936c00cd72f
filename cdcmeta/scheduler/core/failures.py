"""Failures on captures: tables that end by themselves, and requests that take too long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.replication_set import Place, ReplicationSet, stopping_places
from cdcmeta.scheduler.core.states import Role, SetState, Token

DOUBLINGS_MAX = 40
"""The most doublings of a wait; more make no difference, because the wait is bounded."""


class Failure(NamedTuple):
    """A table that ended without a request."""

    times: int
    """The number of failures in a row, without progress in between."""
    captures: tuple[str, ...]
    """The captures on which it failed, the latest last."""
    checkpoint: int
    """Its checkpoint at the failure."""
    again_at: int
    """When the owner retries it: microseconds of the owner's clock."""
    is_move: bool
    """Whether it was the secondary of a move, so that the primary continues."""


class FailingCapture(NamedTuple):
    """A capture on which one table after the other fails and none succeeds."""

    table: str
    """The table that failed last."""
    times: int
    """The number of times that another table failed than the time before."""
    until: int
    """Until then tables are placed on other captures, if there are any."""


class Failures:
    """Remembers failures, so that another capture tries and retries are not immediate.

    The caller keeps `now` (microseconds) up to date. After its first failure a table is retried at
    once, then after `Limits.retry_first_us`, doubled each time up to `retry_max_us`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self.now = limits, 0
        self.tables: dict[str, Failure] = {}
        self._captures: dict[str, FailingCapture] = {}
        self._timeouts: dict[str, int] = {}

    def judge(self, capture: str, before: ReplicationSet, after: ReplicationSet) -> None:
        """Note how a capture's report changed a set: a failure, a success, or progress. O(1)."""
        if _has_failed(capture, before, after):
            self.failed(capture, before)
        elif before.state is SetState.COMMIT and after.state is SetState.REPLICATING:
            self._captures.pop(capture, None)
            self._timeouts.pop(after.table, None)
            failed = self.tables.get(after.table)
            if failed is not None and failed.is_move:
                del self.tables[after.table]
        else:
            failed = self.tables.get(after.table)
            if failed and not failed.is_move and after.progress.checkpoint > failed.checkpoint:
                del self.tables[after.table]

    def timed_out(self, capture: str, rset: ReplicationSet) -> None:
        """Note that a preparation or a start took too long. O(1)."""
        self._timeouts[rset.table] = self._timeouts.get(rset.table, 0) + 1
        self.failed(capture, rset)

    def prepare_us(self, table: str) -> int:
        """Return how long a preparation may take: doubled each time that it took too long. O(1)."""
        return self._limits.prepare_us << self._doublings(table)

    def start_us(self, table: str) -> int:
        """Return how long a start may take: doubled each time that it took too long. O(1)."""
        return self._limits.start_us << self._doublings(table)

    def resting(self, running: Collection[str] = ()) -> set[str]:
        """Return the tables that failed and are not retried yet. O(failures).

        A failed move is forgotten `retry_max_us` after that, but not while it is retried.
        """
        waited = self._limits.retry_max_us
        over = [
            table
            for table, each in self.tables.items()
            if each.is_move and table not in running and self.now >= each.again_at + waited
        ]
        for table in over:
            del self.tables[table]
        return {table for table, each in self.tables.items() if each.again_at > self.now}

    def avoid(self) -> dict[str, tuple[str, ...]]:
        """Return the captures on which each table failed, the latest last. O(failures)."""
        return {table: each.captures for table, each in self.tables.items()}

    def failing_captures(self) -> set[str]:
        """Return the captures that get no tables for now. O(captures)."""
        return {name for name, each in self._captures.items() if each.until > self.now}

    def forget_table(self, table: str) -> None:
        """Forget a table that is no longer desired."""
        self.tables.pop(table, None)
        self._timeouts.pop(table, None)

    def forget_capture(self, capture: str) -> None:
        """Forget a capture that has ended: another may register under its name. O(failures)."""
        self._captures.pop(capture, None)
        for table, each in self.tables.items():
            if capture in each.captures:
                left = tuple(name for name in each.captures if name != capture)
                self.tables[table] = each._replace(captures=left)

    def failed(self, capture: str, before: ReplicationSet) -> None:
        """Note that a table failed on a capture; `before` is its set before that. O(1)."""
        table, failed = before.table, self.tables.get(before.table)
        times = failed.times + 1 if failed is not None else 1
        earlier = failed.captures if failed is not None else ()
        self.tables[table] = Failure(
            times,
            (*(each for each in earlier if each != capture), capture),
            before.progress.checkpoint,
            self.now + self._wait(times - 1),
            is_move=before.primary is not None and before.primary.capture != capture,
        )
        if any(each != capture for each in earlier):
            return  # it fails on other captures, too, so this capture is not the cause
        failing = self._captures.get(capture)
        if failing is None:
            self._captures[capture] = FailingCapture(table, 0, 0)
        elif failing.table != table:
            times = failing.times + 1
            self._captures[capture] = FailingCapture(table, times, self.now + self._wait(times))

    def _doublings(self, table: str) -> int:
        return min(self._timeouts.get(table, 0), DOUBLINGS_MAX)

    def _wait(self, times: int) -> int:
        if times < 1:  # the first retry is immediate: the cause may be over
            return 0
        limits = self._limits
        return min(limits.retry_first_us << min(times - 1, DOUBLINGS_MAX), limits.retry_max_us)


def _has_failed(capture: str, before: ReplicationSet, after: ReplicationSet) -> bool:
    """Return whether a capture ended a table without a request to do so."""
    place, left = before.place(capture), after.place(capture)
    if place is None or (left is not None and left.role is not Role.UNDETERMINED):
        return False
    if before.state in (SetState.REMOVING, SetState.ABSENT):
        return False
    if place.role is Role.PRIMARY:  # in COMMIT the owner asked it to stop for the secondary
        return before.state is not SetState.COMMIT or before.secondary is None
    return place.role is Role.SECONDARY


# --- starts and stops ---


class OverdueStop(NamedTuple):
    """A table that a capture has not stopped in time: the capture may still write."""

    since: int
    """When the stop began: microseconds of `ReplicationManager.waited`."""
    capture: str
    table: str


class Deadlines:
    """Remembers since when captures start and stop tables.

    Times are microseconds of `ReplicationManager.waited`.
    """

    def __init__(self) -> None:
        self._starting: dict[str, tuple[Place, int]] = {}
        self._stopping: dict[tuple[str, str], tuple[Token, int]] = {}

    def note(self, before: ReplicationSet | None, after: ReplicationSet, waited: int) -> None:
        """Note a changed set. O(captures of the set)."""
        table, starts = after.table, after.starting
        if starts is None:
            self._starting.pop(table, None)
        elif table not in self._starting or self._starting[table][0] != starts:
            self._starting[table] = starts, waited
        ends = stopping_places(after)
        if not ends and not self._stopping:
            return  # the usual case
        stopping = {(place.capture, table): place.token for place in ends}
        for place in before.places if before is not None else ():
            if (place.capture, table) not in stopping:
                self._stopping.pop((place.capture, table), None)
        for key, token in stopping.items():
            if key not in self._stopping or self._stopping[key][0] != token:
                self._stopping[key] = token, waited

    def starting(self) -> Iterator[tuple[str, str, int]]:
        """Yield each starting table, its capture, and since when. O(tables being started)."""
        for table, (place, since) in self._starting.items():
            yield table, place.capture, since

    def overdue(self, until: int) -> list[OverdueStop]:
        """Return the stops that began at `until` or before and have not ended, the oldest first.

        O(tables being stopped).
        """
        stops = (OverdueStop(since, *key) for key, (_, since) in self._stopping.items())
        return sorted(stop for stop in stops if stop.since <= until)


LOST_MAX = 8
"""The most repetitions of a preparation on a capture that reports the table as absent."""


class PendingPrepare(NamedTuple):
    """A request to prepare that is under way."""

    capture: str
    until: int
    wait_us: int
    since: int
    """When the first request was sent."""
    times: int
    """The number of requests that were sent."""

    @property
    def is_lost(self) -> bool:
        """Whether it was repeated too often."""
        return self.times > LOST_MAX


class PendingPrepares:
    """The requests to prepare that are under way, by table: a question must not overtake them.

    A capture that is asked about a table that it does not have promises never to start it. So for a
    while after the request (`until`) heartbeats leave the table out. That pause doubles with each
    repetition, because a slow network may delay a request for longer.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pending: dict[str, PendingPrepare] = {}

    def sent(self, table: str, capture: str, now: int, waited: int) -> None:
        """Note a request; the pause before a question grows with each repetition."""
        before, wait_us = self._pending.get(table), self._limits.heartbeat_every_us
        since, times = waited, 1
        if before is not None and before.capture == capture:
            since, times = before.since, before.times + 1
            wait_us = min(2 * before.wait_us, max(self._limits.mute_us // 2, wait_us))
        self._pending[table] = PendingPrepare(capture, now + wait_us, wait_us, since, times)

    def early(self, capture: str, tables: Iterable[str], now: int) -> set[str]:
        """Return the tables of a capture that must not be asked about yet. O(tables)."""
        asked = ((table, self._pending.get(table)) for table in tables)
        return {t for t, each in asked if each and each.capture == capture and each.until > now}

    def forget(self, table: str) -> None:
        """Forget the request of a table that is settled, or gone."""
        self._pending.pop(table, None)

    def __iter__(self) -> Iterator[tuple[str, PendingPrepare]]:
        return iter(self._pending.items())
