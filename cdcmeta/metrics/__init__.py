"""Metrics of captures for Prometheus: what they replicate, how late, and what their owner knows.

    from prometheus_client import start_http_server
    from cdcmeta.metrics import CaptureMetrics

    start_http_server(9100, "127.0.0.1")
    CaptureMetrics(capture)

Needs the extra `metrics`. `docs/metrics.md` lists every metric.
"""

from snapkv.base.extras import requires_extra

with requires_extra("metrics", "metrics"):
    from cdcmeta.metrics.captures import CaptureMetrics

__all__ = ["CaptureMetrics"]
