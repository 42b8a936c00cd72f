"""Moments and ranges of commits, pinned on the driver and found again by every worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from snapkv.engine.contract import Range, RangeResult
from snapkv.errors import CompactedError, FutureRevisionError
from snapkv.layout import Mark
from snapkv.reading.changes import first_after
from snapkv.reading.history import bounds
from snapkv.reading.reader import Reader
from snapkv.reading.tables import standing_bounds
from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.location import Place, forget, opened
from snapkv.spark.options import Options
from snapkv.spark.options_text import Given
from snapkv.spark.timing import is_exact, timestamp_of
from snapkv.timeline import Moment
from snapkv.times import format_time

RESTORED = (
    "the store is not the one that this was planned with: it was restored, or removed and made "
    f"again; {codes.ANEW}"
)

BACKWARDS = "the range ends before it starts"


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits in (low, high] of one store; `reading` is the revision that shows `high`.

    A moment is the commits up to it.
    """

    store: bytes
    low: Mark
    high: Mark
    reading: int

    def moment(self, reader: Reader) -> Moment:
        """Return the moment of the last commit, for reading here."""
        epoch = reader.timeline.epoch
        return Moment(reader.policy, self.high.timestamp, self.high, True, epoch, self.reading)

    def held(self, reader: Reader) -> Commits:
        """Return the same, read where that still can be: compaction may have passed the commit.

        One round trip, or some more. Raises `CompactedError`.
        """
        moment = self.moment(reader)
        moment.hold()
        return replace(self, reading=moment.reading)

    def between(self, low: Mark, high: Mark) -> Commits:
        """Return those in a part of the range."""
        return Commits(self.store, low, high, high.revision)


@dataclass(frozen=True, slots=True)
class Anchor:
    """When a DataFrame was made: which store that was, its newest commit, and the clock.

    From there on every option names the same commits, however often Spark plans.
    """

    store: bytes
    head: Mark
    now_ms: int


def anchor_in(reader: Reader) -> Anchor:
    """Return what now is; one round trip."""
    head = reader.timeline.head()
    return Anchor(reader.format.store_id, head, reader.clock.now_ms())


def moment_of(reader: Reader, options: Given, anchor: Anchor) -> Commits:
    """Pin the moment that a snapshot is asked for: now, a time, or a version; 1 to 6 round trips.

    Raises `SourceError`.
    """
    policy, timestamp = reader.policy, anchor.head.timestamp
    if (version := options.count("versionAsOf")) is not None:
        with _versioned(reader, version):
            moment = policy.at_revision(version)
    else:
        gone = codes.VERSION_COMPACTED
        if (text := options.text("timestampAsOf")) is not None:
            timestamp = min(timestamp, timestamp_of(text, options.zone, anchor.now_ms))
            gone = codes.TIMESTAMP_EARLIER_THAN_RETENTION
        with coded(compacted=gone):
            moment = policy.at(timestamp)
    return Commits(anchor.store, reader.timeline.creation, moment.mark, moment.reading)


def range_of(
    reader: Reader, options: Options, anchor: Anchor, *, standing: bool = False
) -> Commits:
    """Pin the commits from a start to an end, both inclusive; 1 to 12 round trips.

    Without a start from what compaction left, without an end to the newest. With `standing` the
    range begins with a state, that of the start, rather than with a commit. Raises `SourceError`.
    """
    _check_order(options, anchor, standing)
    low = (_standing_at_start if standing else low_of)(reader, options, anchor)
    high = _last_until(reader, options, anchor, "ending") or anchor.head
    if low is None:
        with coded():
            low = (standing_bounds if standing else bounds)(reader, None, None)[0]
            if high.ordinal < low.ordinal:  # compaction passed the pin
                raise CompactedError(high.timestamp, reader.policy.earliest())
    if high.ordinal < low.ordinal and options.has_end:
        raise SourceError(codes.INVALID_RANGE, BACKWARDS)
    if high.revision < low.revision:
        high = low
    return Commits(anchor.store, low, high, high.revision)


def _check_order(options: Options, anchor: Anchor, standing: bool) -> None:
    """Raise `SourceError` for a range that ends before it starts, whether or not there is more.

    Of commits, one that ends just before its start is empty: those after a commit until the same.
    """
    first, last = (options.count(f"{end}Version") for end in ("starting", "ending"))
    if first is not None and last is not None and last < first - (not standing):
        raise SourceError(codes.INVALID_RANGE, f"{BACKWARDS}: versions {first} to {last}")
    start, end = (options.text(f"{end}Timestamp") for end in ("starting", "ending"))
    if start is not None and end is not None:
        since = timestamp_of(start, options.zone, anchor.now_ms, start=True)
        may_be_empty = is_exact(start) and not standing
        if timestamp_of(end, options.zone, anchor.now_ms) < since - may_be_empty:
            raise SourceError(codes.INVALID_RANGE, f"{BACKWARDS}: {start} to {end}")


