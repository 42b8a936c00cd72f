"""OpenTelemetry: a span of each commit, tick, lookup and delivery of a watch."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from snapkv.base.clocks import SystemClock
from snapkv.base.version import __version__
from snapkv.hooks import CommitEvent, Hooks, LookupEvent, StoreLabel, TickEvent, WatchEvent
from snapkv.times import physical_ms

NS_PER_S, NS_PER_MS = 1_000_000_000, 1_000_000


class Tracing(Hooks):
    """Hooks that make spans; their parents are the spans that are current in the callers' threads.

    A span is made when its work has ended, with the times at which that began and ended. So spans
    of what happens inside, such as gRPC's, have the same parent. Spans contain no keys and no
    values; of an error they have the class.

    `provider` makes the tracer, by default the global one. `lookups=False` leaves out the spans of
    lookups, and with them what they cost each `load`.

    >>> import snapkv
    >>> with snapkv.open("memory:", hooks=Tracing()) as store:
    ...     timestamp = store.save("a", b"1")
    """

    def __init__(self, provider: TracerProvider | None = None, *, lookups: bool = True) -> None:
        self._tracer = trace.get_tracer("snapkv", __version__, provider)
        self._clock = SystemClock()
        self._lookups = lookups

    def wants_lookups(self) -> bool:
        """Return whether lookups get spans."""
        return self._lookups

    def on_commit(self, event: CommitEvent) -> None:
        """Make the span of a commit."""
        attributes: dict[str, AttributeValue] = {
            "snapkv.outcome": event.outcome,
            "snapkv.members": event.members,
            "snapkv.lost_rounds": event.lost_rounds,
        }
        self._span("snapkv.commit", event, event.timestamp, attributes)

    def on_tick(self, event: TickEvent) -> None:
        """Make the span of a tick."""
        attributes: dict[str, AttributeValue] = {
            "snapkv.outcome": event.outcome,
            "snapkv.lost_rounds": event.lost_rounds,
        }
        self._span("snapkv.tick", event, event.timestamp, attributes)

    def on_lookup(self, event: LookupEvent) -> None:
        """Make the span of a lookup."""
        if self._lookups:
            self._span(f"snapkv.{event.operation}", event, None, {"snapkv.path": event.path})

    def on_watch(self, event: WatchEvent) -> None:
        """Make the span of a delivery: from the commit's time to now."""
        ended = self._clock.now_ns()
        attributes = _of(event.store) | {
            "snapkv.changes": event.changes,
            "snapkv.timestamp": str(event.timestamp),
        }
        began = min(ended, physical_ms(event.timestamp) * NS_PER_MS)
        span = self._tracer.start_span(
            "snapkv.watch", kind=SpanKind.CONSUMER, attributes=attributes, start_time=began
        )
        span.end(ended)

    def _span(
        self,
        name: str,
        event: CommitEvent | TickEvent | LookupEvent,
        timestamp: int | None,
        attributes: dict[str, AttributeValue],
    ) -> None:
        ended = self._clock.now_ns()
        attributes |= _of(event.store)
        if timestamp is not None:
            attributes["snapkv.timestamp"] = str(timestamp)  # it needs more than 63 bits
        if event.error is not None:
            attributes["error.type"] = type(event.error).__qualname__
        began = ended - round(event.duration_s * NS_PER_S)
        span = self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=attributes, start_time=began
        )
        if event.error is not None:
            span.set_status(Status(StatusCode.ERROR, type(event.error).__qualname__))
        span.end(ended)


def _of(store: StoreLabel) -> dict[str, AttributeValue]:
    return {"db.system.name": "snapkv", "db.namespace": store.name, "snapkv.url": store.url}
