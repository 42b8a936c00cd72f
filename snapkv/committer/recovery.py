"""Settle a request whose outcome is unknown: fence its timestamp, then look at the history.

A look tells without a fence in two cases. A request that was answered, with an error that does not
say whether it was applied, is no longer on its way. And once a timestamp >= T is stored, T's guard
is false for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from snapkv.clock import monotonic, no_later_than, pause
from snapkv.committer.operations import Check
from snapkv.committer.request import History, Sent, Verdict, marks_of
from snapkv.engine.contract import Engine, KeyValue, Range
from snapkv.errors import (
    CompactedError,
    EngineUnavailableError,
    OutcomeUnknown,
    Refused,
    SnapKVError,
    StoreClosedError,
    StoreRecreatedError,
    StoreRestoredError,
)
from snapkv.layout import Mark, StampRecord

T = TypeVar("T")

FENCE_PAUSE_S_MIN = 0.01
FENCE_PAUSE_S_MAX = 0.5
FENCE_TIMEOUT_S = 5.0
"""How long one fence may wait for its answer before it is sent again."""


class Undecided(SnapKVError):
    """The deadline passed before the fence was answered, or a look told."""


class Settler:
    """Finds out what became of a sent request.

    Reading that a commit is absent proves nothing while its request may be on its way: the holes
    of simpler rules, H1 to H14, are listed in `snapkv/DESIGN.md`.
    """

    def __init__(
        self,
        engine: Engine,
        ts_key: bytes,
        history: History,
        writer: str,
        rng: random.Random,
        on_seen: Callable[[int], None],
    ) -> None:
        self._engine, self._ts_key, self._history = engine, ts_key, history
        self._writer, self._rng, self._on_seen = writer, rng, on_seen

    def settle(
        self, sent: Sent, deadline: float, *, answered: bool = False
    ) -> tuple[Verdict, Mark | None]:
        """Return the verdict, and where the commit landed; it is final.

        `answered` says that the request is not on its way any more: then no fence is sent. Raises
        `Undecided` when the deadline (monotonic seconds) passes first, and `StoreRecreatedError`.
        """
        with no_later_than(deadline):
            return self._settle(sent, deadline, answered)

    def _settle(self, sent: Sent, deadline: float, answered: bool) -> tuple[Verdict, Mark | None]:
        if answered:
            stored = self._ask(lambda: self._look(sent, deadline), deadline)
        else:
            stored = self._fence(sent, deadline)
        if stored is None:
            return Verdict.DEAD, None
        stamp = StampRecord.decode(stored.value)
        self._on_seen(stamp.timestamp)
        if sent.is_mine(stamp):
            return Verdict.LANDED, Mark(stamp.timestamp, stored.mod_revision, stored.version)
        if stamp.timestamp == sent.stamp.timestamp:
            return Verdict.DEAD, None  # an earlier copy of our fence, or another commit: T is taken
        if self._is_next(stored.version, sent, deadline):
            return Verdict.DEAD, None  # one commit came since, and it is this one
        return self._look_back(sent, deadline)

    def _is_next(self, ordinal: int, sent: Sent, deadline: float) -> bool:
        """Tell whether an ordinal follows the newest one known when sending, in the same history.

        A cluster that was restored in between counts anew: there our commit may stand below.
        """
        if not sent.known_ordinal or ordinal != sent.known_ordinal + 1:
            return False
        try:
            if self._engine.remote:
                self._ask(lambda: self._history.verify(sent.before), deadline)
        except StoreRestoredError:
            return False
        return True

    def _fence(self, sent: Sent, deadline: float) -> KeyValue | None:
        """Send the fence until it is answered, or a look tells; sending it twice is harmless.

        Returns the timestamp key that was in its way, None when the fence took the timestamp.
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
                self._history.own(prev, own, header, sent.before)
                return None
            except Refused as e:
                if isinstance(e.error, StoreClosedError):
                    raise e.error from e  # no fence will ever be sent
                cause = e.error
            except (OutcomeUnknown, EngineUnavailableError) as e:
                cause = e
            if (stored := self._look_unfenced(sent, deadline)) is not None:
                return stored
            pause(min(max(0.0, deadline - monotonic()), wait * self._rng.uniform(0.5, 1)))
            wait = min(FENCE_PAUSE_S_MAX, wait * 2)
        raise Undecided("the fence was not answered in time") from cause

    def _look(self, sent: Sent, deadline: float) -> KeyValue | None:
        """Return the timestamp key when it stands at the request's timestamp or later."""
        left = max(0.001, min(deadline - monotonic(), FENCE_TIMEOUT_S))
        answer = self._engine.read([Range(self._ts_key)], timeout=left)
        return sent.found_in(answer.results[0])

    def _look_unfenced(self, sent: Sent, deadline: float) -> KeyValue | None:
        """Look once after a fence that failed: where writing is refused, reading may go on.

        None says nothing: the request may still be on its way. An embedded engine is not asked:
        what a failed commit left there counts only once something was written after it.
        """
        if not self._engine.remote or monotonic() >= deadline:
            return None
        try:
            return self._look(sent, deadline)
        except (StoreRecreatedError, StoreClosedError):
            raise
        except SnapKVError:
            return None  # there is another look after the next fence

    def _look_back(self, sent: Sent, deadline: float) -> tuple[Verdict, Mark | None]:
        """Look for our timestamp below the larger one that is stored."""
        try:
            found = self._ask(lambda: self._history.find(sent.stamp.timestamp), deadline)
        except CompactedError:
            oldest = self._ask(self._history.oldest, deadline)
            if self._is_next(oldest.ordinal, sent, deadline):
                return Verdict.DEAD, None  # nothing lies between what we knew and what is left
            return Verdict.UNDECIDABLE, None
        if found is None or not sent.is_mine(found[1]):
            return Verdict.DEAD, None
        return Verdict.LANDED, found[0]

    def applied(
        self, checks: Sequence[Check], mark: Mark, deadline: float
    ) -> list[tuple[Check, int]] | None:
        """Return the guards of a landed part that did not hold, with the revisions they found.

        An empty list says that the part was applied, None that this can no longer be told.
        The guards are evaluated at the revision before the commit, which is what they saw.
        Raises `Undecided` when they cannot be read until the deadline.
        """
        if not checks:
            return []
        ranges = [Range(c.key, revision=mark.revision - 1, keys_only=True) for c in checks]
        try:
            with no_later_than(deadline):
                results = self._ask(lambda: self._engine.read(ranges).results, deadline)
        except CompactedError:
            return None
        found = [(c, c.failed_at(seen)) for c, seen in zip(checks, results, strict=True)]
        return [(check, revision) for check, revision in found if revision is not None]

    def _ask(self, question: Callable[[], T], deadline: float) -> T:
        """Ask the history until it answers; reading may be repeated freely."""
        wait = FENCE_PAUSE_S_MIN
        while True:
            try:
                return question()
            except EngineUnavailableError as e:
                if monotonic() >= deadline:
                    raise Undecided("the history could not be read in time") from e
            pause(min(wait, max(0.0, deadline - monotonic())))
            wait = min(FENCE_PAUSE_S_MAX, wait * 2)
