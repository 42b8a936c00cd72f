"""The members of a fleet, asked all at once: those that wait for a network in threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from math import ceil
from typing import TypeVar, cast

from snapkv.arguments import check_int, wrong_type
from snapkv.clock import Clock
from snapkv.errors import (
    InvalidOptionError,
    MembersBehindError,
    NotObservedError,
    SnapKVError,
)
from snapkv.fleet.archived import reached_of
from snapkv.fleet.connection import AWAY, Connection, Pin
from snapkv.fleet.member import Member, named
from snapkv.lifecycle import Closing, renew_in_children
from snapkv.times import TIMESTAMP_MAX

Found = TypeVar("Found")
Policy = str | int

THREADS_MAX = 32


class Members:
    """The connections of a fleet by name, and up to which time they are final.

    Safe for threads and forks; has threads of its own while members wait for a network.
    """

    def __init__(self, members: Sequence[Member], timeout: float, clock: Clock) -> None:
        self._stores: dict[tuple[bytes, str | None], str] = {}
        self._lock = threading.Lock()
        self.by_name = {
            member.name: Connection(member, timeout, clock, self._check_distinct)
            for member in members
        }
        self.watches: weakref.WeakSet[Closing] = weakref.WeakSet()
        self.observed = sum(member.prefix is not None for member in members)
        self._pool: ThreadPoolExecutor | None = None
        renew_in_children(self)

    def after_fork(self) -> None:
        """Forget the threads, which are the parent's."""
        self._pool, self._lock = None, threading.Lock()

    def each(self, names: Iterable[str], ask: Callable[[Connection], Found]) -> dict[str, Found]:
        """Return what a function returns for each member; raises the first error by name."""
        asked = [self.by_name[name] for name in names]
        if sum(each.waits for each in asked) < 2:
            return {each.name: ask(each) for each in asked}
        pool = self._threads()
        futures = [pool.submit(copy_context().run, ask, each) for each in asked]
        return {each.name: future.result() for each, future in zip(asked, futures, strict=True)}

    def pins(self, names: Iterable[str], timestamp: int) -> dict[str, Pin]:
        """Return members at a moment; those whose revision is known cost no round trip."""
        by_name = self.by_name
        found = {name: by_name[name].quick(timestamp) for name in names}
        slow = [name for name, pin in found.items() if pin is None]
        if slow:
            found |= self.each(slow, lambda each: each.pin(timestamp))
        return cast(dict[str, Pin], found)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                most = min(THREADS_MAX, len(self.by_name))
                self._pool = ThreadPoolExecutor(most, thread_name_prefix="snapkv fleet")
            return self._pool

    def _check_distinct(self, opened: Connection) -> None:
        """Raise `InvalidOptionError` if another member is the same keys of the same store."""
        assert opened.store_id is not None
        with self._lock:
            other = self._stores.setdefault((opened.store_id, opened.member.prefix), opened.name)
        if other != opened.name:
            error = InvalidOptionError(
                f"it is the same store as the member {other!r}: leave one of the two out"
            )
            raise named(error, opened.name)

    def close(self) -> None:
        """Close what was opened, and end watches; may be repeated."""
        for watch in list(self.watches):
            watch.close()
        for each in self.by_name.values():
            each.close()
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    # --- finality ---

    def final_up_to(self, names: Sequence[str]) -> dict[str, int | SnapKVError]:
        """Return up to which timestamp each member is final, or the error if nothing is known.

        One round trip, or for archives one listing of each bucket. Raises `StoreRestoredError`.
        """
        asked = [self.by_name[name].member for name in names]
        found: dict[str, int | SnapKVError] = {}
        if archives := [member for member in asked if member.is_archive]:
            for name, newest in reached_of(archives).items():
                found[name] = self.by_name[name].reached(newest)
        found |= self.each([name for name in names if name not in found], _final_or_error)
        return found

    def resolved(self, of: Policy, names: Sequence[str]) -> int:
        """Return the newest timestamp at which members have a final state; see `Fleet.resolved`."""
        wanted = _wanted(of, len(names))
        found = self.final_up_to(names)
        known = [
            _effective(self.by_name[name].member, 0 if isinstance(each, SnapKVError) else each)
            for name, each in found.items()
        ]
        newest = sorted(known, reverse=True)[wanted - 1]
        if newest == 0:
            errors = {name: str(e) for name, e in found.items() if isinstance(e, SnapKVError)}
            raise MembersBehindError(0, errors, asked="no moment is known to be final")
        if newest == TIMESTAMP_MAX:
            raise InvalidOptionError("all these members have left the fleet: give a time")
        return newest


def _final_or_error(connection: Connection) -> int | SnapKVError:
    if not connection.member.has(TIMESTAMP_MAX):
        return 0  # it has left, so that later times do not wait for it
    try:
        return connection.resolved()
    except (*AWAY, NotObservedError) as e:
        return e


def _effective(member: Member, final: int) -> int:
    """Return up to which time a member keeps no moment back: it may not belong to the fleet."""
    if member.left < TIMESTAMP_MAX:
        return TIMESTAMP_MAX
    return max(final, member.joined - 1)


def _wanted(of: Policy, members: int) -> int:
    """Return how many members a policy wants.

    >>> _wanted("all", 7), _wanted("99%", 1_000), _wanted("50%", 3), _wanted(2, 7)
    (7, 990, 2, 2)
    """
    if of == "all":
        return members
    if isinstance(of, str):
        number = of.removesuffix("%")
        if of.endswith("%") and number.isascii() and number.isdigit() and 0 < int(number) <= 100:
            return ceil(members * int(number) / 100)
        raise InvalidOptionError(f'give "all", a percentage such as "99%", or a number, not {of!r}')
    if isinstance(of, bool) or not isinstance(of, int):
        raise wrong_type("of", 'a str such as "all" or "99%", or an int', of)
    return check_int("the number of members", of, 1, members)
