"""Samples of cases that cost much: `make test` tries some of them, `make soak` all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import product
from typing import Any, TypeVar

T = TypeVar("T")

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def some(cases: Iterable[T], one_in: int) -> list[T]:
    """Return the first of each `one_in` cases; under `make soak` all of them."""
    return list(cases)[:: 1 if SOAK else one_in]


def fewer_on_etcd(*columns: Iterable[Any], one_in: int) -> list[tuple[Any, ...]]:
    """Combine the columns for each engine, and take some of the combinations on etcd.

    The first value of each case is the engine, for a fixture `place`. What differs between engines
    has tests in tests/conformance; a case on etcd takes three to ten times as long as one on LMDB.
    """
    every = list(product(*columns))
    on_etcd = some(every, one_in)
    return [
        *(("memory", *case) for case in every),
        *(("lmdb", *case) for case in every),
        *(("etcd", *case) for case in on_etcd),
    ]
