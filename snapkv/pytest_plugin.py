"""Fixtures for the tests of services: a store in memory, and its clock.

An installation has this file as `pytest_snapkv`, beside the package, because pytest loads it in
every run where snapkv is installed: it imports snapkv only when a test uses a fixture. `pytest -p
no:snapkv` leaves it out.

    def test_yesterday(snapkv_store, snapkv_clock):
        snapkv_store.save("a", b"1")
        snapkv_clock.advance(24 * 3_600_000)
        snapkv_store.save("a", b"2")
        assert snapkv_store.load("a", "-1d") == b"1"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from snapkv import ManualClock, SnapshotKV

START_MS = 1_767_225_600_000
"""The time at which the clock of a test begins: 2026-01-01T00:00:00Z."""
SKEW_S = 1e9
"""The clock skew that stores of tests allow, in seconds: a test may move the clock by decades, and
a store compares it with the machine's clock."""


@pytest.fixture
def snapkv_clock() -> ManualClock:
    """Return a clock that moves only when it is set; it begins at 2026-01-01T00:00:00Z."""
    from snapkv import ManualClock

    return ManualClock(START_MS)


@pytest.fixture
def snapkv_store(snapkv_clock: ManualClock) -> Iterator[SnapshotKV]:
    """Yield an empty store in memory, whose times come from `snapkv_clock`."""
    from snapkv import open as open_store

    with open_store("memory:", clock=snapkv_clock, writer="pytest", max_clock_skew=SKEW_S) as store:
        yield store
