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

import pytest

FAST, TEST, LONG, ALL = SPEEDS = ("fast", "test", "long", "all")
MARKERS = (
    "slow: starts processes or servers, or takes over a second; not in make test-fast",
    "long: takes minutes, or repeats at length what a shorter test shows; make test-all runs it",
    "long_after(cases): on each engine and kind of place, the cases after so many are long",
    "long_on(engine, ...): the cases on these engines and kinds of places are long",
)
LEFT_TO_ALL = "long ones"
LEFT_TO_LONG = "tests that are not long"
LEFT_SLOW = "slow ones, and those of Spark and other processes"
OF_A_FILE = re.compile(r"^pytestmark = (?:\[\n(?: .*\n)+|.*)", re.MULTILINE)
SAYS_LONG = re.compile(r"mark\.long")
ENGINE = re.compile(r"\b(?:asyncio etcd|three nodes|etcd|lmdb|memory|archive|folder|s3)\b")
ON_ONE_EMBEDDED = {
    "aio",
    "archive",
    "changes",
    "coordination",
    "copying",
    "couch_http",
    "executors",
    "generations",
    "reading",
    "timeline",
    "ui",
}
"""Folders of what stores are used for: LMDB shows it; make test-all shows it in memory, too.

What engines promise is tested in tests/conformance, and what a store does on each in tests/store.
"""


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
        return "" if says_long or path.parent.name in ON_ONE_EMBEDDED else LEFT_TO_LONG
    return LEFT_SLOW if speed == FAST and "mark.slow" in line else ""


def mark_long_cases(items: Iterable[pytest.Item]) -> None:
    """Mark cases as long that show again what others show.

    `long_after` counts the cases of a test on each engine: each can break it differently.
    `long_on` names engines on which a shorter test shows the same; `ON_ONE_EMBEDDED` is of folders.
    """
    of_tests: dict[tuple[Path, str], dict[str, list[pytest.Function]]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("soak") is None:
            engines = of_tests.setdefault((item.path, item.originalname), {})
            engines.setdefault(engine_of(item), []).append(item)
    for (path, _), engines in of_tests.items():
        repeated: list[pytest.Function] = []
        shown_on_lmdb = path.parent.name in ON_ONE_EMBEDDED and "lmdb" in engines
        for engine, cases in engines.items():
            marker, left = (cases[0].get_closest_marker(f"long_{how}") for how in ("after", "on"))
            kept = marker.args[0] if marker else len(cases)
            kept = 0 if left and engine in left.args else kept
            if shown_on_lmdb and (engine == "memory" or (marker and engine == "etcd")):
                kept = 0
            repeated += cases[kept:]
        for item in repeated:
            item.add_marker(pytest.mark.long)


def engine_of(item: pytest.Item) -> str:
    """Return the engines and the places that the name of a case names."""
    return " ".join(sorted(set(ENGINE.findall(item.name.partition("[")[2]))))


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
