"""Opening keys that other programs write, for reading any moment of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from snapkv.base.arguments import check_known, wrong_type
from snapkv.clock import Clock
from snapkv.engine.contract import Engine
from snapkv.errors import InvalidTypeError, StoreNotFoundError
from snapkv.hooks import Hooks
from snapkv.layout import RawKeyspace, raw_key
from snapkv.location import COMMON_OPTIONS, DEFAULT_NAME, Location, open_engine
from snapkv.model import K
from snapkv.reading.observed import Observed, Observer
from snapkv.store.open import Settings, open, opened
from snapkv.store.store import SnapshotKV
from snapkv.timeline import RING_SLOTS

Keys = SnapshotKV | Observed[str]
"""Text keys that can be read as of any moment."""

OBSERVE_OPTIONS = ("prefix", "name", "ring_slots", "clock", "read_timeout", "hooks")


def observe(
    url: str,
    *,
    prefix: K,
    name: str = DEFAULT_NAME,
    ring_slots: int = RING_SLOTS,
    clock: Clock | None = None,
    read_timeout: float | None = None,
    hooks: Hooks | Iterable[Hooks] | None = None,
    **options: Any,
) -> Observed[K]:
    """Open keys that other programs write into an engine, for reading any moment of them.

    `prefix` selects the keys: with a str prefix, keys are text, with a bytes prefix, bytes. An
    empty prefix selects all keys of the engine, including the keys of snapkv's stores. The times
    come from the store `name` in the same engine: keep `snapkv tick --every 1s` running there, or
    commit to that store. It writes nothing, and creates no store. `url`, `ring_slots`, `clock`,
    `read_timeout` and further options are as for `snapkv.open`. Of `hooks`, only the hooks of
    lookups, watches and failovers are called. One round trip.

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
    settings = Settings(
        name=name,
        ring_slots=ring_slots,
        clock=clock,
        read_timeout=read_timeout,
        create=False,
        hooks=hooks,
    )
    engine = partial(_open_engine, url, settings.layout.ts, options)
    try:
        return Observed(opened(Observer, url, engine, settings), space)
    except StoreNotFoundError as e:
        raise StoreNotFoundError(
            f"{e}; observing needs its ticks: keep `snapkv tick --every 1s` running there"
        ) from e


def open_to_read(location: Location, **options: Any) -> Keys:
    """Open what exists at a location, to read it; `options` as for `open`. Raises as that."""
    options |= location.options
    if location.prefix is not None:
        return observe(location.url, prefix=location.prefix, name=location.name, **options)
    return open(
        location.url,
        codec=None,
        name=location.name,
        create=False,
        archive=location.archive,
        storage=dict(location.storage) or None,
        **options,
    )


def _open_engine(url: str, home: bytes, options: dict[str, Any]) -> Engine:
    """Open the engine that a URL names; options of `open` without effect here are unknown."""
    try:
        return open_engine(url, create=False, options=options, home=home)
    except InvalidTypeError as e:
        if e.known:  # an option of `open` that has no use here must not be listed
            check_known((e.option,), {*OBSERVE_OPTIONS, *(set(e.known) - set(COMMON_OPTIONS))})
        raise
