"""A ticker of all members of a fleet, in rounds with one timestamp; see `tick_rounds`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snapkv.base.arguments import check_seconds
from snapkv.base.lifecycle import Closing, renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.clock import MAX_CLOCK_SKEW_S, HybridClock, ManualClock
from snapkv.errors import InvalidOptionError, SnapKVError, StoreClosedError
from snapkv.fleet.member import Member, named
from snapkv.fleet.tick_rounds import ANY, BEFORE, ROUND, SPREAD, TICKER, WITHOUT
from snapkv.model import Commit, Ops, Scalar, Stamp
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV
from snapkv.times import LOGICAL_BITS, format_time, pack, physical_ms

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

WITHOUT_BYTES_MAX = 3_000
TICK_TIMEOUT_S = 5.0
MEMBERS_MAX = 512
"""One thread for each member."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of ticks: its timestamp, and what became of it on each member.

    `spread` is the time in seconds from sending until the last answer; `ticked` are the members
    that have the timestamp now. `refused` have a newer timestamp already, of another ticker or
    writer: they take part in the next round. `failed` did not answer, or with an error.
    """

    timestamp: int
    spread: float
    ticked: tuple[str, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


class RoundMissed(Exception):
    """The member has a newer timestamp than that of the round."""

    def __init__(self, newest: int) -> None:
        super().__init__(format_time(newest))
        self.newest = newest


Ticked = tuple[str, str]
"""A store that is ticked: the URL of its engine, and its name."""


def _ticked(member: Member) -> Ticked:
    return member.url, member.store_name


class Ticker(Closing):
    """Ticks all members of a fleet that have an engine, in rounds; used from one thread.

    Opens a store of its own for each of them, and creates it where there is none. Made by
    `Fleet.ticker`.
    """

    def __init__(
        self, members: Sequence[Member], clock: HybridClock, *, writer: str | None = None
    ) -> None:
        self.members = [member for member in members if not member.is_archive]
        for member in self.members:
            if member.opened is not None:
                raise named(
                    InvalidOptionError(
                        "rounds open a store of their own: describe the member by its url, not by "
                        "an open store"
                    ),
                    member.name,
                )
        if not self.members:
            raise InvalidOptionError("no member has an engine: archives cannot be ticked")
        if len(self.members) > MEMBERS_MAX:
            raise InvalidOptionError(
                f"one ticker takes {MEMBERS_MAX} members, not {len(self.members)}: choose some"
            )
        self._clock, self._writer = clock, writer
        self._wall = ManualClock()  # shows the timestamp of the round
        self._ticked: dict[Ticked, Member] = {}  # one tick for all members of a store
        for member in self.members:
            self._ticked.setdefault(_ticked(member), member)
        self._stores: dict[Ticked, SnapshotKV] = {}
        self._sent: dict[Ticked, Future[tuple[Commit, float]]] = {}
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        """Begin with the first round of a ticker."""
        self._id, self._number = os.urandom(8).hex(), 0
        self._last: Round | None = None

    def after_fork(self) -> None:
        """Become another ticker: threads, and ticks on their way, are the parent's."""
        self._pool = None
        self._sent.clear()
        self._begin()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # `import snapkv` does not need it

            self._pool = ThreadPoolExecutor(len(self._ticked), thread_name_prefix="snapkv round")
        return self._pool

    def tick(self, *, timeout: float = TICK_TIMEOUT_S) -> Round:
        """Send one timestamp to all members; return after `timeout` seconds at the latest.

        Members that are one store, as two prefixes of one cluster, get one tick together. The round
        leaves out a member that has not answered an earlier round. One round trip.
        """
        from concurrent.futures import wait

        check_seconds("timeout", timeout)
        if self._closed:
            raise StoreClosedError("the ticker was closed: make another one")
        self._number += 1
        issued = self._clock.issue()
        ms = physical_ms(issued) + (issued & ((1 << LOGICAL_BITS) - 1) > 0)
        timestamp, meta = pack(ms), self._meta()
        self._clock.merge(timestamp)
        self._wall.set(ms)
        busy = {store for store, sent in self._sent.items() if not sent.done()}
        began = monotonic()
        sent = {
            store: self._threads().submit(self._tick, store, member, timestamp, meta)
            for store, member in self._ticked.items()
            if store not in busy
        }
        self._sent |= sent
        wait(sent.values(), timeout=timeout)  # not for ticks of earlier rounds
        self._last = self._outcome(timestamp, began, busy)
        return self._last

    def _meta(self) -> dict[str, Scalar]:
        meta: dict[str, Scalar] = {TICKER: self._id, ROUND: self._number}
        last = self._last
        if last is not None and last.ticked:
            without = ",".join(sorted({*last.failed, *last.refused}))
            meta |= {BEFORE: last.timestamp, SPREAD: round(last.spread * 1_000_000)}
            if without:
                meta[WITHOUT] = without if len(without.encode()) <= WITHOUT_BYTES_MAX else ANY
        return meta

    def _tick(
        self, ticked: Ticked, member: Member, timestamp: int, meta: Mapping[str, Scalar]
    ) -> tuple[Commit, float]:
        store = self._stores.get(ticked)
        if store is None:
            store = self._stores[ticked] = open_store(
                member.url,
                name=member.store_name,
                clock=self._wall,
                writer=self._writer,
                commit_timeout=TICK_TIMEOUT_S,
                read_timeout=TICK_TIMEOUT_S,
                **member.options,
            )
            if self._closed:  # meanwhile
                store.close()

        def build(stamp: Stamp) -> Ops:
            if stamp.ts != timestamp:
                raise RoundMissed(stamp.ts - 1)
            return Ops(meta=meta)

        return store.commit(build), monotonic()

    def _outcome(self, timestamp: int, began: float, busy: set[Ticked]) -> Round:
        ticked: list[str] = []
        refused: dict[str, int] = {}
        failed: dict[str, str] = {}
        ended = began
        for member in self.members:
            name, store = member.name, _ticked(member)
            sent = self._sent[store]
            if store in busy or not sent.done():
                failed[name] = "it has not answered yet"
                continue
            error = sent.exception()
            if error is None:
                ended = max(ended, sent.result()[1])
                ticked.append(name)
            elif isinstance(error, RoundMissed):
                refused[name] = error.newest
                self._follow(error.newest)
            elif isinstance(error, SnapKVError):
                failed[name] = str(error)
            else:
                raise error
        return Round(timestamp, ended - began, tuple(sorted(ticked)), refused, failed)

    def _follow(self, newest: int) -> None:
        """Let the next round be above a member's newest timestamp, unless its clock is wrong.

        All members get the time of the round. So one that is too far ahead must not set it: the
        other members would refuse each tick. It takes part again when clocks have reached it.
        """
        if physical_ms(newest) <= self._clock.now_ms() + 1_000 * MAX_CLOCK_SKEW_S:
            self._clock.merge(newest)

    def close(self) -> None:
        """Close the stores; ticks on their way are not waited for."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for store in list(self._stores.values()):
            store.close()
