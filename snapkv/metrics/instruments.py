"""The metrics of stores and recorders: names, types, labels, buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

STORE = ("url", "store")
SECONDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
)
"""From a commit to memory to the longest deadline."""
LAG_SECONDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3_600.0, 86_400.0)
MEMBERS = (1, 2, 4, 8, 16, 32, 64, 128)


class Instruments:
    """The counters and histograms that events change."""

    def __init__(self) -> None:
        self.commit_seconds = _histogram(
            "snapkv_commit_seconds",
            "How long callers waited for a commit, by its outcome.",
            SECONDS,
            "outcome",
        )
        self.commit_members = _histogram(
            "snapkv_commit_members",
            "How many calls shared the transaction of a commit that landed.",
            MEMBERS,
        )
        self.commit_retries = _counter(
            "snapkv_commit_retries",
            "How often commits and ticks were sent again after a lost round.",
        )
        self.lost_rounds = _counter(
            "snapkv_lost_rounds",
            "Transactions that came too late, because another process committed first.",
        )
        self.fences = _counter(
            "snapkv_fences",
            "Fences, by what they found out about a commit without an answer.",
            "outcome",
        )
        self.ticks = _counter("snapkv_ticks", "Ticks, by their outcome.", "outcome")
        self.watch_lag_seconds = _histogram(
            "snapkv_watch_lag_seconds",
            "How old commits were when a watch returned them.",
            LAG_SECONDS,
        )
        self.watch_changes = _counter("snapkv_watch_changes", "Changes that watches returned.")
        self.failovers = _counter(
            "snapkv_failovers", "How often another endpoint of the cluster answered than before."
        )
        self.compactions = _counter("snapkv_compactions", "Compactions by this process.")

    def collect(self) -> Iterator[Metric]:
        """Yield what they count."""
        return _collected(self)


class RecorderInstruments:
    """The gauges that recorders set."""

    def __init__(self) -> None:
        self.state = _gauge(
            "snapkv_recorder_state",
            "1 for the state that a recorder is in, 0 for each other state.",
            "state",
        )
        self.lag_seconds = _gauge(
            "snapkv_archive_lag_seconds",
            "Age of the newest commit that a recorder has read and that is not durable yet.",
        )
        self.timestamp_seconds = _gauge(
            "snapkv_recorded_timestamp_seconds",
            "Time of the newest commit that a recorder has made durable, since 1970.",
        )
        self.pending_bytes = _gauge(
            "snapkv_recorder_pending_bytes",
            "Bytes that a recorder has read and that are not durable yet.",
        )
        self.commits = _gauge(
            "snapkv_recorded_commits", "Commits that a recorder has read since it began."
        )
        self.gaps = _gauge(
            "snapkv_recording_gaps",
            "Times since it began that compaction was faster than a recorder.",
        )

    def collect(self) -> Iterator[Metric]:
        """Yield what they show."""
        return _collected(self)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(name, text, (*STORE, *labels), registry=None)


def _histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
    return Histogram(name, text, (*STORE, *labels), buckets=buckets, registry=None)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(name, text, (*STORE, "into", *labels), registry=None)


def _collected(instruments: object) -> Iterator[Metric]:
    for each in vars(instruments).values():
        yield from each.collect()


class Gauges:
    """The metrics that are read from `Stats` at each scrape; new objects for each."""

    def __init__(self) -> None:
        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, text, labels=STORE)

        self.stores = gauge("snapkv_open_stores", "Open stores of this process.")
        self.newest = gauge(
            "snapkv_newest_timestamp_seconds",
            "Newest time of the store that this process knows, since 1970.",
        )
        self.tick_lag = gauge(
            "snapkv_tick_lag_seconds", "Age of the newest time that this process knows."
        )
        self.horizon = gauge(
            "snapkv_compaction_horizon_timestamp_seconds",
            "Oldest time that can be read, as far as this process knows, since 1970.",
        )
        self.ring_size = gauge("snapkv_ring_size", "Commits that are looked up in memory.")
        self.ring_slots = gauge("snapkv_ring_slots", "How many of them there can be.")
        self.ring_hit_ratio = gauge(
            "snapkv_ring_hit_ratio", "Share of the ring among lookups of past times."
        )
        self.waiting = gauge(
            "snapkv_waiting_commits", "Calls that wait for the transaction before."
        )
        self.watches = gauge("snapkv_watches", "Open watches.")
        self.lookups = CounterMetricFamily(
            "snapkv_lookups",
            "Lookups, by the path that found the moment.",
            labels=(*STORE, "path"),
        )
        self.unknown = CounterMetricFamily(
            "snapkv_unknown_outcomes",
            "Calls that ended with CommitUnknownError.",
            labels=STORE,
        )
        self.restores = CounterMetricFamily(
            "snapkv_restores",
            "How often the engine turned out to hold another history.",
            labels=STORE,
        )
        self.hook_errors = CounterMetricFamily(
            "snapkv_hook_errors", "Calls of hooks that raised.", labels=STORE
        )

    def families(self) -> list[Metric]:
        """Return all of them."""
        return list(vars(self).values())
