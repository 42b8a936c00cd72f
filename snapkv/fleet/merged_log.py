"""The logs of several members in one order: commits with what they changed, and foreign writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from snapkv.errors import CompactedError
from snapkv.fleet.late_members import Span
from snapkv.fleet.members import Members
from snapkv.fleet.merged import in_order
from snapkv.fleet.open_member import begun
from snapkv.model import Commit, Difference
from snapkv.reading.log import Logged, differences_of
from snapkv.reading.log import log as log_of
from snapkv.store.observe import Keys


class MemberLogged(NamedTuple):
    """A commit of a member's log; `reads` is the member, which knows what it changed."""

    member: str
    reads: Keys
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
    span: Span,
    *,
    newest_first: bool = True,
    **wanted: Any,
) -> Iterator[MemberLogged]:
    """Yield the commits of a span, and of observed members the writes of other programs.

    `wanted` are further arguments of `snapkv.reading.log.log`, and each member costs as that.
    """

    def read(reads: Keys, low: int | None, high: int) -> Iterator[tuple[Keys, Logged]]:
        found = log_of(reads, low, high, newest_first=newest_first, **wanted)
        return ((reads, each) for each in found)

    found = in_order(
        members,
        span.ends,
        span.since,
        read,
        lambda each: each[1].commit.ts,
        newest_first=newest_first,
    )
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
