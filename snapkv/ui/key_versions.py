"""The versions of one key, newest first, a page at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from snapkv.engine.contract import KeyEvent, Range
from snapkv.errors import CompactedError
from snapkv.model import Version
from snapkv.reading.history import WINDOW_REVISIONS, events_between, puts_back, stamped
from snapkv.times import When
from snapkv.ui.page_source import Budget, Source

VERSIONS_MAX = 50
VERSIONS_BYTES_MAX = 16 << 20
"""The most bytes of values that one page of versions reads; the last read may exceed it."""
READ_AT_FIRST = 16
"""The number of versions that are read at first; then twice as many, and so on."""


@dataclass(frozen=True, slots=True)
class Versions:
    """A page of versions. `following` is the revision from which the next page goes on.

    It is None at the beginning of what is left; `complete` is False if the time was used up before
    the page was full. `compacted` says that older versions may have been compacted, `created` that
    the oldest one created the key: then those are of an earlier life of the key, if it had one.
    """

    versions: list[Version]
    following: int | None
    complete: bool
    compacted: bool = False
    created: bool = False


def versions_back(
    source: Source, key: str, until: When | None, *, limit: int = VERSIONS_MAX, budget: Budget
) -> Versions:
    """Return the versions of a key up to a moment, newest first.

    Costs as `stored_versions_back`.
    """
    high = source.mark(until).revision
    return stored_versions_back(source, source.encode(key), high, limit=limit, budget=budget)


def with_bytes(found: Versions, bytes_max: int) -> Versions:
    """Return the newest of some versions whose values have so many bytes, at least one."""
    left = bytes_max
    for at, version in enumerate(found.versions):
        left -= len(version.value or b"")
        if left < 0 and at:
            kept = found.versions[:at]
            return replace(found, versions=kept, following=kept[-1].revision - 1)
    return found


def stored_versions_back(
    source: Source,
    stored: bytes,
    high: int,
    *,
    low: int = 1,
    limit: int = VERSIONS_MAX,
    budget: Budget,
) -> Versions:
    """Return the versions of a stored key from a revision down, to the one in force at `low`.

    An embedded engine reads them one behind the other, some before `low` too. Elsewhere, and before
    the key was created, the revisions are replayed in growing windows, one watch for each, while
    there is time.
    """
    reader = source.reader
    begin = max(low, 1, reader.engine.compacted_revision())
    events, complete, reached = _events(source, stored, begin, high, limit, budget)
    versions = list(stamped(reader, events[:limit]))
    if len(events) > limit or not complete:
        last = events[limit - 1].kv.mod_revision if len(events) >= limit else reached
        return Versions(versions, last - 1, complete)
    first = low if source.observed else max(low, reader.timeline.tracker.creation.revision)
    created = bool(events) and not events[-1].is_delete and events[-1].kv.version == 1
    return Versions(versions, None, True, compacted=begin > first, created=created)


def _events(
    source: Source, stored: bytes, begin: int, high: int, limit: int, budget: Budget
) -> tuple[list[KeyEvent], bool, int]:
    """Return `limit` events and one more, whether that is all, and the revision looked down to."""
    engine, found, window = source.reader.engine, list[KeyEvent](), WINDOW_REVISIONS
    some, left = READ_AT_FIRST, VERSIONS_BYTES_MAX
    while high >= begin and len(found) <= limit:
        if budget.over and found:
            return found, False, high + 1
        if not engine.remote:
            puts = list(puts_back(engine, stored, high, min(some, limit + 1 - len(found))))
            if puts:
                found, some = [*found, *puts], 2 * some
                high = puts[-1].kv.mod_revision - 1
                left -= sum(len(each.kv.value) for each in puts)
                if left < 0 and high >= begin:
                    return found, False, high + 1
                continue
        low = max(begin, high - window + 1)
        found += reversed(_replayed(source, stored, low, high, limit + 1 - len(found)))
        high, window = low - 1, 4 * window
        if budget.over and high >= begin:
            return found, False, low
    if high < begin and begin > 1 and len(found) <= limit:
        found += _at_compaction(source, stored, begin, found)
    return found, True, high + 1


def _replayed(source: Source, stored: bytes, low: int, high: int, limit: int) -> deque[KeyEvent]:
    """Return the newest events between two revisions, oldest first."""
    try:
        return events_between(source.reader.engine, stored, low, high, limit)
    except CompactedError as e:
        raise CompactedError(low, source.earliest(), unit=e.unit, archive=e.archive) from e


def _at_compaction(
    source: Source, stored: bytes, begin: int, found: list[KeyEvent]
) -> list[KeyEvent]:
    """Return the version in force at the compaction point, if it was written before that."""
    kvs = source.reader.engine.read([Range(stored, revision=begin)]).results[0].kvs
    seen = {event.kv.mod_revision for event in found}
    return [KeyEvent(kv, False) for kv in kvs if kv.mod_revision not in seen]


def version_at(source: Source, key: str, when: When | None) -> tuple[bytes | None, int | None]:
    """Return the value of a key at a moment and the revision that wrote it, None if absent."""
    (found,) = source.keys.entries_of([key], when)
    return (None, None) if found is None else (found.value, found.revision)
