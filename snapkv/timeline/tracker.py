"""The marks of a store as far as this process knows them, and the feed that brings new ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from weakref import ref

from snapkv.base.concurrency import here
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.clock import Unmarked
from snapkv.engine.contract import (
    Engine,
    GetResult,
    Header,
    KeyValue,
    Range,
    RangeResult,
    ReadResult,
)
from snapkv.errors import (
    CompactedError,
    FutureRevisionError,
    SnapKVError,
    StoreClosedError,
    StoreRecreatedError,
    StoreRestoredError,
)
from snapkv.layout import Mark
from snapkv.timeline.continuity import RESTORED, Continuity, ContinuousWatcher
from snapkv.timeline.lookup import Lookup
from snapkv.timeline.paging import Listings
from snapkv.timeline.ring import Ring, StepFunction
from snapkv.timeline.search import ORDINAL, TIMESTAMP, mark_of

# --- the feed: a watch that brings commits of other writers to the ring ---

FEED_LAG_RINGS_MAX = 4
"""The feed is started anew when it is more commits than this many rings behind."""
FEED_LAG_REVISIONS_MAX = 65_536
"""The same for revisions, most of which then belong to other stores."""


class MarkFeed:
    """A watch over the timestamp key, drained by the lookups that need it: it has no thread.

    `watch` opens it at a revision.
    """

    def __init__(self, watch: Callable[[int], ContinuousWatcher]) -> None:
        self._watch = watch
        self._watcher: ContinuousWatcher | None = None
        self._ordinal = self._revision = 0  # how far it was drained
        self.last: Mark | None = None
        """The newest mark that it has brought."""

    @property
    def running(self) -> bool:
        """Whether the watch was started."""
        return self._watcher is not None

    def is_far_behind(self, newest: Mark, slots: int) -> bool:
        """Return whether catching up costs more than starting again at the newest marks."""
        return (
            newest.ordinal - self._ordinal > FEED_LAG_RINGS_MAX * slots
            or newest.revision - self._revision > FEED_LAG_REVISIONS_MAX
        )

    def start(self, revision: int, ordinal: int) -> None:
        """Watch from a revision on, inclusive, which is that of the mark with that ordinal."""
        self.stop()
        self._ordinal, self._revision, self.last = ordinal, revision, None
        self._watcher = self._watch(revision)

    def stop(self) -> None:
        """End the watch."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    def drain(self) -> Iterator[Mark]:
        """Yield the marks that have come, without waiting.

        Raises `CompactedError` if compaction overtook the feed, `StoreRestoredError`, and any other
        error that ended the watch.
        """
        watcher = self._watcher
        while watcher is not None:
            try:
                batch = watcher.next(0)
            except StoreClosedError:
                if self._watcher is watcher:
                    raise
                return  # it was stopped meanwhile
            if batch is None:
                return
            self._revision = batch.revision
            for event in batch.events:
                if not event.is_delete:
                    mark = mark_of(event.kv)
                    self._ordinal, self.last = mark.ordinal, mark
                    yield mark
            if not batch.events:
                return


# For example, the feed has received 30, with ordinal 4, and no lookup has taken it. Then the engine
# is restored to 20, with ordinal 3. Another process commits 25 and 35. Now the feed is drained:
#
#     newest known     the feed brings   what happens
#     20, ord. 3       30, ord. 4        30 is the witness; the next read finds 25 in its place
#     35, ord. 5       30, ord. 4        it is behind: a read finds 25 in its place; not added
#     25, ord. 4       30, ord. 4        another one in its place: the same
def is_in_question(marks: Sequence[Mark], newest: Mark) -> bool:
    """Return whether marks of the feed may belong to a history that the engine has lost.

    The feed received the marks some time ago, perhaps before a restore that nothing has noticed.
    Marks that end beyond the newest mark become the witness, so the next read checks them.
    """
    is_other = any(mark.ordinal == newest.ordinal and mark != newest for mark in marks)
    return marks[-1].ordinal < newest.ordinal or is_other


