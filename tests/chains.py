"""Causes of errors: a program that follows them from an error on has to come to an end."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors to which one error leads: cause, context, and members of a group."""
    for cause in (error.__cause__, error.__context__):
        if cause is not None:
            yield cause
    if isinstance(error, BaseExceptionGroup):
        yield from error.exceptions


def circle_of(error: BaseException) -> list[BaseException]:
    """Return the errors of a circle that the causes of an error run into; none if they end.

    An error that is reached in two ways, as one that is both cause and context, is not a circle.
    """
    path, ended = [error], set[int]()
    left = [causes_of(error)]
    while left:
        following = next(left[-1], None)
        if following is None:
            ended.add(id(path.pop()))
            left.pop()
        elif any(following is each for each in path):
            at = next(at for at, each in enumerate(path) if each is following)
            return [*path[at:], following]
        elif id(following) not in ended:
            path.append(following)
            left.append(causes_of(following))
    return []


class CircleError(AssertionError):
    """The causes of an error form a circle."""


def check_ends(error: BaseException) -> None:
    """Raise `CircleError` if the causes of an error form a circle."""
    if circle := circle_of(error):
        shown = " <- ".join(f"{type(each).__name__}({each})" for each in circle)
        raise CircleError(f"the causes of {type(error).__name__} form a circle: {shown}")


@contextmanager
def checked_chains() -> Generator[None]:
    """Check the causes of each error that a block catches with `pytest.raises`."""
    exit_of = pytest.RaisesExc.__exit__

    def checked(self: Any, kind: Any, error: Any, trace: Any) -> bool:
        caught = exit_of(self, kind, error, trace)
        if caught and error is not None:
            check_ends(error)
        return caught

    pytest.RaisesExc.__exit__ = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        pytest.RaisesExc.__exit__ = exit_of  # type: ignore[method-assign]
