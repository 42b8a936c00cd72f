"""Changes between two moments: a bounded replay, commit by commit."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

from snapkv.engine.bulk_reads import KeptWatch, replayed
from snapkv.engine.contract import Engine, KeyEvent, Range
from snapkv.errors import CompactedError, StoreRestoredError
from snapkv.layout import Mark, StampRecord
from snapkv.reading.reader import Reader
from snapkv.timeline.continuity import RESTORED
from snapkv.timeline.moment import compaction_error

PRIOR_READS_MAX = 128
"""The most values before a change that are read in one round trip."""


class Touched(NamedTuple):
    """What a commit did to one stored key: its first and its last event there.

    They are two only where other programs wrote to a store's own keys between two commits.
    """

    first: KeyEvent
    last: KeyEvent

    @property
    def existed(self) -> bool:
        """Whether the key existed before the commit."""
        return self.first.is_delete or self.first.kv.version > 1

    @property
    def exists(self) -> bool:
        """Whether the key exists after it."""
        return not self.last.is_delete


class CommitChanges(NamedTuple):
    """A commit with what it did to keys of a range, in key order; a tick did nothing.

    An observed write by another program has no stamp; `mark` is the one that stamps it, at the
    write's own revision.
    """

    mark: Mark
    stamp: StampRecord | None
    touched: list[Touched]


def changed(
    reader: Reader,
    start: bytes,
    end: bytes,
    low: Mark,
    high: Mark,
    kept_watch: KeptWatch | None = None,
) -> Iterator[CommitChanges]:
    """Yield the commits in (low, high] with what they did to the range [start, end).

    A write without a timestamp carries the timestamp of the first mark at or after it. In a store
    it is part of that commit, and a key that was created and removed within one commit is left
    out; an observed write is yielded by itself, before the mark. Observed bounds may be between
    two marks. Costs two watches, of the time line and of the range; `kept_watch` is one of the
    range, from `low` on. Raises `CompactedError` if changes in between were compacted, and at the
    end `StoreRestoredError` if they were not of one history.
    """
    if low.revision >= high.revision:
        return
    try:
        first = first_after(reader, low)
        events = events_of(reader.engine, start, end, first, high.revision, kept_watch)
        reached, last = yield from _joined(reader, events, low, high)
    except CompactedError as e:
        raise compaction_error(reader.policy, low.timestamp) from e
    if reader.policy.at_head:
        last = high
    elif reader.engine.remote and reached.ordinal != high.ordinal:
        raise StoreRestoredError(RESTORED)
    check_unbroken(reader, last)


def check_unbroken(reader: Reader, high: Mark) -> None:
    """Raise `StoreRestoredError` if a replay up to a mark was of another history.

    A watch does not notice that its server was exchanged. One round trip on a remote engine; other
    engines cannot be exchanged.
    """
    if reader.engine.remote:
        reader.timeline.verify(high)


def _joined(
    reader: Reader, events: Iterator[KeyEvent], low: Mark, high: Mark
) -> Generator[CommitChanges, None, tuple[Mark, Mark]]:
    """Yield the commits; return the last mark up to `high`, and the last one that stamped any."""
    by_revision = groupby(events, lambda each: each.kv.mod_revision)
    group, mark, reached = next(by_revision, None), low, low
    for mark, stamp in _marks(reader, low, high):
        own: list[KeyEvent] = []
        while group is not None and group[0] <= mark.revision:
            if group[0] == mark.revision or reader.policy.at_head:
                own += group[1]
            else:
                yield CommitChanges(mark._replace(revision=group[0]), None, touched_by(group[1]))
            group = next(by_revision, None)
        if mark.revision <= high.revision:
            reached = mark
            yield CommitChanges(mark, stamp, touched_by(own))
    return reached, mark


def _marks(reader: Reader, low: Mark, high: Mark) -> Iterator[tuple[Mark, StampRecord | None]]:
    """Yield the marks in (low, high], and the one after an observed bound between two marks."""
    last = low
    for mark, stamp in reader.timeline.replay(low, high):
        yield mark, stamp
        last = mark
    if last.revision < high.revision and not reader.policy.at_head:
        following = reader.timeline.following(high)
        if following is not None:
            yield following, None


def touched_by(events: Iterable[KeyEvent]) -> list[Touched]:
    """Return what events did together to each key, in key order."""
    touched: dict[bytes, Touched] = {}
    for event in events:
        seen = touched.get(event.kv.key)
        touched[event.kv.key] = Touched(seen.first if seen else event, event)
    done = [touched[key] for key in sorted(touched)]
    return [each for each in done if each.existed or each.exists]


def events_of(
    engine: Engine,
    start: bytes,
    end: bytes,
    first: int,
    until: int,
    kept_watch: KeptWatch | None = None,
) -> Iterator[KeyEvent]:
    """Yield what happened to the range [start, end) between two revisions; one watch."""
    batches = replayed(engine, start, end, first, until, kept_watch)
    return chain.from_iterable(batch.events for batch in batches)


def first_after(reader: Reader, mark: Mark) -> int:
    """Return the revision from which a replay misses no change after a mark.

    Observed keys may be older than the creation of the time line, which stamps none. Raises
    `CompactedError` if changes after the mark are gone.
    """
    if reader.policy.at_head or mark != reader.timeline.tracker.creation:
        return reader.policy.moment(mark).next_revision()
    if reader.engine.compacted_revision() > 1:
        raise compaction_error(reader.policy, mark.timestamp)
    return 1


def values_before(reader: Reader, touched: Sequence[Touched], low: Mark) -> list[bytes | None]:
    """Return the values of at most 128 keys just before they were changed; one round trip.

    Raises `CompactedError`, as if `low` were asked for, if one was compacted.
    """
    asked = [(each.first.kv.key, each.first.kv.mod_revision - 1) for each in touched]
    return values_at(reader, asked, low.timestamp)


def values_at(
    reader: Reader, asked: Sequence[tuple[bytes, int]], timestamp: int
) -> list[bytes | None]:
    """Return values of keys at revisions. Raises `CompactedError` for the timestamp."""
    ranges = [Range(key, revision=revision) for key, revision in asked]
    try:
        results = reader.timeline.tracker.read(ranges).results if ranges else ()
    except CompactedError as e:
        raise compaction_error(reader.policy, timestamp) from e
    return [result.kvs[0].value if result.kvs else None for result in results]
