"""Errors of `Engine.transact` that the committer handles; its callers never get them."""

from __future__ import annotations

from typing import NoReturn

from snapkv.errors import SnapKVError, raise_cause


class Refused(SnapKVError, ConnectionRefusedError):
    """The request was not and never will be applied, because of `error`.

    Callers get `error` alone. A refusal that was raised from it must not become a cause of it: a
    program that follows causes would never come to an end.
    """

    def __init__(self, error: SnapKVError) -> None:
        super().__init__(str(error))
        self.error = error

    def reason(self) -> SnapKVError:
        """Return `error`; if it has no cause of its own, its cause is that of the refusal."""
        error, cause = self.error, self.__cause__
        if error.__cause__ is None and cause is not error:
            error.__cause__ = cause
        return error

    def reraise(self) -> NoReturn:
        """Raise `error`."""
        raise_cause(self.reason())


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

    def reraise(self) -> NoReturn:
        """Raise `cause`; without one, raise this."""
        if self.cause is None:
            raise self
        raise self.cause from self
