"""Continuity: whether the engine still holds the history that was learned from it.

A server may be set back to a backup at any time. snapkv then has to forget what it has learned,
instead of mixing two histories. `Continuity` notices it between two reads, `ContinuousWatcher`
between two batches of a watch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snapkv.base.concurrency import here
from snapkv.base.waiting import bounded, check_in_time, monotonic
from snapkv.engine.contract import (
    Engine,
    GetResult,
    Header,
    KeyValue,
    Range,
    RangeResult,
    ReadResult,
    WatchBatch,
    Watcher,
)
from snapkv.errors import (
    CompactedError,
    EngineUnavailableError,
    FutureRevisionError,
    StoreRestoredError,
)
from snapkv.layout import Mark
from snapkv.timeline.search import READS_MAX, mark_of

GAP_S = 0.03
"""No server can be exchanged in less time: within 30 ms after an answer it is still the same. A
small one on a memory disk was killed, set back and started in 0.08 s."""
LOOK_S = 5.0
"""The pause between two checks whether the stream of a watch that brings nothing was opened again,
in seconds."""
RESTORED = "the engine was restored or replaced under this store"

OnBreak = Callable[[int, Header], None]
"""Takes the epoch in which the break was noticed, and the engine's present header."""


# For example, a process reads a store on etcd. t@r is the mark of timestamp t at revision r.
#
#     time      the engine's marks       what the process does        epoch   witness
#     0 ms      10@5  20@6  30@7         reads the head                 0     30@7
#     10 ms                              load: within 30 ms, alone      0     30@7
#     60 ms                              load: reads revision 7, too    0     30@7    unchanged
#     ...       restored to 10@5
#     5.0 s     10@5  44@6  47@7  50@8   load: reads revision 7, too    0     30@7    it is 47@7
#                                        starts over                    1     none
#               10@5  44@6  47@7  50@8   reads the head                 1     50@8
#
# The revision alone shows nothing here: 8 is larger than 7, as it should be. The witness shows it.
# When the epoch grows, ring, anchors, blocks and feed are emptied. A search that began in epoch 0
# keeps nothing of what it finds, because its epoch is over, and a snapshot of epoch 0 raises
# `StoreRestoredError` at its next read.
#
# What counts is the time of the answer, which is not known when a request is sent. So the request
# is assumed to take as long as the last one did (`_took_s`). If it would then end more than 30 ms
# after the last certain moment, the witness is read with it:
#
#     certain at   sent at   last took   answer at    witness
#     0 ms         10 ms     2 ms        12 ms        not read: 10 + 2 - 0 is within 30
#     10 ms        35 ms     2 ms        85 ms        read after it, alone: 85 - 10 is not
#     85 ms        136 ms    50 ms       186 ms       read with it: 136 + 50 - 85 is not
#
# A wrong forecast costs a second round trip, as in the second line, and nothing else.
#
# If compaction has passed revision 7, the witness cannot be read. Then the mark at the compaction
# point must be 30@7 or a newer one by ordinal; the newest mark is the next witness.
class Continuity:
    """Reads, and notices that the engine holds another history than before.

    The revision of a cluster that was set back to a backup and written to since may be larger than
    before. So the *witness*, the newest mark seen while continuity was certain, is read again in
    the same round trip, at its revision, whenever more than `GAP_S` passed since the last answer.
    If it has changed, `on_break` is called. Engines that cannot be exchanged cost nothing.
    """

    def __init__(self, engine: Engine, key: bytes, on_break: OnBreak) -> None:
        self._engine, self._key, self._on_break = engine, key, on_break
        self._seen: tuple[Mark, int] | None = None  # the witness, and a revision that shows it
        self.epoch = 0  # of histories: what was learned in one is worth nothing in the next
        self._certain_at = float("-inf")  # when the newest request was sent that was answered
        self._doubted_at = float("-inf")  # when a mark came that no answer has confirmed
        self._took_s = 0.0  # what the last request took: a slow one needs the witness, too
        self._checks = self._failures = 0  # reads of the witness: on their way, failed
        self._checked = here().condition()

    def after_fork(self) -> None:
        """Renew the lock; the parent's reads are not here."""
        self._checks, self._checked = 0, here().condition()

    @property
    def witness(self) -> Mark | None:
        """The newest mark seen while continuity was certain."""
        return None if self._seen is None else self._seen[0]

    def see(self, mark: Mark) -> None:
        """Take a mark of the same history as the witness, if it is newer."""
        if self._seen is None or mark.ordinal > self._seen[0].ordinal:
            self._seen = mark, mark.revision

    def doubt(self) -> None:
        """Let the next read check the witness: requests sent until now did not confirm it."""
        self._certain_at, self._doubted_at = float("-inf"), monotonic()

    def start_over(self) -> None:
        """Begin the epoch of another history."""
        self.epoch += 1  # first: what searches find from now on is not kept
        self._seen = None

    @property
    def in_doubt(self) -> bool:
        """Whether the engine may have been exchanged since the last answer."""
        return self._engine.remote and self._is_due(monotonic())

    def _is_due(self, answered: float) -> bool:
        """Return whether the witness has to be read for an answer at a time."""
        certain_at = self._certain_at
        return answered - certain_at > GAP_S or certain_at < self._doubted_at

    def get(self, key: bytes, revision: int) -> GetResult | None:
        """Answer a point read of a remote engine; None if the witness is due with it.

        One round trip, and another one if it was so slow that the engine may have been exchanged.
        Calls at the same time share that one.
        """
        sent = monotonic()
        if self._is_due(sent + self._took_s) and not self._checks:
            return None
        found = self._engine.get(key, revision)
        answered = monotonic()
        self._took_s = answered - sent
        if self._is_due(answered):
            self._check_after(answered)
        else:
            self._certain_at = max(self._certain_at, sent)
        return found

    def _check_after(self, answered: float) -> None:
        """Read the witness after an answer, unless another call has sent that read after it.

        For example, 1,000 calls are answered within 100 ms. The first of them reads the witness.
        Calls that are answered before it sends need no read. Later ones wait; then one of them
        reads the witness for all that were answered by then.
        """
        with self._checked:
            failures = self._failures
            while self._checks and self._failures == failures and self._certain_at < answered:
                self._checked.wait(bounded(LOOK_S))
                check_in_time()
            if self._certain_at >= answered:
                return
        self.read_with_witness(())

    def read(self, ranges: Sequence[Range], *, serializable: bool = False) -> ReadResult:
        """Answer ranges as the engine does, with the witness if it is due; one round trip.

        Two if the answer was so slow that the engine may have been exchanged meanwhile.
        """
        if not self._engine.remote:
            return self._engine.read(ranges, serializable=serializable)
        sent = monotonic()
        if self._is_due(sent + self._took_s):
            if len(ranges) < READS_MAX:
                return self.read_with_witness(ranges, serializable=serializable)
            self.read_with_witness(())
            sent = monotonic()
        certain_at = self._certain_at
        answer = self._engine.read(ranges, serializable=serializable)
        self._took_s = monotonic() - sent
        if sent + self._took_s - certain_at > GAP_S:
            self.read_with_witness(())
        else:
            self._certain_at = max(self._certain_at, sent)
        return answer

    def assure(self) -> None:
        """Read the witness alone, if it is due: for answers that need no read."""
        if self.in_doubt:
            self.read_with_witness(())

    def read_with_witness(
        self, ranges: Sequence[Range], *, serializable: bool = False
    ) -> ReadResult:
        """Answer ranges together with the witness, due or not; one round trip.

        Two if the witness is in the future, three if it was compacted. Raises `CompactedError`
        and `FutureRevisionError` if that is true of `ranges`.
        """
        with self._checked:
            self._checks += 1
        failed = 1
        try:
            answer = self._read_with_witness(ranges, serializable)
            failed = 0
        finally:
            with self._checked:
                self._checks -= 1
                self._failures += failed
                self._checked.notify_all()
        return answer

    def _read_with_witness(self, ranges: Sequence[Range], serializable: bool) -> ReadResult:
        while True:
            sent, epoch, seen = monotonic(), self.epoch, self._seen
            again = Range(self._key, revision=0 if seen is None else seen[1])
            try:
                answer = self._engine.read([*ranges, again], serializable=serializable)
            except CompactedError as e:
                if seen is None or (e.earliest is not None and e.earliest <= seen[1]):
                    raise  # it is `ranges` that were compacted
                self._replace(epoch, seen, e)
                continue
            except FutureRevisionError:
                if seen is None:
                    raise
                behind = self._engine.read([*ranges, Range(self._key)])
                self._on_break(epoch, behind.header)
                return ReadResult(behind.header, behind.results[:-1])
            kv = _kv_in(answer.results[-1])
            if seen is None:  # the newest mark is the next one
                if kv is not None and epoch == self.epoch and self._seen is None:
                    self._seen = mark_of(kv), kv.mod_revision
            elif kv is None or mark_of(kv) != seen[0]:
                self._on_break(epoch, answer.header)
            self._certain_at = max(self._certain_at, sent)
            self._took_s = monotonic() - sent
            return ReadResult(answer.header, answer.results[:-1])

    def verify(self, mark: Mark) -> None:
        """Raise `StoreRestoredError` if a mark is not of the engine's history; 1 or 2 round trips.

        If the mark was compacted, the marks that are left must be able to follow it.
        """
        kvs: list[KeyValue] = []
        try:
            answer = self.read_with_witness([Range(self._key, revision=mark.revision)])
            kvs = answer.results[0].kvs
        except CompactedError as e:
            if _may_follow(mark, self._left(e)[2:]):
                return
        except FutureRevisionError:
            self.read_with_witness(())
        if not kvs or mark not in (mark_of(kvs[0]), Mark(0, kvs[0].mod_revision, 1)):
            raise StoreRestoredError(RESTORED)

    def verify_epoch(self) -> None:
        """Raise `StoreRestoredError` if the engine turns out to hold another history now."""
        epoch = self.epoch
        self.read_with_witness(())
        if epoch != self.epoch:
            raise StoreRestoredError(RESTORED)

    def watch(
        self, key: bytes, range_end: bytes, start: int, verify: Callable[[], None]
    ) -> ContinuousWatcher:
        """Watch a range from a revision on; `verify` raises if it is of another history."""
        watcher = self._engine.watch(key, range_end, start_revision=start)
        return ContinuousWatcher(watcher, self, verify, remote=self._engine.remote)

    def _replace(self, epoch: int, seen: tuple[Mark, int], error: CompactedError) -> None:
        """Replace a witness that was compacted by the newest mark, if that may follow it.

        If compaction has passed the newest mark, too, the compaction point still shows it.
        """
        header, compacted, *left = self._left(error)
        newest = left[-1]
        if newest is None or not _may_follow(seen[0], left):
            self._on_break(epoch, header)
        elif epoch == self.epoch and self._seen is seen:
            self._seen = newest, max(newest.revision, compacted)

    def _left(self, error: CompactedError) -> tuple[Header, int, Mark | None, Mark | None]:
        """Return the compaction point, the mark in force there, and the newest one."""
        compacted = error.earliest or self._engine.compacted_revision()
        while True:
            ranges = [Range(self._key, revision=compacted), Range(self._key)]
            try:
                answer = self._engine.read(ranges)
            except CompactedError as e:  # compaction went on; it only rises, and ends at the head
                compacted = e.earliest or self._engine.compacted_revision()
                continue
            kvs = map(_kv_in, answer.results)
            marks = [None if kv is None else mark_of(kv) for kv in kvs]
            return answer.header, compacted, marks[0], marks[1]


