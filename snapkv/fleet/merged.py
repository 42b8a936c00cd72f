"""Histories and commits of several members in one order: of times, then of members' names."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from snapkv.errors import NotObservedError, SnapKVError
from snapkv.fleet.connection import Connection, Reads
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

    def read(reads: Reads) -> Iterator[Version]:
        return reads.history(key, since=since, until=until)

    able = (each for each in connections if each.member.may_have_key(key))
    parts = [_named(each, read, MemberVersion) for each in able]
    return heapq.merge(*parts, key=lambda each: (each.version.ts or 0, each.member))


def commits(
    connections: Iterable[Connection], since: int | None, until: int
) -> Iterator[MemberCommit]:
    """Yield the commits and ticks in (since, until], see `Fleet.commits`."""

    def read(reads: Reads) -> Iterator[Commit]:
        return _history.commits(reads.reader, since, until, None, newest_first=False)

    parts = [_named(each, read, MemberCommit) for each in connections]
    return heapq.merge(*parts, key=lambda each: (each.commit.ts, each.member))


def _named(
    connection: Connection,
    read: Callable[[Reads], Iterator[Step]],
    found: Callable[[str, Step], Found],
) -> Iterator[Found]:
    """Yield what one member has; errors name it. What came before its first commit is nothing."""
    try:
        steps = connection.ask_or_archive(read)
        for step in steps:
            yield found(connection.name, step)
    except NotObservedError as e:
        if e.first is None:
            raise named(e, connection.name)  # noqa: B904
    except SnapKVError as e:
        raise named(e, connection.name)  # noqa: B904
