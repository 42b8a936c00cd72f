"""Rows in bulk: snapshots, changes, histories and the commit log as columns of Arrow."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from snapkv.engine.contract import COLUMNS, SCAN
from snapkv.engine.version_columns import BATCH_ROWS
from snapkv.errors import CompactedError
from snapkv.layout import CREATION_ORDINAL, Mark, StampRecord
from snapkv.reading import arrow
from snapkv.reading.arrow import Arrays, KeyRange, Table, all_keys_of, chunks
from snapkv.reading.arrow import key_range_of as key_range_of
from snapkv.reading.change_replay import changed, check_unbroken
from snapkv.reading.change_tables import changes as changes
from snapkv.reading.history import bounds
from snapkv.reading.reader import Reader
from snapkv.reading.snapshot import StateReads
from snapkv.times import When

# --- the commits that wrote keys, as far as compaction has left them ---

LOOKUPS_MAX = 1_024
"""The most revisions that are looked up one by one; for more, the log is read once."""


class WritingCommit(NamedTuple):
    """The commit that wrote a key."""

    timestamp: int
    revision: int


class CommitTimes:
    """The commits of many keys; holds 16 bytes for each commit once it has read the log.

    A key belongs to the first mark at or after its revision. In a store that is the commit that
    wrote it, unless another program wrote it.
    """

    def __init__(self, reader: Reader, until: Mark) -> None:
        self._reader, self._until = reader, until
        self._found: dict[int, WritingCommit | None] = {}
        self._log: _Log | None = None

    def of(self, revisions: Sequence[int]) -> list[int | None]:
        """Return the timestamps of commits, None if a commit was compacted; costs as `commits`."""
        return [found and found.timestamp for found in self.commits(revisions)]

    def commits(self, revisions: Sequence[int]) -> list[WritingCommit | None]:
        """Return the commits themselves.

        Two round trips for 128 new revisions, one for each 128 more. Beyond 1,024 revisions, and
        always for observed keys, one replay of the log.
        """
        while True:
            try:
                if self._log is None and not self._look_up(set(revisions) - self._found.keys()):
                    self._log = _Log(self._reader, self._until)
                find = self._found.__getitem__ if self._log is None else self._log.first_at
                return [find(revision) for revision in revisions]
            except CompactedError:  # compaction went on; it only rises, and ends at the head
                continue

    def _look_up(self, revisions: set[int]) -> bool:
        """Find the commits at some revisions; return False if that needs the log."""
        if not revisions:
            return True
        timeline = self._reader.timeline
        few = len(revisions) + len(self._found) <= LOOKUPS_MAX
        if not few or not self._reader.policy.at_head:
            return False
        point = max(self._reader.engine.compacted_revision(), timeline.tracker.creation.revision)
        in_force = timeline.stamps(sorted({max(point, revision) for revision in revisions}))
        marks = [timeline.tracker.creation if found is None else found[0] for found in in_force]
        at = {mark.revision: WritingCommit(mark.timestamp, mark.revision) for mark in marks}
        for revision in revisions:
            if revision not in at and not (
                revision < point and revision < first_known(self._reader, marks[0])
            ):
                return False  # another program wrote it
        self._found |= {revision: at.get(revision) for revision in revisions}
        return True


class _Log:
    """The marks up to a mark, by their revisions."""

    def __init__(self, reader: Reader, until: Mark) -> None:
        oldest = reader.timeline.oldest()
        self._first_known = first_known(reader, oldest)
        self._revisions, self._timestamps = array("Q"), array("Q")
        if oldest.ordinal > CREATION_ORDINAL:
            self._add(oldest)
        last = oldest
        for last, _ in reader.timeline.replay(oldest, until):
            self._add(last)
        if last.revision < until.revision and (after := reader.timeline.following(last)):
            self._add(after)  # an observed moment may lie between two marks

    def _add(self, mark: Mark) -> None:
        self._revisions.append(mark.revision)
        self._timestamps.append(mark.timestamp)

    def first_at(self, revision: int) -> WritingCommit | None:
        """Return the first mark at or after a revision, None if that was compacted."""
        at = bisect_left(self._revisions, revision)
        if revision < self._first_known or at == len(self._revisions):
            return None
        return WritingCommit(self._timestamps[at], self._revisions[at])


def first_known(reader: Reader, oldest: Mark) -> int:
    """Return the first revision whose mark is known while `oldest` is the oldest one left.

    Older revisions may belong to marks before that one, unless there were none.
    """
    if oldest.ordinal > CREATION_ORDINAL + 1:
        return oldest.revision
    return reader.timeline.tracker.creation.revision + 1 if reader.policy.at_head else 0


TICK, FENCE, WRITE = "TICK", "FENCE", "WRITE"

# --- a moment ---


def snapshot(
    source: StateReads, keys: KeyRange, times: CommitTimes | None = None, *, keys_only: bool = False
) -> Iterator[Arrays]:
    """Yield the columns of `arrow.SNAPSHOT` a page at a time, in key order.

    `mod_timestamp` is among them with `times`, NULL where a commit is no longer on record.
    With `keys_only` values are empty.
    """
    for part in source.pages(COLUMNS, keys.start, keys.end, keys_only=keys_only):
        found = arrow.versions(part, keys.space, text=keys.text)
        if times is not None:
            found["mod_timestamp"] = arrow.times(times.of(part.modified.to_pylist()))
        yield found


# --- histories ---


def history(reader: Reader, keys: KeyRange, low: Mark, high: Mark) -> Iterator[Arrays]:
    """Yield the columns of `arrow.HISTORY`, as `KeyspaceReads.history_to_arrow` describes them.

    Holds one version of each key in memory. Raises `CompactedError`.
    """
    yield from _history_arrays(_history_rows(reader, keys, low, high), keys)


def _history_arrays(rows: Iterable[tuple[Any, ...]], keys: KeyRange) -> Iterator[Arrays]:
    for some in arrow.batches(rows):
        yield arrow.columns(some, keys.schema(arrow.HISTORY), keys.space)


def _history_rows(
    reader: Reader, keys: KeyRange, low: Mark, high: Mark
) -> Iterator[tuple[Any, ...]]:
    if low.revision > high.revision:
        return
    stands: dict[bytes, tuple[bytes, int, int | None]] = {}  # value, since which version and time
    at_head = reader.policy.at_head
    if at_head or low != reader.timeline.tracker.creation:
        times = CommitTimes(reader, low)
        for page in reader.policy.moment(low).pages(SCAN, keys.start, keys.end):
            found = times.commits([kv.mod_revision for kv in page])
            for kv, by in zip(page, found, strict=True):
                version = by.revision if by and at_head else kv.mod_revision
                stands[kv.key] = kv.value, version, by and by.timestamp
    for mark, _, touched in changed(reader, keys.start, keys.end, low, high):
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
    reader: Reader, keys: KeyRange | None, low: Mark, high: Mark, *, inclusive: bool = False
) -> Iterator[Arrays]:
    """Yield the columns of `arrow.COMMITS` for the commits in (low, high], newest first.

    With a range, operation and metrics describe its changes, which costs a replay of the range;
    without, both are NULL, as for `low` itself, which is last if `inclusive`. For an observed
    prefix the range is needed: each foreign write is a row of its own, without a writer. Holds the
    whole log in memory, as columns. Raises `CompactedError`.
    """
    log = _counted(reader, keys, low, high) if keys else _logged(reader, low, high)
    if inclusive and low.ordinal > CREATION_ORDINAL:
        log = chain([_commit_row(low, reader.timeline.stamp(low))], log)
    batches = [arrow.columns(some[::-1], arrow.COMMITS, None) for some in chunks(log, BATCH_ROWS)]
    yield from reversed(batches)


def _logged(reader: Reader, low: Mark, high: Mark) -> Iterator[tuple[Any, ...]]:
    for mark, stamp in reader.timeline.replay(low, high):
        yield _commit_row(mark, stamp)
    check_unbroken(reader, high)


def _counted(reader: Reader, keys: KeyRange, low: Mark, high: Mark) -> Iterator[tuple[Any, ...]]:
    layout, at_head = reader.layout, reader.policy.at_head
    # between the two are leased keys, and stores whose names begin with that of this one
    own = (layout.data.prefix, layout.spaces) if at_head else (b"",)
    for mark, stamp, touched in changed(reader, keys.start, keys.end, low, high):
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
    reader: Reader, keys: KeyRange, since: When | None, until: When | None, preimages: bool
) -> Table:
    """Return the changes in (since, until] as one table."""
    low, high = bounds(reader, since, until)
    batches = changes(reader, keys, low, high, preimages=preimages)
    return arrow.table(batches, keys.schema(arrow.CHANGES))


def history_table(reader: Reader, keys: KeyRange, since: When | None, until: When | None) -> Table:
    """Return the versions in force at some time in [since, until] as one table, in key order."""
    low, high = state_bounds(reader, since, until)
    rows = sorted(_history_rows(reader, keys, low, high), key=itemgetter(0, 2))
    return arrow.table(_history_arrays(rows, keys), keys.schema(arrow.HISTORY))


def commits_table(reader: Reader, since: When | None, until: When | None) -> Table:
    """Return the commits in (since, until] as one table, newest first."""
    low, high = bounds(reader, since, until)
    batches = commits(reader, all_keys_of(reader.layout), low, high, inclusive=since is None)
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