# --- point reads that may have shown commits whose marks are not known yet ---


class UnmarkedReads:
    """How far the point reads of a store went beyond the newest mark known; safe for threads.

    The marks of the commits that they showed are at most the newest one. `catch_up` reads it.
    Meanwhile the store is in `stores`, where commits on other stores find it.
    """

    def __init__(self, tracker: Tracker, stores: set[ref[Unmarked]] | None) -> None:
        self.tracker, self.place = tracker, here().place
        self.revision = 0
        """The newest revision shown that is above the newest mark known; 0 for none."""
        self._stores = set[ref[Unmarked]]() if stores is None else stores
        self._ref: ref[Unmarked] = ref(self)
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    def note(self, header: Header, versions: Iterable[KeyValue | None]) -> None:
        """Note the newest versions that a read has shown; an absent key may just be removed."""
        shown = [header.revision if kv is None else kv.mod_revision for kv in versions]
        revision = max(shown, default=0)
        if revision <= self.tracker.shown[1]:
            return
        with self._lock:
            self.revision = max(self.revision, revision)
            self._stores.add(self._ref)

    def settle(self) -> None:
        """Forget what was noted if the newest mark known is at least as new."""
        with self._lock:
            if self.revision <= self.tracker.shown[1]:
                self._forget()

    def catch_up(self) -> None:
        """Read the newest mark if that is needed; one round trip at most.

        Tries only once: an engine that is away must not delay each commit on another one.
        """
        noted = self.revision
        try:
            if noted > self.tracker.shown[1]:
                self.tracker.head()
        finally:
            with self._lock:
                if self.revision == noted:  # else another read has shown more meanwhile
                    self._forget()

    def close(self) -> None:
        """Forget what was noted: a closed store cannot be read."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self.revision = 0
        self._stores.discard(self._ref)


# --- tracker ---

RESTORES_MAX = 3
"""The most restores in a row that one lookup survives."""
FEED_RETRY_S = 5.0
"""The time for which lookups search after the feed failed, before one of them starts it again, in
seconds."""


class Tracker:
    """The marks of one store's timestamp key as far as they are known, all of one history.

    A mark is one version of the timestamp key. The ring holds the newest marks, `lookup` those
    that searches found; both only speed things up. When the engine turns out to hold another
    history, by its header or by the `Continuity`, the epoch grows and all marks are dropped.

    Safe for threads; holds no lock while it reads.
    """

    def __init__(
        self,
        engine: Engine,
        key: bytes,
        *,
        ring_slots: int,
        on_seen: Callable[[int], None],
        unmarked: set[ref[Unmarked]] | None,
    ) -> None:
        self.engine, self.key, self.on_seen = engine, key, on_seen
        self.ring = Ring(ring_slots)
        self.continuity = Continuity(engine, key, self._break)
        self.lookup = Lookup(engine, key, self.continuity)
        self.listings = Listings()
        self._feed = MarkFeed(self._watch_marks)
        self._feed_after = float("-inf")  # when the feed may be started again
        self._lock = threading.Lock()  # ring, newest, shown, header; never held while reading
        self._feed_lock = here().lock()  # one thread at a time drains the feed
        self.newest = self.lookup.creation
        """The newest mark seen so far."""
        self.shown = self.newest, 0
        """The same, and the last revision at which it is known to be the newest."""
        self._header = Header(0, 0)
        self.unmarked = UnmarkedReads(self, unmarked)
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the locks; drop what another thread may have left half-changed."""
        self._lock, self._feed_lock = threading.Lock(), here().lock()
        self._feed = MarkFeed(self._watch_marks)
        self.ring = Ring(self.ring.slots)
        self.continuity.after_fork()
        self.lookup.after_fork()
        self.unmarked.after_fork()

    def open(self, kv: KeyValue, header: Header) -> None:
        """Start from the timestamp key as it is; reads nothing else, never walks history."""
        self.lookup.creation = Mark(0, kv.create_revision, 1)
        self.newest = mark_of(kv)
        self.shown = self.newest, header.revision
        self.continuity.see(self.newest)
        self._header = header
        self.on_seen(self.newest.timestamp)

    def close(self) -> None:
        """Stop the feed."""
        self.unmarked.close()
        self._feed.stop()

    # --- new marks ---

    def add_own(self, prev: Mark, own: Mark, header: Header, before: Mark) -> None:
        """Add a commit of this process, and the mark `prev` that it replaced.

        `before` is the newest mark known when the commit was sent. If the engine had an older one
        in that place, it has lost history.

        For example, the ring holds 10 and 20, with the ordinals 2 and 3. It is `before`: 20. The
        own commit is 30:

            prev         own    feed     the ring then   why
            20, ord. 3   4      any      10 20 30        30 follows 20
            26, ord. 5   6      stopped  26 30           4 and 5 are of other processes; 4 is not
                                                         known, so the ring starts anew
            26, ord. 5   6      runs     10 20           the feed will bring 4, 5 and 6
            22, ord. 3   4      any      22 30           20 is gone: the epoch grows, all that was
            10, ord. 2   3      any      10 30           known is dropped, the feed is stopped

        In the last two the engine was set back to a backup. If it has more commits since than it
        lost, prev may be 26 with ordinal 5: that looks like the second case. So while continuity is
        in doubt, 30 does not become the witness, and the next read finds the old witness changed.
        """
        with self._lock:
            certain = prev == self.continuity.witness or not self.continuity.in_doubt
            newest, replaced = self.ring.newest, prev.ordinal < before.ordinal
            for known in (before, newest):
                if known is not None and prev.ordinal == known.ordinal and prev != known:
                    replaced = True
            if replaced:
                self._start_over(header)
                certain, newest = True, self.ring.newest
            last = self._header
            if header.cluster == last.cluster and header.revision > last.revision:
                self._header = header
            self._see(own, certain=certain)
            if self.unmarked.revision:
                self.unmarked.settle()
            if newest is not None and (own.ordinal <= newest.ordinal or self.ring.append(own)):
                return
            if not self._feed.running:
                self.ring.restart(prev, own)

    def see(self, mark: Mark) -> None:
        """Add a mark of the history that is known."""
        with self._lock:
            self._see(mark)

    def see_followed(self, mark: Mark) -> None:
        """Add a mark that a watch has brought, perhaps some time after it was received.

        The engine may have been restored meanwhile. So the next read checks that it has the mark.
        """
        with self._lock:
            if mark.ordinal > self.newest.ordinal:
                self._see(mark)
                self.continuity.doubt()

    def _see(self, mark: Mark, *, certain: bool = True) -> None:
        """Add a mark; `certain` means that it is of the history that is known."""
        if certain:
            self.continuity.see(mark)
        if mark.ordinal > self.newest.ordinal:
            self.newest = mark
            self.shown = mark, mark.revision
            self.on_seen(mark.timestamp)

    def _add_fed(self, mark: Mark) -> None:
        with self._lock:
            self._see(mark)
            newest = self.ring.newest
            if newest is not None and (mark.ordinal <= newest.ordinal or self.ring.append(mark)):
                return
            self.ring.restart(mark)

    # --- reading, and noticing a restored engine ---

    def read(self, ranges: Sequence[Range]) -> ReadResult:
        """Read linearizably; notice an engine that was restored before the request.

        One round trip: the witness that shows a restore of a remote engine is read with `ranges`.
        """
        before = self._header
        is_remote = self.engine.remote
        answer = self.continuity.read(ranges) if is_remote else self.engine.read(ranges)
        if answer.header != before:
            self._take_header(answer.header, before)
        return answer

    def point(self, key: bytes, revision: int, epoch: int) -> GetResult | None:
        """Answer one key at a revision, in the history of `epoch`; one round trip, no lock.

        None if `read` has to answer: the engine raises, it holds another history, or the witness
        is due.
        """
        before, engine = self._header, self.engine
        try:
            found = (
                self.continuity.get(key, revision) if engine.remote else engine.get(key, revision)
            )
        except SnapKVError:
            return None
        if found is None:
            return None
        if found.header != before:
            self._take_header(found.header, before)
        return found if epoch == self.continuity.epoch else None

    def _take_header(self, header: Header, before: Header) -> None:
        """Take an answer's header; `before` was the newest one when the request was sent."""
        with self._lock:
            known = self._header
            if header.cluster == known.cluster and header.revision >= known.revision:
                self._header = header
            elif header.cluster != before.cluster or header.revision < before.revision:
                self._start_over(header)

    def _break(self, epoch: int, header: Header) -> None:
        with self._lock:
            if epoch == self.continuity.epoch:
                self._start_over(header)

    def _start_over(self, header: Header) -> None:
        """Drop all marks: the engine holds another history."""
        self.continuity.start_over()
        self.ring.clear()
        self.lookup.clear()
        self._feed.stop()
        self._header = header
        self.newest = self.lookup.creation
        self.shown = self.newest, 0

    # --- the head ---

    def head(self) -> Mark:
        """Return the newest mark; one round trip, linearizable."""
        epoch, (newest, shown_at) = self.continuity.epoch, self.shown
        found = self.point(self.key, 0, epoch)
        if found is not None:
            if found.header.revision == shown_at:
                return newest  # nothing was written since
            mark = self.mark_in(found.kv)
            if self._take_head(mark, found.header, epoch):
                return mark
        return self.head_and(())[0]

    def head_and(self, ranges: Sequence[Range]) -> tuple[Mark, list[RangeResult]]:
        """Return the newest mark and the newest state of `ranges`, read together."""
        for _ in range(RESTORES_MAX):
            epoch = self.continuity.epoch
            answer = self.read([Range(self.key), *ranges])
            mark = self.newest_in(answer.results[0])
            if self._take_head(mark, answer.header, epoch):
                return mark, answer.results[1:]
        raise StoreRestoredError(RESTORED)

    def _take_head(self, mark: Mark, header: Header, epoch: int) -> bool:
        """Add the mark that was the newest at a revision, unless that was another history."""
        with self._lock:
            if epoch != self.continuity.epoch:
                return False
            self._see(mark)
            if mark == self.newest and header.revision > self.shown[1]:
                self.shown = mark, header.revision
            return True

    # --- known marks ---

    @property
    def creation(self) -> Mark:
        """The mark of the store's creation: not a commit, but the time before the first one."""
        return self.lookup.creation

    def newest_in(self, result: RangeResult) -> Mark:
        """Return the mark of a read of the timestamp key; raises `StoreRecreatedError`."""
        return self.mark_in(result.kvs[0] if result.kvs else None)

    def mark_in(self, kv: KeyValue | None) -> Mark:
        """Return the mark of a version of the timestamp key, if it is the key that was opened.

        Raises `StoreRecreatedError` if it is another key, or was removed (None).
        """
        if kv is None or kv.create_revision != self.lookup.creation.revision:
            raise StoreRecreatedError("the timestamp key was deleted or recreated")
        return mark_of(kv)

    def floor(self, timestamp: int) -> tuple[Mark | None, Mark, int]:
        """Return the newest mark at or below a time, the newest mark of all, and the epoch.

        The first is None unless the ring holds it, or it is the newest one.
        """
        with self._lock:
            floor, newest, epoch = self.ring.find(timestamp), self.newest, self.continuity.epoch
        if floor is None and timestamp == newest.timestamp > 0:
            floor = newest
        return floor, newest, epoch

    def after(self, mark: Mark) -> Mark:
        """Return the mark after one that is older than the newest known; cost as `between`."""
        with self._lock:
            after = self.ring.after(mark)
        return after if after is not None else self.between(ORDINAL, mark.ordinal)[1]

    def between(self, field: int, wanted: int) -> tuple[Mark, Mark]:
        """Return the newest mark with `mark[field] <= wanted`, which is old, and the one after it.

        Costs as `Lookup.between`; the first call also starts the feed, with a search and a watch.
        Raises `StoreRestoredError` if the engine is restored meanwhile.
        """
        continuity = self.continuity
        epoch = continuity.epoch
        known = [self.newest]
        if self.ring.slots > 1:  # else it holds no other mark
            self.follow()
            known = self._known()
            with self._lock:
                floor = self.ring.find(wanted) if field == TIMESTAMP else None
                after = None if floor is None else self.ring.after(floor)
                if floor and after and epoch == continuity.epoch:
                    return floor, after
        try:
            found = self.lookup.between(field, wanted, known, epoch)
            if field == TIMESTAMP:
                self.lookup.learn(*found, epoch)
        except FutureRevisionError:
            self.head()
            if epoch == continuity.epoch:
                raise
        if epoch != continuity.epoch:
            raise StoreRestoredError(RESTORED)
        return found

    def _known(self) -> list[Mark]:
        with self._lock:
            return list(filter(None, (self.ring.oldest, self.ring.newest, self.newest)))

    def step_function(self) -> StepFunction:
        """Return the revisions of the times in the ring, copied; no round trip."""
        with self._lock:
            return self.ring.step_function()

    # --- the feed ---

    def follow(self) -> None:
        """Bring the ring up to date from the feed; start the feed if it does not run."""
        if not self._feed_lock.acquire(blocking=False):
            return  # another thread drains it; this search does without
        try:
            if self._feed.running or monotonic() >= self._feed_after:
                self._drain_feed()
        except StoreClosedError:
            raise
        except StoreRestoredError:
            self._feed.stop()
        except SnapKVError:  # the search does without; it raises if reading is denied, too
            self._feed.stop()
            self._feed_after = monotonic() + FEED_RETRY_S
        finally:
            self._feed_lock.release()

    def _drain_feed(self) -> None:
        newest = self.newest
        if not self._feed.running or self._feed.is_far_behind(newest, self.ring.slots):
            self._start_feed(newest)
        try:
            marks = list(self._feed.drain())
        except CompactedError:
            self._start_feed(newest)
            return
        is_checked = bool(marks) and self.engine.remote
        if is_checked and is_in_question(marks, self.newest):
            self.continuity.verify(marks[-1])
        is_ahead = is_checked and marks[-1].ordinal > self.newest.ordinal
        for mark in marks:
            self._add_fed(mark)
        if is_ahead:
            self.continuity.doubt()

    def _start_feed(self, newest: Mark) -> None:
        """Watch from the oldest version that fits the ring, or that compaction left."""
        epoch = self.continuity.epoch
        first = max(1, newest.ordinal - self.ring.slots + 1)
        start = newest.revision
        if first < newest.ordinal:
            try:
                found = self.lookup.between(ORDINAL, first, [newest, *self._known()], epoch)
                start = found[0].revision
            except CompactedError:
                start = 0
        if epoch != self.continuity.epoch:
            raise StoreRestoredError(RESTORED)
        self._feed.start(max(start, self.engine.compacted_revision()), first)
        with self._lock:
            self.ring.clear()

    def _watch_marks(self, revision: int) -> ContinuousWatcher:
        return self.continuity.watch(self.key, b"", revision, self._verify_feed)

    def _verify_feed(self) -> None:
        """Raise `StoreRestoredError` if the engine does not hold the newest mark of the feed."""
        if self._feed.last is None:
            self.continuity.verify_epoch()
        else:
            self.continuity.verify(self._feed.last)

    def check(self) -> None:
        """Assert the invariants of ring, anchors and blocks."""
        with self._lock:
            self.ring.check()
            self.lookup.check()
