"""Histories and commits of several members in one order: of times, then of members' names.

Of a member only what it did while it belonged to the fleet, as moments and watches show it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from snapkv.errors import CompactedError, NotObservedError, SnapKVError
from snapkv.fleet.connection import Connection, begun
from snapkv.fleet.link import Reads
from snapkv.fleet.member import named
from snapkv.model import Commit, Version
from snapkv.reading import history as _history

Found = TypeVar("Found")
Step = TypeVar("Step")


class MemberVersion(NamedTuple):
    """A version of a key of a member."""

    member: str
    version: Version


class MemberCommit(NamedTuple):
    """A commit or a tick of a member."""

    member: str
    commit: Commit


def versions(
    connections: Iterable[Connection], key: str, since: int | None, until: int
) -> Iterator[MemberVersion]:
    """Yield the versions of a key in (since, until], see `Fleet.history`."""

    def read(reads: Reads, low: int | None, high: int) -> Iterator[Version]:
        return reads.history(key, since=low, until=high)

    able = (each for each in connections if each.member.may_have_key(key))
    parts = [steps_of(each, since, until, read, MemberVersion) for each in able]
    return heapq.merge(*parts, key=lambda each: (each.version.ts or 0, each.member))


def commits(
    connections: Iterable[Connection], since: int | None, until: int
) -> Iterator[MemberCommit]:
    """Yield the commits and ticks in (since, until], see `Fleet.commits`."""

    def read(reads: Reads, low: int | None, high: int) -> Iterator[Commit]:
        return _history.commits(reads.reader, low, high, None, newest_first=False)

    parts = [steps_of(each, since, until, read, MemberCommit) for each in connections]
    return heapq.merge(*parts, key=lambda each: (each.commit.ts, each.member))


def steps_of(
    connection: Connection,
    since: int | None,
    until: int,
    read: Callable[[Reads, int | None, int], Iterator[Step]],
    found: Callable[[str, Step], Found],
    *,
    newest_first: bool = False,
) -> Iterator[Found]:
    """Yield what one member has; errors name it. What came before its first commit is nothing."""
    member = connection.member
    low = max(since or 0, member.joined - 1) if member.joined else since
    high = min(until, member.left)
    if low is not None and low >= high:
        return
    try:
        try:
            steps = begun(connection.steps(read, low, high, newest_first=newest_first))
        except CompactedError:
            if since is not None or low is None:
                raise
            # what is left begins after the member joined
            steps = connection.steps(read, None, high, newest_first=newest_first)
        for step in steps:
            yield found(connection.name, step)
    except NotObservedError as e:
        if e.first is None:
            raise named(e, connection.name)  # noqa: B904
    except SnapKVError as e:
        raise named(e, connection.name)  # noqa: B904
