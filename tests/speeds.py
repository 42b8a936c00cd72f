"""The speeds of a run: `make test-fast`, `make test`, `make test-all`.

A marker of a file or of a test says how slow it is. `make test-fast` leaves out tests that are
`slow`, `long` or `soak`, `make test` those that are `long` or `soak`, `make test-all` only `soak`
(tests/sampling.py). It is `make test`, and then the long ones.
"""

from __future__ import annotations

import pytest

FAST, TEST, LONG, ALL = SPEEDS = ("fast", "test", "long", "all")
MARKERS = (
    "slow: starts processes or servers, or takes over four seconds; not in make test-fast",
    "long: takes minutes, or repeats at length what a shorter test shows; make test-all runs it",
)
LEFT_TO_ALL = "long ones"
LEFT_TO_LONG = "tests that are not long"


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
