"""The commit log, and the versions of one key with who wrote them and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

from snapkv.core import Core
from snapkv.engine.base import Event, KeyValue, Range
from snapkv.errors import (
    CompactedError,
    InvalidOptionError,
    InvalidTypeError,
)
from snapkv.model import Commit, Version
from snapkv.records import Mark, StampRecord
from snapkv.timeline.feed import replayed
from snapkv.times import When

LOG_PAGE_COMMITS = 256
"""Commits read at once when the log is walked newest first."""
HISTORY_PAGE_VERSIONS = 128


def commits(
    core: Core, since: When | None, until: When | None, limit: int | None, newest_first: bool
) -> Iterator[Commit]:
    """Yield the commits in (since, until], see `SnapshotKV.commits`."""
    core.check_open()
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise InvalidTypeError(f"limit is an int, not {type(limit).__name__}")
        if limit < 0:
            raise InvalidOptionError(f"limit is not negative: {limit}")
    low, high = _bounds(core, since, until)
    walk = _backwards if newest_first else _forwards
    bound = None if limit is None else min(limit, sys.maxsize)
    return islice(walk(core, low, high, since is None), bound)


def _bounds(core: Core, since: When | None, until: When | None) -> tuple[Mark, Mark]:
    timeline = core.timeline
    low = timeline.oldest() if since is None else timeline.pin(core.resolve(since)).mark
    high = timeline.head() if until is None else timeline.pin(core.resolve(until)).mark
    if since is None and high.ordinal < low.ordinal:
        raise CompactedError(core.resolve(until) if until is not None else 0, low.timestamp)
    return low, high


def _forwards(core: Core, low: Mark, high: Mark, inclusive: bool) -> Iterator[Commit]:
    if inclusive and low.ordinal > 1:  # what compaction left begins with it
        yield commit_of(low, core.timeline.stamp(low))
    for mark, stamp in core.timeline.replay(low, high):
        yield commit_of(mark, stamp)


def _backwards(core: Core, low: Mark, high: Mark, inclusive: bool) -> Iterator[Commit]:
    while high.ordinal > max(low.ordinal, 1):
        first = max(low.ordinal, high.ordinal - LOG_PAGE_COMMITS)
        after = low if first == low.ordinal else core.timeline.by_ordinal(first)
        page = [commit_of(mark, stamp) for mark, stamp in core.timeline.replay(after, high)]
        yield from reversed(page)
        high = after
    if inclusive and high.ordinal == low.ordinal > 1:
        yield commit_of(low, core.timeline.stamp(low))


def commit_of(mark: Mark, stamp: StampRecord) -> Commit:
    """Return a version of the timestamp key as a commit."""
    return Commit(mark.timestamp, 0, mark.revision, stamp.writer, stamp.note)


def versions(core: Core, key: bytes) -> Iterator[Version]:
    """Yield the versions of a stored key, oldest first, see `View.history`."""
    core.check_open()
    newest, results = core.timeline.head_and([Range(key)])
    until = max([newest.revision, *(kv.mod_revision for kv in results[0].kvs)])
    compacted = core.engine.compacted_revision()
    try:
        if compacted > 1:
            wanted = [Range(k, revision=compacted) for k in (key, core.layout.ts)]
            found, stamp = (result.kvs for result in core.engine.read(wanted).results)
            if found and found[0].mod_revision < compacted:
                yield _at_compaction(found[0], stamp[0] if stamp else None)
        page: list[Event] = []
        for event in _events(core, key, max(1, compacted), until):
            page.append(event)
            if len(page) == HISTORY_PAGE_VERSIONS:
                yield from _stamped(core, page)
                page = []
        yield from _stamped(core, page)
    except CompactedError as e:
        if e.unit == "timestamp":
            raise
        raise CompactedError(newest.timestamp, core.timeline.earliest()) from e


def _events(core: Core, key: bytes, start: int, until: int) -> Iterator[Event]:
    for batch in replayed(core.engine, key, b"", start, until):
        yield from batch.events


def _at_compaction(kv: KeyValue, stamp: KeyValue | None) -> Version:
    """Return the version that stood at the compaction point, stamped if its commit is left."""
    if stamp is None or stamp.mod_revision != kv.mod_revision:
        return Version(None, kv.mod_revision, kv.value, None)
    record = StampRecord.decode(stamp.value)
    return Version(record.timestamp, kv.mod_revision, kv.value, record.writer, record.note)


def _stamped(core: Core, events: list[Event]) -> Iterator[Version]:
    """Join events with who made them; a write without a stamp of its own has nobody."""
    stamps = core.timeline.stamps([event.kv.mod_revision for event in events])
    for event, found in zip(events, stamps, strict=True):
        value = None if event.is_delete else event.kv.value
        if found is not None and found[0].revision == event.kv.mod_revision:
            mark, stamp = found
            yield Version(mark.timestamp, mark.revision, value, stamp.writer, stamp.note)
        else:
            yield Version(None, event.kv.mod_revision, value, None)
