"""The speeds of a run: `make test-fast`, `make test`, `make test-all`.

A marker of a file or of a test says how slow it is. `make test-fast` leaves out tests that are
`slow`, `long` or `soak`, `make test` those that are `long` or `soak`, `make test-all` only `soak`
(tests/sampling.py). It is `make test`, and then the long ones. A file that is left out as a whole,
by its `pytestmark`, is not even imported: to collect all tests takes a quarter of a minute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FAST, TEST, LONG, ALL = SPEEDS = ("fast", "test", "long", "all")
MARKERS = (
    "slow: starts processes or servers, or takes over four seconds; not in make test-fast",
    "long: takes minutes, or repeats at length what a shorter test shows; make test-all runs it",
)
LEFT_TO_ALL = "long ones"
LEFT_TO_LONG = "tests that are not long"
LEFT_SLOW = "slow ones, and those of Spark and other processes"
OF_A_FILE = re.compile(r"^pytestmark = (?:\[\n(?: .*\n)+|.*)", re.MULTILINE)
SAYS_LONG = re.compile(r"mark\.long|long_but_first")


@cache
def words_of(path: Path) -> tuple[str, bool]:
    """Return what a file says of all its tests, and whether any of them may be long."""
    text = path.read_text()
    line = OF_A_FILE.search(text)
    return line[0] if line else "", bool(SAYS_LONG.search(text))


def reason_to_leave_file(path: Path, speed: str) -> str:
    """Return why a run of this speed leaves a whole file out, "" when it must be imported."""
    if speed == ALL or not (path.name.startswith("test_") and path.suffix == ".py"):
        return ""
    line, says_long = words_of(path)
    if "mark.long" in line:
        return "" if speed == LONG else LEFT_TO_ALL
    if speed == LONG:
        return "" if says_long else LEFT_TO_LONG
    return LEFT_SLOW if speed == FAST and "mark.slow" in line else ""


def long_but_first(cases: Iterable[Any], kept: int = 1) -> list[Any]:
    """Mark all cases but the first ones as long: they repeat what those show.

    A case is the value of one argument, or a tuple of those of several.
    """
    marked = []
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.long] if number >= kept else []
        marked.append(pytest.param(*values, marks=marks))
    return marked


def reason_to_leave(item: pytest.Item, speed: str) -> str:
    """Return why a run of this speed leaves a test out, "" when it does not."""
    is_long = item.get_closest_marker("long") is not None
    if speed == LONG:
        return "" if is_long else LEFT_TO_LONG
    if speed == ALL:
        return ""
    if is_long:
        return LEFT_TO_ALL
    if speed == TEST:
        return ""
    if item.get_closest_marker("slow"):
        return LEFT_SLOW
    if item.get_closest_marker("forks"):
        return "tests that fork"
    if {"s3", "proxy"} & set(getattr(item, "fixturenames", ())) or "s3" in item.name:
        return "tests on a server of S3's protocol"
    needs_etcd = {"etcd", "etcd_cli"} & set(getattr(item, "fixturenames", ()))
    is_on_etcd = any(engine in item.name for engine in ("etcd", "three nodes"))
    return "tests on etcd" if needs_etcd or is_on_etcd else ""
