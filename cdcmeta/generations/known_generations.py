"""The generations that a process knows, and the stream of a write by its time and token."""

from __future__ import annotations

import threading
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cdcmeta import errors
from cdcmeta.argument_checks import check_seconds
from cdcmeta.generations.streams import StreamId
from cdcmeta.generations.tokens import Tokens, integer
from cdcmeta.generations.topology import STREAM_DTYPE, Streams, Topology
from snapkv.base.waiting import pause
from snapkv.clock import Clock, SystemClock
from snapkv.model import Guard
from snapkv.times import LOGICAL_BITS, check_timestamp, dated, pack

LEEWAY_S = 5.0
DELAY_S_MAX = 3_155_760_000
"""The longest delay, in seconds: a century. A timestamp that far ahead is a mistake."""
PAUSE_S = 0.05
NEVER = 1 << 64


# --- the rules of writes: pure decisions, in any unit of time ---

Times = Sequence[int]
"""The times from which generations operate, ascending."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A set of rules, of today's ScyllaDB (`TODAY`) or of its first design (`ORIGINAL`).

    `accept(times, ts, now, leeway)` returns the index of the generation that a write at `ts`
    belongs to, or raises if the write is rejected. A generation is obsolete when its successor has
    operated for `patience` leeways.
    """

    name: str
    accept: Callable[[Times, int, int, int], int]
    patience: int


def _today(times: Times, ts: int, now: int, leeway: int) -> int:
    """Accept a write of any age into the current generation, a recent one into the previous one."""
    if ts > now + leeway:
        raise errors.InvalidWriteTimeError("future", ts, now + leeway)
    if ts <= now - leeway:
        current = bisect_right(times, now - leeway) - 1
        superseded = current + 1 < len(times) and times[current + 1] <= now
        if current < 0 or ts < times[current] or superseded:
            raise errors.InvalidWriteTimeError("past", ts, now - leeway)
    at = bisect_right(times, ts) - 1  # the usual path: no call
    if at < 0:
        raise _none(ts)
    return at


def _original(times: Times, ts: int, now: int, leeway: int) -> int:
    """Accept a write into the current generation, or one that begins within the leeway."""
    if ts > now + leeway:
        raise errors.InvalidWriteTimeError("future", ts, now + leeway)
    current = _operating(times, now)
    if ts < times[current]:
        raise errors.InvalidWriteTimeError("past", ts, times[current])
    return _operating(times, ts)


def _operating(times: Times, ts: int) -> int:
    at = bisect_right(times, ts) - 1
    if at < 0:
        raise _none(ts)
    return at


def _none(ts: int) -> errors.GenerationUnavailableError:
    return errors.GenerationUnavailableError(
        "none", f"no known generation operates at {dated(ts)}", ts=ts
    )


def find(times: Times, time: int) -> int | None:
    """Return the index of the generation of exactly this time, None without one."""
    at = bisect_left(times, time)
    return at if at < len(times) and times[at] == time else None


TODAY = Rules("today", _today, patience=1)
ORIGINAL = Rules("original", _original, patience=0)


# --- the generations ---


class _Known(NamedTuple):
    """The known generations; replaced as a whole, so that readers need no lock."""

    times: list[int]
    topologies: list[Topology | None]
    undecided_from: int


