"""Metrics for Prometheus, and spans for OpenTelemetry, of stores and recorders.

Both are hooks: `snapkv.open(url, hooks=[Metrics(), Tracing()])`. One object serves all stores and
recorders of a process, whose URL and name become labels.

* `Metrics` keeps counters and histograms of what happens, and reads gauges from `store.stats()`
  when Prometheus scrapes. It never makes a round trip.

* `metrics_server` serves a registry, in processes without an HTTP server.

* `Tracing` makes a span of each commit, tick, lookup and delivery of a watch, below the span that
  is current in the caller's thread.

    from prometheus_client import start_http_server
    from snapkv.metrics import Metrics

    start_http_server(9100, "127.0.0.1")
    store = snapkv.open("etcd://localhost:2379", hooks=Metrics())

Needs the extra `metrics`. `docs/metrics.md` lists every metric; `docs/grafana-snapkv.json` is a
dashboard of them.
"""

from snapkv.base.extras import requires_extra

with requires_extra("metrics", "metrics"):
    from snapkv.metrics.prometheus import Metrics, Served, metrics_server
    from snapkv.metrics.tracing import Tracing

__all__ = ["Metrics", "Served", "Tracing", "metrics_server"]
