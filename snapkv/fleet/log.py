"""The logs of several members in one order: commits with what they changed, and foreign writes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from snapkv.fleet.connection import Connection, begun
from snapkv.fleet.link import Reads
from snapkv.fleet.members import Members
from snapkv.fleet.merged import steps_of
from snapkv.model import Commit
from snapkv.reading.log import Logged
from snapkv.reading.log import log as log_of


class MemberLogged(NamedTuple):
    """A commit of a member's log; `reads` is the member, which knows what it changed."""

    member: str
    reads: Reads
    logged: Logged

    @property
    def commit(self) -> Commit:
        """The commit, or the write of another program."""
        return self.logged.commit

    @property
    def is_tick(self) -> bool:
        """Whether it changed no key and says nothing."""
        return self.logged.is_tick


def logs(
    members: Members,
    names: Iterable[str],
    since: int | None,
    until: int,
    *,
    newest_first: bool = True,
    **wanted: Any,
) -> Iterator[MemberLogged]:
    """Yield the commits in (since, until], and of observed members the writes of other programs.

    `wanted` are further arguments of `snapkv.reading.log.log`, and each member costs as that. The
    first page of each member is read at once; members that wait for a network are read in parallel.
    """

    def read(reads: Reads, low: int | None, high: int) -> Iterator[tuple[Reads, Logged]]:
        found = log_of(reads, low, high, newest_first=newest_first, **wanted)
        return ((reads, each) for each in found)

    def begun_log(each: Connection) -> Iterator[MemberLogged]:
        return begun(steps_of(each, since, until, read, _member_logged, newest_first=newest_first))

    parts = members.each(names, begun_log).values()
    return heapq.merge(*parts, key=lambda each: (each.commit.ts, each.member), reverse=newest_first)


def _member_logged(member: str, found: tuple[Reads, Logged]) -> MemberLogged:
    return MemberLogged(member, *found)
