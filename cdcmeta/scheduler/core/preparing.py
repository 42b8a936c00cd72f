"""Requests to prepare that are under way, which a question must not overtake.

For example, A is asked to prepare a table with the token 7.1, and the next heartbeat asks about it,
too early:

    owner                       reaches A              A
    prepare 7.1 --
    heartbeat: 7.1? ---------   the heartbeat first    has no table: answers "absent", and
                                                       promises never to start 7.1
    7.1 has ended: prepare 7.2  then prepare 7.1       ignores it
    heartbeat: 7.2? ---------   the heartbeat first    answers "absent" again, ...

So for a while after the request (`until`) heartbeats leave the table out. That pause doubles with
each repetition, because a slow network may delay a request for longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cdcmeta.scheduler.core.work_limits import Limits

LOST_MAX = 8
"""How often a preparation is repeated on a capture that reports the table as absent."""


class PendingPrepare(NamedTuple):
    """A request to prepare that is under way."""

    capture: str
    until: int
    wait_us: int
    since: int
    """When the first request was sent."""
    times: int
    """How many requests were sent."""

    @property
    def is_lost(self) -> bool:
        """Whether it was repeated too often."""
        return self.times > LOST_MAX


class PendingPrepares:
    """The requests to prepare that are under way, by table."""

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
        return {
            table
            for table in tables
            if (each := self._pending.get(table)) is not None
            and each.capture == capture
            and each.until > now
        }

    def forget(self, table: str) -> None:
        """Forget the request of a table that is settled, or gone."""
        self._pending.pop(table, None)

    def __iter__(self) -> Iterator[tuple[str, PendingPrepare]]:
        return iter(self._pending.items())
