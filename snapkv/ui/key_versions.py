"""The versions of one key, newest first, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from snapkv.engine.contract import KeyEvent, KeyValue, Range
from snapkv.errors import CompactedError
from snapkv.model import Version
from snapkv.reading.history import pages_back, stamped
from snapkv.reading.ignored_commits import Ignores
from snapkv.times import When
from snapkv.ui.page_source import Budget, Source

VERSIONS_MAX = 50
VERSIONS_BYTES_MAX = 16 << 20
"""The most bytes of values that one page of versions reads; the last read may exceed it."""
READ_AT_ONCE = 16
"""The number of versions that one read of an embedded engine returns."""


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


def loud_versions_back(
    source: Source,
    key: str,
    until: When | None,
    ignores: Ignores | None,
    *,
    limit: int = VERSIONS_MAX,
    budget: Budget,
) -> tuple[Versions, int]:
    """Return the same without versions that `ignores` ignores, and how many were left out.

    It goes on to older versions until the page is full, or the time is used up.
    """
    found = versions_back(source, key, until, limit=limit, budget=budget)
    if ignores is None or not ignores.shows(key):
        return found, 0
    shown, left_out, newer = list[Version](), 0, None
    while True:
        for each in found.versions:
            if newer is not None and _is_ignored(ignores, each.value, newer.value):
                left_out += 1
            elif newer is not None:
                shown.append(newer)
            newer = each
        left = limit - len(shown) - (newer is not None)
        if found.following is None or budget.over or left <= 0:
            break
        older: When = f"rev:{found.following}"
        found = versions_back(source, key, older, limit=left, budget=budget)
    if newer is not None:  # what was before it is not known
        shown.append(newer)
    return replace(found, versions=shown), left_out


def _is_ignored(ignores: Ignores, before: bytes | None, after: bytes | None) -> bool:
    return after is not None and ignores.may_ignore(after) and ignores.ignores(before, after)


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

    An embedded engine reads them one behind the other. Elsewhere, and before the key was created,
    the revisions are replayed in growing windows, one watch for each, while there is time.
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
    found, left = list[KeyEvent](), VERSIONS_BYTES_MAX
    span = source.reader.engine, stored, begin, high
    try:
        for events, low in pages_back(*span, READ_AT_ONCE, reads_max=0, most=limit + 1):
            found += events
            left -= sum(len(each.kv.value) for each in events)
            if len(found) > limit:
                return found, True, low
            if low > begin and (left < 0 or budget.over):
                return found, False, low
    except CompactedError as e:
        raise CompactedError(begin, source.earliest(), unit=e.unit, archive=e.archive) from e
    if begin > 1:
        found += _at_compaction(source, stored, begin, found)
    return found, True, begin


def _at_compaction(
    source: Source, stored: bytes, begin: int, found: list[KeyEvent]
) -> list[KeyEvent]:
    """Return the version in force at the compaction point, if it was written before that."""
    kvs = source.reader.engine.read([Range(stored, revision=begin)]).results[0].kvs
    seen = {event.kv.mod_revision for event in found}
    return [KeyEvent(kv, False) for kv in kvs if kv.mod_revision not in seen]


def newest_versions(
    source: Source, found: Mapping[str, KeyValue | None], when: When | None, budget: Budget
) -> dict[str, Version]:
    """Return the newest versions of keys up to a moment, of which they hold what was `found`.

    One round trip for each 128 of them. Removals are looked for, and ticks of observed keys, while
    there is time. What is older than the compaction point is left out.
    """
    low, newest = source.reader.engine.compacted_revision(), dict[str, Version]()
    puts = {key: kv for key, kv in found.items() if kv is not None and kv.mod_revision >= low}
    versions = stamped(source.reader, [KeyEvent(kv, False) for kv in puts.values()])
    for key, version in zip(puts, versions, strict=True):
        newest[key] = version
        if source.observed and budget.over:
            break
    for key in (key for key, kv in found.items() if kv is None and not budget.over):
        back = versions_back(source, key, when, limit=1, budget=budget)
        newest.update((key, each) for each in back.versions)
    return newest


def version_at(source: Source, key: str, when: When | None) -> tuple[bytes | None, int | None]:
    """Return the value of a key at a moment and the revision that wrote it, None if absent."""
    (found,) = source.keys.entries_of([key], when)
    return (None, None) if found is None else (found.value, found.revision)
