"""What commits changed between two moments: a bounded replay, commit by commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from snapkv.engine.base import Event, Range
from snapkv.errors import CompactedError
from snapkv.reading import Reader
from snapkv.records import Mark, StampRecord
from snapkv.timeline.feed import replayed
from snapkv.timeline.ticks import CREATION_ORDINAL

PRIOR_READS_MAX = 128
"""Values before a change, read in one round trip."""


class Touched(NamedTuple):
    """What a commit did to one stored key: its first and its last event there.

    They are two only where other programs wrote between two marks.
    """

    first: Event
    last: Event

    @property
    def existed(self) -> bool:
        """Whether the key was there before the commit."""
        return self.first.is_delete or self.first.kv.version > 1

    @property
    def exists(self) -> bool:
        """Whether the key is there after it."""
        return not self.last.is_delete


class CommitChanges(NamedTuple):
    """A commit with what it did to keys of a range, in key order; a tick did nothing."""

    mark: Mark
    stamp: StampRecord
    touched: list[Touched]


def changed(
    reader: Reader, start: bytes, end: bytes, low: Mark, high: Mark
) -> Iterator[CommitChanges]:
    """Yield the commits in (low, high] with what they did to the range [start, end).

    A write that came without a timestamp belongs to the first mark at or after it. What was
    created and removed again within one commit is left out. Costs two watches, of the time line
    and of the range. Raises `CompactedError` when something in between is gone, and at the end
    `StoreRestoredError` when not all of it was of one history.
    """
    if low.ordinal >= high.ordinal:
        return
    try:
        yield from _joined(reader, start, end, low, high)
    except CompactedError as e:
        raise CompactedError(low.timestamp, reader.reads.showing.earliest()) from e
    check_unbroken(reader, high)


def check_unbroken(reader: Reader, high: Mark) -> None:
    """Raise `StoreRestoredError` when what was replayed up to a mark came of another history.

    A watch tells nothing of a server that was exchanged under it. One round trip, none where
    nobody can exchange the engine.
    """
    if reader.engine.remote:
        reader.timeline.verify(high)


def _joined(
    reader: Reader, start: bytes, end: bytes, low: Mark, high: Mark
) -> Iterator[CommitChanges]:
    events = _events(reader, start, end, low, high)
    event = next(events, None)
    for mark, stamp in reader.timeline.replay(low, high):
        touched: dict[bytes, Touched] = {}
        while event is not None and event.kv.mod_revision <= mark.revision:
            seen = touched.get(event.kv.key)
            touched[event.kv.key] = Touched(seen.first if seen else event, event)
            event = next(events, None)
        done = [touched[key] for key in sorted(touched)]
        yield CommitChanges(mark, stamp, [each for each in done if each.existed or each.exists])


def _events(reader: Reader, start: bytes, end: bytes, low: Mark, high: Mark) -> Iterator[Event]:
    first = first_after(reader, low)
    for batch in replayed(reader.engine, start, end, first, high.revision):
        yield from batch.events


def first_after(reader: Reader, mark: Mark) -> int:
    """Return the revision from which a replay misses no change after a mark.

    Keys that others write may be older than the creation of the time line, which saw none. Raises
    `CompactedError` when changes after the mark are gone.
    """
    if reader.reads.showing.at_head or mark.ordinal > CREATION_ORDINAL:
        return reader.reads.start_after(mark)
    if reader.engine.compacted_revision() > 1:
        raise CompactedError(mark.timestamp, reader.reads.showing.earliest())
    return 1


def values_before(reader: Reader, touched: Sequence[Touched], low: Mark) -> list[bytes | None]:
    """Return what stood in at most 128 keys just before they were touched; one round trip.

    Raises `CompactedError`, which tells that the changes after `low` are not all there any more.
    """
    if not touched:
        return []
    ranges = [Range(each.first.kv.key, revision=each.first.kv.mod_revision - 1) for each in touched]
    try:
        results = reader.timeline.ask(ranges).results
    except CompactedError as e:
        raise CompactedError(low.timestamp, reader.reads.showing.earliest()) from e
    return [result.kvs[0].value if result.kvs else None for result in results]
