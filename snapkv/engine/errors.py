"""Errors of `Engine.transact` that the committer handles; its callers never get them."""

from __future__ import annotations

from snapkv.errors import SnapKVError


class Refused(SnapKVError, ConnectionRefusedError):
    """The request was not and never will be applied, because of `error`."""

    def __init__(self, error: SnapKVError) -> None:
        super().__init__(str(error))
        self.error = error


class OutcomeUnknown(SnapKVError, ConnectionError):
    """The request was sent, and no answer says whether it was applied.

    `retry` says whether a new attempt, under a new timestamp, may succeed once this one is proven
    dead; otherwise the caller gets `cause`. `answered` says that the engine has finished with the
    request: applied or not, it cannot land later, so a read finds out.
    """

    def __init__(
        self,
        message: str,
        *,
        retry: bool,
        cause: SnapKVError | None = None,
        answered: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry, self.cause, self.answered = retry, cause, answered
