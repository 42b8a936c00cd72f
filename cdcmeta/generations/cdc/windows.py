"""Reading the log of a table between two moments: rows in the order of commits, so many at most."""

from __future__ import annotations

from collections.abc import Sequence

from cdcmeta.generations.cdc.rows import LogRow, row_of, span_of
from snapkv import Snapshot


def rows_between(
    snapshot: Snapshot[bytes], slots: Sequence[int], begin: int, end: int, rows_max: int
) -> tuple[list[LogRow], int]:
    """Return the rows of some slots in (begin, end], sorted, and the time up to which they are all.

    That is `end`, or where `rows_max` rows cut it off: behind a whole commit, so there may be more
    rows where one commit has more. One round trip for all slots; more where rows crowd in few of
    them. No more than some three times `rows_max` rows are held.

    Fewer than `rows_max` do not say that there are no more: only `end` does. Slots with more rows
    than were read cut the time off, and from half of `rows_max` on it is not read any further;
    there is one row at least then.
    """
    limit = 2 * rows_max // len(slots) + 1
    rows: list[LogRow] = []
    more = {slot: span_of(slot, begin, end) for slot in slots}
    newest: dict[int, int] = {}  # of those slots that have more, the newest row's time
    wanted = list(slots)
    while True:
        answers = snapshot.items_of([more[slot] for slot in wanted], limit=limit)
        for slot, items in zip(wanted, answers, strict=True):
            rows += [row_of(*item) for item in items]
            newest.pop(slot, None)
            if len(items) == limit:
                more[slot] = (items[-1][0] + b"\0", more[slot][1])
                newest[slot] = rows[-1].timestamp
        complete = min(newest.values()) - 1 if newest else end
        found = sum(row.timestamp <= complete for row in rows)
        if not newest or found >= max(1, rows_max // 2):
            break
        wanted = [slot for slot, time in newest.items() if time == complete + 1]
    return cut(sorted(row for row in rows if row.timestamp <= complete), complete, rows_max)


def cut(rows: list[LogRow], end: int, rows_max: int) -> tuple[list[LogRow], int]:
    """Return the first rows, whole commits and one at least, and up to when they are all."""
    if len(rows) <= rows_max:
        return rows, end
    end = max(rows[rows_max].timestamp - 1, rows[0].timestamp)
    return [row for row in rows if row.timestamp <= end], end
