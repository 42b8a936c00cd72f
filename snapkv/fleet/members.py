"""The members of a fleet, asked all at once: members that wait for a network in threads.

Also up to which time they are final (`newest_final`), what a policy shows of members that are not
(`allowed`), and the status of each (`status_of`).
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, cast

from snapkv.base.arguments import check_int, whole_number, wrong_type
from snapkv.base.clocks import Clock
from snapkv.base.lifecycle import Closing, renew_in_children
from snapkv.errors import (
    InvalidOptionError,
    MembersBehindError,
    NotObservedError,
    SnapKVError,
    StoreClosedError,
)
from snapkv.fleet.member import Member, named
from snapkv.fleet.member_link import AWAY, CLOSED, MemberLink
from snapkv.fleet.open_member import OpenMember
from snapkv.fleet.pin import LATE, Pin, Seen, State
from snapkv.times import TIMESTAMP_MAX, physical_ms

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
            member.name: OpenMember(member, timeout, clock, self._check_distinct)
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

    def each(self, names: Iterable[str], ask: Callable[[OpenMember], Found]) -> dict[str, Found]:
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
        """Return members at a moment; a member whose revision is known costs no round trip."""
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

    def _check_distinct(self, opened: MemberLink) -> None:
        """Raise `InvalidOptionError` if another member is the same keys of the same store."""
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
        groups: dict[str, list[OpenMember]] = {}
        if archives := [each for each in asked if each.member.is_archive]:
            from snapkv.fleet.archive_reach import listed_together  # it needs pyarrow

            groups = {group[0].name: group for group in listed_together(archives)}
        engines = [each.name for each in asked if not each.member.is_archive]

        def ask(each: OpenMember) -> dict[str, int | SnapKVError]:
            if (group := groups.get(each.name)) is not None:
                return _reached(group)
            try:
                return {each.name: each.resolved()}
            except (*AWAY, NotObservedError) as e:
                return {each.name: e}

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
            newest = newest_final([_final_span(each, found) for each in members], of)
            asked = [each.name for each in members if each.name not in found and each.has(newest)]
            if not asked:
                break
            found |= self.final_up_to(asked)
        if newest == 0:
            errors = {name: str(e) for name, e in found.items() if isinstance(e, SnapKVError)}
            raise MembersBehindError(0, errors, asked="no moment is known to be final")
        return newest


def _reached(group: Sequence[OpenMember]) -> dict[str, int | SnapKVError]:
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


def _final_span(member: Member, found: Mapping[str, int | SnapKVError]) -> FinalSpan:
    """Return what is known of a member; one that was not asked has left."""
    final = found.get(member.name, member.left)
    return FinalSpan(0 if isinstance(final, SnapKVError) else final, member.joined, member.left)


Policy = str | int


class FinalSpan(NamedTuple):
    """When a member belongs to the fleet, from `joined` to `left`, and up to when it is final."""

    final: int
    joined: int = 0
    left: int = TIMESTAMP_MAX


# For example, b has joined at 200 and has no tick yet, and c has left at 150:
#
#     a is final up to 300, b up to 0, c up to 120
#
#     time          1 to 120   121 to 150   151 to 199   200 to 300   301 on
#     belong        a, c       a, c         a            a, b         a, b
#     final         a, c       a            a            a            -
#     "all"         yes        no           yes          no           no
#     1             yes        yes          yes          yes          no
#
# So "all" is 199, and 1 is 300. A run of times that are good ends where a member is no longer
# final, or before another one joins: these are the times to look at.
def newest_final(spans: Sequence[FinalSpan], of: Policy) -> int:
    """Return the newest time at which so many members are final; 0 if there is none.

    `of` is "all", a percentage of the members of the fleet then, or a number. O(n log n).

    >>> newest_final([FinalSpan(300), FinalSpan(0, joined=200), FinalSpan(120, left=150)], "all")
    199

    Raises `InvalidOptionError`, `InvalidTypeError` for an invalid policy.
    """
    check_policy(of, len(spans))
    if of == "all" and all(span.joined == 0 and span.left == TIMESTAMP_MAX for span in spans):
        return min(span.final for span in spans)
    able = [span for span in spans if min(span.final, span.left) >= span.joined]
    joins, joins_of_able = (sorted(span.joined for span in each) for each in (spans, able))
    ends = sorted(span.left for span in spans)
    ends_of_able = sorted(min(span.final, span.left) for span in able)
    for time in sorted({*ends_of_able, *(join - 1 for join in joins)}, reverse=True):
        belong = bisect_right(joins, time) - bisect_left(ends, time)
        final = bisect_right(joins_of_able, time) - bisect_left(ends_of_able, time)
        if final and final >= _wanted(of, belong):
            return max(time, 0)
    return 0


def check_policy(of: Policy, members: int) -> None:
    """Raise `InvalidOptionError`, `InvalidTypeError` for anything but a policy."""
    if isinstance(of, str):
        share = whole_number(of.removesuffix("%")) if of.endswith("%") else None
        if of != "all" and (share is None or not 0 < share <= 100):
            raise InvalidOptionError(
                f'give "all", a percentage such as "99%", or a number, not {of!r}'
            )
    elif isinstance(of, bool) or not isinstance(of, int):
        raise wrong_type("of", 'a str such as "all" or "99%", or an int', of)
    else:
        check_int("the number of members", of, 1, members)


def _wanted(of: Policy, members: int) -> int:
    """Return how many of some members have to be final.

    >>> _wanted("all", 7), _wanted("99%", 1_000), _wanted("50%", 3), _wanted(2, 7)
    (7, 990, 2, 2)
    """
    if isinstance(of, int):
        return of
    return members if of == "all" else ceil(members * int(of.removesuffix("%")) / 100)


Behind = Literal["error", "stale", "leave out"]
BEHIND = ("error", "stale", "leave out")


def check_behind(behind: object) -> None:
    """Raise `InvalidOptionError` for anything but a policy."""
    if behind not in BEHIND:
        listed = ", ".join(f'"{each}"' for each in BEHIND)
        raise InvalidOptionError(f"behind must be one of {listed}, not {behind!r}")


def allowed(timestamp: int, pins: dict[str, Pin], behind: Behind) -> dict[str, Pin]:
    """Return what a policy lets a moment show; raise `MembersBehindError` if it shows none."""
    late = {name: pin for name, pin in pins.items() if pin.state in LATE}
    if not late:
        return pins
    if behind == "error":
        raise MembersBehindError(timestamp, {name: pin.why for name, pin in late.items()})
    if behind == "leave out":
        pins = pins | {name: pin.left_out() for name, pin in late.items()}
    return pins


def in_ms(members: Members, timestamp: int, pins: dict[str, Pin]) -> tuple[int, dict[str, Pin]]:
    """Return a date, or the newest final time of its millisecond, if members are behind it.

    A date means the end of its millisecond. One that was copied from a display names a time
    in it up to which a member is final, and nothing later can be shown.
    """
    known = [pin.seen.newest for pin in pins.values() if pin.state == "behind"]
    newest = [each for each in known if physical_ms(each) == physical_ms(timestamp)]
    if newest:
        return min(newest), members.pins(list(pins), min(newest))
    return timestamp, pins


class HistorySpan(NamedTuple):
    """What a history of members is read of: the time in (since, until], for some of them less.

    `ends` has the members that are read, and where each one ends: at `until`, or as far as one
    that is behind is final. `late` has the members that are not final at `until`, and the members
    that had left by then and of which nothing is known.
    """

    since: int | None
    until: int
    ends: dict[str, int]
    late: dict[str, Seen]


def span_of(
    members: Members,
    names: Sequence[str],
    since: int | None,
    until: int | None,
    behind: Behind,
    *,
    is_date: bool = False,
) -> HistorySpan:
    """Return what a policy lets a history show, up to a time (None: the newest final one).

    A date ends as a moment of it does. One round trip to each member, and one more without a time;
    a second one to members that have left. Raises `MembersBehindError`.
    """
    if until is None:
        until = members.resolved("all", names, known_only=behind != "error")
    pins = members.pins(list(names), until)
    if is_date:
        until, pins = in_ms(members, until, pins)
    late = {name: pin for name, pin in pins.items() if pin.state in LATE}
    late |= _lost(members, since, until, pins)
    if late and behind == "error":
        raise MembersBehindError(until, {name: pin.why for name, pin in late.items()})
    ends = {name: until for name in pins if name not in late}
    if behind == "stale":
        ends |= {name: pin.seen.newest for name, pin in late.items() if pin.state == "behind"}
    else:
        late = {name: pin.left_out() for name, pin in late.items()}
    return HistorySpan(since, until, ends, {name: pin.seen for name, pin in late.items()})


def _lost(members: Members, since: int | None, until: int, pins: dict[str, Pin]) -> dict[str, Pin]:
    """Return the members that left the fleet in a span of time, and of which nothing is known."""
    left = {name: members.by_name[name].member.left for name in pins}
    gone = [
        name
        for name, pin in pins.items()
        if pin.state == "absent" and left[name] < until and (since is None or since < left[name])
    ]
    last = members.each(gone, lambda each: each.pin(left[each.name]))
    return {name: pin for name, pin in last.items() if pin.state == "missing"}


POLICIES = ("all", "99%")


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member now. `final` is the timestamp up to which it is, as far as known; 0 for unknown.

    `state` is as in `Seen`; "behind" is one that does not answer now, but did before. `error` says
    why a member does not answer.
    """

    member: Member
    state: State
    final: int
    error: str | None


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The members now, and the newest timestamps that are final on "all" and "99%" of them.

    None where that is not known.
    """

    members: list[MemberStatus]
    resolved: dict[str, int | None]


def status_of(members: Members, now: int) -> FleetStatus:
    """Return how all members are; `now` is the clock's timestamp. Costs as `Fleet.resolved`."""
    found = members.final_up_to(list(members.by_name))
    spans = [_final_span(each.member, found) for each in members.by_name.values()]
    resolved = {of: newest_final(spans, of) for of in POLICIES}
    return FleetStatus(
        [_status(each, found[name], now) for name, each in members.by_name.items()],
        {of: newest if 0 < newest < TIMESTAMP_MAX else None for of, newest in resolved.items()},
    )


def _status(connection: OpenMember, final: int | SnapKVError, now: int) -> MemberStatus:
    member, away = connection.member, connection.silence.noted
    if not member.has(now):
        return MemberStatus(member, "absent", 0, None)
    if isinstance(final, SnapKVError):
        return MemberStatus(member, "missing", 0, str(final))
    if away is not None:
        kept = member.archive is not None and connection.archive_or_none() is not None
        return MemberStatus(member, "archive" if kept else "behind", final, str(away))
    return MemberStatus(member, "archive" if member.is_archive else "live", final, None)