def low_of(reader: Reader, options: Options, anchor: Anchor) -> Mark | None:
    """Return the last commit before the start that options name, None when they name none.

    Raises `SourceError`, also when changes since then are gone.
    """
    timeline = reader.timeline
    if (version := options.count("startingVersion")) is not None:
        with _versioned(reader, version), _complete(reader, codes.VERSION_COMPACTED):
            low = mark_at(reader, version - 1) if version > 1 else timeline.creation
            first_after(reader, low)
            return low
    if (text := options.text("startingTimestamp")) is None:
        return None
    start = timestamp_of(text, options.zone, anchor.now_ms, start=True)
    with coded(), _complete(reader, codes.TIMESTAMP_EARLIER_THAN_RETENTION):
        low = timeline.at(min(max(start - 1, 0), anchor.head.timestamp)).mark
        first_after(reader, low)
        return low


@contextmanager
def _complete(reader: Reader, code: str) -> Iterator[None]:
    """Say where a range may start when some of its changes are gone."""
    try:
        yield
    except CompactedError as e:
        earliest = reader.policy.earliest()
        left = "none is left"
        if earliest is not None:
            version = reader.timeline.at(earliest).mark.revision
            left = f"start after {format_time(earliest)}, version {version}"
        raise SourceError(code, f"not all changes from there on are left: {left}") from e


def _standing_at_start(reader: Reader, options: Options, anchor: Anchor) -> Mark | None:
    """Return the last commit up to the start, whose state the range begins with."""
    return _last_until(reader, options, anchor, "starting")


def _last_until(reader: Reader, options: Options, anchor: Anchor, end: str) -> Mark | None:
    """Return the last commit up to the version or time that options name for an end of a range."""
    if (version := options.count(f"{end}Version")) is not None:
        with _versioned(reader, version):
            found = mark_at(reader, version)
        observed = not reader.policy.at_head  # what no tick has stamped is not seen
        return anchor.head if observed and version > anchor.head.revision else found
    if (text := options.text(f"{end}Timestamp")) is None:
        return None
    timestamp = timestamp_of(text, options.zone, anchor.now_ms, start=end == "starting")
    with coded(compacted=codes.TIMESTAMP_EARLIER_THAN_RETENTION):
        return reader.timeline.at(min(timestamp, anchor.head.timestamp)).mark


def mark_at(reader: Reader, revision: int) -> Mark:
    """Return the newest mark at or before a revision; one round trip.

    Observed keys change between marks: there it stands at that very revision, as a bound.
    """
    answer = reader.timeline.ask([Range(reader.timeline.key, revision=revision)])
    found = _mark_in(reader, answer.results[0])
    return found if reader.policy.at_head else found._replace(revision=revision)


def _mark_in(reader: Reader, found: RangeResult) -> Mark:
    return reader.timeline.mark_in(found.kvs[0]) if found.kvs else reader.timeline.creation


@contextmanager
def _versioned(reader: Reader, version: int) -> Iterator[None]:
    """Say which versions there are when one is not."""
    with coded():
        try:
            yield
        except FutureRevisionError as e:
            earliest = max(1, reader.engine.compacted_revision())
            raise SourceError(
                codes.VERSION_NOT_FOUND,
                f"version {version} is not there yet: there are [{earliest}, {e.current}]",
            ) from e


# --- in the workers ---


def found_again(place: Place, store: bytes, mark: Mark) -> Reader:
    """Return this process's reader of a place, in which a pinned commit still is.

    One round trip, two for an engine that had to be opened again. Raises `SourceError`.
    """
    for _ in range(2):
        with coded():
            reader = opened(place)
        try:
            with coded():
                if holds(reader, store, mark):
                    return reader
        except SourceError as e:
            if e.code != codes.STORE_MISMATCH:
                raise
        forget(place)  # what this process has open may be gone from its path
    raise SourceError(codes.STORE_MISMATCH, RESTORED)


def holds(reader: Reader, store: bytes, mark: Mark) -> bool:
    """Return whether a store is the one in which a mark was seen; one round trip.

    0 to 6 more where its revision was compacted. A mark that is no longer on record cannot be told:
    what is read next will.
    """
    if reader.format.store_id != store:
        return False
    timeline = reader.timeline
    try:  # the head tells whether the store is still there, the revision whether it is this one
        _, results = timeline.head_and([Range(timeline.key, revision=mark.revision)])
        found = _mark_in(reader, results[0])
    except FutureRevisionError:
        return False
    except CompactedError:
        try:
            found = timeline.by_ordinal(mark.ordinal)
        except CompactedError:
            return True
    return (found.timestamp, found.ordinal) == (mark.timestamp, mark.ordinal)
