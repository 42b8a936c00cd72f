"""A moment: the state of some keys at one time, read at a revision that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from snapkv.base.waiting import check_in_time
from snapkv.engine.bulk_reads import replayed
from snapkv.engine.contract import SCAN, KeyValue, Page, PageForm, Range, RangeResult
from snapkv.errors import CompactedError, FutureRevisionError, StoreRestoredError
from snapkv.layout import Mark
from snapkv.timeline.lookup import kept_by
from snapkv.timeline.search import READS_MAX

if TYPE_CHECKING:
    from snapkv.timeline.tracker import Tracker


DIFF_REPLAY_COMMITS_MAX = 1_000
"""The most commits between two moments whose events `changed` replays."""
DIFF_REPLAY_EVENTS_MAX = 1 << 17
"""The same for events: one tick of an observed prefix may stamp any number of them."""

PAGE_KEYS = 256
"""The most keys of a page of a limited listing: their values come in one answer."""
LISTED_KEYS_MAX = 1_024


class RevisionPolicy(Protocol):
    """Which moments some keys have, and which revisions show each of them.

    A store's keys change only at marks: every revision from a commit up to the next commit - 1
    shows the same state, and the head shows that of the newest mark (`Timeline`). Among keys that
    other programs write, only a mark's own revision shows its state (`Ticks`).
    """

    at_head: bool
    """Whether the engine's newest state is that of the newest mark."""

    @property
    def tracker(self) -> Tracker:
        """The marks of the store."""

    def now(self) -> Moment:
        """Return the newest moment."""

    def at(self, timestamp: int) -> Moment:
        """Return the moment of a timestamp."""

    def moment(self, mark: Mark) -> Moment:
        """Return the moment of a known mark."""

    def at_revision(self, revision: int) -> Moment:
        """Return the moment of a revision."""

    def until(self, moment: Moment) -> int:
        """Return the last revision that is known to show a moment's state; or `CompactedError`."""

    def earliest(self) -> int | None:
        """Return the smallest timestamp that can still be answered, None if none can."""


def compaction_error(
    policy: RevisionPolicy, timestamp: int, earliest: int | None = None
) -> CompactedError:
    """Return the error for a time that is compacted: what is left, and what the archive has.

    `earliest` is asked for unless it is given.
    """
    known = policy.earliest() if earliest is None else earliest
    kept = kept_by(policy.tracker.engine, policy.tracker.key)
    return CompactedError(timestamp, known, archive=kept)


