"""Prometheus: the metrics, one collector for all stores and recorders of a process, a server."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from snapkv.base.arguments import whole_number
from snapkv.base.clocks import SystemClock
from snapkv.base.lifecycle import renew_in_children
from snapkv.errors import InvalidOptionError
from snapkv.hooks import (
    CloseEvent,
    CommitEvent,
    CompactionEvent,
    FailoverEvent,
    FenceEvent,
    Hooks,
    LostRoundEvent,
    OpenEvent,
    RecordEvent,
    StoreLabel,
    TickEvent,
    WatchEvent,
)
from snapkv.store.diagnostics import Stats
from snapkv.store.store import SnapshotKV
from snapkv.times import physical_ms

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


STATES = ("starting", "standby", "recording", "waiting")
"""The values of `RecordStatus.state`."""


@dataclass(slots=True)
class _Totals:
    """Counts of the closed stores of one label, which stay part of its counters."""

    lookups: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    unknown: int = 0
    restores: int = 0
    hook_errors: int = 0

    def add(self, stats: Stats) -> None:
        """Add what a store has counted."""
        for path, count in asdict(stats.lookups).items() if stats.lookups is not None else ():
            self.lookups[path] += count
        self.unknown += stats.unknown_outcomes
        self.restores += stats.restores
        self.hook_errors += stats.hook_errors

    def copy(self) -> _Totals:
        """Return an equal one."""
        lookups = defaultdict(int, self.lookups)
        return _Totals(lookups, self.unknown, self.restores, self.hook_errors)


class Metrics(Hooks):
    """Hooks that keep metrics for Prometheus, and the collector of them; safe for threads.

    `registry` is where they are registered, by default that of `prometheus_client`; None: nowhere.
    `lookups=False` leaves out lookups and the ring's hit ratio, and with them what they cost each
    `load`, about a fifth on lmdb.
    Stores of the same URL and name share labels: counters are added up, and of times the newest
    counts.

    >>> import snapkv
    >>> from prometheus_client import CollectorRegistry
    >>> registry = CollectorRegistry()
    >>> with snapkv.open("memory:", hooks=Metrics(registry)) as store:
    ...     timestamp = store.save("a", b"1")
    >>> labels = {"url": "memory:", "store": "default", "outcome": "committed"}
    >>> registry.get_sample_value("snapkv_commit_seconds_count", labels)
    1.0

    Raises `InvalidOptionError` if the registry has such metrics already.
    """

    def __init__(
        self, registry: CollectorRegistry | None = REGISTRY, *, lookups: bool = True
    ) -> None:
        self._lookups = lookups
        self._instruments, self._recorders = Instruments(), RecorderInstruments()
        self._clock = SystemClock()
        self._open: weakref.WeakSet[SnapshotKV] = weakref.WeakSet()
        self._closed: dict[StoreLabel, _Totals] = defaultdict(_Totals)
        self._lock = threading.Lock()
        renew_in_children(self)
        if registry is not None:
            try:
                registry.register(self)
            except ValueError as e:
                raise InvalidOptionError(
                    f"the registry has such metrics already: give one Metrics to all stores ({e})"
                ) from e

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    def counts_lookups(self) -> bool:
        """Return whether stores count lookups."""
        return self._lookups

    # --- events ---

    def on_open(self, event: OpenEvent) -> None:
        """Follow a store until it is closed."""
        if isinstance(event.handle, SnapshotKV):
            with self._lock:
                self._open.add(event.handle)

    def on_close(self, event: CloseEvent) -> None:
        """Keep the counts of a store that was closed."""
        if isinstance(event.handle, SnapshotKV):
            stats = event.handle.stats()
            with self._lock:
                self._open.discard(event.handle)
                self._closed[event.store].add(stats)

    def on_commit(self, event: CommitEvent) -> None:
        """Count a commit."""
        labels, kept = _labels(event.store), self._instruments
        kept.commit_seconds.labels(*labels, event.outcome).observe(event.duration_s)
        if event.members:
            kept.commit_members.labels(*labels).observe(event.members)
        if event.lost_rounds:
            kept.commit_retries.labels(*labels).inc(event.lost_rounds)

    def on_tick(self, event: TickEvent) -> None:
        """Count a tick."""
        labels, kept = _labels(event.store), self._instruments
        kept.ticks.labels(*labels, event.outcome).inc()
        if event.lost_rounds:
            kept.commit_retries.labels(*labels).inc(event.lost_rounds)

    def on_lost_round(self, event: LostRoundEvent) -> None:
        """Count a lost round."""
        self._instruments.lost_rounds.labels(*_labels(event.store)).inc()

    def on_fence(self, event: FenceEvent) -> None:
        """Count a fence."""
        self._instruments.fences.labels(*_labels(event.store), event.outcome).inc()

    def on_watch(self, event: WatchEvent) -> None:
        """Count what a watch returns."""
        labels, kept = _labels(event.store), self._instruments
        kept.watch_lag_seconds.labels(*labels).observe(event.lag_s)
        kept.watch_changes.labels(*labels).inc(event.changes)

    def on_failover(self, event: FailoverEvent) -> None:
        """Count a failover."""
        self._instruments.failovers.labels(*_labels(event.store)).inc()

    def on_compaction(self, event: CompactionEvent) -> None:
        """Count a compaction."""
        self._instruments.compactions.labels(*_labels(event.store)).inc()

    def on_record(self, event: RecordEvent) -> None:
        """Take what a recorder reports."""
        labels, kept = (*_labels(event.store), event.into), self._recorders
        for state in STATES:
            kept.state.labels(*labels, state).set(state == event.state)
        kept.lag_seconds.labels(*labels).set(event.lag_s)
        kept.pending_bytes.labels(*labels).set(event.pending_bytes)
        kept.commits.labels(*labels).set(event.commits)
        kept.gaps.labels(*labels).set(event.gaps)
        if event.recorded:
            kept.timestamp_seconds.labels(*labels).set(physical_ms(event.recorded) / 1_000)

    # --- the collector ---

    def describe(self) -> Iterable[Metric]:
        """Return all metrics without samples, which the registry compares with those it has."""
        gauges = Gauges().families()
        return [*_collected(self._instruments), *_collected(self._recorders), *gauges]

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; no round trip."""
        yield from _collected(self._instruments)
        yield from _collected(self._recorders)
        yield from self._gauges().families()

    def _gauges(self) -> Gauges:
        gauges, stats_of = Gauges(), defaultdict(list)
        with self._lock:
            handles = list(self._open)
            totals = {label: each.copy() for label, each in self._closed.items()}
        for handle in handles:
            stats = handle.stats()
            stats_of[StoreLabel(stats.url, stats.name)].append(stats)
        for label in {*totals, *stats_of}:
            total = totals.get(label) or _Totals()
            for stats in stats_of[label]:
                total.add(stats)
            self._add_totals(gauges, _labels(label), total)
            self._add_open(gauges, _labels(label), stats_of[label])
        return gauges

    @staticmethod
    def _add_totals(gauges: Gauges, labels: tuple[str, str], total: _Totals) -> None:
        for path, count in total.lookups.items():
            gauges.lookups.add_metric((*labels, path), count)
        past = sum(count for path, count in total.lookups.items() if path != "head")
        if past:
            gauges.ring_hit_ratio.add_metric(labels, total.lookups["ring"] / past)
        gauges.unknown.add_metric(labels, total.unknown)
        gauges.restores.add_metric(labels, total.restores)
        gauges.hook_errors.add_metric(labels, total.hook_errors)

    def _add_open(self, gauges: Gauges, labels: tuple[str, str], stats: list[Stats]) -> None:
        gauges.stores.add_metric(labels, len(stats))
        gauges.ring_size.add_metric(labels, max((each.ring_size for each in stats), default=0))
        gauges.ring_slots.add_metric(labels, max((each.ring_slots for each in stats), default=0))
        gauges.waiting.add_metric(labels, sum(each.waiting for each in stats))
        gauges.watches.add_metric(labels, sum(each.watches for each in stats))
        newest_ms = physical_ms(max((each.newest_timestamp for each in stats), default=0))
        if newest_ms:
            lag_s = max(0.0, (self._clock.now_ms() - newest_ms) / 1_000)
            gauges.newest.add_metric(labels, newest_ms / 1_000)
            gauges.tick_lag.add_metric(labels, lag_s)
        earliest = [
            each.earliest_timestamp for each in stats if each.earliest_timestamp is not None
        ]
        if earliest:
            gauges.horizon.add_metric(labels, physical_ms(max(earliest)) / 1_000)


def _labels(store: StoreLabel) -> tuple[str, str]:
    return store.url, store.name


# --- a server for processes that have none ---


class Served(NamedTuple):
    """What is served, and where."""

    registry: CollectorRegistry
    url: str


@contextmanager
def metrics_server(address: str) -> Iterator[Served]:
    """Serve a new registry at HOST:PORT, in a thread, until the block ends; port 0 means any.

    It also has the process's CPU, memory and files. It asks for no login: choose an address that
    only Prometheus can reach.

    Raises `InvalidOptionError` for an invalid address, or one that cannot be listened at.
    """
    host, _, port_text = address.rpartition(":")
    host, port = host.strip("[]"), whole_number(port_text)
    if not host or port is None or port >= 1 << 16:
        raise InvalidOptionError(f"{address!r} is not HOST:PORT, as in 127.0.0.1:9100")
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as e:
        raise InvalidOptionError(f"cannot serve metrics at {address}: {e.strerror}") from e
    shown = f"[{host}]" if ":" in host else host
    try:
        yield Served(registry, f"http://{shown}:{server.server_port}/metrics")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
