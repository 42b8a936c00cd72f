"""Deadlines of reads: one bound for all requests, waits and lookups of a read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from snapkv.base.arguments import check_seconds
from snapkv.base.waiting import monotonic, no_later_than, pause
from snapkv.errors import (
    CommitTimeoutError,
    EngineBusyError,
    EngineUnavailableError,
    ReadTimeoutError,
)

WAIT_S_MAX = 1e6
"""The longest bound of a wait, in seconds (11 days); a longer one counts as none, because the
clocks of some systems end at 292 years."""

P = ParamSpec("P")
R = TypeVar("R")


def check_wait(timeout: object) -> None:
    """Raise `InvalidTypeError` or `InvalidOptionError` for an invalid timeout."""
    if timeout is not None:
        check_seconds("timeout", timeout)


@contextmanager
def within(timeout: float | None, *, of: float | None = None) -> Iterator[None]:
    """Bound a block by some seconds (None: no bound), however many requests it makes.

    Raises `ReadTimeoutError` if the engine does not answer in time. It names `of` seconds, if the
    block is a part of a longer call.
    """
    check_wait(timeout)
    if timeout is None or timeout > WAIT_S_MAX:
        yield
        return
    deadline = monotonic() + timeout
    try:
        with no_later_than(deadline):
            yield
    except (EngineUnavailableError, EngineBusyError) as e:
        if isinstance(e, ReadTimeoutError) or monotonic() < deadline:
            raise
        error = ReadTimeoutError(timeout if of is None else of, str(e))
        error.member = e.member
        raise error from e


class TimeLeft:
    """One bound in seconds (None: no bound) for the reads and the commits of a call together."""

    def __init__(self, timeout: float | None) -> None:
        check_wait(timeout)
        self._timeout = None if timeout is None else float(min(timeout, WAIT_S_MAX))
        self._end = monotonic() + (self._timeout or 0.0)

    def reads(self) -> AbstractContextManager[None]:
        """Bound a block of reads by the time left; raises as `within`."""
        return within(None if self._timeout is None else self._left_s(), of=self._timeout)

    def commit_s(self, most: float) -> float | None:
        """Return the time left for a commit, `most` at most; None without a bound.

        Raises `CommitTimeoutError` if no time is left.
        """
        if self._timeout is None:
            return None
        left = self._left_s()
        if not left:
            raise CommitTimeoutError(
                f"the timeout of {self._timeout:g} s passed before the commit was sent"
            )
        return min(left, most)

    def waits(self, seconds: float) -> bool:
        """Wait for some seconds; return False at once if not so much time is left."""
        if self.at_most(seconds) < seconds:
            return False
        pause(seconds)
        return True

    def at_most(self, seconds: float) -> float:
        """Return some seconds, or the time left if that is less."""
        return seconds if self._timeout is None else min(seconds, self._left_s())

    def _left_s(self) -> float:
        return max(0.0, self._end - monotonic())


def bounds(read: Callable[P, R]) -> Callable[P, R]:
    """Let `timeout=` bound a method; without it, the `_read_timeout` of the object does.

    For an iterator it bounds all of its steps together, without the time of the caller in between.
    """

    @wraps(read)
    def bounded_read(*args: P.args, **options: P.kwargs) -> R:
        timeout: Any = options.get("timeout")
        if timeout is None:
            timeout = args[0]._read_timeout  # type: ignore[attr-defined]  # of a method
            if timeout is None:  # no bound
                return read(*args, **options)
        check_wait(timeout)
        if timeout > WAIT_S_MAX:
            return read(*args, **options)
        began = monotonic()
        with within(timeout):
            found = read(*args, **options)
        if isinstance(found, Iterator):
            return cast(R, _bounded_steps(found, timeout, monotonic() - began))
        return found

    return bounded_read


def _bounded_steps(steps: Iterator[R], timeout: float, taken: float) -> Iterator[R]:
    """Yield steps until they took `timeout` seconds in all, of which `taken` have passed."""
    while True:
        began = monotonic()
        with within(max(0.0, timeout - taken), of=timeout):
            try:
                step = next(steps)
            except StopIteration:
                return
        taken += monotonic() - began
        yield step
