"""What a time line has learned of an engine: marks, and that they are still of its history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

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
    StoreRecreatedError,
    StoreRestoredError,
)
from snapkv.layout import Mark
from snapkv.lifecycle import renew_in_children
from snapkv.timeline.feed import Feed, mark_of
from snapkv.timeline.lookup import Lookup
from snapkv.timeline.ring import Ring
from snapkv.timeline.unbroken import Unbroken
from snapkv.timeline.witness import Witness

RESTORES_MAX = 3
"""So many restores in a row may come between a question and its answer."""
RESTORED = "the engine was restored or replaced under this store"


class Marks:
    """The marks of one store's timestamp key as far as they are known, of one history.

    A mark is one version of the timestamp key. The ring holds the newest marks, anchors hold what
    searches found; both only ever speed things up. An engine that holds another history is noticed
    by its revision or by the `Witness`: then `epoch` grows and all that was learned is dropped.
    """

    def __init__(
        self, engine: Engine, key: bytes, *, ring_slots: int, on_seen: Callable[[int], None]
    ) -> None:
        self.engine, self.key, self._on_seen = engine, key, on_seen
        self.ring = Ring(ring_slots)
        self._witness = Witness(engine, key, self._lost)
        self._lookup = Lookup(engine, key, self._witness)
        self._feed = Feed(self._watch_marks)
        self._feed_after = float("-inf")  # when the feed may be started again
        self._lock = threading.Lock()  # ring, anchors, newest, epoch: never held while reading
        self._feed_lock = threading.Lock()  # one thread at a time drains the feed
        self._newest = self._lookup.creation
        self._shown = self._newest, 0  # the same, and the last revision that is known to show it
        self._header = Header(0, 0)
        self.epoch = 0
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the locks, and forget what another thread may have left half-changed."""
        self._lock, self._feed_lock = threading.Lock(), threading.Lock()
        self._feed = Feed(self._watch_marks)
        self.ring = Ring(self.ring.slots)
        self._lookup.after_fork()

    def open(self, kv: KeyValue, header: Header) -> None:
        """Start from the timestamp key as it is; reads nothing else, never walks history."""
        self._lookup.creation = Mark(0, kv.create_revision, 1)
        self._newest = mark_of(kv)
        self._shown = self._newest, header.revision
        self._witness.see(self._newest)
        self._header = header
        self._on_seen(self._newest.timestamp)

    def close(self) -> None:
        """Stop the feed."""
        self._feed.stop()

    # --- what comes in ---

    def own(self, prev: Mark, own: Mark, header: Header, before: Mark) -> None:
        """Take in a commit of this process, and the mark it replaced.

        `before` is the newest mark known when it was sent: an engine where something older
        stood in that place went back in time.
        """
        with self._lock:
            certain = prev == self._witness.mark or not self._witness.in_doubt
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
            if newest is not None and (own.ordinal <= newest.ordinal or self.ring.append(own)):
                return
            if not self._feed.running:
                self.ring.restart(prev, own)

    def _see(self, mark: Mark, *, certain: bool = True) -> None:
        """Take in a mark; `certain` says whether it is of the history that was learned."""
        if certain:
            self._witness.see(mark)
        if mark.ordinal > self._newest.ordinal:
            self._newest = mark
            self._shown = mark, mark.revision
            self._on_seen(mark.timestamp)

    def _fed(self, mark: Mark) -> None:
        with self._lock:
            self._see(mark)
            newest = self.ring.newest
            if newest is not None and (mark.ordinal <= newest.ordinal or self.ring.append(mark)):
                return
            self.ring.restart(mark)

    def ask(self, ranges: Sequence[Range]) -> ReadResult:
        """Read linearizably, and notice an engine that went back since before the request.

        One round trip: what tells a remote engine that went back and on rides along, see `Witness`.
        """
        before = self._header
        answer = self._witness.read(ranges)
        if answer.header != before:
            self._hear(answer.header, before)
        return answer

    def point(self, key: bytes, revision: int, epoch: int) -> GetResult | None:
        """Answer one key at a revision, as of the history of `epoch`; one round trip, no lock.

        None where `ask` has to answer: the engine raises, it holds another history, or the
        witness is due.
        """
        before, engine = self._header, self.engine
        try:
            found = self._witness.get(key, revision) if engine.remote else engine.get(key, revision)
        except SnapKVError:
            return None
        if found is None:
            return None
        if found.header != before:
            self._hear(found.header, before)
        return found if epoch == self.epoch else None

    def _hear(self, header: Header, before: Header) -> None:
        """Take in an answer's header; `before` was the newest one when it was asked."""
        with self._lock:
            known = self._header
            if header.cluster == known.cluster and header.revision >= known.revision:
                self._header = header
            elif header.cluster != before.cluster or header.revision < before.revision:
                self._start_over(header)

    def assure(self) -> None:
        """Notice a remote engine that went back; a round trip if it was not asked for a while."""
        self._witness.assure()

    def verify(self, mark: Mark) -> None:
        """Make sure that a mark is of the history that the engine holds; one round trip or two.

        `StoreRestoredError` when it is not. Of one that was compacted, what is left must be able
        to follow it.
        """
        kvs: list[KeyValue] = []
        try:
            answer = self._witness.attended([Range(self.key, revision=mark.revision)])
            kvs = answer.results[0].kvs
        except CompactedError as e:
            if self._witness.outlived(mark, e):
                return
        except FutureRevisionError:
            self._witness.attended(())
        if not kvs or mark not in (mark_of(kvs[0]), Mark(0, kvs[0].mod_revision, 1)):
            raise StoreRestoredError(RESTORED)

    def _lost(self, generation: int, header: Header) -> None:
        with self._lock:
            if generation == self._witness.generation:
                self._start_over(header)

    def _start_over(self, header: Header) -> None:
        """Drop all that was learned of an engine that is no longer there."""
        self.epoch += 1
        self._witness.forget()  # first: what searches bring from now on is not kept
        self.ring.clear()
        self._lookup.clear()
        self._feed.stop()
        self._header = header
        self._newest = self._lookup.creation
        self._shown = self._newest, 0

    # --- the head ---

    def head(self) -> Mark:
        """Return the newest mark; one round trip, linearizable."""
        epoch, (newest, shown_at) = self.epoch, self._shown
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
            epoch = self.epoch
            answer = self.ask([Range(self.key), *ranges])
            mark = self._newest_in(answer.results[0])
            if self._take_head(mark, answer.header, epoch):
                return mark, answer.results[1:]
        raise StoreRestoredError(RESTORED)

    def _take_head(self, mark: Mark, header: Header, epoch: int) -> bool:
        """Take in the mark that was the newest at a revision, unless that was another history."""
        with self._lock:
            if epoch != self.epoch:
                return False
            self._see(mark)
            if mark == self._newest and header.revision > self._shown[1]:
                self._shown = mark, header.revision
            return True

    def newest_known(self) -> Mark:
        """Return the newest mark seen so far, without asking the engine."""
        return self._newest

    @property
    def creation(self) -> Mark:
        """The mark of the store's creation: no commit, it stands for the time before the first."""
        return self._lookup.creation

    def _known(self) -> list[Mark]:
        """Return the marks at hand that can bound a search."""
        with self._lock:
            marks = (self.ring.oldest, self.ring.newest, self._newest)
            return [mark for mark in marks if mark is not None]

    def _newest_in(self, result: RangeResult) -> Mark:
        return self.mark_in(result.kvs[0] if result.kvs else None)

    def _watch_marks(self, revision: int) -> Unbroken:
        return self.watch(self.key, b"", revision, self._check_feed)

    def _check_feed(self) -> None:
        """Raise `StoreRestoredError` when a feed opened anew brings another history."""
        epoch = self.epoch
        self._witness.attended(())
        if epoch != self.epoch:
            raise StoreRestoredError(RESTORED)

    def watch(
        self, key: bytes, range_end: bytes, start: int, check: Callable[[], None]
    ) -> Unbroken:
        """Watch a range from a revision on; `check` raises when it is of another history."""
        return Unbroken(
            self.engine.watch(key, range_end, start_revision=start),
            check=check,
            epoch=lambda: self.epoch,
            remote=self.engine.remote,
        )

    def mark_in(self, kv: KeyValue | None) -> Mark:
        """Return the mark of a version of the timestamp key, if it is the key that was opened.

        Raises `StoreRecreatedError` when it is not, or was removed (None).
        """
        if kv is None or kv.create_revision != self._lookup.creation.revision:
            raise StoreRecreatedError("the timestamp key was deleted or made again")
        return mark_of(kv)

    def check(self) -> None:
        """Assert the invariants of ring, anchors and blocks."""
        with self._lock:
            self.ring.check()
            self._lookup.check()
