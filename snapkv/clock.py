"""The hybrid logical clock, and by their public names the wall clocks of `base/clocks.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol
from weakref import ref

from snapkv.base.arguments import check_int
from snapkv.base.clocks import NS_PER_MS, Clock, ManualClock, SystemClock
from snapkv.base.lifecycle import renew_in_children
from snapkv.errors import ClockSkewError, InvalidTimeError
from snapkv.times import (
    LOGICAL_BITS,
    PHYSICAL_MS_MAX,
    TIMESTAMP_MAX,
    check_timestamp,
    duration_ms,
    format_time,
    is_likely,
    pack,
    physical_ms,
    unlikely,
)

__all__ = ["Clock", "ManualClock", "SystemClock"]

MAX_CLOCK_SKEW_S = 5.0
MAX_CLOCK_SKEW_MS = round(MAX_CLOCK_SKEW_S * 1_000)


class Unmarked(Protocol):
    """A store that may have shown commits whose timestamps this process does not know yet."""

    @property
    def tracker(self) -> object:
        """The store's marks."""

    @property
    def place(self) -> object:
        """Where the store's calls run: see `Runtime.place`."""

    def catch_up(self) -> None:
        """Read the newest timestamp, if that is still needed; one round trip at most."""


class SharedFloor:
    """The largest timestamps that some hybrid clocks have issued and seen, for all of them.

    The clocks that show the machine's time share one, so that dependent commits on two stores of a
    process have timestamps in their order. A clock contributes timestamps within its own
    `max_clock_skew`, and follows such timestamps only. So there is one floor for each skew in use:

        clock   skew   sees, ahead of now    floor of 5 s   floor of 1 h
        a       5 s    0.1 s                 0.1 s          0.1 s
        b       1 h    20 min                0.1 s          20 min
        a       5 s    6 s                   0.1 s          20 min         only a counts on from it

    A floor further ahead than its skew does not count: the wall clock was set back meanwhile.
    """

    def __init__(self) -> None:
        self.of_skew: dict[int, int] = {}
        self.least = 0
        """Every clock issues more than this, whatever its skew: see `commit_after`."""
        self.unmarked: set[ref[Unmarked]] = set()
        """Stores to catch up with before a commit on another one."""
        self.lock = threading.Lock()  # never held while its holder waits
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self.lock = threading.Lock()

    def add(self, skew: int) -> None:
        """Keep a floor for a skew, too: the highest known floor that is within its reach."""
        with self.lock:
            if skew not in self.of_skew:
                reach = _machine_now() + skew
                known = filter(reach.__ge__, self.of_skew.values())
                self.of_skew[skew] = max(known, default=0)

    def take(self, timestamp: int, now: int, skew_max: int) -> None:
        """Raise the floors to a timestamp that a clock has issued or seen; the lock is held."""
        if timestamp <= now + skew_max:
            for skew, floor in self.of_skew.items():
                reach = now + skew
                if timestamp <= reach and not timestamp <= floor <= reach:
                    self.of_skew[skew] = timestamp


_machine_floor = SharedFloor()
"""Of all clocks of this process that show the machine's time."""


