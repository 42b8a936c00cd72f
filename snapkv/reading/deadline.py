"""How long a read may take: one bound for all that it asks, waits for and looks up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from snapkv.clock import monotonic, no_later_than
from snapkv.errors import (
    CommitTimeoutError,
    EngineBusyError,
    EngineUnavailableError,
    InvalidOptionError,
    InvalidTypeError,
    ReadTimeoutError,
)

WAIT_S_MAX = 1e6
"""A longer bound is none: nobody waits for eleven days."""

P = ParamSpec("P")
R = TypeVar("R")


def check_wait(timeout: object) -> None:
    """Raise `InvalidTypeError` or `InvalidOptionError` for what is no bound of a wait."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise InvalidTypeError(f"a timeout is seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise InvalidOptionError(f"a timeout is not negative: {timeout}")


@contextmanager
def within(timeout: float | None, *, of: float | None = None) -> Iterator[None]:
    """Bound a block by some seconds (None: no bound), however many requests it makes.

    Raises `ReadTimeoutError` for what the engine could not do in time; it names `of` seconds,
    where the block is a part of that.
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
        raise ReadTimeoutError(timeout if of is None else of, str(e)) from e


class TimeLeft:
    """One bound in seconds (None: no bound) for the reads and the commits of a call together."""

    def __init__(self, timeout: float | None) -> None:
        check_wait(timeout)
        self._timeout = None if timeout is None else float(min(timeout, WAIT_S_MAX))
        self._end = monotonic() + (self._timeout or 0.0)

    def reads(self) -> AbstractContextManager[None]:
        """Bound a block that reads by what is left; raises as `within`."""
        return within(None if self._timeout is None else self._left_s(), of=self._timeout)

    def commit_s(self, most: float) -> float | None:
        """Return what is left for a commit, `most` at most; None where there is no bound.

        Raises `CommitTimeoutError` when nothing is left.
        """
        if self._timeout is None:
            return None
        left = self._left_s()
        if not left:
            raise CommitTimeoutError(
                f"the timeout of {self._timeout:g} s passed before the commit was sent"
            )
        return min(left, most)

    def _left_s(self) -> float:
        return max(0.0, self._end - monotonic())


def bounds(read: Callable[P, R]) -> Callable[P, R]:
    """Let `timeout=` bound a method; without it, the `_read_timeout` of the object does.

    Of an iterator it bounds all of its steps together, not what the caller does in between.
    """

    @wraps(read)
    def bounded_read(*args: P.args, **options: P.kwargs) -> R:
        timeout: Any = options.get("timeout")
        if timeout is None:
            timeout = args[0]._read_timeout  # type: ignore[attr-defined]  # of a method
            if timeout is None:  # the short way
                return read(*args, **options)
        check_wait(timeout)
        if timeout > WAIT_S_MAX:
            return read(*args, **options)
        began = monotonic()
        with within(timeout):
            found = read(*args, **options)
        if isinstance(found, Iterator):
            return cast(R, _steps(found, timeout, monotonic() - began))
        return found

    return bounded_read


def _steps(steps: Iterator[R], timeout: float, taken: float) -> Iterator[R]:
    """Yield steps until they took `timeout` seconds in all; `taken` are gone already."""
    while True:
        began = monotonic()
        with within(max(0.0, timeout - taken), of=timeout):
            try:
                step = next(steps)
            except StopIteration:
                return
        taken += monotonic() - began
        yield step