class Moment:
    """The state of some keys at one moment; every read of it sees the same revision.

    For example, with commits at revisions 3 and 7, the moment of a time between them has the mark
    of revision 3 and is read there. When compaction passes revision 3, `reading` moves up to 6,
    which shows the same state. When compaction passes 6, reads raise `CompactedError`.

    `epoch` is the epoch of the `Continuity` when the moment was found. When a restored engine is
    noticed, that grows, and reads of older moments raise `StoreRestoredError`.

    Safe for threads.
    """

    __slots__ = (
        "_policy",
        "_tracker",
        "epoch",
        "final",
        "mark",
        "reading",
        "revision",
        "timestamp",
    )

    def __init__(
        self,
        policy: RevisionPolicy,
        timestamp: int,
        mark: Mark,
        final: bool,
        epoch: int,
        reading: int,
    ) -> None:
        self._policy, self._tracker = policy, policy.tracker
        self.timestamp, self.mark, self.final = timestamp, mark, final
        self.epoch, self.reading, self.revision = epoch, reading, mark.revision

    def get(self, keys: Sequence[bytes]) -> list[KeyValue | None]:
        """Return the versions of stored keys, None for absent ones; one round trip for each 128.

        Raises `CompactedError`, `StoreRestoredError`, as all reads of a moment.
        """
        if len(keys) == 1:
            found = self._tracker.point(keys[0], self.reading, self.epoch)
            if found is not None:
                return [found.kv]
        results = self._read_all([Range(key) for key in keys])
        return [result.kvs[0] if result.kvs else None for result in results]

    def get_both(self, other: Moment, keys: Sequence[bytes]) -> list[list[KeyValue | None]]:
        """Return the versions of up to 64 stored keys at two moments, as `get`; one round trip.

        Two if the moments are of different stores, or if compaction passed one of them.
        """
        if other._tracker is self._tracker:
            with suppress(CompactedError, FutureRevisionError):
                readings, count = (self.reading, other.reading), len(keys)
                ranges = [Range(key, revision=reading) for reading in readings for key in keys]
                results = self._tracker.read(ranges).results
                self._check_epoch(other)
                versions = [result.kvs[0] if result.kvs else None for result in results]
                return [versions[:count], versions[count:]]
        return [self.get(keys), other.get(keys)]

    def ranges(
        self, wanted: Sequence[tuple[bytes, bytes]], limit: int = 0
    ) -> list[Sequence[KeyValue]]:
        """Return the versions in some short ranges, `limit` keys of each (0: all), as `get`."""
        ranges = [Range(start, end, limit=limit) for start, end in wanted]
        return [result.kvs for result in self._read_all(ranges)]

    def count(self, start: bytes, end: bytes) -> int:
        """Return the number of keys in a range; one round trip."""
        return self._read([Range(start, end, count_only=True)])[0].count

    def _read_all(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer any number of ranges, as many at a time as an engine takes."""
        if len(ranges) <= READS_MAX:
            return self._read(ranges) if ranges else []
        parts = (ranges[at : at + READS_MAX] for at in range(0, len(ranges), READS_MAX))
        return [result for part in parts for result in self._read(part)]

    def _read(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges; one round trip unless compaction passed `reading`."""
        self._check_epoch()
        while True:
            reading = self.reading
            try:
                answer = self._tracker.read([_at(r, reading) for r in ranges])
                break
            except CompactedError:
                self._move_up(reading)
            except FutureRevisionError:
                self._look_for_restore()
                raise
        self._check_epoch()
        return answer.results

    # --- pages ---

    def pages(
        self, form: PageForm[Page], start: bytes, end: bytes, *, keys_only: bool = False
    ) -> Iterator[Page]:
        """Yield the range [start, end) in pages; compaction meanwhile moves or ends the listing.

        A page does not show which history it is of. So continuity is checked before the first page
        and after the last one: up to one round trip each on a remote engine.
        """
        engine = self._tracker.engine
        while True:
            self._tracker.continuity.assure()
            self._check_epoch()
            reading = self.reading
            try:
                for page in form.listed(engine, start, end, revision=reading, keys_only=keys_only):
                    check_in_time()
                    yield page
                    start = form.last_key(page) + b"\0"
                    self._check_epoch()
                self._tracker.continuity.assure()
                self._check_epoch()
                return
            except CompactedError:
                self._move_up(reading)
            except FutureRevisionError:
                self._look_for_restore()
                raise

    def first(
        self, start: bytes, end: bytes, limit: int, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the first `limit` keys of a range in pages; nothing behind them is read or counted.

        One round trip for each 256 keys, mostly (`Listings`); more than 1,024 are scanned.
        """
        if limit > LISTED_KEYS_MAX:
            for page in self.pages(SCAN, start, end, keys_only=keys_only):
                yield page[:limit]
                limit -= len(page)
                if limit <= 0:
                    return
            return
        while limit:
            some = min(limit, PAGE_KEYS)
            found = self._first(Range(start, end, keys_only=keys_only), some)
            if found:
                yield found
            if len(found) < some:
                return
            limit, start = limit - some, found[-1].key + b"\0"

    def _first(self, wanted: Range, limit: int) -> list[KeyValue]:
        def read(wanted: Range) -> RangeResult:
            return self._read([wanted])[0]

        if not self._tracker.engine.remote:  # it counts nothing
            return list(read(wanted._replace(limit=limit)).kvs)
        return self._tracker.listings.page(read, wanted, limit=limit)

    # --- what comes after it ---

    def changed(self, other: object, start: bytes, end: bytes) -> list[bytes] | None:
        """Return the sorted keys of a range that were written between two moments.

        From a replay of at most `DIFF_REPLAY_COMMITS_MAX` commits and `DIFF_REPLAY_EVENTS_MAX`
        events; None if it would be longer, was compacted, or `other` is of other keys.
        """
        if not isinstance(other, Moment) or other._policy is not self._policy:
            return None
        low, high = sorted((self, other), key=attrgetter("mark.ordinal", "reading"))
        if high.mark.ordinal - low.mark.ordinal > DIFF_REPLAY_COMMITS_MAX:
            return None
        self._check_epoch(other)
        written: set[bytes] = set()
        events = 0
        try:
            for batch in replayed(self._tracker.engine, start, end, low.reading + 1, high.reading):
                for event in batch.events:
                    written.add(event.kv.key)
                events += len(batch.events)
                if events > DIFF_REPLAY_EVENTS_MAX:
                    return None
        except CompactedError:
            return None
        if not written:  # otherwise the caller reads these keys, which notices a restored engine
            self._tracker.continuity.assure()
        self._check_epoch(other)
        return sorted(written)

    def next_revision(self) -> int:
        """Return the revision from which a watch misses no change after this moment.

        That is the one after the mark, or, if compaction took it, the one after the last revision
        of the same state. Raises `CompactedError` if changes after the moment are gone.
        """
        start = self.mark.revision + 1
        engine = self._tracker.engine
        if start >= engine.compacted_revision():
            return start
        try:
            following = self._policy.until(self) + 1
        except CompactedError:
            following = 0
        if following < engine.compacted_revision():
            raise compaction_error(self._policy, self.timestamp) from None
        return following

    # --- compaction and restores ---

    def hold(self) -> None:
        """Make sure that a moment, found without a read of the engine, can still be read."""
        reading = self.reading
        if reading < self._tracker.engine.compacted_revision():
            self._move_up(reading)

    def _move_up(self, failed: int) -> None:
        """Move `reading` up to the last revision of the same state, after `failed` was compacted.

        Another thread may have moved it already. Raises `CompactedError` if that is compacted, too.
        """
        try:
            until = self._policy.until(self)
        except CompactedError:
            until = 0
        self._check_epoch()
        if until <= failed or until < self._tracker.engine.compacted_revision():
            raise compaction_error(self._policy, self.timestamp) from None
        self.reading = max(self.reading, until)

    def _look_for_restore(self) -> None:
        """Raise `StoreRestoredError` if a restore is why a revision is in the future now."""
        self._tracker.head_and(())
        self._check_epoch()

    def _check_epoch(self, other: Moment | None = None) -> None:
        epoch = self.epoch if other is None else min(self.epoch, other.epoch)
        if epoch != self._tracker.continuity.epoch:
            raise StoreRestoredError("the engine was restored or replaced since this was pinned")


def _at(wanted: Range, revision: int) -> Range:
    """Return a range at a revision; a hot path, where `_replace` would cost more than the rest."""
    key, end, _, limit, keys_only, count_only = wanted
    return Range(key, end, revision, limit, keys_only, count_only)
