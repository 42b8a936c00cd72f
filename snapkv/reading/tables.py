"""Rows in bulk: snapshots, changes, histories and the commit log as columns of Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from snapkv.engine.arrow import BATCH_ROWS
from snapkv.layout import CREATION_ORDINAL, Keyspace, Mark, StampRecord, prefix_end
from snapkv.reading import arrow
from snapkv.reading.arrow import Arrays, Schema, Table
from snapkv.reading.changes import (
    PRIOR_READS_MAX,
    CommitChanges,
    Touched,
    changed,
    check_unbroken,
    values_before,
)
from snapkv.reading.commit_times import CommitTimes
from snapkv.reading.history import bounds
from snapkv.reading.reader import Reader
from snapkv.reading.sources import Source
from snapkv.times import When

TICK, FENCE, WRITE = "TICK", "FENCE", "WRITE"
INSERT, DELETE = "insert", "delete"
UPDATE_BEFORE, UPDATE_AFTER = "update_preimage", "update_postimage"

T = TypeVar("T")


class Span(NamedTuple):
    """A range [start, end) of stored keys of one kind, and how users write these keys."""

    space: Keyspace
    start: bytes
    end: bytes
    text: bool

    def schema(self, schema: Schema) -> Schema:
        """Return a schema with keys as this range has them."""
        return schema if self.text else arrow.keyed_by_bytes(schema)


def span_of(space: Keyspace, prefix: Any) -> Span:
    """Return the range of all keys with a prefix (None: all), which read as users write them."""
    return Span(space, *space.range_of(space.whole if prefix is None else prefix), space.text)


# --- a moment ---


def snapshot(
    source: Source, span: Span, times: CommitTimes | None = None, *, keys_only: bool = False
) -> Iterator[Arrays]:
    """Yield the columns of `arrow.SNAPSHOT` a page at a time, in key order.

    `mod_timestamp` is among them with `times`, NULL where a commit is no longer on record.
    With `keys_only` values are empty.
    """
    for part in source.columns(span.start, span.end, keys_only=keys_only):
        found = arrow.versions(part, span.space, text=span.text)
        if times is not None:
            found["mod_timestamp"] = arrow.times(times.of(part.modified.to_pylist()))
        yield found


# --- what changed ---


def changes(
    reader: Reader, span: Span, low: Mark, high: Mark, *, preimages: bool, deletes: bool = True
) -> Iterator[Arrays]:
    """Yield the columns of `arrow.CHANGES` for the commits in (low, high], in order.

    A removal has no value; with `preimages` it has the one that was removed, and an update has a
    row more, with the value before. `_change_ordinal` counts a commit's rows of this range.
    Raises `CompactedError`.
    """
    commits = changed(reader, span.start, span.end, low, high)
    rows = _change_rows(reader, commits, low, preimages)
    if not deletes:
        rows = (row for row in rows if row[2] != DELETE)
    for some in arrow.batches(rows):
        yield arrow.columns(some, span.schema(arrow.CHANGES), span.space)


def _change_rows(
    reader: Reader, commits: Iterable[CommitChanges], low: Mark, preimages: bool
) -> Iterator[tuple[Any, ...]]:
    flat = ((commit.mark, n, each) for commit in commits for n, each in enumerate(commit.touched))
    for some in chunks(flat, PRIOR_READS_MAX):
        existed = [each for *_, each in some if each.existed]
        befores = iter(values_before(reader, existed, low) if preimages else [None] * len(existed))
        for mark, n, each in some:
            before = next(befores) if each.existed else None
            yield from _rows_of(each, before, preimages, (mark.revision, n, mark.timestamp))


def _rows_of(
    each: Touched, before: bytes | None, preimages: bool, place: tuple[int, int, int]
) -> Iterator[tuple[Any, ...]]:
    key, value = each.last.kv.key, each.last.kv.value
    if not each.exists:
        yield key, before, DELETE, *place
    elif not each.existed:
        yield key, value, INSERT, *place
    else:
        if preimages:
            yield key, before, UPDATE_BEFORE, *place
        yield key, value, UPDATE_AFTER, *place


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
        for page in reader.policy.moment(low).scan(span.start, span.end):
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

    With a range, operation and metrics are those of its changes, which costs a replay of the range;
    without, they are NULL, as for `low` itself, which is last if `inclusive`. For an observed
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
    writer, note = (stamp.writer or None, stamp.note) if stamp else (None, None)
    return mark.revision, mark.timestamp, writer, operation, note, metrics


# --- ranges, chunks ---


def everything(reader: Reader) -> Span:
    """Return the range of all keys of a store, spaces included."""
    layout = reader.layout
    return Span(layout.data, layout.data.prefix, prefix_end(layout.spaces), True)


def chunks(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield rows in lists of at most a size."""
    rows = iter(rows)
    while some := list(islice(rows, size)):
        yield some


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
