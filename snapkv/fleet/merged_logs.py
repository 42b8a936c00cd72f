"""Histories, commits and logs of several members in one order: of times, then of members' names.

Of a member only what it did while it belonged to the fleet, as moments and watches show it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from snapkv.errors import CompactedError, NotObservedError
from snapkv.fleet.member import naming
from snapkv.fleet.members import HistorySpan, Members
from snapkv.fleet.open_member import OpenMember, ReadSpan, begun
from snapkv.fleet.pin import Seen
from snapkv.model import Commit, Difference, Version
from snapkv.reading import history as _history
from snapkv.reading.log import Logged, differences_of
from snapkv.reading.log import log as log_of
from snapkv.store.open import Keys

Step = TypeVar("Step")


class MemberVersion(NamedTuple):
    """A version of a key of a member."""

    member: str
    version: Version


class MemberCommit(NamedTuple):
    """A commit or a tick of a member."""

    member: str
    commit: Commit


class MemberSteps(Iterator[Step]):
    """An iterator of what members did up to the timestamp `until`, in one order.

    `late` are the members that have no final state at that time, or of which nothing is known, by
    name: `behind="stale"` yields what is known of them, "leave out" nothing.
    """

    def __init__(self, found: Iterator[Step], span: HistorySpan) -> None:
        self._found, self.until = found, span.until
        self.late: Mapping[str, Seen] = MappingProxyType(span.late)

    def __next__(self) -> Step:
        return next(self._found)


def versions(members: Members, span: HistorySpan, key: str) -> MemberSteps[MemberVersion]:
    """Return the versions of a key, see `Fleet.history`."""

    def read(reads: Keys, low: int | None, high: int) -> Iterator[Version]:
        return reads.history(key, since=low, until=high)

    of = members.by_name
    able = {name: end for name, end in span.ends.items() if of[name].member.may_have_key(key)}
    wanted = span._replace(ends=able)
    found = in_order(members, wanted, read, lambda version: version.ts or 0)
    return MemberSteps((MemberVersion(*each) for each in found), span)


def commits(members: Members, span: HistorySpan) -> MemberSteps[MemberCommit]:
    """Return the commits and ticks, see `Fleet.commits`."""

    def read(reads: Keys, low: int | None, high: int) -> Iterator[Commit]:
        return _history.commits(reads.reader, low, high, None, newest_first=False)

    found = in_order(members, span, read, lambda commit: commit.ts)
    return MemberSteps((MemberCommit(*each) for each in found), span)


def in_order(
    members: Members,
    span: HistorySpan,
    read: ReadSpan[Step],
    ts_of: Callable[[Step], int],
    *,
    newest_first: bool = False,
) -> Iterator[tuple[str, Step]]:
    """Yield members' names with what a function reads of their times in a span.

    The first page of each member is read at once, in parallel if members wait for a network.
    """

    def steps(each: OpenMember) -> Iterator[tuple[str, Step]]:
        until = span.ends[each.name]
        found = begun(_steps_of(each, span.since, until, read, ts_of, newest_first))
        return ((each.name, step) for step in found)

    parts = members.each(list(span.ends), steps).values()
    yield from heapq.merge(
        *parts, key=lambda found: (ts_of(found[1]), found[0]), reverse=newest_first
    )


def _steps_of(
    connection: OpenMember,
    since: int | None,
    until: int,
    read: ReadSpan[Step],
    ts_of: Callable[[Step], int],
    newest_first: bool,
) -> Iterator[Step]:
    """Yield what one member has; errors name it. What came before its first commit is nothing."""
    member = connection.member
    low = max(since or 0, member.joined - 1) if member.joined else since
    high = min(until, member.left)
    if low is not None and low >= high:
        return
    try:
        with naming(member.name):
            try:
                steps = begun(connection.steps(read, low, high, ts_of, newest_first=newest_first))
            except CompactedError:
                if since is not None or low is None:
                    raise
                # what is left begins after the member joined
                steps = connection.steps(read, None, high, ts_of, newest_first=newest_first)
            yield from steps
    except NotObservedError as e:
        if e.first is None:
            raise


class MemberLogged(NamedTuple):
    """A commit of a member's log; `reads` is the member, which knows what it changed."""

    member: str
    reads: Keys
    logged: Logged


def logs(
    members: Members, span: HistorySpan, *, newest_first: bool = True, **wanted: Any
) -> Iterator[MemberLogged]:
    """Yield the commits of a span, and of observed members the writes of other programs.

    `wanted` are further arguments of `snapkv.reading.log.log`, and each member costs as that.
    """

    def read(reads: Keys, low: int | None, high: int) -> Iterator[tuple[Keys, Logged]]:
        found = log_of(reads, low, high, newest_first=newest_first, **wanted)
        return ((reads, each) for each in found)

    found = in_order(members, span, read, lambda each: each[1].commit.ts, newest_first=newest_first)
    return (MemberLogged(member, *each) for member, each in found)


def differences_in(members: Members, each: MemberLogged) -> Iterator[Difference[Any]]:
    """Return what a commit changed, as `differences_of`.

    What the engine compacts meanwhile comes from the archive. Raises `CompactedError` if that lacks
    it, too.
    """
    last: Any = None

    def read(reads: Keys) -> Iterator[Difference[Any]]:
        nonlocal last
        for found in differences_of(reads, each.logged):
            if last is None or found.key > last:
                last = found.key
                yield found

    def found() -> Iterator[Difference[Any]]:
        try:
            yield from read(each.reads)
        except CompactedError:
            kept = members.by_name[each.member].archive_or_none()
            if kept is None or kept is each.reads:
                raise
            yield from read(kept)

    return begun(found())
