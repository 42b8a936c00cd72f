"""The collector of captures; it reads `Capture.status` at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.runtime import Capture
from cdcmeta.scheduler.runtime.reports import FeedReport
from snapkv.clock import SystemClock
from snapkv.times import physical_ms

CAPTURE = ("cluster", "capture")
FEED = (*CAPTURE, "changefeed")
OWNED = ("cluster", "changefeed")
GAUGES = {
    CAPTURE: {
        "capture_registered": "Whether the capture has a session.",
        "capture_leading": "Whether it schedules the changefeeds.",
    },
    FEED: {
        "tables": "Tables that the capture has.",
        "failing_tables": "Tables with an error.",
        "late_tables": "Tables that are ten seconds late or more, up to 200.",
        "table_delay_seconds": "How late the latest of these tables is.",
        "unusable": "Whether the capture cannot use the source or the sink.",
        "rows_per_second": "Rows that it writes in a second.",
        "bytes_per_second": "Bytes of values in them.",
    },
    (*OWNED, "state"): {"changefeed_tables": "Tables by the state in which the owner has them."},
    OWNED: {
        "changefeed_checkpoint_timestamp_seconds": (
            "Time up to which all tables are replicated, since 1970."
        ),
        "changefeed_checkpoint_lag_seconds": "Age of that time.",
        "changefeed_resolved_lag_seconds": (
            "Age of the time up to which the changes of all tables were read."
        ),
    },
}
"""The texts of all metrics, by labels and name."""


class CaptureMetrics:
    """The metrics of the captures of a process; no round trip, safe for threads.

    `registry` is where they are registered, by default that of `prometheus_client`; None: nowhere.
    Metrics of tables come from each capture. Metrics of a whole changefeed, whose names begin with
    `cdcmeta_changefeed_`, come from the capture that leads only.

    Raises `InvalidArgumentError` for anything but captures, and if the registry has such metrics.
    """

    def __init__(self, *captures: Capture, registry: CollectorRegistry | None = REGISTRY) -> None:
        for each in captures:
            if not isinstance(each, Capture):
                raise InvalidArgumentError(f"CaptureMetrics takes captures, not {each!r}")
        self._captures, self._clock = captures, SystemClock()
        if registry is not None:
            try:
                registry.register(self)
            except ValueError as e:
                raise InvalidArgumentError(
                    f"the registry has such metrics already: give one object all captures ({e})"
                ) from e

    def describe(self) -> Iterable[Metric]:
        """Return all metrics without samples, which the registry compares with its metrics."""
        return _new_gauges().values()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        gauges, now_ms = _new_gauges(), self._clock.now_ms()

        def add(name: str, labels: Sequence[str], value: float) -> None:
            gauges[name].add_metric(labels, value)

        for capture in self._captures:
            status, labels = capture.status, (capture.cluster, capture.label)
            add("capture_registered", labels, status is not None)
            add("capture_leading", labels, status is not None and status.is_leading)
            for id, report in status.reports.items() if status else ():
                for name, value in _measured(report).items():
                    add(name, (*labels, id), value)
            for id, found in status.scheduled.items() if status else ():
                owned = capture.cluster, id
                for state, count in found.states.items():
                    add("changefeed_tables", (*owned, state), count)
                if at_ms := physical_ms(found.checkpoint):
                    add("changefeed_checkpoint_timestamp_seconds", owned, at_ms / 1_000)
                    add("changefeed_checkpoint_lag_seconds", owned, _age_s(at_ms, now_ms))
                if at_ms := physical_ms(found.resolved):
                    add("changefeed_resolved_lag_seconds", owned, _age_s(at_ms, now_ms))
        return gauges.values()


def _new_gauges() -> dict[str, GaugeMetricFamily]:
    """Return new metrics for one scrape, by name."""
    return {
        name: GaugeMetricFamily(f"cdcmeta_{name}", text, labels=labels)
        for labels, gauges in GAUGES.items()
        for name, text in gauges.items()
    }


def _measured(report: FeedReport) -> dict[str, float]:
    """Return what a capture reports of a changefeed, by metric."""
    rates, delays = report.rates.values(), report.delays.values()
    return {
        "tables": report.tables,
        "failing_tables": report.failing,
        "late_tables": len(delays),
        "table_delay_seconds": max((each.seconds for each in delays), default=0.0),
        "unusable": report.error is not None,
        "rows_per_second": report.rest.rows + sum(each.rows for each in rates),
        "bytes_per_second": report.rest.bytes + sum(each.bytes for each in rates),
    }


def _age_s(at_ms: int, now_ms: int) -> float:
    return max(0.0, (now_ms - at_ms) / 1_000)