class Generations:
    """The generations that a process knows, by the timestamps from which each operates.

    A write's stream is of the generation that operates at the write's timestamp. The `rules`,
    `TODAY` or `ORIGINAL`, decide which writes are accepted. `leeway` (seconds) is how far clocks
    may be apart. Safe for threads; lookups take no lock.

    >>> from snapkv import ManualClock, pack
    >>> from cdcmeta.generations import Sharding, Topology
    >>> generations = Generations(clock=ManualClock(100_000))
    >>> generations.insert(pack(90_000), Topology.make({100: Sharding(2), 110: Sharding(2)}))
    True
    >>> generations.stream(pack(100_000), 105).token
    101
    """

    def __init__(
        self, *, leeway: float = LEEWAY_S, rules: Rules = TODAY, clock: Clock | None = None
    ) -> None:
        """Begin without generations. Raises `InvalidArgumentError`."""
        if not isinstance(rules, Rules):
            raise errors.InvalidArgumentError(f"rules are TODAY or ORIGINAL, not {rules!r}")
        check_seconds("leeway", leeway, most=DELAY_S_MAX)
        self._leeway, self._rules = pack(round(leeway * 1_000)), rules
        self._now_ms = (clock or SystemClock()).now_ms
        self._accept = rules.accept
        self._known = _Known([], [], NEVER)
        self._lock = threading.Lock()
        self.last_stream_timestamp = 0

    def __repr__(self) -> str:
        return f"<Generations from {self._known.times}>"

    # --- asking ---

    def stream(self, ts: int, token: int, ahead: int = 0) -> StreamId:
        """Return the stream of a write with this timestamp and token; O(log ranges).

        A timestamp that is up to `ahead` later than the clock counts as the present.

        Raises `InvalidWriteTimeError` (the client's mistake), `GenerationUnavailableError`, and
        `InvalidArgumentError` for a value that is not an integer.
        """
        if type(ts) is not int:
            ts = integer("a timestamp", ts)
        while True:
            known = self._known
            times, topologies, undecided_from = known
            now = self._now_ms() << LOGICAL_BITS
            if now < ts <= now + ahead:
                now = ts
            at = self._accept(times, ts, now, self._leeway)
            topology = topologies[at]
            if topology is None or ts >= undecided_from:
                raise self._unknown(known, at, ts)
            # This relies on the GIL. CPython lets another thread run at a call, and where a loop
            # goes round. Neither is between these two lines, so no other thread's later timestamp
            # is overwritten. A build of Python without the GIL needs a lock here.
            if ts > self.last_stream_timestamp:
                self.last_stream_timestamp = ts
            # The timestamp is written before `_known` is read here; hold() and prepare() replace
            # `_known` before they read the timestamp. So they see this write, or this loop sees
            # their change and decides again.
            if known is self._known:
                return topology.stream_for(token)

    def stream_of_commit(self, ts: int, token: int) -> StreamId:
        """Return the stream of a commit at this timestamp, as `stream`; it needs no guards."""
        return self.stream(ts, token)

    def streams(self, timestamps: Tokens, tokens: Tokens) -> Streams:
        """Return the streams of many writes, an array of `dtype V16`; O(writes log ranges).

        `timestamps` and `tokens` are arrays of equal length, of type uint64 and int64. If one
        write is not accepted, none is; raises as `stream`.
        """
        stamps, tokens = np.asarray(timestamps), np.asarray(tokens)
        if stamps.shape != tokens.shape or stamps.ndim != 1:
            raise errors.InvalidArgumentError("timestamps and tokens are arrays of equal length")
        if stamps.dtype.kind not in "iu" or tokens.dtype != np.int64:
            raise errors.InvalidArgumentError("timestamps are integers, tokens are of type int64")
        if not len(stamps):
            return np.empty(0, STREAM_DTYPE)
        oldest, newest = int(stamps.min()), int(stamps.max())
        while True:
            known, now = self._known, self._now_ms() << LOGICAL_BITS
            places = {self._accepted(known, ts, now) for ts in (oldest, newest)}
            if newest > self.last_stream_timestamp:
                self.last_stream_timestamp = newest  # as in `stream`
            if known is self._known:
                break
        if len(places) == 1:
            return self._topology(known, places.pop()).streams_for(tokens)
        found: Streams = np.empty(len(stamps), STREAM_DTYPE)
        stamps = stamps.astype(np.uint64, copy=False)
        own = np.searchsorted(np.array(known.times, np.uint64), stamps, "right") - 1
        for at in np.unique(own).tolist():
            where = np.flatnonzero(own == at)
            self._accepted(known, int(stamps[where].min()), now)
            found[where] = self._topology(known, at).streams_for(tokens[where])
        return found

    def streams_available(self) -> bool:
        """Return whether a generation operates already."""
        times = self._known.times
        return bool(times) and times[0] <= self._now()

    @property
    def times(self) -> tuple[int, ...]:
        """The timestamps of the known generations, with or without a topology."""
        return tuple(self._known.times)

    store: None = None
    log: None = None
    """The store of `guards`, and the space of its generation log: this is not from a store."""

    def guards(self) -> dict[str, list[Guard]]:
        """Return the guards of a write's commit: none, this is not from a store."""
        return {}

    def catch_up(self, timeout: float) -> None:
        """Wait a moment: another thread may insert a generation."""
        pause(min(timeout, PAUSE_S))

    # --- changing ---

    def known_or_obsolete(self, time: int) -> bool:
        """Return whether the topology of the generation from `time` on is not needed.

        It is known, or a later generation makes it obsolete.
        """
        known = self._known
        at = find(known.times, time)
        if at is not None and known.topologies[at] is not None:
            return True
        at = bisect_right(known.times, time)
        return at < len(known.times) and known.times[at] <= self._obsolete_at()

    def prepare(self, time: int) -> bool:
        """Note that a generation operates from `time` on; return whether its topology is missing.

        Until it is inserted, its writes are rejected: they must not go to the previous streams. It
        may be called again. Warns with `LateGenerationWarning` if writes of its time went there
        already.
        """
        check_timestamp(time)
        with self._lock:
            if self.known_or_obsolete(time):
                return False
            if find(self._known.times, time) is None:
                self._put(time, None)
                self._check_late(time)
        return True

    def insert(self, time: int, topology: Topology) -> bool:
        """Add the generation from `time` on; return whether it was new.

        Obsolete generations are forgotten. Raises
        `InvalidArgumentError`, `snapkv.errors.InvalidTimeError`.
        """
        check_timestamp(time)
        if not isinstance(topology, Topology):
            raise errors.InvalidArgumentError(f"topology is a Topology, not {topology!r}")
        with self._lock:
            if self.known_or_obsolete(time):
                return False
            new = find(self._known.times, time) is None
            self._put(time, topology)
            if new:  # checked after `_put`: a write accepted in between went to the previous one
                self._check_late(time)
            self._forget()
        return True

    def hold(self, undecided_from: int | None) -> int:
        """Reject writes from a timestamp on, where a new generation may operate; None ends that.

        A member does this between the two phases of a switch. Return the timestamp of the newest
        write that was accepted before.
        """
        with self._lock:
            since = NEVER if undecided_from is None else check_timestamp(undecided_from)
            self._known = self._known._replace(undecided_from=since)
            return self.last_stream_timestamp

    # --- helpers ---

    def _now(self) -> int:
        return pack(self._now_ms())

    def _obsolete_at(self) -> int:
        """Return since when a generation's successor operates, at the latest, if it is obsolete."""
        return self._now() - self._rules.patience * self._leeway

    def _put(self, time: int, topology: Topology | None) -> None:
        times, topologies, undecided_from = self._known
        times, topologies = times.copy(), topologies.copy()
        at = bisect_left(times, time)
        if find(times, time) is None:
            times.insert(at, time)
            topologies.insert(at, topology)
        topologies[at] = topology
        self._known = _Known(times, topologies, undecided_from)

    def _forget(self) -> None:
        times, topologies, undecided_from = self._known
        first = max(0, bisect_right(times, self._obsolete_at()) - 1)
        self._known = _Known(times[first:], topologies[first:], undecided_from)

    def _check_late(self, time: int) -> None:
        """Warn if writes of a generation went to the one before it."""
        times = self._known.times
        at = bisect_right(times, time)
        behind = times[at] if at < len(times) else NEVER
        if time <= self.last_stream_timestamp < behind:
            message = (
                f"generation {dated(time)} became known too late: a write at "
                f"{dated(self.last_stream_timestamp)} went to a stream of the previous generation"
            )
            warnings.warn(errors.LateGenerationWarning(message), stacklevel=3)

    def _accepted(self, known: _Known, ts: int, now: int) -> int:
        at = self._accept(known.times, ts, now, self._leeway)
        if known.topologies[at] is None or ts >= known.undecided_from:
            raise self._unknown(known, at, ts)
        return at

    def _topology(self, known: _Known, at: int) -> Topology:
        topology = known.topologies[at]
        assert topology is not None
        return topology

    def _unknown(self, known: _Known, at: int, ts: int) -> errors.CDCMetaError:
        if known.topologies[at] is None:
            since = known.times[at]
            message = f"the streams of the generation from {dated(since)} on are not read yet"
            return errors.GenerationUnavailableError("not retrieved", message, ts=ts, since=since)
        since = known.undecided_from
        message = f"a new generation may operate from {dated(since)} on, before {dated(ts)}"
        return errors.GenerationUnavailableError("undecided", message, ts=ts, since=since)
