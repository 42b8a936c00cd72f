"""Documents by id, the last one first, although stores list forwards only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from cdcmeta.changes import layout
from cdcmeta.changes.layout import Row
from cdcmeta.changes.state import State
from snapkv import Snapshot

HELD_MAX = 1_000
"""Rows, and marks on the way to them, that are held at once."""


def rows_backwards(
    state: State, low: str | None, high: str | None, held_max: int = HELD_MAX
) -> Iterator[Row]:
    """Yield the rows of documents by id, from `high` down to `low`, without deleted ones.

    A count tells how many keys there are. Where they are more than are held at once, a pass over
    them all, without values, sets marks; then what is between two marks is read, the last first.
    Costs two passes, one of them of keys only, and another for each thousandfold of a million.
    """
    start = None if low is None else layout.winner_key(low)
    end = None if high is None else layout.winner_key(high) + b"\x00"
    count = state.snapshot.count(layout.WINNER_PREFIX, start=start, end=end)
    return _window(state.snapshot, start, end, count, held_max)


def _window(
    snapshot: Snapshot[bytes], start: bytes | None, end: bytes | None, count: int, held_max: int
) -> Iterator[Row]:
    """Yield what is in [start, end), where there are `count` keys."""
    if count <= held_max:
        found = layout.rows_of_winners(snapshot.items(layout.WINNER_PREFIX, start=start, end=end))
        rows = [row for row in found if row.not_deleted]
        while rows:
            yield rows.pop()
        return
    stride = max(held_max, -(-count // held_max))
    keys = snapshot.keys(layout.WINNER_PREFIX, start=start, end=end)
    marks = list(islice(keys, stride, None, stride))
    count -= stride * len(marks)
    while marks:
        mark = marks.pop()
        yield from _window(snapshot, mark, end, count, held_max)
        end, count = mark, stride
    yield from _window(snapshot, start, end, count, held_max)
