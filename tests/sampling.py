"""Samples of cases that cost much: `make test` tries some of them, `make soak` all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

LEFT_ON_ETCD = "cases that also ran on another engine; make soak runs them on etcd"
LEFT_TO_SOAK = "tests that cost much, beside others of their kind; make soak runs them"
ETCD_ONE_IN = 6
SAMPLED = {
    "archive",
    "changes",
    "cli",
    "committer",
    "coordination",
    "copying",
    "couch_http",
    "generations",
    "reading",
    "spark",
    "store",
    "timeline",
    "ui",
}
"""Folders whose tests run on each engine. What engines promise is tested in tests/conformance."""

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def some(cases: Iterable[T], one_in: int) -> list[T]:
    """Return the first of each `one_in` cases; under `make soak` all of them."""
    return list(cases)[:: 1 if SOAK else one_in]


def first_of(cases: Iterable[Any], *, one_in: int) -> list[Any]:
    """Mark all cases but the first of each `one_in` for `make soak`.

    A case is the value of one argument, or a tuple of those of several. A run that names its tests
    has all of them, and the summary counts those that are left out.
    """
    marked = []
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.soak] if number % one_in else []
        marked.append(pytest.param(*values, marks=marks))
    return marked


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


def left_on_etcd(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the cases on etcd that `make test` leaves out.

    Of each file in `SAMPLED`, every sixth test that also runs on another engine has one case on
    etcd. A case on etcd takes three to ten times as long as one on LMDB, and they were a quarter of
    the time of all tests.
    """
    of_files: dict[Path, dict[str, list[pytest.Item]]] = {}
    elsewhere = set()
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent.name in SAMPLED:
            name = item.originalname
            engines = {"etcd", "lmdb", "memory"} & set(re.split(r"\W", item.name))
            if engines == {"etcd"}:
                of_files.setdefault(item.path, {}).setdefault(name, []).append(item)
            elif engines:
                elsewhere.add((item.path, name))
    left = []
    for path, tests in of_files.items():
        shared = [cases for name, cases in tests.items() if (path, name) in elsewhere]
        for number, cases in enumerate(shared):
            left += cases if number % ETCD_ONE_IN else cases[1:]
    return left
