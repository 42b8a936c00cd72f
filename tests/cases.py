"""Cases that share the fixtures of one test."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

CASE_SHOWN = 60
Test = Callable[..., None]


def cases(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Do as `pytest.mark.parametrize`, in one item with a subtest for each case.

    For tests that leave their fixtures as they were: a store on etcd is a server of its own, and
    costs more than the question whether an argument is refused.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]

    def decorated(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(*, subtests: pytest.Subtests, **fixtures: Any) -> None:
            for value in values:
                given = value if len(wanted) > 1 else (value,)
                with subtests.test(repr(given)[:CASE_SHOWN]):
                    test(**fixtures, **dict(zip(wanted, given, strict=True)))

        fixtures = [each for each in signature.parameters.values() if each.name not in wanted]
        subtests = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)
        vars(run)["__signature__"] = signature.replace(parameters=[*fixtures, subtests])
        return run

    return decorated
