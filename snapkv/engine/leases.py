"""Leases of embedded engines: valid ttls and ids, and the lease table of the memory engine.

Times are of `waiting.uptime_ns`, which setting the wall clock does not change. A lease is alive
before its due time and has ended from that moment on, even if no call has noticed yet.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Iterator

from snapkv.base.arguments import check_int, check_seconds
from snapkv.base.waiting import uptime_ns
from snapkv.engine.contract import KeyValue, Lease
from snapkv.errors import LeaseNotFoundError

TTL_SECONDS_MAX = 9_000_000_000
"""The limit of etcd; in nanoseconds it fits into 63 bits."""
ID_MAX = (1 << 63) - 1
_STALE_TURNS_MIN = 64
WAIT_SECONDS_MAX = 3_600.0

_random = random.SystemRandom()


def ttl_ns_of(ttl_s: float) -> int:
    """Return a time to live in nanoseconds, rounded up.

    Raises `InvalidTypeError`, `InvalidOptionError`.
    """
    check_seconds("ttl_s", ttl_s, above=0, most=TTL_SECONDS_MAX)
    return math.ceil(ttl_s * 1_000_000_000)


def new_id() -> int:
    """Return a new random id: positive, 63 bits."""
    return _random.randint(1, ID_MAX)


def is_id(lease: int) -> bool:
    """Return whether an integer may be a lease's id; raises `InvalidTypeError`."""
    check_int("lease", lease)
    return 0 < lease <= ID_MAX


class _Held:
    """A lease that is alive: its time to live, its due time, its keys."""

    __slots__ = ("due_ns", "keys", "ttl_ns", "ttl_s")

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s, self.ttl_ns = ttl_s, ttl_ns_of(ttl_s)
        self.due_ns = uptime_ns() + self.ttl_ns
        self.keys: set[bytes] = set()


class LeaseTable:
    """Leases and their keys, for one thread at a time.

    `next_due_ns` is never later than the earliest due time, and 0 without leases: so checking
    whether a lease is due costs one comparison. Each lease has one turn in a heap. `keep_alive`
    leaves the turn where it is; `due` puts it back when it comes too early:

        grant 5 s at 0      due 5   turn (5, lease)
        keep alive at 3     due 8   turn (5, lease)
        `due` at 5          due 8   turn (8, lease): too early, put back
        `due` at 8          the lease has ended
    """

    def __init__(self) -> None:
        self.next_due_ns = 0
        self._held: dict[int, _Held] = {}
        self._turns: list[tuple[int, int]] = []  # (due at that time or later, id)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, lease: object) -> bool:
        return lease in self._held

    def grant(self, ttl_s: float) -> Lease:
        """Return a new lease; O(log leases). Raises as `ttl_ns_of`."""
        held, lease = _Held(ttl_s), new_id()
        while lease in self._held:
            lease = new_id()
        self._held[lease] = held
        heapq.heappush(self._turns, (held.due_ns, lease))
        self._update_next_due()
        return Lease(lease, held.ttl_s)

    def keep_alive(self, lease: int) -> float:
        """Restart its time and return its ttl; raises `LeaseNotFoundError`. O(1)."""
        held = self._held.get(lease) if is_id(lease) else None
        if held is None:
            raise LeaseNotFoundError(lease)
        held.due_ns = uptime_ns() + held.ttl_ns
        return held.ttl_s

    def due(self) -> Iterator[int]:
        """Yield the leases whose time is over; the caller ends each before the next."""
        now = uptime_ns()
        while self._turns and self._turns[0][0] <= now:
            _, lease = self._turns[0]
            held = self._held.get(lease)
            if held is None:
                heapq.heappop(self._turns)
            elif held.due_ns > now:
                heapq.heapreplace(self._turns, (held.due_ns, lease))
            else:
                yield lease
        self._update_next_due()

    def keys_of(self, lease: int) -> list[bytes]:
        """Return the keys of a lease, ascending; none when it has ended."""
        held = self._held.get(lease)
        return sorted(held.keys) if held else []

    def end(self, lease: int) -> None:
        """Delete a lease, which has no keys any more."""
        held = self._held.pop(lease, None)
        assert not (held and held.keys)
        if len(self._turns) > 2 * len(self._held) + _STALE_TURNS_MIN:
            self._turns = [(each.due_ns, id_) for id_, each in self._held.items()]
            heapq.heapify(self._turns)
        self._update_next_due()

    def moved(self, key: bytes, before: int, after: int) -> None:
        """Move a key from one lease to another (0: none)."""
        if before:
            self._held[before].keys.discard(key)
        if after:
            self._held[after].keys.add(key)

    def _update_next_due(self) -> None:
        if self._held:
            self.next_due_ns = self._turns[0][0]
        else:
            self.next_due_ns = 0
            self._turns.clear()

    def problems(self, newest: Iterable[KeyValue]) -> Iterator[str]:
        """Yield broken rules, given the newest version of every key that exists."""
        leased = {(kv.lease, kv.key) for kv in newest if kv.lease}
        listed = {(id_, key) for id_, held in self._held.items() for key in held.keys}
        # a leased key is listed by a lease that is alive, and no other is
        for lease, key in sorted(leased ^ listed):
            yield f"only one of {key!r} and lease {lease:x} names the other"
        # every lease has its turn, not after its due time
        turns = {id_: due for due, id_ in self._turns}
        for id_, held in self._held.items():
            if turns.get(id_, held.due_ns + 1) > held.due_ns:
                yield f"lease {id_:x} has no turn at its due time"


def sooner(seconds: float | None, due_ns: int) -> float | None:
    """Return how long to wait: `seconds`, or until a lease is due (0: none)."""
    if not due_ns:
        return seconds
    until = max(0.0, (due_ns - uptime_ns()) / 1e9)
    until = min(until, WAIT_SECONDS_MAX)  # a lease may be longer than a thread can wait
    return until if seconds is None else min(seconds, until)
