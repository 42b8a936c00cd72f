"""A committer that reports how each call ended to hooks."""

from __future__ import annotations

from snapkv.base.waiting import perf_counter
from snapkv.committer.committer import Committer
from snapkv.committer.queue import Call
from snapkv.committer.request import Request
from snapkv.errors import CommitTimeoutError, CommitUnknownError, ConflictError
from snapkv.hooks import CommitEvent, LostRoundEvent, Outcome, TickEvent
from snapkv.model import Commit


class WatchedCommitter(Committer):
    """A committer of a store with hooks; a store without any has the plain one."""

    def _submit(self, call: Call) -> Commit:
        began = perf_counter()
        try:
            commit = super()._submit(call)
        except BaseException as e:
            self._report(call, perf_counter() - began, None, e)
            raise
        self._report(call, perf_counter() - began, commit.ts, None)
        return commit

    def _note_lost(self, request: Request[Call], lost: int) -> None:
        super()._note_lost(request, lost)
        if self.notify is not None and self.notify.wants(LostRoundEvent):
            self.notify(LostRoundEvent(self.notify.store, lost, len(request.calls)))

    def _report(
        self, call: Call, duration_s: float, timestamp: int | None, error: BaseException | None
    ) -> None:
        notify = self.notify
        assert notify is not None, "else the plain committer does"
        if not notify.wants(TickEvent if call.is_tick else CommitEvent):
            return
        outcome, lost = outcome_of(error), call.lost_rounds
        if call.is_tick:
            notify(TickEvent(notify.store, outcome, duration_s, lost, timestamp, error))
            return
        notify(CommitEvent(notify.store, outcome, duration_s, call.members, lost, timestamp, error))


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
