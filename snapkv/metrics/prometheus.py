"""Prometheus: the metrics, one collector for all stores and recorders of a process, a server."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from platform import python_version
from typing import TYPE_CHECKING, Any, NamedTuple

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
from snapkv.base.version import __version__
from snapkv.base.waiting import monotonic
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

if TYPE_CHECKING:  # only servers need its extra
    from snapkv.web import Server

STORE = ("url", "store")
SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
)
"""The buckets of durations: from a commit to memory to the longest deadline."""
LAG_SECONDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3_600.0, 86_400.0)
MEMBERS = (1, 2, 4, 8, 16, 32, 64, 128)

EVENTS = {
    "snapkv_commit_seconds": "How long callers waited for a commit, by its outcome.",
    "snapkv_commit_members": "How many calls shared the transaction of a commit that landed.",
    "snapkv_commit_retries": "How often commits and ticks were sent again after a lost round.",
    "snapkv_lost_rounds": "Transactions that came too late, because another process committed "
    "first.",
    "snapkv_fences": "Fences, by what they found out about a commit without an answer.",
    "snapkv_ticks": "Ticks, by their outcome.",
    "snapkv_watch_lag_seconds": "How old commits were when a watch returned them.",
    "snapkv_watch_changes": "Changes that watches returned.",
    "snapkv_failovers": "How often another endpoint of the cluster answered than before.",
    "snapkv_compactions": "Compactions by this process.",
}
"""The counters and histograms that events change, with their help."""
BUCKETS: dict[str, Sequence[float]] = {
    "snapkv_commit_seconds": SECONDS,
    "snapkv_commit_members": MEMBERS,
    "snapkv_watch_lag_seconds": LAG_SECONDS,
}
"""The buckets of the histograms among them."""
RECORDERS = {
    "snapkv_recorder_state": "1 for the state that a recorder is in, 0 for each other state.",
    "snapkv_archive_lag_seconds": "Age of the newest commit that a recorder has read and that is "
    "not durable yet.",
    "snapkv_recorded_timestamp_seconds": "Time of the newest commit that a recorder has made "
    "durable, since 1970.",
    "snapkv_recorder_pending_bytes": "Bytes that a recorder has read and that are not durable yet.",
    "snapkv_recorded_commits": "Commits that a recorder has read since it began.",
    "snapkv_recording_gaps": "Times since it began that compaction was faster than a recorder.",
}
"""The gauges that recorders set."""
GAUGES = {
    "snapkv_open_stores": "Open stores of this process.",
    "snapkv_newest_timestamp_seconds": "Newest time of the store that this process knows, since "
    "1970.",
    "snapkv_tick_lag_seconds": "Age of the newest time that this process knows.",
    "snapkv_compaction_horizon_timestamp_seconds": "Oldest time that can be read, as far as this "
    "process knows, since 1970.",
    "snapkv_ring_size": "Commits that are looked up in memory.",
    "snapkv_ring_slots": "How many of them there can be.",
    "snapkv_ring_hit_ratio": "Share of the ring among lookups of past times.",
    "snapkv_waiting_commits": "Calls that wait for the transaction before.",
    "snapkv_watches": "Open watches.",
}
"""The gauges that are read from `Stats` at each scrape."""
TOTALS = {
    "snapkv_lookups": "Lookups, by the path that found the moment.",
    "snapkv_unknown_outcomes": "Calls that ended with CommitUnknownError.",
    "snapkv_restores": "How often the engine turned out to hold another history.",
    "snapkv_hook_errors": "Calls of hooks that raised.",
}
"""The counters that are read from `Stats`."""
LABELS = {
    "snapkv_commit_seconds": ("outcome",),
    "snapkv_fences": ("outcome",),
    "snapkv_ticks": ("outcome",),
    "snapkv_recorder_state": ("state",),
    "snapkv_lookups": ("path",),
}
"""The labels of metrics beside the labels of all."""
REQUESTS, BUILD = "snapkv_http_request_seconds", "snapkv_build_info"


def instruments() -> dict[str, Any]:
    """Return new metrics that events change, by name."""
    made: dict[str, Any] = {}
    for name, text in EVENTS.items():
        labels = (*STORE, *LABELS.get(name, ()))
        if name in BUCKETS:
            made[name] = Histogram(name, text, labels, buckets=BUCKETS[name], registry=None)
        else:
            made[name] = Counter(name, text, labels, registry=None)
    for name, text in RECORDERS.items():
        made[name] = Gauge(name, text, (*STORE, "into", *LABELS.get(name, ())), registry=None)
    text, labels = "How long requests took, to the end of the answer.", ("server", "route", "code")
    made[REQUESTS] = Histogram(REQUESTS, text, labels, buckets=SECONDS, registry=None)
    made[BUILD] = Gauge(BUILD, "1, of this version.", ("version", "python"), registry=None)
    made[BUILD].labels(__version__, python_version()).set(1)
    return made


def families() -> dict[str, Any]:
    """Return new metrics for what one scrape reads from `Stats`, by name."""
    return {
        name: kind(name, text, labels=(*STORE, *LABELS.get(name, ())))
        for kind, texts in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, TOTALS))
        for name, text in texts.items()
    }


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
        for path, count in asdict(stats.lookups).items() if stats.lookups is not None else ():
            self.lookups[path] += count
        self.unknown += stats.unknown_outcomes
        self.restores += stats.restores
        self.hook_errors += stats.hook_errors

    def copy(self) -> _Totals:
        lookups = defaultdict(int, self.lookups)
        return _Totals(lookups, self.unknown, self.restores, self.hook_errors)


class Metrics(Hooks):
    """Hooks that keep metrics for Prometheus, and the collector of them; safe for threads.

    `registry` is where they are registered, by default that of `prometheus_client`; None: nowhere.
    `lookups=False` leaves out lookups and the ring's hit ratio, and with them what they cost each
    `load`, about a fifth on lmdb. Stores of the same URL and name share labels: counters are added
    up, and of times the newest counts.

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
        self._kept = instruments()
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
        self._of("snapkv_commit_seconds", event.store, event.outcome).observe(event.duration_s)
        if event.members:
            self._of("snapkv_commit_members", event.store).observe(event.members)
        if event.lost_rounds:
            self._of("snapkv_commit_retries", event.store).inc(event.lost_rounds)

    def on_tick(self, event: TickEvent) -> None:
        """Count a tick."""
        self._of("snapkv_ticks", event.store, event.outcome).inc()
        if event.lost_rounds:
            self._of("snapkv_commit_retries", event.store).inc(event.lost_rounds)

    def on_lost_round(self, event: LostRoundEvent) -> None:
        """Count a lost round."""
        self._of("snapkv_lost_rounds", event.store).inc()

    def on_fence(self, event: FenceEvent) -> None:
        """Count a fence."""
        self._of("snapkv_fences", event.store, event.outcome).inc()

    def on_watch(self, event: WatchEvent) -> None:
        """Count what a watch returns."""
        self._of("snapkv_watch_lag_seconds", event.store).observe(event.lag_s)
        self._of("snapkv_watch_changes", event.store).inc(event.changes)

    def on_failover(self, event: FailoverEvent) -> None:
        """Count a failover."""
        self._of("snapkv_failovers", event.store).inc()

    def on_compaction(self, event: CompactionEvent) -> None:
        """Count a compaction."""
        self._of("snapkv_compactions", event.store).inc()

    def on_record(self, event: RecordEvent) -> None:
        """Take what a recorder reports."""
        found = {
            "snapkv_archive_lag_seconds": event.lag_s,
            "snapkv_recorder_pending_bytes": event.pending_bytes,
            "snapkv_recorded_commits": event.commits,
            "snapkv_recording_gaps": event.gaps,
        }
        if event.recorded:
            found["snapkv_recorded_timestamp_seconds"] = physical_ms(event.recorded) / 1_000
        for name, value in found.items():
            self._of(name, event.store, event.into).set(value)
        for state in STATES:
            of_state = self._of("snapkv_recorder_state", event.store, event.into, state)
            of_state.set(state == event.state)

    def _of(self, name: str, store: StoreLabel, *labels: str) -> Any:
        return self._kept[name].labels(store.url, store.name, *labels)

    # --- requests ---

    def count_requests(self, server: Server, label: str) -> None:
        """Count the requests of a server that has not started, by route and status.

        The code is `none` if the client left before the answer began.
        """
        app: Any = server.config.app

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            began, code = monotonic(), "none"

            async def sent(message: Any) -> None:
                nonlocal code
                code = str(message.get("status", code))
                await send(message)

            try:
                await app(scope, receive, sent)
            finally:
                route = server.route_of(scope["raw_path"].decode("latin-1"))
                self._kept[REQUESTS].labels(label, route, code).observe(monotonic() - began)

        server.config.app = counted

    # --- the collector ---

    def describe(self) -> Iterable[Metric]:
        """Return all metrics without samples, which the registry compares with its metrics."""
        return [*self._collected(), *families().values()]

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; no round trip."""
        yield from self._collected()
        yield from self._read().values()

    def _collected(self) -> Iterator[Metric]:
        for each in self._kept.values():
            yield from each.collect()

    def _read(self) -> dict[str, Any]:
        """Return what `Stats` of all stores say."""
        found, stats_of = families(), defaultdict(list)
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
            for name, value in self._samples(total, stats_of[label]).items():
                if value is not None:
                    found[name].add_metric((label.url, label.name), value)
            for path, count in total.lookups.items():
                found["snapkv_lookups"].add_metric((label.url, label.name, path), count)
        return found

    def _samples(self, total: _Totals, stats: list[Stats]) -> dict[str, float | None]:
        """Return the metrics of one label, None for one that is not known."""
        past = sum(count for path, count in total.lookups.items() if path != "head")
        newest_ms = physical_ms(max((each.newest_timestamp for each in stats), default=0))
        known = [e.earliest_timestamp for e in stats if e.earliest_timestamp is not None]
        earliest_s = physical_ms(max(known)) / 1_000 if known else None
        lag_s = max(0.0, (self._clock.now_ms() - newest_ms) / 1_000)
        return {
            "snapkv_open_stores": len(stats),
            "snapkv_newest_timestamp_seconds": newest_ms / 1_000 or None,
            "snapkv_tick_lag_seconds": lag_s if newest_ms else None,
            "snapkv_compaction_horizon_timestamp_seconds": earliest_s,
            "snapkv_ring_size": max((each.ring_size for each in stats), default=0),
            "snapkv_ring_slots": max((each.ring_slots for each in stats), default=0),
            "snapkv_ring_hit_ratio": total.lookups["ring"] / past if past else None,
            "snapkv_waiting_commits": sum(each.waiting for each in stats),
            "snapkv_watches": sum(each.watches for each in stats),
            "snapkv_unknown_outcomes": total.unknown,
            "snapkv_restores": total.restores,
            "snapkv_hook_errors": total.hook_errors,
        }


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
