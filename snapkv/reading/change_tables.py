"""Changes of commits as columns of Arrow, without a step for each row.

The engine gives the changes of some thousand rows at once, sorted by revision and key. The marks of
all commits are two arrays, in which the timestamps of those rows are looked up:

    changes     revision 7: a, b    8: a    10: c        marks   revision 7, 8, 10
    ordinal              0, 1       0       0            times   5 s, 6 s, 9 s

Where another program wrote between two commits of a store, its changes belong to the next commit,
and have to be merged with it. From there on `changed` does that, row by row.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from snapkv.engine.contract import ChangeColumns, Replay
from snapkv.errors import CompactedError, StoreRestoredError
from snapkv.layout import Mark
from snapkv.reading import arrow
from snapkv.reading.arrow import Arrays, KeyRange, chunks
from snapkv.reading.change_replay import (
    PRIOR_READS_MAX,
    CommitChanges,
    Touched,
    changed,
    check_unbroken,
    first_after,
    values_before,
)
from snapkv.reading.reader import Reader
from snapkv.timeline import READS_MAX
from snapkv.timeline.continuity import RESTORED
from snapkv.timeline.moment import compaction_error
from snapkv.timeline.timeline import Timeline
from snapkv.times import LOGICAL_BITS

# --- the marks of a range of commits, as numpy arrays ---


class CommitMarks(NamedTuple):
    """Consecutive marks, oldest first; 24 bytes for each."""

    timestamps: NDArray[np.uint64]
    revisions: NDArray[np.int64]
    ordinals: NDArray[np.int64]

    def mark(self, at: int) -> Mark:
        """Return one of them."""
        return Mark(int(self.timestamps[at]), int(self.revisions[at]), int(self.ordinals[at]))

    def following(self, mark: Mark) -> CommitMarks:
        """Return them with one more at the end."""
        one = (np.array([part], known.dtype) for part, known in zip(mark, self, strict=True))
        return CommitMarks(*(np.concatenate(pair) for pair in zip(self, one, strict=True)))

    def milliseconds(self) -> NDArray[np.int64]:
        """Return the milliseconds since 1970 of each."""
        return (self.timestamps >> np.uint64(LOGICAL_BITS)).astype(np.int64)


def marks_of(line: Timeline, after: Mark, until: Mark) -> CommitMarks:
    """Return the marks in (after, until]: all versions in between in one call, or each revision.

    The latter if they are close, as `replay` does. Raises `CompactedError`.
    """
    nothing = CommitMarks(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    if after.ordinal >= until.ordinal:
        return nothing
    if until.revision - after.revision <= READS_MAX:
        found = [mark for mark, _ in line.replay(after, until)]
        if not found:
            return nothing
        columns, kinds = zip(*found, strict=True), (np.uint64, np.int64, np.int64)
        return CommitMarks(
            *(np.array(each, kind) for each, kind in zip(columns, kinds, strict=True))
        )
    first = line.moment(after).next_revision()
    key = line.tracker.key
    try:
        parts = [
            (
                np.array([int.from_bytes(value[:8], "big") for value in part.values.to_pylist()]),
                part.revisions.to_numpy(),
                part.versions.to_numpy(),
            )
            for part in line.tracker.engine.changes(Replay(key, b"", first, until.revision))
        ]
    except CompactedError as e:
        raise compaction_error(line, after.timestamp) from e
    if not parts:
        return nothing
    times, revisions, ordinals = (np.concatenate(each) for each in zip(*parts, strict=True))
    return CommitMarks(times.astype(np.uint64), revisions, ordinals)


# --- the changes ---

INSERT, DELETE = "insert", "delete"
UPDATE_BEFORE, UPDATE_AFTER = "update_preimage", "update_postimage"
KINDS = (DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE)
"""The first three by version: 0, 1, and more."""


def changes(
    reader: Reader,
    keys: KeyRange,
    low: Mark,
    high: Mark,
    *,
    preimages: bool,
    deletes: bool = True,
    keys_only: bool = False,
) -> Iterator[Arrays]:
    """Yield the columns of `arrow.CHANGES` for the commits in (low, high], in order.

    As `KeyspaceReads.changes_to_arrow` describes them; with `keys_only` all values are NULL.
    """
    if low.revision >= high.revision:
        return
    try:
        known, first = _marks(reader, low, high), first_after(reader, low)
        before = preimages and not keys_only
        wanted = Replay(keys.start, keys.end, first, high.revision, keys_only, before)
        parts = reader.engine.changes(wanted)
        rest = yield from _in_bulk(reader, keys, low, known, parts, preimages, deletes)
    except CompactedError as e:
        raise compaction_error(reader.policy, low.timestamp) from e
    if rest is not None:
        yield from _by_rows(reader, keys, rest, high, preimages, deletes)


# --- in bulk ---


def _in_bulk(
    reader: Reader,
    keys: KeyRange,
    done: Mark,
    known: CommitMarks,
    parts: Iterator[ChangeColumns],
    preimages: bool,
    deletes: bool,
) -> Generator[Arrays, None, Mark | None]:
    """Yield columns; return after which commit rows need to be merged, None if all were yielded."""
    for part in parts:
        revisions = part.revisions.to_numpy()
        at = known.revisions.searchsorted(revisions)
        if reader.policy.at_head and (known.revisions[at] != revisions).any():
            return done
        times = pa.array(known.milliseconds()[at] * 1_000).cast(arrow.TIME)
        yield from columns_of(part, times, keys, preimages=preimages, deletes=deletes)
        done = known.mark(at[-1])
    check_unbroken(reader, known.mark(-1))
    return None


def _marks(reader: Reader, low: Mark, high: Mark) -> CommitMarks:
    """Return the marks in (low, high], and the one after an observed bound between two marks."""
    known = marks_of(reader.timeline, low, high)
    last = known.mark(-1) if len(known.revisions) else low
    if reader.engine.remote and last.ordinal != high.ordinal:
        raise StoreRestoredError(RESTORED)
    if reader.policy.at_head:
        return known
    following = reader.timeline.following(high) if last.revision < high.revision else None
    return known if following is None else known.following(following)


def columns_of(
    found: ChangeColumns, times: pa.Array, keys: KeyRange, *, preimages: bool, deletes: bool
) -> Iterator[Arrays]:
    """Yield changes of whole revisions as columns of `arrow.CHANGES`, a batch at a time."""
    versions, revisions = found.versions.to_numpy(), found.revisions.to_numpy()
    rows = np.arange(len(versions))
    kinds = np.minimum(versions, 2)
    values = found.values
    if found.befores is not None:
        values = pc.if_else(pa.array(kinds == 0), found.befores, values)
    ordinals = (rows - revisions.searchsorted(revisions)).astype(np.int32)
    if preimages:  # an update becomes two rows, the value before first
        rows = np.repeat(rows, np.where(kinds == 2, 2, 1))
        first: NDArray[np.bool_] = np.append(rows[1:] == rows[:-1], False)
        kinds, ordinals = np.where(first, 3, kinds[rows]), ordinals[rows]
        values = values.take(pa.array(rows))
        if found.befores is not None:
            values = pc.if_else(pa.array(first), found.befores.take(pa.array(rows)), values)
        found, times = found._replace(keys=found.keys.take(rows)), times.take(rows)
        revisions = revisions[rows]
    whole = pa.table(
        {
            "key": found.keys,
            "value": values,
            "_change_type": pa.array(KINDS).take(pa.array(kinds)),
            "_commit_version": revisions,
            "_change_ordinal": ordinals,
            "_commit_timestamp": times,
        }
    )
    if not deletes:
        whole = whole.filter(pa.array(kinds != 0))
    for at, count in _slices(whole):
        part = {name: _one(whole[name].slice(at, count)) for name in whole.column_names}
        yield part | {"key": arrow.keys(part["key"], keys.space, text=keys.text)}


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _slices(whole: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield where the batches of a table begin, and how many rows they have."""
    each = min(arrow.BATCH_ROWS, max(1, arrow.BATCH_BYTES * whole.num_rows // max(1, whole.nbytes)))
    for at in range(0, whole.num_rows, each):
        yield at, min(each, whole.num_rows - at)


# --- row by row ---


def _by_rows(
    reader: Reader, keys: KeyRange, low: Mark, high: Mark, preimages: bool, deletes: bool
) -> Iterator[Arrays]:
    commits = changed(reader, keys.start, keys.end, low, high)
    rows = _change_rows(reader, commits, low, preimages)
    if not deletes:
        rows = (row for row in rows if row[2] != DELETE)
    for some in arrow.batches(rows):
        yield arrow.columns(some, keys.schema(arrow.CHANGES), keys.space)


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
