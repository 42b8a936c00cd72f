"""Rows in bulk: snapshots, changes, histories and the commit log as columns of Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any

from snapkv.engine.contract import COLUMNS, SCAN
from snapkv.engine.version_columns import BATCH_ROWS
from snapkv.layout import CREATION_ORDINAL, Mark, StampRecord
from snapkv.reading import arrow
from snapkv.reading.arrow import Arrays, Table
from snapkv.reading.change_tables import changes as changes
from snapkv.reading.changes import changed, check_unbroken
from snapkv.reading.commit_times import CommitTimes
from snapkv.reading.history import bounds
from snapkv.reading.reader import Reader
from snapkv.reading.sources import Source
from snapkv.reading.spans import Span, chunks, everything
from snapkv.reading.spans import span_of as span_of
from snapkv.times import When

TICK, FENCE, WRITE = "TICK", "FENCE", "WRITE"

# --- a moment ---


def snapshot(
    source: Source, span: Span, times: CommitTimes | None = None, *, keys_only: bool = False
) -> Iterator[Arrays]:
    """Yield the columns of `arrow.SNAPSHOT` a page at a time, in key order.

    `mod_timestamp` is among them with `times`, NULL where a commit is no longer on record.
    With `keys_only` values are empty.
    """
    for part in source.pages(COLUMNS, span.start, span.end, keys_only=keys_only):
        found = arrow.versions(part, span.space, text=span.text)
        if times is not None:
            found["mod_timestamp"] = arrow.times(times.of(part.modified.to_pylist()))
        yield found


# --- histories ---


def history(reader: Reader, span: Span, low: Mark, high: Mark) -> Iterator[Arrays]:
    """Yield the columns of `arrow.HISTORY`: each version of each key in force in [low, high].

    A version holds from `_version_from` on and ends before `_version_to`, which is NULL for
    a version in force at `high`. Times are NULL for compacted commits. Holds one version of each
    key in memory. Raises `CompactedError`.
    """
    yield from _history_arrays(_history_rows(reader, span, low, high), span)


def _history_arrays(rows: Iterable[tuple[Any, ...]], span: Span) -> Iterator[Arrays]:
    for some in arrow.batches(rows):
        yield arrow.columns(some, span.schema(arrow.HISTORY), span.space)


def _history_rows(reader: Reader, span: Span, low: Mark, high: Mark) -> Iterator[tuple[Any, ...]]:
    if low.revision > high.revision:
        return
    stands: dict[bytes, tuple[bytes, int, int | None]] = {}  # value, since which version and time
    at_head = reader.policy.at_head
    if at_head or low != reader.timeline.tracker.creation:
        times = CommitTimes(reader, low)
        for page in reader.policy.moment(low).pages(SCAN, span.start, span.end):
            found = times.commits([kv.mod_revision for kv in page])
            for kv, by in zip(page, found, strict=True):
                version = by.revision if by and at_head else kv.mod_revision
                stands[kv.key] = kv.value, version, by and by.timestamp
    for mark, _, touched in changed(reader, span.start, span.end, low, high):
        for each in touched:
            key = each.last.kv.key
            if (ended := stands.pop(key, None)) is not None:
                value, version, since = ended
                yield key, value, version, mark.revision, since, mark.timestamp
            if each.exists:
                stands[key] = (each.last.kv.value, mark.revision, mark.timestamp)
    for key in sorted(stands):
        value, version, since = stands[key]
        yield key, value, version, None, since, None


# --- the log ---


def commits(
    reader: Reader, span: Span | None, low: Mark, high: Mark, *, inclusive: bool = False
) -> Iterator[Arrays]:
    """Yield the columns of `arrow.COMMITS` for the commits in (low, high], newest first.

    With a range, operation and metrics describe its changes, which costs a replay of the range;
    without, both are NULL, as for `low` itself, which is last if `inclusive`. For an observed
    prefix the range is needed: each foreign write is a row of its own, without a writer. Holds the
    whole log in memory, as columns. Raises `CompactedError`.
    """
    log = _counted(reader, span, low, high) if span else _logged(reader, low, high)
    if inclusive and low.ordinal > CREATION_ORDINAL:
        log = chain([_commit_row(low, reader.timeline.stamp(low))], log)
    batches = [arrow.columns(some[::-1], arrow.COMMITS, None) for some in chunks(log, BATCH_ROWS)]
    yield from reversed(batches)


def _logged(reader: Reader, low: Mark, high: Mark) -> Iterator[tuple[Any, ...]]:
    for mark, stamp in reader.timeline.replay(low, high):
        yield _commit_row(mark, stamp)
    check_unbroken(reader, high)


def _counted(reader: Reader, span: Span, low: Mark, high: Mark) -> Iterator[tuple[Any, ...]]:
    layout, at_head = reader.layout, reader.policy.at_head
    # between the two are leased keys, and stores whose names begin with that of this one
    own = (layout.data.prefix, layout.spaces) if at_head else (b"",)
    for mark, stamp, touched in changed(reader, span.start, span.end, low, high):
        touched = [each for each in touched if each.last.kv.key.startswith(own)]
        puts = sum(each.exists for each in touched)
        operation = WRITE if touched else TICK if stamp and stamp.fence_of is None else FENCE
        metrics = [("numPuts", str(puts)), ("numDeletes", str(len(touched) - puts))]
        yield _commit_row(mark, stamp, operation, metrics)


def _commit_row(
    mark: Mark, stamp: StampRecord | None, operation: str | None = None, metrics: object = None
) -> tuple[Any, ...]:
    if stamp is None:
        return mark.revision, mark.timestamp, None, operation, None, metrics, None
    writer, note, meta = stamp.writer or None, stamp.note, stamp.meta_json
    return mark.revision, mark.timestamp, writer, operation, note, metrics, meta


# --- whole tables, and their bounds ---


def changes_table(
    reader: Reader, span: Span, since: When | None, until: When | None, preimages: bool
) -> Table:
    """Return the changes in (since, until] as one table."""
    low, high = bounds(reader, since, until)
    batches = changes(reader, span, low, high, preimages=preimages)
    return arrow.table(batches, span.schema(arrow.CHANGES))


def history_table(reader: Reader, span: Span, since: When | None, until: When | None) -> Table:
    """Return the versions in force at some time in [since, until] as one table, in key order."""
    low, high = state_bounds(reader, since, until)
    rows = sorted(_history_rows(reader, span, low, high), key=itemgetter(0, 2))
    return arrow.table(_history_arrays(rows, span), span.schema(arrow.HISTORY))


def commits_table(reader: Reader, since: When | None, until: When | None) -> Table:
    """Return the commits in (since, until] as one table, newest first."""
    low, high = bounds(reader, since, until)
    batches = commits(reader, everything(reader), low, high, inclusive=since is None)
    return arrow.table(batches, arrow.COMMITS)


def state_bounds(reader: Reader, since: When | None, until: When | None) -> tuple[Mark, Mark]:
    """Return the marks of [since, until], of which the first can be read as a state, too.

    Without `since` that is the oldest state left. Raises `NotObservedError` if no tick exists up to
    `until`, and `CompactedError`.
    """
    policy = reader.policy
    if not policy.at_head:
        _ = policy.now() if until is None else policy.at(reader.resolve(until))
    return bounds(reader, since, until)
