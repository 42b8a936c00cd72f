"""Rounds: all members get one timestamp at once, so that one time shows all of them as they were.

Tickers of one member each tick at different times. So a moment of the fleet may show an
effect in one member without its cause in another one, which was ticked a little earlier.
A *round* sends one timestamp T to all members at once. Member c commits it at some instant between
`sent` and `answered(c)`. So the moment T shows all members as they were within the *spread* of the
round, the largest `answered(c) - sent`, whatever any clock says.

The bounds of a round are known when its answers have come. So the next round of the same ticker
records them, in the meta of its ticks:

    round   timestamp   meta of the ticks
    1       100         round 1
    2       110         round 2, before 100, spread_us 1,900
    3       120         round 3, before 110, spread_us 2,400, without b

In round 2 the tick of member b was not answered. It may still arrive, at any time. So the time 110
does not count as a round for a moment with b, and such a moment goes to 100. If the ticker dies
after round 3, nothing shows its bounds, and moments at 120 and later go to 110 or 100.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from snapkv.base.arguments import check_seconds
from snapkv.base.clocks import ManualClock
from snapkv.base.lifecycle import Closing, renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.clock import MAX_CLOCK_SKEW_S, HybridClock
from snapkv.errors import CompactedError, InvalidOptionError, SnapKVError, StoreClosedError
from snapkv.fleet.member import Member, named
from snapkv.fleet.member_link import AWAY
from snapkv.fleet.members import Members
from snapkv.fleet.open_member import OpenMember
from snapkv.fleet.pin import LATE, Pin
from snapkv.layout import ROUND_META
from snapkv.model import Commit, Ops, Scalar, Stamp
from snapkv.store.open import Keys
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV
from snapkv.times import LOGICAL_BITS, format_time, pack, physical_ms

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


LOOKS_MAX = 8
"""The most ticks of the slowest member in which a moment looks for a round."""
FOLLOWING_MAX = 4
"""The most ticks after a round in which its bounds are looked for; some are of other tickers."""

ROUND, TICKER, BEFORE = f"{ROUND_META}round", f"{ROUND_META}ticker", f"{ROUND_META}before"
SPREAD, WITHOUT = f"{ROUND_META}spread_us", f"{ROUND_META}without"
ANY = "*"
"""The text that takes the place of the names of members without an answer, if these are too
long."""


def aligned(
    timestamp: int, pins: dict[str, Pin], members: Members
) -> tuple[int, dict[str, Pin], float | None]:
    """Return the newest round at or below a moment that has one: its time, its pins, its spread.

    All observed members that are seen have to be final, and take part. Without such a round, it
    returns what it got, and None. Mostly two or three round trips.
    """
    found = {name: pin for name, pin in pins.items() if _is_observed(pin)}
    left_out = {name: pin for name, pin in pins.items() if pin.state in LATE and pin.reads is None}
    for _ in range(LOOKS_MAX):
        if len(found) < 2 or any(pin.state != "live" for pin in found.values()):
            break
        common = min(_tick(pin) for pin in found.values())
        if all(_tick(pin) == common for pin in found.values()):
            spread = _spread(found, common, members)
            if spread is not None:
                others = [name for name in pins if name not in found and name not in left_out]
                rest = members.each(others, _pinning(common))
                if not any(map(_is_observed, rest.values())):
                    found |= rest | left_out
                    return common, {name: found[name] for name in pins}, spread
                found |= rest  # a member that has left meanwhile is in that round, too
                found = {name: pin for name, pin in found.items() if _is_observed(pin)}
                continue
            common -= 1
        late = [name for name, pin in found.items() if _tick(pin) > common]
        found |= members.each(late, _pinning(common))
        found = {name: pin for name, pin in found.items() if pin.state != "absent"}
    return timestamp, pins, None


def _is_observed(pin: Pin) -> bool:
    """Return whether it shows the keys of an observed member."""
    return pin.connection.member.prefix is not None and pin.reads is not None


def _pinning(timestamp: int) -> Callable[[OpenMember], Pin]:
    return lambda each: each.pin(timestamp)


def _tick(pin: Pin) -> int:
    assert pin.moment is not None
    return pin.moment.mark.timestamp


def _spread(found: Mapping[str, Pin], common: int, members: Members) -> float | None:
    """Return the spread of a round in seconds; None if the ticks are not of one, or unbounded."""
    rounds = set(members.each(found, lambda each: _round_of(found[each.name])).values())
    made = rounds.pop()
    if rounds or made is None:
        return None  # two tickers may have ticked some members each at the same time
    for pin in found.values():
        try:
            meta = pin.connection.ask(partial(_confirmed, pin=pin, common=common, ticker=made[0]))
        except (*AWAY, CompactedError):
            continue  # any other member of the round shows its bounds, too
        if meta is not None:
            without = str(meta.get(WITHOUT) or "").split(",")
            spread = meta.get(SPREAD)
            if isinstance(spread, int) and not {ANY, *found} & set(without):
                return spread / 1_000_000
            return None
    return None


def _round_of(pin: Pin) -> tuple[Scalar, Scalar] | None:
    """Return the ticker and the number of the round whose tick a member shows; None without."""
    assert pin.moment is not None
    mark = pin.moment.mark
    try:
        meta = pin.connection.ask(lambda reads: reads.reader.timeline.stamp(mark)).meta
    except (*AWAY, CompactedError):
        return None
    return (meta[TICKER], meta[ROUND]) if meta and TICKER in meta and ROUND in meta else None


def _confirmed(reads: Keys, pin: Pin, common: int, ticker: Scalar) -> Mapping[str, Scalar] | None:
    """Return the meta of the tick that records the bounds of a ticker's round."""
    assert pin.moment is not None
    timeline, mark = reads.reader.timeline, pin.moment.mark
    for _ in range(FOLLOWING_MAX):
        following = timeline.following(mark)
        if following is None:
            return None
        mark = following
        meta = timeline.stamp(mark).meta
        if meta is not None and meta.get(BEFORE) == common and meta.get(TICKER) == ticker:
            return meta
    return None


WITHOUT_BYTES_MAX = 3_000
TICK_TIMEOUT_S = 5.0
MEMBERS_MAX = 512
"""The most members of a ticker, which has a thread for each."""


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
    """The member has a newer timestamp than the round."""

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
        """Let the next round be above a member's newest timestamp, unless that is too far ahead."""
        if physical_ms(newest) <= self._clock.now_ms() + 1_000 * MAX_CLOCK_SKEW_S:
            self._clock.merge(newest)

    def close(self) -> None:
        """Close the stores; ticks on their way are not waited for."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for store in list(self._stores.values()):
            store.close()
