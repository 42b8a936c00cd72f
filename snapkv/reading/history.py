"""The commit log, and the versions of one key with their writers, notes and metas."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from snapkv.base.arguments import check_bool, check_int
from snapkv.engine.contract import Engine, KeyEvent, KeyValue, Range
from snapkv.errors import CompactedError
from snapkv.layout import CREATION_ORDINAL, Mark, StampRecord
from snapkv.model import Commit, Version
from snapkv.reading.change_replay import events_of, first_after
from snapkv.reading.reader import Reader
from snapkv.timeline.moment import compaction_error
from snapkv.times import When

# --- backwards ---
# The versions of one key newest first: found from the newest one back, not further than asked.

WINDOW_REVISIONS = 4_096
"""The revisions of the first window of a search; each window is four times as long as the last."""
POINT_READS = 32
"""The most versions that a remote engine is asked for one by one, before it replays windows."""


def pages_back(
    engine: Engine,
    key: bytes,
    begin: int,
    high: int,
    page: int,
    *,
    reads_max: int = POINT_READS,
    most: int | None = None,
) -> Iterator[tuple[list[KeyEvent], int]]:
    """Yield what happened to a stored key from revision `high` down to `begin`, newest first.

    In pages, each with the revision down to which it goes. An embedded engine reads puts one behind
    the other, `page` at a time; a remote one is asked for `reads_max` of them one by one, a round
    trip each. Otherwise, and before the key was created, windows of revisions are replayed, one
    watch and the `most` newest events for each.

    Raises `CompactedError` (unit "revision").
    """
    window, reads = WINDOW_REVISIONS, reads_max
    while high >= begin:
        puts: list[KeyEvent] = []
        if not engine.remote:
            puts = list(puts_back(engine, key, high, page))
        elif reads:
            kv, reads = engine.get(key, high).kv, reads - 1
            puts = [] if kv is None else [KeyEvent(kv, False)]
        if puts:
            low = max(begin, puts[-1].kv.mod_revision)
            yield [each for each in puts if each.kv.mod_revision >= begin], low
        else:
            low = max(begin, high - window + 1)
            newest = deque(events_of(engine, key, b"", low, high), most)
            yield [*reversed(newest)], low
            window, reads = 4 * window, reads_max
        high = low - 1


def puts_back(engine: Engine, key: bytes, revision: int, limit: int) -> Iterator[KeyEvent]:
    """Yield successive puts from a revision down, as far as the key's creation; of an embedded one.

    The last ones may be older than the compaction point.
    """
    found = engine.versions(key, revision, limit)
    for at, (modified, value) in enumerate(zip(found.revisions, found.values, strict=True)):
        version = found.version - at
        yield KeyEvent(KeyValue(key, value, found.create_revision, modified, version, 0), False)


# --- history ---

LOG_PAGE_COMMITS = 256
"""The most commits that are read at once when the log is walked newest first."""
HISTORY_PAGE_VERSIONS = 128
FIRST_CREATION = 2
"""A store created at this revision has an engine of its own: no key can be older."""


def commits(
    core: Reader, since: When | None, until: When | None, limit: int | None, newest_first: bool
) -> Iterator[Commit]:
    """Yield the commits in (since, until], see `SnapshotKV.commits`."""
    core.check_open()
    if limit is not None:
        check_int("limit", limit, 0)
    low, high = bounds(core, since, until)
    bound = None if limit is None else min(limit, sys.maxsize)
    if newest_first:
        page = min(LOG_PAGE_COMMITS, bound or LOG_PAGE_COMMITS)
        return islice(_backwards(core, low, high, since is None, page), bound)
    return islice(_forwards(core, low, high, since is None), bound)


def bounds(core: Reader, since: When | None, until: When | None) -> tuple[Mark, Mark]:
    """Return the marks that bound (since, until]; None: the oldest one left, and the newest."""
    low = _oldest(core) if since is None else _mark_of(core, core.resolve(since))
    high = core.timeline.head() if until is None else _mark_of(core, core.resolve(until))
    if since is None and high.ordinal < low.ordinal:
        requested = core.resolve(until) if until is not None else 0
        raise compaction_error(core.policy, requested)
    return low, high


def _oldest(core: Reader) -> Mark:
    """Return the oldest mark after which no change was compacted.

    For observed keys that is the first mark that can be read, or the creation, before all of
    them, if nothing was compacted.
    """
    if core.policy.at_head or core.engine.compacted_revision() <= 1:
        return core.timeline.oldest()
    earliest = core.policy.earliest()
    return core.timeline.head() if earliest is None else core.timeline.at(earliest).mark


def _mark_of(core: Reader, timestamp: int) -> Mark:
    try:
        return core.timeline.at(timestamp).mark
    except CompactedError as e:
        raise compaction_error(core.policy, timestamp) from e


def _forwards(core: Reader, low: Mark, high: Mark, inclusive: bool) -> Iterator[Commit]:
    if inclusive and low.ordinal > 1:  # the oldest commit that compaction left
        yield commit_of(low, core.timeline.stamp(low))
    for mark, stamp in core.timeline.replay(low, high):
        yield commit_of(mark, stamp)


def _backwards(core: Reader, low: Mark, high: Mark, inclusive: bool, size: int) -> Iterator[Commit]:
    for part in windows_back(core, low, high, size, size):
        yield from reversed([commit_of(*found) for found in core.timeline.replay(*part)])
    if inclusive and low.ordinal > 1:
        yield commit_of(low, core.timeline.stamp(low))


def windows_back(
    core: Reader, low: Mark, high: Mark, size: int, most: int
) -> Iterator[tuple[Mark, Mark]]:
    """Yield parts of (low, high], newest first: of `size` commits, then of four times as many."""
    while high.revision > low.revision:
        first = max(low.ordinal, high.ordinal - size)
        after = low if first == low.ordinal else core.timeline.by_ordinal(first)
        yield after, high
        high, size = after, min(4 * size, most)


def commit_of(mark: Mark, stamp: StampRecord) -> Commit:
    """Return a version of the timestamp key as a commit."""
    writer = stamp.writer or None
    return Commit(
        mark.timestamp, 0, mark.revision, writer, stamp.note, stamp.source_revision, stamp.meta
    )


def _version_of(stamp: StampRecord, revision: int, value: bytes | None) -> Version:
    writer = stamp.writer or None
    return Version(
        stamp.timestamp, revision, value, writer, stamp.note, stamp.meta, stamp.source_revision
    )


class HistoryBounds(NamedTuple):
    """The wanted versions of a key: of the commits in (since, until], at most `limit`."""

    since: When | None = None
    until: When | None = None
    limit: int | None = None
    newest_first: bool = False

    def check(self) -> None:
        """Raise `InvalidTypeError` or `InvalidOptionError` for an invalid argument."""
        check_bool("newest_first", self.newest_first)
        if self.limit is not None:
            check_int("limit", self.limit, 0)

    @property
    def page(self) -> int:
        """The most versions that are stamped at once."""
        return min(HISTORY_PAGE_VERSIONS, self.limit or HISTORY_PAGE_VERSIONS)

    def events(self, core: Reader, key: bytes, begin: int, until: int) -> Iterator[KeyEvent]:
        """Yield what happened to a key between two revisions, in the order that is wanted."""
        if self.newest_first:
            pages = pages_back(core.engine, key, begin, until, self.page)
            return (event for events, _ in pages for event in events)
        return events_of(core.engine, key, b"", begin, until)

    def limited(self, versions: Iterator[Version]) -> Iterator[Version]:
        """Return at most `limit` of the versions."""
        return islice(versions, None if self.limit is None else min(self.limit, sys.maxsize))


ALL = HistoryBounds()


def versions(core: Reader, key: bytes, wanted: HistoryBounds = ALL) -> Iterator[Version]:
    """Return the versions of a stored key, see `View.history` and `Observed.history`."""
    core.check_open()
    wanted.check()
    found = _versions if core.policy.at_head else _observed_versions
    return wanted.limited(found(core, key, wanted))


def _versions(core: Reader, key: bytes, wanted: HistoryBounds) -> Iterator[Version]:
    begin, until, newest = _revisions(core, key, wanted)
    # another store's compaction may have passed the newest commit: its state is still in force
    in_reach = wanted.until is None or begin <= until
    whole = wanted.since is None and begin > FIRST_CREATION and in_reach
    try:
        if whole and not wanted.newest_first:
            yield from _at_beginning(core, key, begin)
        events = wanted.events(core, key, begin, until)
        while page := list(islice(events, wanted.page)):
            yield from _stamped(core, page)
        if whole and wanted.newest_first:
            yield from _at_beginning(core, key, begin)
    except CompactedError as e:
        if e.unit == "timestamp":
            raise
        raise compaction_error(core.timeline, newest.timestamp) from e


def _revisions(core: Reader, key: bytes, wanted: HistoryBounds) -> tuple[int, int, Mark]:
    """Return the first and the last revision that `wanted` reaches, and the newest mark in it."""
    if wanted.until is None:
        newest, results = core.timeline.tracker.head_and([Range(key)])
        until = max([newest.revision, *(kv.mod_revision for kv in results[0].kvs)])
    else:
        moment = core.timeline.at(core.resolve(wanted.until))
        moment.hold()
        newest, until = moment.mark, moment.reading
    if wanted.since is None:
        compacted = core.engine.compacted_revision()
        return max(core.timeline.tracker.creation.revision, compacted), until, newest
    low = _mark_of(core, core.resolve(wanted.since))
    return core.policy.moment(low).next_revision(), until, newest


def _at_beginning(core: Reader, key: bytes, begin: int) -> Iterator[Version]:
    """Yield the version in force at the beginning of the history that is left, if one is."""
    wanted = [Range(k, revision=begin) for k in (key, core.layout.ts)]
    found, stamp = (result.kvs for result in core.engine.read(wanted).results)
    if found and found[0].mod_revision < begin:
        yield _at_compaction(found[0], stamp[0] if stamp else None)


def _at_compaction(kv: KeyValue, stamp: KeyValue | None) -> Version:
    """Return the version in force at the compaction point, stamped if its commit is left."""
    if stamp is None or stamp.mod_revision != kv.mod_revision:
        return Version(None, kv.mod_revision, kv.value, None)
    return _version_of(StampRecord.decode(stamp.value), kv.mod_revision, kv.value)


def _stamped(core: Reader, events: list[KeyEvent]) -> Iterator[Version]:
    """Join events with their stamps; a write without a stamp of its own has no writer."""
    stamps = core.timeline.stamps([event.kv.mod_revision for event in events])
    for event, found in zip(events, stamps, strict=True):
        value = None if event.is_delete else event.kv.value
        if found is not None and found[0].revision == event.kv.mod_revision:
            yield _version_of(found[1], event.kv.mod_revision, value)
        elif (whole := _recorded_in_parts(core, found, event.kv.mod_revision)) is not None:
            yield _version_of(whole[1], whole[0].revision, value)
        else:
            yield Version(None, event.kv.mod_revision, value, None)


def _recorded_in_parts(
    core: Reader, in_force: tuple[Mark, StampRecord] | None, revision: int
) -> tuple[Mark, StampRecord] | None:
    """Return the recorded commit that a revision without a stamp is a part of, if it is one."""
    mark = core.timeline.tracker.creation if in_force is None else in_force[0]
    following = core.timeline.following(mark)
    if following is None:
        return None
    stamp = core.timeline.stamp(following)
    return (following, stamp) if 0 < stamp.began <= revision else None


def stamped(core: Reader, events: list[KeyEvent]) -> Iterator[Version]:
    """Yield events of a key, newest first, as versions, each with its commit or its tick.

    The last one may be older than the compaction point, where it was in force. One round trip for
    each 128 of them; of observed keys 0 to 6 for each tick, too.
    """
    compacted = core.engine.compacted_revision()
    known = [event for event in events if event.kv.mod_revision >= compacted]
    yield from (_stamped if core.policy.at_head else _observed)(core, known)
    for event in events[len(known) :]:
        if core.policy.at_head:
            stamp = core.engine.read([Range(core.layout.ts, revision=compacted)]).results[0].kvs
            yield _at_compaction(event.kv, stamp[0] if stamp else None)
        else:
            yield _observed_at_compaction(core, event.kv, compacted)


# --- observed keys ---


def _observed_versions(core: Reader, key: bytes, wanted: HistoryBounds) -> Iterator[Version]:
    moment = core.policy.now()
    if wanted.until is not None:
        moment = core.policy.at(core.resolve(wanted.until))
        moment.hold()
    newest, compacted = moment.mark, core.engine.compacted_revision()
    begin = max(1, compacted)
    if wanted.since is not None:
        begin = first_after(core, _mark_of(core, core.resolve(wanted.since)))
    oldest: list[Version] = []
    try:
        if wanted.since is None and compacted > 1:
            found = core.engine.read([Range(key, revision=compacted)]).results[0].kvs
            if found and found[0].mod_revision < min(compacted, newest.revision + 1):
                oldest = [_observed_at_compaction(core, found[0], compacted)]
        if not wanted.newest_first:
            yield from oldest
        events = wanted.events(core, key, begin, newest.revision)
        while page := list(islice(events, wanted.page)):
            yield from _observed(core, page)
        if wanted.newest_first:
            yield from oldest
    except CompactedError as e:
        raise compaction_error(core.policy, newest.timestamp) from e


def _observed_at_compaction(core: Reader, kv: KeyValue, compacted: int) -> Version:
    """Return the version in force at the compaction point, with its mark if that is known.

    Marks before the one in force there were compacted, and one of those may have stamped the
    version, unless the one in force is the first of all.
    """
    (in_force,) = core.timeline.stamps([compacted])
    if in_force is not None and kv.mod_revision < in_force[0].revision:
        mark = in_force[0]
        if mark.ordinal > CREATION_ORDINAL:
            ts = mark.timestamp if mark.ordinal == CREATION_ORDINAL + 1 else None
            return Version(ts, kv.mod_revision, kv.value, None)
    return _version(core, KeyEvent(kv, False), in_force)


def _observed(core: Reader, events: list[KeyEvent]) -> Iterator[Version]:
    in_force = core.timeline.stamps([event.kv.mod_revision for event in events])
    for event, found in zip(events, in_force, strict=True):
        yield _version(core, event, found)


def _version(core: Reader, event: KeyEvent, in_force: tuple[Mark, StampRecord] | None) -> Version:
    """Return an event with the first mark at or after it; `in_force` is the one at or before it.

    Only a write at a mark's own revision belongs to its commit, and has its writer.
    """
    kv = event.kv
    value = None if event.is_delete else kv.value
    mark = core.timeline.tracker.creation if in_force is None else in_force[0]
    if in_force and mark.ordinal > CREATION_ORDINAL and mark.revision == kv.mod_revision:
        return _version_of(in_force[1], kv.mod_revision, value)
    following = core.timeline.following(mark)
    return Version(following and following.timestamp, kv.mod_revision, value, None)