# For example, a watch on etcd, from revision 5 on. `verify` reads the newest mark that the watch
# returned, at first the one before revision 5, and raises if another one is in its place:
#
#     the stream                        reopened   next()
#     is opened                            0
#     brings revision 5                    0       holds it, verifies: the server may have been
#                                                  restored while the stream was opened; returns it
#     brings revision 6                    0       returns it
#     breaks; the server is restored
#     to revision 4, and 5 to 9 written
#     is opened again at 7                 1
#     brings revision 7                    1       holds it, verifies: revision 6 is another commit
#                                                  now; raises StoreRestoredError
#
# Revision 7 is never returned: it is of another history, and 5 and 6 of that one would be missing.
# If `verify` raises EngineUnavailableError instead, next() raises it, too, and the next call of
# next() verifies again before it returns what it holds.
class ContinuousWatcher:
    """A watch that continues only in the history in which it began.

    A stream that is opened again continues at a revision, which in a restored engine shows other
    data. So a batch is held back until `verify` has returned, which raises `StoreRestoredError` if
    its history is another one. `verify` is called after the stream was opened again, after the
    epoch has grown, and with the first batch of a `remote` stream, which may have been opened
    before or after a restore.
    """

    def __init__(
        self, watcher: Watcher, continuity: Continuity, verify: Callable[[], None], *, remote: bool
    ) -> None:
        self._watcher, self._continuity = watcher, continuity
        self._verify, self._remote = verify, remote
        self._verified = watcher.reopened, continuity.epoch
        self._fresh = remote
        self._held: WatchBatch | None = None

    @property
    def reopened(self) -> int:
        """The number of times that the stream was opened again, as `Watcher.reopened`."""
        return self._watcher.reopened

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch as a watcher does; one round trip more if it was opened again.

        Raises what `verify` raises, too.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if self._held is None:
                self._held = self._take(timeout, deadline)
            self._check()
            batch, self._held = self._held, None
            if batch is not None or not self._remote:
                return batch
            if deadline is not None and monotonic() >= deadline:
                return None

    def close(self) -> None:
        """End the stream."""
        self._watcher.close()

    def _take(self, timeout: float | None, deadline: float | None) -> WatchBatch | None:
        """Wait for a batch; at most `LOOK_S` at a time if the server may be exchanged meanwhile."""
        if self._remote:
            timeout = LOOK_S if deadline is None else min(LOOK_S, max(0.0, deadline - monotonic()))
        try:
            return self._watcher.next(timeout)
        except CompactedError:
            self._check()  # of a restored engine it would be a wrong answer
            raise

    def _check(self) -> None:
        first = self._fresh and self._held is not None
        now = self._watcher.reopened, self._continuity.epoch
        if now == self._verified and not first:
            return
        try:
            self._verify()
        except EngineUnavailableError:
            if self._held is None:
                return  # no batch is held back: the next check is soon enough
            raise
        self._verified = now
        self._fresh = self._fresh and not first


def _may_follow(mark: Mark, left: Sequence[Mark | None]) -> bool:
    """Return whether the marks that compaction left may be of the history in which it took one.

    If so, the mark in force at the compaction point is that mark or a newer one. In a backup that
    was restored with its revisions raised, all of which are compacted, it is older.
    """
    return all(
        other is not None and (other.ordinal > mark.ordinal or other == mark) for other in left
    )


def _kv_in(result: RangeResult) -> KeyValue | None:
    return result.kvs[0] if result.kvs else None
