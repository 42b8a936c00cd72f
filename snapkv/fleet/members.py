"""The members of a fleet, asked all at once: members that wait for a network in threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar, cast

from snapkv.base.lifecycle import Closing, renew_in_children
from snapkv.clock import Clock
from snapkv.errors import (
    InvalidOptionError,
    MembersBehindError,
    NotObservedError,
    SnapKVError,
    StoreClosedError,
)
from snapkv.fleet.finality import Policy, Span, check_policy, newest_final
from snapkv.fleet.link import AWAY, CLOSED, Link
from snapkv.fleet.member import Member, named
from snapkv.fleet.open_member import Connection
from snapkv.fleet.pin import Pin
from snapkv.times import TIMESTAMP_MAX

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Found = TypeVar("Found")

THREADS_MAX = 32


class Members:
    """The connections of a fleet by name, and up to which time they are final.

    Safe for threads and forks; has threads of its own while members wait for a network.
    """

    def __init__(self, members: Sequence[Member], timeout: float, clock: Clock) -> None:
        self._stores: dict[tuple[bytes, str | None], list[Member]] = {}
        self._lock, self._naming = threading.Lock(), threading.Lock()
        self.by_name = {
            member.name: Connection(member, timeout, clock, self._check_distinct)
            for member in members
        }
        self.watches: weakref.WeakSet[Closing] = weakref.WeakSet()
        self.observed = sum(member.prefix is not None for member in members)
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        renew_in_children(self)

    def after_fork(self) -> None:
        """Forget the threads, which are the parent's."""
        self._pool, self._lock, self._naming = None, threading.Lock(), threading.Lock()

    def each(self, names: Iterable[str], ask: Callable[[Connection], Found]) -> dict[str, Found]:
        """Return what a function returns for each member; raises the first error by name.

        Raises `StoreClosedError` if the fleet is closed meanwhile.
        """
        asked = [self.by_name[name] for name in names]
        if sum(each.waits for each in asked) < 2:
            return {each.name: ask(each) for each in asked}
        from concurrent.futures import CancelledError  # `import snapkv` does not need it

        with self._lock:
            self.check_open()
            pool = self._pool = self._pool or self._threads()
            futures = [pool.submit(copy_context().run, ask, each) for each in asked]
        try:
            return {each.name: future.result() for each, future in zip(asked, futures, strict=True)}
        except CancelledError as e:
            raise StoreClosedError(CLOSED) from e

    def pins(self, names: Iterable[str], timestamp: int) -> dict[str, Pin]:
        """Return members at a moment; those whose revision is known cost no round trip."""
        by_name = self.by_name
        found = {name: by_name[name].quick(timestamp) for name in names}
        slow = [name for name, pin in found.items() if pin is None]
        if slow:
            found |= self.each(slow, lambda each: each.pin(timestamp))
        return cast(dict[str, Pin], found)

    def _threads(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        most = min(THREADS_MAX, len(self.by_name))
        return ThreadPoolExecutor(most, thread_name_prefix="snapkv fleet")

    def _check_distinct(self, opened: Link) -> None:
        """Raise `InvalidOptionError` if another member is the same keys of the same store.

        A member that was renamed is two: the one left before the other one joined.
        """
        assert opened.store_id is not None
        member = opened.member
        with self._naming:  # members are opened in several threads
            same = self._stores.setdefault((opened.store_id, member.prefix), [])
            both = [other for other in same if other.overlaps(member)]
            if not both:
                same.append(member)
        if both and both != [member]:
            error = InvalidOptionError(
                f"it is the same store as the member {both[0].name!r}: leave one of the two out; "
                "if it was renamed, give left= to the old name and a later joined= to the new one"
            )
            raise named(error, opened.name)

    def check_open(self) -> None:
        """Raise `StoreClosedError` after `close`."""
        if self._closed:
            raise StoreClosedError(CLOSED)

    def close(self) -> None:
        """Close what was opened, and end watches; may be repeated."""
        with self._lock:
            self._closed, pool, self._pool = True, self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        for watch in list(self.watches):
            watch.close()
        for each in self.by_name.values():
            each.close()

    # --- finality ---

    def final_up_to(self, names: Sequence[str]) -> dict[str, int | SnapKVError]:
        """Return up to which timestamp each member is final, or the error if nothing is known.

        One round trip, or for archives one listing of each bucket. Raises `StoreRestoredError`.
        """
        asked = [self.by_name[name] for name in names]
        groups: dict[str, list[Connection]] = {}
        if archives := [each for each in asked if each.member.is_archive]:
            from snapkv.fleet.archive_reach import listed_together  # it needs pyarrow

            groups = {group[0].name: group for group in listed_together(archives)}
        engines = [each.name for each in asked if not each.member.is_archive]

        def ask(each: Connection) -> dict[str, int | SnapKVError]:
            group = groups.get(each.name)
            return {each.name: _final_or_error(each)} if group is None else _reached(group)

        found: dict[str, int | SnapKVError] = {}
        for part in self.each([*groups, *engines], ask).values():
            found |= part
        return found

    def resolved(self, of: Policy, names: Sequence[str], *, known_only: bool = False) -> int:
        """Return the newest timestamp at which members have a final state; see `Fleet.resolved`.

        Members that have left are asked only if the rest are not final after that time. With
        `known_only`, members of which nothing is known do not count.
        """
        check_policy(of, len(names))
        members = [self.by_name[name].member for name in names]
        found = self.final_up_to([each.name for each in members if each.has(TIMESTAMP_MAX)])
        if known_only:
            known = [m for m in members if not isinstance(found.get(m.name), SnapKVError)]
            members = known or members
        while True:
            newest = newest_final([_span(each, found) for each in members], of)
            asked = [each.name for each in members if each.name not in found and each.has(newest)]
            if not asked:
                break
            found |= self.final_up_to(asked)
        if newest == 0:
            errors = {name: str(e) for name, e in found.items() if isinstance(e, SnapKVError)}
            raise MembersBehindError(0, errors, asked="no moment is known to be final")
        return newest

    def newest(self, of: Policy, final: Mapping[str, int | SnapKVError]) -> int:
        """Return `resolved` from what `final_up_to` has found; 0 if that is unknown."""
        return newest_final([_span(self.by_name[name].member, final) for name in final], of)


def _final_or_error(connection: Connection) -> int | SnapKVError:
    try:
        return connection.resolved()
    except (*AWAY, NotObservedError) as e:
        return e


def _reached(group: Sequence[Connection]) -> dict[str, int | SnapKVError]:
    """Return up to which timestamp archives are final that one listing answers, or why not."""
    from snapkv.fleet.archive_reach import reached_of  # it needs pyarrow

    silent = {each.name: e for each in group if (e := each.listing_silence.error) is not None}
    asked = [each for each in group if each.name not in silent]
    listed = reached_of(asked) if asked else {}
    return {
        each.name: each.known or silent[each.name]
        if each.name in silent
        else each.reached(listed[each.name])
        for each in group
    }


def _span(member: Member, found: Mapping[str, int | SnapKVError]) -> Span:
    """Return what is known of a member; one that was not asked has left."""
    final = found.get(member.name, member.left)
    return Span(0 if isinstance(final, SnapKVError) else final, member.joined, member.left)
