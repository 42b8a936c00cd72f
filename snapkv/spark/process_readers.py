"""The readers that a process of Spark keeps open, verified against the commits of a plan."""

from __future__ import annotations

from collections import OrderedDict

from snapkv.engine.contract import Range, RangeResult
from snapkv.errors import CompactedError, FutureRevisionError
from snapkv.layout import Mark
from snapkv.reading.reader import Reader
from snapkv.spark import errors
from snapkv.spark.errors import SourceError, as_source_errors
from snapkv.store.location import Location
from snapkv.store.open import Keys, open_to_read

RESTORED = (
    "the store is not the one that this was planned with: it was restored, or removed and "
    f"recreated; {errors.ANEW}"
)
KEPT_MAX = 8
"""The most engines that one process keeps open."""

_kept: OrderedDict[Location, Keys] = OrderedDict()


def own_reader(location: Location) -> Reader:
    """Return this process's own reader of a location, kept for later tasks.

    An embedded engine does not notice that its files were replaced, so the location is opened
    again. While the directory still has the open files, that only looks at the directory.
    """
    kept = _kept.get(location)
    if kept is None or not kept.reader.engine.remote:
        found = open_to_read(location)
        forget(location)
        while len(_kept) >= KEPT_MAX:
            _kept.popitem(last=False)[1].close()
        _kept[location] = found
    _kept.move_to_end(location)
    return _kept[location].reader


def forget(location: Location) -> None:
    """Close this process's reader of a location: another store may have taken its place."""
    found = _kept.pop(location, None)
    if found is not None:
        found.close()


def verified_reader(location: Location, store: bytes, mark: Mark) -> Reader:
    """Return this process's reader of a location, after checking that a pinned commit exists.

    One round trip, two if the engine is opened again. Raises `SourceError`.
    """
    for _ in range(2):
        with as_source_errors():
            reader = own_reader(location)
        try:
            with as_source_errors():
                if holds(reader, store, mark):
                    return reader
        except SourceError as e:
            if e.code != errors.STORE_MISMATCH:
                raise
        forget(location)  # the path may lead to another store by now
    raise errors.STORE_MISMATCH(RESTORED)


def holds(reader: Reader, store: bytes, mark: Mark) -> bool:
    """Return whether a store is the one in which a mark was seen; one round trip.

    0 to 6 more if its revision was compacted. For a mark that is no longer on record it returns
    True: the read that follows finds out.
    """
    if reader.format.store_id != store:
        return False
    timeline = reader.timeline
    try:  # the head: does the store exist? the revision: is it the same store?
        _, results = timeline.tracker.head_and(
            [Range(timeline.tracker.key, revision=mark.revision)]
        )
        found = mark_in(reader, results[0])
    except FutureRevisionError:
        return False
    except CompactedError:
        try:
            found = timeline.by_ordinal(mark.ordinal)
        except CompactedError:
            return True
    return (found.timestamp, found.ordinal) == (mark.timestamp, mark.ordinal)


def mark_in(reader: Reader, found: RangeResult) -> Mark:
    """Return the mark that a read of the timestamp key found; without one, the creation."""
    tracker = reader.timeline.tracker
    return tracker.mark_in(found.kvs[0]) if found.kvs else tracker.creation
