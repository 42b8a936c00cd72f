"""Cutting what is read into parts, each for one task."""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import accumulate, pairwise

from snapkv.engine.contract import RangePiece, Replay
from snapkv.errors import CompactedError
from snapkv.layout import Mark
from snapkv.reading.reader import Reader
from snapkv.reading.spans import Span
from snapkv.spark.pinned import Commits, mark_at

PIECE_ROWS = 50_000
"""Keys of one bounded range; a task reads several, in order."""
TASK_ROWS = 25_000
"""Fewer changes than this are not worth a task of their own."""
TASK_COMMITS = 2_000
"""The same for commits of a remote engine, which cannot say how much they changed."""
SAMPLES = 64
"""Revisions whose changes are counted, to cut commits by rows."""
STRIDE = 27
"""Odd, so that steps of it reach each of the samples."""
SAMPLED_ROWS = 20_000
"""No further revisions are sampled after so many changes."""


def cut_keys(
    reader: Reader, span: Span, revision: int, tasks: int, rows: int | None = None
) -> list[list[RangePiece]]:
    """Return bounded pieces of a range, in order, grouped into tasks of about equally many keys.

    Pieces have about `rows` keys (None: `PIECE_ROWS`). They are bounded at both ends, because etcd
    counts all the rest of an open range.
    """
    pieces = reader.engine.pieces(span.start, span.end, revision=revision, rows=rows or PIECE_ROWS)
    total = sum(piece.rows for piece in pieces)
    tasks = min(tasks, len(pieces))
    groups: list[list[RangePiece]] = [[] for _ in range(tasks)]
    before = 0
    for piece in pieces:
        middle = before + piece.rows // 2
        groups[min(middle * tasks // max(total, 1), tasks - 1)].append(piece)
        before += piece.rows
    return [group for group in groups if group]


def cut_commits(
    reader: Reader, span: Span, commits: Commits, tasks: int, *, exactly: bool = False
) -> list[Commits]:
    """Return a range of commits in parts of about as many changes, in order; none if it is empty.

    There are `tasks` parts if there are so many commits, unless that makes parts of few changes, or
    more than there are processors; `exactly` makes these, too. Counts the changes of a sample of
    revisions, or of all if they are few; a remote engine cannot count them fast, and its parts have
    equally many commits. A round trip for each cut, 6 on a remote engine.
    """
    low, high = commits.low, commits.high
    if high.revision <= low.revision:
        return []
    count = high.ordinal - low.ordinal
    if reader.engine.remote:
        parts = min(tasks, count if exactly else max(1, count // TASK_COMMITS))
        ordinals = [low.ordinal + count * n // parts for n in range(1, parts)]
        inner: list[Mark] = [reader.timeline.by_ordinal(ordinal) for ordinal in ordinals]
    else:
        inner = _even_marks(reader, span, commits, tasks, exactly)
    return [commits.between(a, b) for a, b in pairwise([low, *inner, high])]


def _even_marks(
    reader: Reader, span: Span, commits: Commits, tasks: int, exactly: bool
) -> list[Mark]:
    """Return the marks between parts of about as many changes; they ascend."""
    low, high = commits.low.revision, commits.high.revision
    low = max(
        low, reader.engine.compacted_revision() - 1
    )  # compaction left only what the state needs
    if tasks == 1 or low >= high:
        return []
    try:
        revisions, rows = _sample(reader, span, low, high)
    except CompactedError:  # just now; the task finds out whether changes are gone
        return []
    total = int(sum(rows))
    parts = tasks if exactly else min(tasks, os.cpu_count() or 1, max(1, total // TASK_ROWS))
    before = list(accumulate(rows, initial=0))
    inner: list[Mark] = []
    for n in range(1, parts):
        target = total * n / parts
        at = min(bisect_right(before, target), len(rows)) - 1
        start, end = revisions[at], revisions[at + 1]
        within = (target - before[at]) / rows[at] if rows[at] else 0.0
        mark = mark_at(reader, start + round((end - start) * within))
        last = inner[-1] if inner else commits.low
        if last.revision < mark.revision < high:
            inner.append(mark)
    return inner


def _sample(reader: Reader, span: Span, low: int, high: int) -> tuple[list[int], list[float]]:
    """Cut the revisions (low, high] evenly, and estimate the changes of each piece.

    Returns the ends of the pieces, `low` before them, and their rows.
    """
    count = min(SAMPLES, high - low)
    ends = [low + (high - low) * n // count for n in range(count + 1)]
    seen: dict[int, int] = {}
    for n in range(count):
        if sum(seen.values()) >= SAMPLED_ROWS:
            break
        at = n * STRIDE % count if count == SAMPLES else n  # not all of them from the beginning
        found = reader.engine.changes(
            Replay(span.start, span.end, ends[at + 1], ends[at + 1], keys_only=True)
        )
        seen[at] = sum(len(part.keys) for part in found)
    mean = sum(seen.values()) / len(seen)
    return ends, [seen.get(n, mean) * (ends[n + 1] - ends[n]) for n in range(count)]
