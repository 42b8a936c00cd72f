"""The collector of captures; it reads `Capture.status` at each scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.runtime import Capture, Scheduled
from cdcmeta.scheduler.runtime.reports import FeedReport
from snapkv.clock import SystemClock
from snapkv.times import physical_ms

CAPTURE = ("cluster", "capture")
FEED = (*CAPTURE, "changefeed")
OWNED = ("cluster", "changefeed")


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
        return _Gauges().families()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        gauges, now_ms = _Gauges(), self._clock.now_ms()
        for capture in self._captures:
            status, labels = capture.status, (capture.cluster, capture.label)
            gauges.registered.add_metric(labels, status is not None)
            gauges.leading.add_metric(labels, status is not None and status.is_leading)
            if status is None:
                continue
            for id, report in status.reports.items():
                gauges.add_report((*labels, id), report)
            for id, scheduled in status.scheduled.items():
                gauges.add_scheduled((capture.cluster, id), scheduled, now_ms)
        return gauges.families()


class _Gauges:
    """New metrics for one scrape."""

    def __init__(self) -> None:
        def gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, text, labels=labels)

        self.registered = gauge(
            "cdcmeta_capture_registered", "Whether the capture has a session.", CAPTURE
        )
        self.leading = gauge(
            "cdcmeta_capture_leading", "Whether it schedules the changefeeds.", CAPTURE
        )
        self.tables = gauge("cdcmeta_tables", "Tables that the capture has.", FEED)
        self.failing = gauge("cdcmeta_failing_tables", "Tables with an error.", FEED)
        self.late = gauge(
            "cdcmeta_late_tables", "Tables that are ten seconds late or more, up to 200.", FEED
        )
        self.delay = gauge(
            "cdcmeta_table_delay_seconds", "How late the latest of these tables is.", FEED
        )
        self.unusable = gauge(
            "cdcmeta_unusable", "Whether the capture cannot use the source or the sink.", FEED
        )
        self.rows = gauge("cdcmeta_rows_per_second", "Rows that it writes in a second.", FEED)
        self.bytes = gauge("cdcmeta_bytes_per_second", "Bytes of values in them.", FEED)
        self.states = gauge(
            "cdcmeta_changefeed_tables",
            "Tables by the state in which the owner has them.",
            (*OWNED, "state"),
        )
        self.checkpoint = gauge(
            "cdcmeta_changefeed_checkpoint_timestamp_seconds",
            "Time up to which all tables are replicated, since 1970.",
            OWNED,
        )
        self.checkpoint_lag = gauge(
            "cdcmeta_changefeed_checkpoint_lag_seconds", "Age of that time.", OWNED
        )
        self.resolved_lag = gauge(
            "cdcmeta_changefeed_resolved_lag_seconds",
            "Age of the time up to which the changes of all tables were read.",
            OWNED,
        )

    def families(self) -> list[Metric]:
        """Return all of them."""
        return list(vars(self).values())

    def add_report(self, labels: tuple[str, str, str], report: FeedReport) -> None:
        """Add what a capture reports of a changefeed."""
        rates, delays = report.rates.values(), report.delays.values()
        self.tables.add_metric(labels, report.tables)
        self.failing.add_metric(labels, report.failing)
        self.late.add_metric(labels, len(delays))
        self.delay.add_metric(labels, max((each.seconds for each in delays), default=0.0))
        self.unusable.add_metric(labels, report.error is not None)
        self.rows.add_metric(labels, report.rest.rows + sum(each.rows for each in rates))
        self.bytes.add_metric(labels, report.rest.bytes + sum(each.bytes for each in rates))

    def add_scheduled(self, labels: tuple[str, str], found: Scheduled, now_ms: int) -> None:
        """Add what an owner knows of a changefeed."""
        for state, count in found.states.items():
            self.states.add_metric((*labels, state), count)
        if checkpoint_ms := physical_ms(found.checkpoint):
            self.checkpoint.add_metric(labels, checkpoint_ms / 1_000)
            self.checkpoint_lag.add_metric(labels, _age_s(checkpoint_ms, now_ms))
        if resolved_ms := physical_ms(found.resolved):
            self.resolved_lag.add_metric(labels, _age_s(resolved_ms, now_ms))


def _age_s(at_ms: int, now_ms: int) -> float:
    return max(0.0, (now_ms - at_ms) / 1_000)
