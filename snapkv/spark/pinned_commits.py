"""Moments and ranges of commits that the driver pins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from snapkv.clock import MAX_CLOCK_SKEW_MS
from snapkv.engine.contract import Range
from snapkv.errors import CompactedError, FutureRevisionError
from snapkv.layout import Mark
from snapkv.reading.change_replay import first_after
from snapkv.reading.history import bounds
from snapkv.reading.reader import Reader
from snapkv.reading.tables import state_bounds
from snapkv.spark import errors
from snapkv.spark.errors import ErrorCode, as_source_errors
from snapkv.spark.process_readers import mark_in
from snapkv.spark.read_options import COMMITS, LATEST, ReadOptions
from snapkv.spark.source_options import SourceOptions
from snapkv.spark.timing import is_exact, start_of, timestamp_of
from snapkv.timeline import Moment
from snapkv.timeline.moment import compaction_error
from snapkv.times import format_time

BACKWARDS = "the range ends before it starts"


@dataclass(frozen=True, slots=True)
class PinnedCommits:
    """The commits in (low, high] of one store; `reading` is the revision at which `high` is read.

    A moment is the range of all commits up to it.
    """

    store: bytes
    low: Mark
    high: Mark
    reading: int

    def moment(self, reader: Reader) -> Moment:
        """Return the moment of the last commit."""
        epoch = reader.timeline.tracker.continuity.epoch
        return Moment(reader.policy, self.high.timestamp, self.high, True, epoch, self.reading)

    def held(self, reader: Reader) -> PinnedCommits:
        """Return the same with a revision that can still be read: compaction may have passed it.

        At least one round trip. Raises `CompactedError`.
        """
        moment = self.moment(reader)
        moment.hold()
        return replace(self, reading=moment.reading)

    def between(self, low: Mark, high: Mark) -> PinnedCommits:
        """Return a part of the range."""
        return PinnedCommits(self.store, low, high, high.revision)


@dataclass(frozen=True, slots=True)
class Present:
    """The moment when a DataFrame was made: the store, its newest commit, and the clock.

    Options are resolved against it, so that they name the same commits at every plan of Spark.
    """

    store: bytes
    head: Mark
    now_ms: int


def present_in(reader: Reader) -> Present:
    """Return the present of a store; one round trip."""
    head = reader.timeline.head()
    return Present(reader.format.store_id, head, reader.clock.now_ms())


def moment_of(reader: Reader, options: SourceOptions, present: Present) -> PinnedCommits:
    """Pin a moment: now, a time, or a version; 1 to 6 round trips. Raises `SourceError`."""
    policy, timestamp = reader.policy, present.head.timestamp
    version = options.count("versionAsOf")
    if version is not None and version != present.head.revision:  # which compaction may have passed
        with _versioned(reader, version):
            moment = policy.at_revision(version)
    else:
        gone = errors.VERSION_COMPACTED
        if (text := options.text("timestampAsOf")) is not None:
            timestamp = min(timestamp, timestamp_of(text, options.zone, present.now_ms))
            gone = errors.TIMESTAMP_EARLIER_THAN_RETENTION
        with as_source_errors(compacted=gone):
            moment = policy.at(timestamp)
    return PinnedCommits(
        present.store, reader.timeline.tracker.creation, moment.mark, moment.reading
    )


def range_of(
    reader: Reader, options: ReadOptions, present: Present, *, from_state: bool = False
) -> PinnedCommits:
    """Pin the commits from a start to an end, both inclusive; 1 to 12 round trips.

    The default start is the oldest commit that compaction left, the default end the newest. With
    `from_state` the range begins with the state at the start, not with a commit. Raises
    `SourceError`.
    """
    if options.view == COMMITS and options.text("startingVersion") == LATEST:
        newest = _last_until(reader, options, present, "ending") or present.head
        return PinnedCommits(present.store, newest, newest, newest.revision)
    _check_order(options, present, from_state)
    start = partial(_last_until, end="starting") if from_state else low_of
    low = start(reader, options, present)
    high = _last_until(reader, options, present, "ending") or present.head
    if low is None:
        with as_source_errors():
            low = (state_bounds if from_state else bounds)(reader, None, None)[0]
            if high.ordinal < low.ordinal:  # compaction passed the pin
                raise compaction_error(reader.policy, high.timestamp)
    if high.ordinal < low.ordinal and options.has_end:
        raise errors.INVALID_RANGE(BACKWARDS)
    if high.revision < low.revision:
        high = low
    return PinnedCommits(present.store, low, high, high.revision)


def _check_order(options: ReadOptions, present: Present, from_state: bool) -> None:
    """Raise `SourceError` for a range that ends before it starts, or starts in the future."""
    # commits that end just before the start are an empty range: after a commit, up to the same
    first, last = (options.count(f"{end}Version") for end in ("starting", "ending"))
    if first is not None and last is not None and last < first - (not from_state):
        raise errors.INVALID_RANGE(f"{BACKWARDS}: versions {first} to {last}")
    start, end = (options.text(f"{end}Timestamp") for end in ("starting", "ending"))
    if start is not None:
        newest = present.head.timestamp
        since = start_of(start, options.zone, present.now_ms, newest, ahead_ms=MAX_CLOCK_SKEW_MS)
    if start is not None and end is not None:
        may_be_empty = is_exact(start) and not from_state
        if timestamp_of(end, options.zone, present.now_ms) < since - may_be_empty:
            raise errors.INVALID_RANGE(f"{BACKWARDS}: {start} to {end}")


def low_of(reader: Reader, options: ReadOptions, present: Present) -> Mark | None:
    """Return the last commit before the start that options name, None without a start.

    Raises `SourceError`, also if changes since then were compacted.
    """
    timeline = reader.timeline
    if (version := options.count("startingVersion")) is not None:
        with _versioned(reader, version), _complete(reader, errors.VERSION_COMPACTED):
            low = mark_at(reader, version - 1) if version > 1 else timeline.tracker.creation
            first_after(reader, low)
            return low
    if (text := options.text("startingTimestamp")) is None:
        return None
    start = timestamp_of(text, options.zone, present.now_ms, start=True)
    with as_source_errors(), _complete(reader, errors.TIMESTAMP_EARLIER_THAN_RETENTION):
        low = timeline.at(min(max(start - 1, 0), present.head.timestamp)).mark
        first_after(reader, low)
        return low


@contextmanager
def _complete(reader: Reader, code: ErrorCode) -> Iterator[None]:
    """Raise `SourceError` with the earliest possible start if changes of a range are gone."""
    try:
        yield
    except CompactedError as e:
        earliest = reader.policy.earliest()
        left = "no change is left"
        if earliest is not None:
            version = reader.timeline.at(earliest).mark.revision
            left = f"start after {format_time(earliest)}, version {version}"
        raise code(f"some changes after the start were compacted: {left}") from e


def _last_until(reader: Reader, options: ReadOptions, present: Present, end: str) -> Mark | None:
    """Return the last commit up to the version or time of an end of the range, None without one."""
    if (version := options.count(f"{end}Version")) is not None:
        if version == present.head.revision:
            return present.head
        with _versioned(reader, version):
            found = mark_at(reader, version)
        observed = not reader.policy.at_head  # writes that no tick has stamped are not visible
        return present.head if observed and version > present.head.revision else found
    if (text := options.text(f"{end}Timestamp")) is None:
        return None
    timestamp = timestamp_of(text, options.zone, present.now_ms, start=end == "starting")
    with as_source_errors(compacted=errors.TIMESTAMP_EARLIER_THAN_RETENTION):
        return reader.timeline.at(min(timestamp, present.head.timestamp)).mark


def mark_at(reader: Reader, revision: int) -> Mark:
    """Return the newest mark at or before a revision; one round trip.

    Observed keys change between marks: for them it is the exact revision, as a bound.
    """
    answer = reader.timeline.tracker.read([Range(reader.timeline.tracker.key, revision=revision)])
    found = mark_in(reader, answer.results[0])
    return found if reader.policy.at_head else found._replace(revision=revision)


@contextmanager
def _versioned(reader: Reader, version: int) -> Iterator[None]:
    """Raise `SourceError` with the existing versions for a version of the future."""
    with as_source_errors():
        try:
            yield
        except FutureRevisionError as e:
            earliest = max(1, reader.engine.compacted_revision())
            raise errors.VERSION_NOT_FOUND(
                f"version {version} does not exist yet; versions are [{earliest}, {e.current}]"
            ) from e
