"""The newest time at which enough of the members that belong to the fleet then are final."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from snapkv.base.arguments import check_int, whole_number, wrong_type
from snapkv.errors import InvalidOptionError
from snapkv.times import TIMESTAMP_MAX

Policy = str | int


class Span(NamedTuple):
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
def newest_final(spans: Sequence[Span], of: Policy) -> int:
    """Return the newest time at which so many members are final; 0 if there is none.

    `of` is "all", a percentage of the members of the fleet then, or a number. O(n log n).

    >>> newest_final([Span(300), Span(0, joined=200), Span(120, left=150)], "all")
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
