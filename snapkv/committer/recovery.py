"""The recovery from a lost answer: a fence at the request's timestamp, then its outcome.

Looking at the timestamp key is enough, without a fence, in two cases. A request that was answered,
with an error that leaves open whether it was applied, is no longer on its way. And once a timestamp
>= T is stored, the guard of T is false for ever.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from snapkv.base.waiting import monotonic, no_later_than, pause, perf_counter
from snapkv.committer.operations import Check
from snapkv.committer.request import (
    SentRequest,
    Verdict,
    error_of,
    marks_of,
    unknown,
)
from snapkv.engine.contract import KeyValue, OutcomeUnknown, Range, Refused
from snapkv.errors import (
    CompactedError,
    EngineUnavailableError,
    SnapKVError,
    StoreClosedError,
    StoreRecreatedError,
    StoreRestoredError,
)
from snapkv.hooks import FenceEvent, FenceOutcome, Notifier
from snapkv.layout import Mark, StampRecord
from snapkv.timeline import Timeline
from snapkv.times import dated

# --- what a committer has done since it was made ---


@dataclass(slots=True)
class CommitCounts:
    """Counts of one committer, as `Stats` describes them.

    The leader changes them, or a thread that holds the queue's lock.
    """

    commits: int = 0
    transactions: int = 0
    ticks: int = 0
    conflicts: int = 0
    lost_rounds: int = 0
    fences: int = 0
    unknown_outcomes: int = 0


# --- recovery ---

T = TypeVar("T")

log = logging.getLogger(__name__)

FENCE_PAUSE_S_MIN = 0.01
FENCE_PAUSE_S_MAX = 0.5
FENCE_TIMEOUT_S = 5.0
"""The longest that one fence waits for its answer before it is sent again, in seconds."""


class Undecided(SnapKVError):
    """The deadline passed before the outcome was found out."""


# For example, T = 20 is sent while the newest commit known has the timestamp 10 and the ordinal 5.
# The answer is lost, and the fence of 20 is sent. Then the timestamp key holds one of these:
#
#     stored   ordinal   stamp           verdict   why
#     20       6         our fence       dead      20 is taken: our request fails when it arrives
#     20       6         our nonce       landed    it is our commit, which made the fence fail
#     20       6         another nonce   dead      20 is taken by another process
#     30       6         any             dead      one commit was made since 10, and this is it
#     30       7         any             look      two were made: the other one may be ours
#
# To look means to read the history of the timestamp key at 20: landed if our nonce is found there,
# dead if not. If compaction took that part of the history, the oldest mark left may still decide:
#
#     left             verdict       why
#     30 6, 35 7       dead          6 follows 5, and it is not ours
#     30 7, 40 8       undecidable   6 is gone, and may have been ours
#
# Ordinals count the commits of one history. If the cluster was set back to a backup that ends with
# 8 4, it may hold 20 5, our commit, and 30 6. There, too, 6 is the next after 5. So before that
# decides, 10 5 is verified; here it is not in the history, and Recovery looks.
class Recovery:
    """Finds out the outcome of a sent request.

    Reading that a commit is absent proves nothing while its request may still arrive.
    `snapkv/DESIGN.md` lists the holes of simpler rules, H1 to H15.
    """

    def __init__(
        self,
        history: Timeline,
        writer: str,
        rng: random.Random,
        counts: CommitCounts,
        notify: Notifier | None,
    ) -> None:
        self._engine, self._ts_key = history.tracker.engine, history.tracker.key
        self._history, self._writer, self._rng = history, writer, rng
        self._counts, self._notify = counts, notify
        self._fenced = b""  # the nonce of the newest request that was fenced

    def recover(
        self, sent: SentRequest, deadline: float, *, answered: bool = False
    ) -> tuple[Verdict, Mark | None]:
        """Return the final verdict, and the mark of a commit that landed.

        `answered` means that the request is no longer on its way: then no fence is sent. Raises
        `Undecided` if the deadline (monotonic seconds) passes first, and `StoreRecreatedError`.
        """
        with no_later_than(deadline):
            if answered:
                return self._verdict(sent, deadline, answered)
            return self._fenced_verdict(sent, deadline)

    def resolve(self, sent: SentRequest, checks: tuple[Check, ...], deadline: float) -> Mark | None:
        """Return where a request landed, None if it never will; see `Committer.resolve`."""
        try:
            verdict, mark = self.recover(sent, deadline)
            failed = self.failed_guards(checks, mark, deadline) if mark is not None else []
        except Undecided as e:
            raise unknown(sent, checks, why=str(e)) from e
        if verdict is Verdict.UNDECIDABLE:
            raise unknown(sent, checks, why="history was compacted", may_still_land=False)
        error = error_of(sent, 0, checks, failed)
        if error is not None:
            raise error
        return mark

    def _fenced_verdict(self, sent: SentRequest, deadline: float) -> tuple[Verdict, Mark | None]:
        """Return the verdict after a fence; log, count and report it.

        If one call's deadline passes, the next call continues: that is the same fence.
        """
        stamp, began = sent.stamp, perf_counter()
        if stamp.nonce != self._fenced:
            self._fenced = stamp.nonce
            self._counts.fences += 1
            log.warning(
                "%s: the commit of %s got no answer; a fence finds out whether it happened",
                self._engine.url,
                dated(stamp.timestamp),
            )
        outcome: FenceOutcome = "open"
        try:
            verdict, mark = self._verdict(sent, deadline, False)
            outcome = verdict.value
            return verdict, mark
        finally:
            log.info("%s: fence of %s: %s", self._engine.url, dated(stamp.timestamp), outcome)
            if self._notify is not None:
                took_s = perf_counter() - began
                self._notify(FenceEvent(self._notify.store, stamp.timestamp, outcome, took_s))

    def _verdict(
        self, sent: SentRequest, deadline: float, answered: bool
    ) -> tuple[Verdict, Mark | None]:
        if answered:
            stored = self._retried(lambda: self._look(sent, deadline), deadline)
        else:
            stored = self._fence(sent, deadline)
        if stored is None:
            return Verdict.DEAD, None
        stamp = StampRecord.decode(stored.value)
        self._history.tracker.on_seen(stamp.timestamp)
        if sent.is_mine(stamp):
            return Verdict.LANDED, Mark(stamp.timestamp, stored.mod_revision, stored.version)
        if stamp.timestamp == sent.stamp.timestamp:
            # T is taken, by an earlier copy of our fence or by another commit
            return Verdict.DEAD, None
        if self._is_next(stored.version, sent, deadline):
            return Verdict.DEAD, None  # one commit landed since, and it is the stored one
        return self._look_back(sent, deadline)

    def _is_next(self, ordinal: int, sent: SentRequest, deadline: float) -> bool:
        """Return whether an ordinal follows the newest one known when sending, in one history.

        If the cluster was restored in between, its ordinals count another history, and our commit
        may be below the stored one.
        """
        if not sent.known_ordinal or ordinal != sent.known_ordinal + 1:
            return False
        try:
            if self._engine.remote:
                self._retried(lambda: self._history.verify(sent.before), deadline)
        except StoreRestoredError:
            return False
        return True

    def _fence(self, sent: SentRequest, deadline: float) -> KeyValue | None:
        """Send the fence until it is answered, or until a look is enough; repeating it is harmless.

        Returns the timestamp key that made the fence fail, None if the fence landed.
        """
        txn = sent.fence_txn(self._ts_key, self._writer)
        wait, cause = FENCE_PAUSE_S_MIN, None
        while (left := deadline - monotonic()) > 0:
            try:
                answer = self._engine.transact(
                    lambda _: txn, self._ts_key, timeout=min(left, FENCE_TIMEOUT_S)
                )
                if not answer.succeeded:
                    return sent.refused_by(answer)
                header = answer.header
                prev, own = marks_of(answer.results[0], sent.stamp.timestamp, header.revision)
                self._history.tracker.add_own(prev, own, header, sent.before)
                return None
            except Refused as e:
                if isinstance(e.error, StoreClosedError):
                    e.reraise()  # no fence can be sent any more
                cause = e.reason()
            except (OutcomeUnknown, EngineUnavailableError) as e:
                cause = e
            if (stored := self._look_unfenced(sent, deadline)) is not None:
                return stored
            pause(min(max(0.0, deadline - monotonic()), wait * self._rng.uniform(0.5, 1)))
            wait = min(FENCE_PAUSE_S_MAX, wait * 2)
        raise Undecided("the fence was not answered in time") from cause

    def _look(self, sent: SentRequest, deadline: float) -> KeyValue | None:
        """Return the timestamp key if it holds the request's timestamp or a later one."""
        left = max(0.001, min(deadline - monotonic(), FENCE_TIMEOUT_S))
        answer = self._engine.read([Range(self._ts_key)], timeout=left)
        return sent.found_in(answer.results[0])

    def _look_unfenced(self, sent: SentRequest, deadline: float) -> KeyValue | None:
        """Look once after a fence that failed: a server that rejects writes may still allow reads.

        None proves nothing: the request may still be on its way. An embedded engine is not read:
        what a failed commit left there counts only after the next write.
        """
        if not self._engine.remote or monotonic() >= deadline:
            return None
        try:
            return self._look(sent, deadline)
        except (StoreRecreatedError, StoreClosedError):
            raise
        except SnapKVError:
            return None  # the next look is after the next fence

    def _look_back(self, sent: SentRequest, deadline: float) -> tuple[Verdict, Mark | None]:
        """Search the history for our timestamp, which is below the stored one."""
        try:
            found = self._retried(lambda: self._history.find(sent.stamp.timestamp), deadline)
        except CompactedError:
            oldest = self._retried(self._history.oldest, deadline)
            if self._is_next(oldest.ordinal, sent, deadline):
                # no commit is between the newest that we knew and the oldest left
                return Verdict.DEAD, None
            return Verdict.UNDECIDABLE, None
        if found is None or not sent.is_mine(found[1]):
            return Verdict.DEAD, None
        return Verdict.LANDED, found[0]

    def failed_guards(
        self, checks: Sequence[Check], mark: Mark, deadline: float
    ) -> list[tuple[Check, int]] | None:
        """Return which guards of a landed request failed, with the revisions of their keys.

        An empty list means that the operations were applied; None, that compaction took the
        answer. The guards are evaluated at the revision before the commit, which is what they saw.
        Raises `Undecided` if they cannot be read before the deadline.
        """
        if not checks:
            return []
        ranges = [Range(c.key, revision=mark.revision - 1, keys_only=True) for c in checks]
        try:
            with no_later_than(deadline):
                results = self._retried(lambda: self._engine.read(ranges).results, deadline)
        except CompactedError:
            return None
        found = [(c, c.failed_at(seen)) for c, seen in zip(checks, results, strict=True)]
        return [(check, revision) for check, revision in found if revision is not None]

    def _retried(self, read: Callable[[], T], deadline: float) -> T:
        """Return what `read` returns; repeat it while the engine is unavailable."""
        wait = FENCE_PAUSE_S_MIN
        while True:
            try:
                return read()
            except EngineUnavailableError as e:
                if monotonic() >= deadline:
                    raise Undecided("the history could not be read in time") from e
            pause(min(wait, max(0.0, deadline - monotonic())))
            wait = min(FENCE_PAUSE_S_MAX, wait * 2)
