"""Health of a store, for probes: one round trip, bounded."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from snapkv.base.arguments import check_seconds
from snapkv.base.waiting import perf_counter
from snapkv.errors import SnapKVError, StoreClosedError
from snapkv.reading.deadline import within
from snapkv.store.core import Core
from snapkv.times import physical_ms

HEALTH_TIMEOUT_S = 1.0
SIZES = ("used_bytes", "bytes")
"""What embedded engines call the size of what they hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a store answered a probe.

    Only `answers` shows whether it works; the rest is for alerts and people. A store that no
    process writes to gets old without a fault.
    """

    answers: bool
    """Whether the engine answered in time."""
    error: str | None
    """Why it did not answer."""
    latency_s: float
    """How long the probe took."""
    newest_timestamp: int
    """The newest timestamp; without an answer the newest one that this process knows."""
    age_s: float | None
    """How old that is: the tick lag, where something ticks. None for a store without commits."""
    skew_s: float | None
    """By how much the local clock is ahead of the server's; None if that is not known."""
    earliest_timestamp: int | None
    """The oldest time that can be read; of a remote engine only as far as this process knows."""
    size_bytes: int | None
    """The size of the engine's data; None for a remote engine."""

    def as_json(self) -> dict[str, object]:
        """Return it for JSON; timestamps as texts, which JavaScript does not round."""
        found = asdict(self)
        for name in ("newest_timestamp", "earliest_timestamp"):
            found[name] = None if found[name] is None else str(found[name])
        return found


def health(core: Core, timeout: float) -> Health:
    """Probe a store; see `SnapshotKV.health`."""
    core.check_open()
    check_seconds("timeout", timeout)
    began, error, size = perf_counter(), None, None
    newest = core.timeline.tracker.newest
    try:
        with within(timeout):
            newest = core.timeline.head()
            if not core.engine.remote:
                size, is_local = _size_of(core)
                if is_local:
                    core.earliest = core.timeline.earliest()
    except StoreClosedError:
        raise
    except SnapKVError as e:
        error = str(e)
    latency_s = perf_counter() - began
    now_ms, age_s = core.clock.now_ms(), None
    if newest.timestamp:
        age_s = max(0.0, (now_ms - physical_ms(newest.timestamp)) / 1_000)
    return Health(
        answers=error is None,
        error=error,
        latency_s=latency_s,
        newest_timestamp=newest.timestamp,
        age_s=age_s,
        skew_s=_skew_s(core, now_ms),
        earliest_timestamp=core.earliest,
        size_bytes=size,
    )


def _size_of(core: Core) -> tuple[int | None, bool]:
    """Return the size of an embedded engine, and whether it has all history in memory or files.

    History in an archive may be in an object store.
    """
    facts = core.engine.info()
    found = next((facts[name] for name in SIZES if name in facts), None)
    archived = facts["engine"] == "archive" or hasattr(core.engine, "archive")
    return found if isinstance(found, int) else None, not archived


def _skew_s(core: Core, now_ms: int) -> float | None:
    """Return the difference of the clocks as far as it is known; an embedded engine has one."""
    if not core.engine.remote:
        return None
    server = core.engine.server_time_ms()
    return None if server is None else (now_ms - server[0]) / 1_000
