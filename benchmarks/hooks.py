"""What do hooks cost `load` and `save`: without any, and with Prometheus and OpenTelemetry?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.stores import History, fill_snapkv
from snapkv.metrics import Metrics, Tracing

KEYS, COMMITS, LOADS = 2_000, 20_000, 10_000

# All contestants open the same store, each with a view of its own:
#
#     hooks=None                 as services open a store without hooks; the floor
#     hooks=None, again          opened alike: what differs is the noise of this measurement
#     hooks=Hooks()              with hooks that do not want lookups: `load` should cost the same
#     Metrics(lookups=False)     the same; commits change Prometheus' histograms
#     stats=True                 lookups are counted
#     Metrics()                  both
#     a hook of each lookup      an event object, and a method that does nothing
#     Tracing()                  a span of each lookup and commit, which a processor drops


class Lookups(snapkv.Hooks):
    """Hooks that want every lookup, and do nothing."""

    def on_lookup(self, event: object) -> None:
        """Do nothing."""


CONTESTANTS: dict[str, Callable[[], dict[str, Any]]] = {
    "hooks=None (floor)": dict,
    "hooks=None, again": dict,
    "hooks=Hooks()": lambda: {"hooks": snapkv.Hooks()},
    "Metrics(lookups=False)": lambda: {"hooks": Metrics(None, lookups=False)},
    "stats=True": lambda: {"stats": True},
    "Metrics()": lambda: {"hooks": Metrics(None)},
    "a hook of each lookup": lambda: {"hooks": Lookups()},
    "Tracing()": lambda: {"hooks": Tracing(traced())},
}


def main() -> None:
    """Load random keys at recent times, and save one key, with and without hooks."""
    rng = seeded("hooks")
    history = History.make(rng, KEYS, COMMITS)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "snapkv"
        stack.enter_context(fill_snapkv(path, history))
        stores = {
            name: stack.enter_context(snapkv.open(f"lmdb:{path}", durability="none", **options()))
            for name, options in CONTESTANTS.items()
        }
        times = [timestamp for timestamp, _, _ in history.writes[-500:]]
        asked = [(rng.choice(history.keys), rng.choice(times)) for _ in range(LOADS)]
        for store in stores.values():  # search once: that fills the ring
            store.load(*asked[0])
        tables = {
            "load of a recent time": _loads(stores, asked),
            "save, without waiting for the disk": _saves(stores),
        }
    notes = (
        "The second contestant shows the noise. The third and fourth show what a store with hooks "
        "costs each load that no hook wants; target: within 2 %. The processor of Tracing drops "
        "its spans. To compare with a commit before hooks: "
        "`python -m benchmarks.compare COMMIT load_as_of durable_save`."
    )
    report("hooks", "What do hooks cost?", tables, notes)


def _loads(stores: dict[str, snapkv.SnapshotKV], asked: list[tuple[str, int]]) -> list[Row]:
    def by(store: snapkv.SnapshotKV) -> Callable[[int], bytes]:
        def load(i: int) -> bytes:
            key, timestamp = asked[i % LOADS]
            return store.load(key, timestamp)

        return load

    loads = {name: by(store) for name, store in stores.items()}
    for i in range(200):
        assert len({load(i) for load in loads.values()}) == 1
    rivals = [Rival(name, load) for name, load in loads.items()]
    return measure(rivals, rounds=300, block=200)


def _saves(stores: dict[str, snapkv.SnapshotKV]) -> list[Row]:
    def by(store: snapkv.SnapshotKV) -> Callable[[int], int]:
        return lambda i: store.save("key", b"%d" % i)

    return measure([Rival(name, by(store)) for name, store in stores.items()], rounds=200, block=5)


def traced() -> TracerProvider:
    """Return a provider whose processor drops all spans."""
    provider = TracerProvider()
    provider.add_span_processor(SpanProcessor())
    return provider
