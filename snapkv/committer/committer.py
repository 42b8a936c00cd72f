"""The committer: many callers, one transaction in flight, each outcome told exactly once."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Sequence

from snapkv.clock import HybridClock, monotonic, no_later_than, pause
from snapkv.committer.backoff import Rounds
from snapkv.committer.group import Boarding
from snapkv.committer.operations import Check
from snapkv.committer.outcomes import Unheld, add_note, read_back, unknown
from snapkv.committer.pace import Pace
from snapkv.committer.queue import Call, Turnstile
from snapkv.committer.recovery import Settler, Undecided
from snapkv.committer.request import Attempt, History, Sent, Verdict, marks_of
from snapkv.engine.contract import Engine, KeyValue, Txn, TxnResult
from snapkv.errors import (
    AccessDeniedError,
    CommitTimeoutError,
    CommitTooLargeError,
    ConflictError,
    CorruptStoreError,
    InvalidKeyError,
    LeaseNotFoundError,
    OutcomeUnknown,
    Refused,
    SnapKVError,
    StoreRecreatedError,
)
from snapkv.layout import Layout, Mark, StampRecord, stamp_of
from snapkv.model import Build, Commit, Ops, Stamp

COMMIT_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S_MAX = 60.0
"""The longest deadline; compaction keeps history at least this long, so outcomes stay decidable."""

ABOUT_ONE = (AccessDeniedError, CommitTooLargeError, InvalidKeyError, LeaseNotFoundError)
"""What an engine refuses a whole group with for the sake of one member."""


class Committer:
    """Commits of one process to one store; safe for threads, has none of its own.

    The first caller leads: it sends at once. Those who come meanwhile wait and ride in the next
    transaction as parts 0, 1, 2, ... One (timestamp, nonce) is one request, sent once; when its
    outcome is unknown, it is fenced before anybody is told anything.
    """

    def __init__(
        self,
        engine: Engine,
        layout: Layout,
        clock: HybridClock,
        history: History,
        *,
        created: int,
        writer: str,
        rng: random.Random,
        max_clock_skew_ms: int,
        before_send: Callable[[], None] | None = None,
    ) -> None:
        self._engine, self._ts_key, self._clock = engine, layout.ts, clock
        self._history, self.created, self.writer = history, created, writer
        self._rng, self.before_send = rng, before_send
        self._pace = Pace(max_clock_skew_ms)
        self._settler = Settler(engine, layout.ts, history, writer, rng, clock.merge)
        self._boarding = Boarding(engine, layout)
        self._turnstile, self._pid = Turnstile(), os.getpid()

    @property
    def guards_max(self) -> int | None:
        """How many guards one part may have; None: any number."""
        return self._boarding.guards_max

    def commit(self, build: Build, *, timeout: float) -> Commit:
        """Commit what `build(stamp)` returns; one round trip when nobody is in the way.

        Raises what `build` raises, `ConflictError`, `CommitTooLargeError`, `CommitTimeoutError`,
        `CommitUnknownError`, `StoreRecreatedError` and what the engine refuses with.
        """
        return self._submit(Call(build, monotonic() + timeout))

    def tick(self, at_least: int, *, timeout: float, check: Callable[[int], None]) -> Commit:
        """Commit nothing but a timestamp >= `at_least`; another's that large is as good.

        `check` raises for a timestamp that no tick should have.
        """

        def build(stamp: Stamp) -> Ops:
            check(stamp.ts)
            return Ops()

        return self._submit(Call(build, monotonic() + timeout, at_least=at_least, is_tick=True))

    def resolve(self, sent: Sent, checks: tuple[Check, ...], *, timeout: float) -> Mark | None:
        """Settle a commit of any process; return where it landed, None when it never will.

        Raises `ConflictError` when it landed without this part, `CommitUnknownError` when that
        cannot be told (any more).
        """
        deadline = monotonic() + timeout
        try:
            verdict, mark = self._settler.settle(sent, deadline)
            unheld = self._settler.applied(checks, mark, deadline) if mark is not None else []
        except Undecided as e:
            raise unknown(sent, checks, why=str(e)) from e
        if verdict is Verdict.UNDECIDABLE:
            raise unknown(sent, checks, why="history was compacted", may_still_land=False)
        error = self._error_of(sent, 0, checks, unheld)
        if error is not None:
            raise error
        return mark

    def close(self) -> None:
        """Refuse new commits; those in flight are told when they are settled."""
        self._turnstile.close()

    def _submit(self, call: Call) -> Commit:
        if os.getpid() != self._pid:  # forked: the callers in the queue are the parent's
            self._turnstile, self._pid = Turnstile(), os.getpid()
        try:
            self._turnstile.enter(call)
            if self._turnstile.wait(call):
                self._lead(call)
            elif not call.done:
                self._give_up(call)
        finally:
            try:
                self._turnstile.leave(call)
            except BaseException:  # an interrupt cut it short
                self._turnstile.leave(call)
                raise
        if call.error is not None:
            raise call.error
        assert call.result is not None
        return call.result

    def _give_up(self, call: Call) -> None:
        """Tell a caller whose deadline passed while it waited what can be told."""
        with self._turnstile.lock:
            attempt = self._turnstile.attempt
            if call.done:
                return
            call.done = True  # whoever is about to send will see it
        if attempt is None or call not in attempt.calls:
            raise CommitTimeoutError("the deadline passed before the commit was sent")
        raise self._unknown_for(call, attempt, "the deadline passed before the answer came")

    # --- the leader ---

    def _lead(self, call: Call) -> None:
        """Send transactions until this call is settled; it is in the first of them."""
        rounds = Rounds(self._rng, self._pace)
        while not call.done:
            if self._turnstile.attempt is not None:
                self._settle(call, self._turnstile.attempt)
            elif not rounds.fits(call.left_s):
                why = "no time left for another round" if call.left_s else "the deadline passed"
                raise CommitTimeoutError(f"{why}, after {rounds.lost} lost to other commits")
            elif not self._attempt(call, rounds):
                pause(min(rounds.wait_s(), call.left_s))

    def _attempt(self, call: Call, rounds: Rounds) -> bool:
        """Send one transaction; return False when another commit took its place in time."""
        if self.before_send is not None:
            with no_later_than(call.deadline):
                self.before_send()
        attempt: Attempt[Call] | None = None

        def prepare(peeked: KeyValue | None) -> Txn:
            nonlocal attempt
            attempt, txn = self._load(peeked, rounds)
            return txn

        try:
            answer = self._engine.transact(prepare, self._ts_key, timeout=call.left_s)
        except _NobodyLeftError:
            return True
        except Refused as e:
            if attempt is None:
                raise e.error from e
            self._fail(attempt, e.error)
            return True
        except BaseException as e:
            if attempt is None:
                raise  # nothing was sent
            attempt.unknown = e
            if not isinstance(e, Exception):
                add_note(e, attempt)
                raise
            return True
        assert attempt is not None
        return self._judge(attempt, answer, rounds)

    def _load(self, peeked: KeyValue | None, rounds: Rounds) -> tuple[Attempt[Call], Txn]:
        """Fix the timestamp and who rides; from here on they count as sent."""
        before = self._history.newest_known()
        known = peeked.version if peeked is not None else before.ordinal
        if peeked is not None:
            self._clock.merge(stamp_of(peeked.value))
        turnstile = self._turnstile
        with turnstile.lock:
            queue = [call for call in turnstile.queue if not call.done]
        for call in queue:
            if call.at_least:
                self._clock.merge(call.at_least - 1)
        timestamp = rounds.issue(self._clock)
        while True:
            calls, parts, txns = self._boarding.board(queue, timestamp, self._drop)
            note = parts[0].note if parts else None
            ahead = rounds.ahead if peeked is None else 0  # embedded engines lose no rounds
            stamp = StampRecord(timestamp, os.urandom(16), self.writer, note, ahead=ahead)
            attempt = Attempt(Sent(stamp, self.created, before, known), calls, parts)
            with turnstile.lock:
                if not calls:
                    raise _NobodyLeftError
                left = [call for call in calls if not call.done]
                if len(left) == len(calls):
                    turnstile.queue = [c for c in turnstile.queue if c not in calls]
                    turnstile.attempt = attempt
                    return attempt, attempt.sent.commit_txn(self._ts_key, txns)
                # one gave up while the others were built: batches move, so build them again
                queue = [call for call in queue if not call.done]

    def _drop(self, call: Call, error: Exception) -> None:
        with self._turnstile.lock:
            if call in self._turnstile.queue:
                self._turnstile.queue.remove(call)
            call.finish(error=error)

    # --- outcomes ---

    def _judge(self, attempt: Attempt[Call], answer: TxnResult, rounds: Rounds) -> bool:
        """Tell everybody on board what the answer says; False when the timestamp was too old."""
        if answer.succeeded:
            self._tell_answer(attempt, answer)
            return True
        try:
            stored = attempt.sent.refused_by(answer)
        except SnapKVError as e:
            self._fail(attempt, e)
            return True
        self._clock.merge(stamp_of(stored.value))
        if any(call.is_tick for call in attempt.calls):
            self._tell_ticks(attempt, stored)
        self._requeue(attempt)
        rounds.lose(self._clock, stored)
        return False

    def _tell_ticks(self, attempt: Attempt[Call], stored: KeyValue) -> None:
        """Tell those who only want a timestamp as large as theirs that another one stands there."""
        try:
            stamp = StampRecord.decode(stored.value)
        except CorruptStoreError:
            return  # `check` tells of it; a tick of our own goes on top
        found = Commit(stamp.timestamp, 0, stored.mod_revision, stamp.writer, stamp.note)
        for call in attempt.calls:
            if not call.is_tick:
                continue
            error: Exception | None = None
            try:
                call.build(Stamp(found.ts, 0))
            except Exception as e:
                error = e
            with self._turnstile.lock:
                call.finish(result=None if error else found, error=error)

    def _tell_answer(self, attempt: Attempt[Call], answer: TxnResult) -> None:
        put, *parts = answer.results
        if isinstance(put, TxnResult):  # a part that rode alone: the timestamp is in its branch
            if not put.succeeded:
                self._tell(attempt, None, [read_back(attempt.parts[0], put)])
                return
            put = put.results[0]
        revision = answer.header.revision
        prev, own = marks_of(put, attempt.sent.stamp.timestamp, revision)
        self._history.own(prev, own, answer.header, attempt.sent.before)
        if len(attempt.parts) == 1:  # it was not skipped
            self._tell(attempt, own, [[]])
            return
        unheld = [
            read_back(part, result) for part, result in zip(attempt.parts, parts, strict=True)
        ]
        self._tell(attempt, own, unheld)

    def _settle(self, call: Call, attempt: Attempt[Call]) -> None:
        """Settle what is open and tell its callers; only what is proven is told.

        When the caller's deadline passes first, the next one on board goes on.
        """
        try:
            sent, answered = attempt.sent, attempt.answered
            verdict, mark = self._settler.settle(sent, call.deadline, answered=answered)
            applied: list[Unheld | None] = [None] * len(attempt.parts)
            if mark is not None:
                applied = [
                    self._settler.applied(attempt.checks(batch), mark, call.deadline)
                    for batch in range(len(attempt.parts))
                ]
        except Undecided as e:
            raise self._unknown_for(call, attempt, str(e)) from attempt.unknown
        except StoreRecreatedError as e:
            self._fail(attempt, e)
            return
        except SnapKVError as e:  # the engine is closed or broken: nothing is proven
            self._leave_unknown(attempt, str(e))
            return
        except BaseException as e:
            add_note(e, attempt)
            raise
        if verdict is Verdict.DEAD:
            self._retry_or_fail(attempt)
        else:
            self._tell(attempt, mark, applied)

    def _retry_or_fail(self, attempt: Attempt[Call]) -> None:
        """Go on from a dead request with a new timestamp, unless the engine says why not to."""
        match attempt.unknown:
            case OutcomeUnknown(retry=False, cause=SnapKVError() as cause):
                self._fail(attempt, cause)
            case OutcomeUnknown(retry=False) as error:
                self._fail(attempt, error)
            case OutcomeUnknown():
                self._requeue(attempt)
            case Exception() as error:
                self._fail(attempt, error)
            case _:  # its leader was interrupted; the others on board still want their commit
                self._requeue(attempt)

    def _tell(
        self, attempt: Attempt[Call], own: Mark | None, applied: Sequence[Unheld | None]
    ) -> None:
        with self._turnstile.lock:
            for batch, (call, part) in enumerate(zip(attempt.calls, attempt.parts, strict=True)):
                error, unheld = None, applied[batch]
                if unheld != []:
                    error = self._error_of(attempt.sent, batch, part.checks, unheld)
                if error is not None or own is None:
                    call.finish(error=error)
                    continue
                stamp = attempt.sent.stamp
                call.finish(
                    result=Commit(stamp.timestamp, batch, own.revision, stamp.writer, stamp.note)
                )
            self._turnstile.attempt = None  # last: an interrupt before leaves it to be settled

    @staticmethod
    def _error_of(
        sent: Sent, batch: int, checks: tuple[Check, ...], unheld: Unheld | None
    ) -> SnapKVError | None:
        if unheld is None:
            why = "the history that would tell was compacted"
            return unknown(sent, checks, batch=batch, why=why, may_still_land=False)
        if unheld:
            return ConflictError((check.guard, found) for check, found in unheld)
        return None

    def _unknown_for(self, call: Call, attempt: Attempt[Call], why: str) -> SnapKVError:
        if call not in attempt.calls:
            return CommitTimeoutError("an earlier commit could not be settled in time")
        batch = attempt.calls.index(call)
        return unknown(attempt.sent, attempt.parts[batch].checks, batch=batch, why=why)

    def _leave_unknown(self, attempt: Attempt[Call], why: str) -> None:
        """Tell everybody on board that the outcome stays open; `resolve` can settle it later."""
        with self._turnstile.lock:
            for batch, call in enumerate(attempt.calls):
                call.finish(
                    error=unknown(attempt.sent, attempt.checks(batch), batch=batch, why=why)
                )
            self._turnstile.attempt = None

    def _requeue(self, attempt: Attempt[Call]) -> None:
        """Put the callers of a dead timestamp back to the front, in their order."""
        with self._turnstile.lock:
            queue = self._turnstile.queue
            queue[:0] = [c for c in attempt.calls if not c.done and c not in queue]
            self._turnstile.attempt = None

    def _fail(self, attempt: Attempt[Call], error: Exception) -> None:
        """Nothing of it was or will be applied: tell everybody on board.

        Unless the error may be about one of them only: then each goes again, by itself.
        """
        if len(attempt.calls) > 1 and isinstance(error, ABOUT_ONE):
            for call in attempt.calls:
                call.alone = True
            self._requeue(attempt)
            return
        with self._turnstile.lock:
            for call in attempt.calls:  # one exception object must not be raised in two threads
                call.finish(error=copy.copy(error) if len(attempt.calls) > 1 else error)
            self._turnstile.attempt = None


class _NobodyLeftError(Exception):
    """All calls failed to build or left: there is nothing to send."""
