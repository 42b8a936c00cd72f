"""The committer: many callers, one transaction at a time, exactly one outcome for each call."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import filterfalse
from operator import attrgetter
from weakref import ref

from snapkv.base.concurrency import here
from snapkv.base.waiting import monotonic, no_later_than, pause, perf_counter
from snapkv.clock import HybridClock, Unmarked
from snapkv.committer.backoff import Backoff, FastestClock
from snapkv.committer.group import EmptyGroupError, GroupBuilder
from snapkv.committer.operations import Check
from snapkv.committer.queue import Call, CommitQueue
from snapkv.committer.recovery import CommitCounts, Recovery, Undecided
from snapkv.committer.request import (
    ABOUT_ONE,
    FailedGuards,
    Request,
    SentRequest,
    Verdict,
    error_of,
    failed_guards,
    marks_of,
    name_open,
    unknown,
)
from snapkv.engine.contract import KeyValue, OutcomeUnknown, Refused, Txn, TxnResult
from snapkv.errors import (
    CommitTimeoutError,
    CommitUnknownError,
    ConflictError,
    CorruptStoreError,
    SnapKVError,
    StoreRecreatedError,
    another,
)
from snapkv.hooks import CommitEvent, LostRoundEvent, Notifier, Outcome, TickEvent
from snapkv.layout import Layout, Mark, StampRecord, stamp_of
from snapkv.model import Build, Commit, Ops, Stamp
from snapkv.timeline import Timeline

# --- the other stores of a process, whose timestamps a commit must exceed ---
# A commit that depends on what was read from another store must have a larger timestamp. Almost
# every read brings the timestamp along. A point read of the newest value does not: it may show a
# commit whose timestamp this process has not seen. Then the other store's newest timestamp is read
# before the commit is sent. For example, with stores a and b, and another process whose clock is
# faster:
#
#     another process    a.save("k")         timestamp 30
#     this process       a.load("k")         shows a revision above the newest mark known: unmarked
#                        b.save("x")         reads the newest timestamp of a: 30; commits at 31
#                        b.save("y")         commits at 32, as always without reading

CATCH_UP_S = 1.0
"""The most time that a commit spends on this, for all stores together."""


def catch_up(unmarked: set[ref[Unmarked]], own: object, deadline: float) -> None:
    """Read the newest timestamps of the stores that have shown more than is known of them.

    Skips `own`: the engine itself orders the commits of one store. Skips stores whose calls run in
    another place, because a loop cannot wait for such calls. If a store does not answer, nothing is
    learned from it. Never raises for that: the commit is of another store.
    """
    until, place = min(deadline, monotonic() + CATCH_UP_S), here().place
    for each in unmarked.copy():
        store = each()
        if store is None:
            unmarked.discard(each)  # it was left open
            continue
        if store.tracker is own or store.place is not place:
            continue
        if monotonic() >= until:
            break
        with suppress(SnapKVError), no_later_than(until):
            store.catch_up()


# --- committer ---

_is_done = attrgetter("done")
COMMIT_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S_MAX = 60.0
"""The longest deadline; compaction keeps history at least this long, so outcomes stay decidable."""


class Committer:
    """Commits of one process to one store; safe for threads, has none of its own.

    The first caller leads: it sends at once. Callers that come meanwhile wait, and share the next
    transaction as members 0, 1, 2, ... of a group. One (timestamp, nonce) is one request, sent
    once; if its outcome is unknown, it is fenced before any outcome is reported.
    """

    def __init__(
        self,
        layout: Layout,
        clock: HybridClock,
        history: Timeline,
        *,
        writer: str,
        max_clock_skew_ms: int,
        before_send: Callable[[], None] | None = None,
        notify: Notifier | None = None,
    ) -> None:
        self._tracker = tracker = history.tracker
        self._engine, self._ts_key, self._clock = tracker.engine, layout.ts, clock
        self.created, self.writer = tracker.creation.revision, writer
        self._rng, self.before_send, self.notify = random.Random(), before_send, notify
        self.counts = CommitCounts()
        self._fastest = FastestClock(max_clock_skew_ms)
        self._recovery = Recovery(history, writer, self._rng, self.counts, notify)
        self._builder = GroupBuilder(tracker.engine, layout, writer)
        self._queue, self._pid = CommitQueue(), os.getpid()

    @property
    def waiting(self) -> int:
        """The number of calls that wait for the transaction before theirs."""
        return len(self._queue.waiting)

    def commit(self, build: Build | Ops, *, timeout: float) -> Commit:
        """Commit what `build(stamp)` returns, or operations; raises as `SnapshotKV.commit`."""
        return self._submit(Call(build, monotonic() + timeout))

    def tick(self, at_least: int, *, timeout: float, check: Callable[[int], None]) -> Commit:
        """Commit only a timestamp >= `at_least`; one that another process committed will do.

        `check` raises for a timestamp that no tick should have.
        """

        def build(stamp: Stamp) -> Ops:
            check(stamp.ts)
            return Ops()

        return self._submit(Call(build, monotonic() + timeout, at_least=at_least, is_tick=True))

    def resolve(
        self, sent: SentRequest, checks: tuple[Check, ...], *, timeout: float
    ) -> Mark | None:
        """Return where any process's commit landed, None if it never will; raises as `resolve`."""
        return self._recovery.resolve(sent, checks, monotonic() + timeout)

    def close(self) -> None:
        """Reject new commits; commits in flight still get their outcome."""
        self._queue.close()

    def _submit(self, call: Call) -> Commit:
        began = 0.0 if self.notify is None else perf_counter()
        try:
            if os.getpid() != self._pid:  # forked: the callers in the queue are the parent's
                self._queue, self._pid = CommitQueue(), os.getpid()
            if self._clock.unmarked:  # before it joins: its group may be sent at once
                catch_up(self._clock.unmarked, own=self._tracker, deadline=call.deadline)
            try:
                self._queue.join(call)
                if call.woken is None or self._queue.wait(call):  # None: it leads at once
                    self._lead(call)
                elif not call.done:
                    self._time_out(call)
            except SnapKVError:
                raise
            except BaseException as e:
                self._name_open(call, e)
                raise
            finally:
                try:
                    self._queue.leave(call)
                except BaseException:  # an interrupt cut it short
                    self._queue.leave(call)
                    raise
            if call.error is not None:
                raise call.error
        except BaseException as e:
            if self.notify is not None:
                self._report(self.notify, call, perf_counter() - began, e)
            raise
        assert call.result is not None
        if self.notify is not None:
            self._report(self.notify, call, perf_counter() - began, None)
        return call.result

    def _report(
        self, notify: Notifier, call: Call, duration_s: float, error: BaseException | None
    ) -> None:
        if not notify.wants(TickEvent if call.is_tick else CommitEvent):
            return
        timestamp = call.result.ts if call.result is not None and error is None else None
        outcome, lost = outcome_of(error), call.lost_rounds
        if call.is_tick:
            notify(TickEvent(notify.store, outcome, duration_s, lost, timestamp, error))
            return
        notify(CommitEvent(notify.store, outcome, duration_s, call.members, lost, timestamp, error))

    def _time_out(self, call: Call) -> None:
        """Raise for a call whose deadline passed while it waited, unless it has its outcome."""
        with self._queue.lock:
            request = self._queue.request
            if call.done:
                return
            call.done = True  # a leader that is about to send will see it
        if request is None or call not in request.calls:
            raise CommitTimeoutError("the deadline passed before the commit was sent")
        raise self._unknown_error(call, request, "the deadline passed before the answer came")

    def _name_open(self, call: Call, error: BaseException) -> None:
        request = call.request
        if request is not None and call.error is None:
            name_open(error, request, request.calls.index(call))

    # --- the leader ---

    def _lead(self, call: Call) -> None:
        """Send transactions until this call is done; the first one contains it."""
        backoff = Backoff(self._rng, self._fastest)
        while not call.done:
            left_s = max(0.0, call.deadline - monotonic())
            if self._queue.request is not None:
                self._recover(call, self._queue.request)
            elif not backoff.fits(left_s):
                why = "no time left for another round" if left_s else "the deadline passed"
                raise CommitTimeoutError(f"{why}, after {backoff.lost} lost to other commits")
            elif not self._send(call, backoff):
                pause(min(backoff.wait_s(), call.left_s))

    def _send(self, call: Call, backoff: Backoff) -> bool:
        """Send one transaction; return False when another commit took its timestamp's place."""
        if self.before_send is not None:
            with no_later_than(call.deadline):
                self.before_send()
        prepared: list[Request[Call]] = []
        prepare, left_s = partial(self._prepare, backoff, prepared), call.deadline - monotonic()
        try:
            answer = self._engine.transact(prepare, self._ts_key, timeout=max(0.0, left_s))
        except EmptyGroupError:
            return True
        except Refused as e:
            if not prepared:
                e.reraise()
            self._fail_all(prepared[-1], e.reason())
            return True
        except BaseException as e:
            if not prepared:
                raise  # nothing was sent
            prepared[-1].unknown = e
            if not isinstance(e, Exception):
                raise
            return True
        if answer.succeeded:
            self._finish_landed(prepared[-1], answer)
            return True
        return self._finish_refused(prepared[-1], answer, backoff)

    def _prepare(
        self, backoff: Backoff, prepared: list[Request[Call]], peeked: KeyValue | None
    ) -> Txn:
        """Fix the timestamp and the group; from here on the group counts as sent: as `prepared`."""
        before = self._tracker.newest
        known = peeked.version if peeked is not None else before.ordinal
        if peeked is not None:
            self._clock.merge(stamp_of(peeked.value))
        queue = self._queue
        with queue.lock:
            waiting = list(filterfalse(_is_done, queue.waiting))
        for call in waiting:
            if call.at_least:
                self._clock.merge(call.at_least - 1)
        timestamp = backoff.issue(self._clock)
        while True:
            calls, operations, txns = self._builder.build(waiting, timestamp, self._fail_one)
            if not calls:
                raise EmptyGroupError
            said, nonce = operations[0], os.urandom(16)  # the same of all members
            ahead = backoff.ahead if peeked is None else 0  # embedded engines lose no rounds
            stamp = StampRecord(
                timestamp, nonce, said.writer, said.note, ahead=ahead, meta=said.meta
            )
            sent = SentRequest(stamp, self.created, before, known)
            request = Request(sent, calls, operations)
            with queue.lock:
                if not any(map(_is_done, calls)):
                    queue.waiting = list(filterfalse(calls.__contains__, queue.waiting))
                    queue.request = request
                    for call in calls:
                        call.request = request
                    prepared.append(request)
                    return sent.commit_txn(self._ts_key, txns)
                # a call timed out while the group was built: batches move, so build it again
                waiting = [call for call in waiting if not call.done]

    def _fail_one(self, call: Call, error: Exception) -> None:
        with self._queue.lock:
            call.finish(error=error)
            if call in self._queue.waiting:
                self._queue.waiting.remove(call)

    # --- outcomes ---

    def _finish_refused(self, request: Request[Call], answer: TxnResult, backoff: Backoff) -> bool:
        """Put the calls back if the timestamp was too old, and return False; else they failed."""
        try:
            stored = request.sent.refused_by(answer)
        except SnapKVError as e:
            self._fail_all(request, e)
            return True
        self._clock.merge(stamp_of(stored.value))
        if any(call.is_tick for call in request.calls):
            self._finish_ticks(request, stored)
        self._requeue(request)
        backoff.lose(self._clock, stored)
        self._note_lost(request, backoff.lost)
        return False

    def _note_lost(self, request: Request[Call], lost: int) -> None:
        """Count and report a round that was lost; `lost` is how many its leader has lost."""
        self.counts.lost_rounds += 1
        for call in request.calls:
            call.lost_rounds += 1
        if self.notify is not None and self.notify.wants(LostRoundEvent):
            self.notify(LostRoundEvent(self.notify.store, lost, len(request.calls)))

    def _finish_ticks(self, request: Request[Call], stored: KeyValue) -> None:
        """Finish the group's ticks with the stored timestamp, which is as large as theirs."""
        try:
            stamp = StampRecord.decode(stored.value)
        except CorruptStoreError:
            return  # `check` reports it; these ticks commit above it
        writer, revision = stamp.writer or None, stored.mod_revision
        found = Commit(stamp.timestamp, 0, revision, writer, stamp.note, meta=stamp.meta)
        for call in request.calls:
            if not call.is_tick:
                continue
            error: Exception | None = None
            try:
                assert not isinstance(call.build, Ops), "a tick has a check"
                call.build(Stamp(found.ts, 0))
            except Exception as e:
                error = e
            with self._queue.lock:
                self.counts.ticks += error is None
                call.finish(result=None if error else found, error=error)

    def _finish_landed(self, request: Request[Call], answer: TxnResult) -> None:
        put, *results = answer.results
        if isinstance(put, TxnResult):  # a guarded call alone: the timestamp is in its branch
            if not put.succeeded:
                self._finish_all(request, None, [failed_guards(request.operations[0], put)])
                return
            put = put.results[0]
        revision = answer.header.revision
        prev, own = marks_of(put, request.sent.stamp.timestamp, revision)
        self._tracker.add_own(prev, own, answer.header, request.sent.before)
        if len(request.operations) == 1:  # it was not skipped
            self._finish_all(request, own, [[]])
            return
        members = zip(request.operations, results, strict=True)
        self._finish_all(request, own, [failed_guards(ops, result) for ops, result in members])

    def _recover(self, call: Call, request: Request[Call]) -> None:
        """Find out the outcome of the open request and finish its calls with what is proven.

        If this call's deadline passes first, the next call of the group goes on.
        """
        try:
            sent, answered = request.sent, request.answered
            verdict, mark = self._recovery.recover(sent, call.deadline, answered=answered)
            failed: list[FailedGuards | None] = [None] * len(request.operations)
            if mark is not None:
                failed = [
                    self._recovery.failed_guards(request.checks(batch), mark, call.deadline)
                    for batch in range(len(request.operations))
                ]
        except Undecided as e:
            raise self._unknown_error(call, request, str(e)) from request.unknown
        except StoreRecreatedError as e:
            self._fail_all(request, e)
            return
        except SnapKVError as e:  # the engine is closed or broken: nothing is proven
            self._finish_unknown(request, str(e))
            return
        if verdict is Verdict.DEAD:
            self._retry_or_fail(request)
        else:
            self._finish_all(request, mark, failed)

    def _retry_or_fail(self, request: Request[Call]) -> None:
        """Retry a dead request with a new timestamp, unless the engine's error rules that out."""
        match request.unknown:
            case OutcomeUnknown(retry=False, cause=SnapKVError() as cause):
                self._fail_all(request, cause)
            case OutcomeUnknown(retry=False) as error:
                self._fail_all(request, error)
            case OutcomeUnknown():
                self._requeue(request)
            case Exception() as error:
                self._fail_all(request, error)
            case _:  # its leader was interrupted; the other calls still want their commit
                self._requeue(request)

    def _finish_all(
        self, request: Request[Call], own: Mark | None, failed: Sequence[FailedGuards | None]
    ) -> None:
        """Finish the calls of a request that landed at `own`, each by its own guards."""
        stamp, counts, members = request.sent.stamp, self.counts, len(request.calls)
        with self._queue.lock:
            counts.transactions += own is not None
            for batch, (call, ops) in enumerate(
                zip(request.calls, request.operations, strict=True)
            ):
                error = None
                if failed[batch] != []:
                    error = error_of(request.sent, batch, ops.checks, failed[batch])
                if error is not None or own is None:
                    counts.conflicts += isinstance(error, ConflictError)
                    counts.unknown_outcomes += isinstance(error, CommitUnknownError)
                    call.finish(error=error)
                    continue
                call.members = members
                counts.ticks += call.is_tick
                counts.commits += not call.is_tick
                by, why, meta = stamp.writer or None, stamp.note, stamp.meta
                call.finish(result=Commit(stamp.timestamp, batch, own.revision, by, why, meta=meta))
            self._queue.request = None  # last: an interrupt before leaves it to be recovered

    def _unknown_error(self, call: Call, request: Request[Call], why: str) -> SnapKVError:
        if call not in request.calls:
            return CommitTimeoutError("the outcome of an earlier commit was not found out in time")
        batch = request.calls.index(call)
        with self._queue.lock:
            self.counts.unknown_outcomes += 1
        return unknown(request.sent, request.operations[batch].checks, batch=batch, why=why)

    def _finish_unknown(self, request: Request[Call], why: str) -> None:
        """Finish all calls with an unknown outcome; `resolve` can find it out later."""
        with self._queue.lock:
            for batch, call in enumerate(request.calls):
                checks = request.checks(batch)
                self.counts.unknown_outcomes += not call.done
                call.finish(error=unknown(request.sent, checks, batch=batch, why=why))
            self._queue.request = None

    def _requeue(self, request: Request[Call]) -> None:
        """Put the calls of a dead request back to the front of the queue, in their order."""
        with self._queue.lock:
            waiting = self._queue.waiting
            waiting[:0] = [c for c in request.calls if not c.done and c not in waiting]
            self._queue.request = None

    def _fail_all(self, request: Request[Call], error: Exception) -> None:
        """Finish all calls of a request of which nothing was or will be applied.

        If the error may be about one of them only, each is sent again alone instead.
        """
        if len(request.calls) > 1 and isinstance(error, ABOUT_ONE):
            for call in request.calls:
                call.alone = True
            self._requeue(request)
            return
        with self._queue.lock:
            for call in request.calls:  # one exception object must not be raised in two threads
                call.finish(error=another(error) if len(request.calls) > 1 else error)
            self._queue.request = None


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the outcome that an error means.

    >>> outcome_of(None), outcome_of(CommitTimeoutError("late")), outcome_of(KeyError())
    ('committed', 'timeout', 'failed')
    """
    match error:
        case None:
            return "committed"
        case ConflictError():
            return "conflict"
        case CommitTimeoutError():
            return "timeout"
        case CommitUnknownError():
            return "unknown"
        case _:
            return "failed"
