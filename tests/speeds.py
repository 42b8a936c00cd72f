"""The speeds of a run: what `make test-fast` leaves to `make test`, and that to `make test-all`.

A file or a test says itself how slow it is: `slow` is not in `make test-fast`, `long` in neither of
both, `soak` (tests/sampling.py) in none of the three. `make test-all` is `make test` and then
the long ones.
"""

from __future__ import annotations

import pytest

FAST, TEST, LONG, ALL = SPEEDS = ("fast", "test", "long", "all")
MARKERS = (
    "slow: starts processes or servers, or takes over four seconds; not in make test-fast",
    "long: takes minutes, or repeats at length what a shorter test shows; make test-all runs it",
)
LEFT_TO_ALL = "long ones"
LEFT_TO_LONG = "tests that make test runs"


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
        return "slow ones, and those of Spark and other processes"
    if item.get_closest_marker("forks"):
        return "tests that fork"
    if {"s3", "proxy"} & set(getattr(item, "fixturenames", ())) or "s3" in item.name:
        return "tests on a server of S3's protocol"
    needs_etcd = {"etcd", "etcd_cli"} & set(getattr(item, "fixturenames", ()))
    is_on_etcd = any(engine in item.name for engine in ("etcd", "three nodes"))
    return "tests on etcd" if needs_etcd or is_on_etcd else ""
