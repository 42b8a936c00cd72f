"""Opening keys that other programs write, for reading any moment of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from snapkv.base.arguments import check_known, wrong_type
from snapkv.clock import Clock, HybridClock, SystemClock
from snapkv.engine.contract import Engine
from snapkv.errors import (
    InvalidTypeError,
    StoreNotFoundError,
)
from snapkv.hooks import FailoverEvent, Hooks, LookupEvent, Notifier, StoreLabel, checked_hooks
from snapkv.layout import Layout, RawKeyspace, raw_key
from snapkv.location import COMMON_OPTIONS, open_engine
from snapkv.model import K
from snapkv.reading.deadline import within
from snapkv.reading.metered import Meter
from snapkv.reading.observed import Observed, Observer
from snapkv.reading.opening import open_keys
from snapkv.timeline import RING_SLOTS, Timeline

OBSERVE_OPTIONS = ("prefix", "name", "ring_slots", "clock", "read_timeout", "hooks")


def observe(
    url: str,
    *,
    prefix: K,
    name: str = "default",
    ring_slots: int = RING_SLOTS,
    clock: Clock | None = None,
    read_timeout: float | None = None,
    hooks: Hooks | Iterable[Hooks] | None = None,
    **options: Any,
) -> Observed[K]:
    """Open keys that other programs write into an engine, for reading any moment of them.

    `prefix` selects the keys: with a str prefix, keys are text, with a bytes prefix, bytes. An
    empty prefix selects all keys of the engine, including those of snapkv's stores. The times are
    those of the store `name` in the same engine: keep `snapkv tick --every 1s` running there, or
    commit to that store. It writes nothing, and creates no store. `url`, `ring_slots`, `clock`,
    `read_timeout` and further options are those of `snapkv.open`. Of `hooks`, those of lookups,
    watches and failovers are called. One round trip.

    >>> import snapkv
    >>> with snapkv.open("memory:cluster") as ticker:
    ...     tick = ticker.tick()
    ...     with snapkv.observe("memory:cluster", prefix="/registry/") as registry:
    ...         len(registry.at(tick.ts))
    0

    Raises `StoreNotFoundError` if the store whose ticks it needs does not exist; and as `open`.
    """
    if not isinstance(prefix, str | bytes):
        raise wrong_type("prefix", "a str or bytes", prefix)
    text = isinstance(prefix, str)
    space = RawKeyspace(raw_key(prefix, "prefix", text=text), text=text)
    layout = Layout(name)
    if clock is not None and not callable(getattr(clock, "now_ms", None)):
        raise InvalidTypeError(f"clock must have now_ms(); {type(clock).__name__} has not")
    hybrid = HybridClock(clock or SystemClock())
    hybrid.now_ms()
    listed = checked_hooks(hooks)
    notify = Notifier(listed, StoreLabel(url, layout.name)) if listed else None
    with within(read_timeout), ExitStack() as on_error:
        try:
            engine = _open_engine(url, layout.ts, options)
            on_error.callback(engine.close)
            ts, record, header = open_keys(engine, layout, "", create=False)
        except StoreNotFoundError as e:
            raise StoreNotFoundError(
                f"{e}; observing needs its ticks: keep `snapkv tick --every 1s` running there"
            ) from e
        timeline = Timeline(engine, layout.ts, ring_slots=ring_slots, on_seen=hybrid.merge)
        timeline.tracker.open(ts, header)
        core = Observer(
            url,
            engine,
            layout,
            record,
            hybrid,
            timeline,
            read_timeout=read_timeout,
            notify=notify,
            meter=Meter(timeline, notify) if notify and notify.wants(LookupEvent) else None,
        )
        if notify is not None:
            _report_failovers(engine, notify)
        on_error.pop_all()
    return Observed(core, space)


def _report_failovers(engine: Engine, notify: Notifier) -> None:
    """Let the hooks know when another endpoint of the engine answers."""

    def failed_over(left: str, entered: str, reason: str) -> None:
        notify(FailoverEvent(notify.store, left, entered, reason))

    if (report := getattr(engine, "report_failovers", None)) is not None:
        report(failed_over)


def _open_engine(url: str, home: bytes, options: dict[str, Any]) -> Engine:
    """Open the engine that a URL names; options of `open` without effect here are unknown."""
    try:
        return open_engine(url, create=False, options=options, home=home)
    except InvalidTypeError as e:
        if e.known:  # an option of `open` that has no use here must not be listed
            check_known((e.option,), {*OBSERVE_OPTIONS, *(set(e.known) - set(COMMON_OPTIONS))})
        raise