class HybridClock:
    """Issues timestamps: max(wall clock, last seen + 1, last issued + 1); safe for threads.

    The machine's clock also fills the logical bits, with parts of a millisecond, so that processes
    that commit in the same millisecond seldom claim the same timestamp. With another clock, the
    logical bits count within each millisecond.

    All hybrid clocks with the machine's clock issue more than any of them has issued or seen, as
    far as that is within the skew of both clocks (`SharedFloor`). What one of them saw beyond its
    skew is a floor for itself alone. A clock of another kind is alone.

    Source: Kulkarni et al., "Logical Physical Clocks", 2014. The safety of a store never depends
    on clocks, only the meaning of its times does.
    """

    def __init__(self, clock: Clock, max_clock_skew_ms: int = MAX_CLOCK_SKEW_MS) -> None:
        self.wall = clock
        self._last, self._skew = 0, max_clock_skew_ms << LOGICAL_BITS
        self._claimed = False  # the last timestamp is a claim, and was not seen yet
        self._now_ns: Callable[[], int] | None = None
        self.unmarked: set[ref[Unmarked]] | None = None
        """Stores to catch up with before a commit on another one; None without other stores."""
        if type(clock) is SystemClock:
            self._now_ns, self._shared = clock.now_ns, _machine_floor
            self._shared.add(self._skew)
            self.unmarked = self._shared.unmarked
        else:
            self._shared = SharedFloor()

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds since 1970.

        Raises `InvalidTypeError`, `InvalidTimeError` if the clock returns anything else.
        """
        now_ms = self.wall.now_ms()
        if type(now_ms) is not int:
            check_int("the result of the clock's now_ms()", now_ms)
        if not 0 <= now_ms <= PHYSICAL_MS_MAX:
            raise InvalidTimeError(
                f"the clock shows {now_ms} ms since 1970, which is out of range", now_ms
            )
        return now_ms

    def merge(self, seen: int) -> None:
        """Never again issue a timestamp at or below `seen`."""
        if seen == self._last and not self._claimed:
            return  # the store's newest commit is an own one
        now = 0 if self._now_ns is None else self.reading()
        with self._shared.lock:
            self._last, self._claimed = max(self._last, seen), False
            self._shared.take(seen, now, self._skew)

    def reading(self) -> int:
        """Return the wall clock's time as a timestamp, whatever was issued or seen.

        Raises `InvalidTypeError`, `InvalidTimeError` if the clock is out of range.
        """
        if self._now_ns is None:
            return self.now_ms() << LOGICAL_BITS
        return (self._now_ns() << LOGICAL_BITS) // NS_PER_MS

    def issue(
        self, ahead: int = 0, *, at: int | None = None, now: int | None = None, claim: bool = False
    ) -> int:
        """Return a new timestamp, larger than all issued or seen; it counts as issued for ever.

        It is larger by `ahead` than this clock alone needs. `at` replaces the time of the wall
        clock. `now` is a reading of just before, if the caller has one. A `claim` is ahead of the
        clock to win against other writers, also of this process: other clocks follow the claim when
        it was seen as a commit.

        Raises `InvalidTimeError` if 64 bits are used up or the wall clock is out of range.
        """
        if now is None:
            now = self.reading()
        shared = self._shared
        with shared.lock:
            floor = shared.of_skew.get(self._skew, 0)
            if floor > now + self._skew:
                floor = 0
            alone = max(now if at is None else at, self._last + 1) + ahead
            issued = max(alone, floor + 1, shared.least + 1)  # claims of two stores do not add up
            if issued > TIMESTAMP_MAX:
                raise InvalidTimeError("timestamps of 64 bits are used up", issued)
            self._last, self._claimed = issued, claim
            if not claim:
                shared.take(issued, now, self._skew)
            return issued


def commit_after(timestamp: int, *, max_clock_skew: float = MAX_CLOCK_SKEW_S) -> None:
    """Let each later commit of this process have a larger timestamp than this one.

    For a timestamp that came from outside of all stores, for example with a message: whatever its
    sender committed up to it is then earlier than what this process commits. A timestamp that was
    read from a store needs no such call. It holds for all stores that use the machine's clock, also
    for stores that are opened later. No round trip.

    >>> import snapkv
    >>> with snapkv.open("memory:") as store:
    ...     token = store.save("order/17", b"paid")  # send it along
    >>> snapkv.commit_after(token)  # in the process that received it
    >>> with snapkv.open("memory:") as other:
    ...     other.save("parcel/17", b"packed") > token
    True

    Raises `InvalidTypeError`, `InvalidTimeError` if it is not a timestamp, and `ClockSkewError` if
    it is more than `max_clock_skew` (seconds) ahead of the machine's clock: then one of the two
    clocks is wrong.
    """
    limit_ms, now = duration_ms(max_clock_skew), _machine_now()
    if not is_likely(check_timestamp(timestamp), now, now):
        raise unlikely(timestamp)
    if timestamp > now + pack(limit_ms):
        raise too_far_ahead(
            timestamp, physical_ms(timestamp - now), limit_ms, "the machine's clock"
        )
    with _machine_floor.lock:
        _machine_floor.least = max(_machine_floor.least, timestamp)


def too_far_ahead(
    timestamp: int, ahead_ms: int, limit_ms: int, clock: str = "the clock"
) -> ClockSkewError:
    """Return the error of a timestamp that is further ahead of a clock than `max_clock_skew`."""
    return ClockSkewError(
        f"{format_time(timestamp)} is {ahead_ms} ms ahead of {clock}, more than max_clock_skew "
        f"({limit_ms} ms): set the clock that is wrong, or pass a larger max_clock_skew",
        ahead_ms,
        limit_ms,
    )


def _machine_now() -> int:
    return (SystemClock().now_ns() << LOGICAL_BITS) // NS_PER_MS
