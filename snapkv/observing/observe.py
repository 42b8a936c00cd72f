"""Observing: read-only time travel over keys that other programs write into the same engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from snapkv.arguments import check_known, wrong_type
from snapkv.clock import Clock, HybridClock, SystemClock
from snapkv.engine.contract import Engine
from snapkv.engine_urls import COMMON_OPTIONS, open_engine
from snapkv.errors import (
    CompactedError,
    InvalidTypeError,
    StoreNotFoundError,
)
from snapkv.hooks import FailoverEvent, Hooks, LookupEvent, Notifier, StoreLabel, checked_hooks
from snapkv.layout import CREATION_ORDINAL, Layout, Mark, RawKeyspace, raw_key
from snapkv.lifecycle import Closing
from snapkv.model import K, Version
from snapkv.observing.ticks import Ticks
from snapkv.observing.watch import ObservedWatch
from snapkv.reading import history as _history
from snapkv.reading.changes import first_after
from snapkv.reading.deadline import bounds, within
from snapkv.reading.metered import Meter
from snapkv.reading.opening import open_keys
from snapkv.reading.reader import Reader
from snapkv.reading.view import KeyspaceReads
from snapkv.reading.watch import Watch
from snapkv.timeline import RING_SLOTS, RevisionPolicy, Timeline
from snapkv.timeline.moment import compaction_error
from snapkv.times import When

OBSERVE_OPTIONS = ("prefix", "name", "ring_slots", "clock", "read_timeout", "hooks")


@dataclass(slots=True, eq=False)
class Observer(Reader):
    """The parts of an open observed prefix."""

    def make_policy(self) -> RevisionPolicy:
        """Return the policy of keys that change between marks, too."""
        return Ticks(self.timeline)


class Observed(KeyspaceReads[K], Closing):
    """Keys that other programs write, as they were at each tick of a time line beside them.

    The reads of a store, with these differences:

    * Keys are the full keys of the engine, as text or bytes like the given prefix. In text, bytes
      that are not valid UTF-8 are escaped (`surrogateescape`).
    * A foreign write carries the timestamp of the first tick (or commit of the store that ticks)
      at or after it. So it happened later than the tick before that one, less skew, and earlier
      than that tick, plus skew and the tick's time of flight. Skew is how far the tickers' clocks
      may differ.
    * Writes that no tick has stamped yet are not seen: "now" is the newest tick. It costs two
      round trips, the tick and then its state.
    * Times before the first tick raise `NotObservedError`; they are not empty.
    * A moment ends when compaction passes its tick: `CompactedError`, whose `earliest` is the
      first tick that can still be read, None if there is none yet.
    * `at(revision=...)` reads exactly that revision, ticked or not; the timestamp is that of the
      newest tick at or before it, 0 if there is none. `at(final=True)` raises: it would have to
      tick.

    Safe for threads and usable as a context manager. Made by `snapkv.observe`.
    """

    _core: Observer

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __repr__(self) -> str:
        core = self._core
        return f"<Observed {core.url} prefix={self._space.whole!r} name={core.layout.name!r}>"

    def close(self) -> None:
        """Close it; watches in other threads end with `StoreClosedError`. May be repeated."""
        self._core.close()

    @bounds
    def history(
        self,
        key: K,
        *,
        since: When | None = None,
        until: When | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Version]:
        """Yield the observed versions of a key, oldest first, each with the tick that stamps it.

        A removal has the value None. Writer and note are None, because they are not known, unless
        the store that ticks made the version with a commit of its own. Versions newer than the
        newest tick are left out. History begins with the version in force
        at the compaction point, whose `ts` is None if its tick was compacted. One watch over the
        key, one round trip for each 128 versions, and 0 to 6 for each tick.

        `since` (exclusive), `until` (inclusive), `limit` and `newest_first` are as for
        `SnapshotKV.history`; several versions may have the time of one tick, so pages of a size
        may divide them. A time `since` before the first tick means the engine's beginning.

        Raises `NotObservedError` before the first tick, `CompactedError`,
        `EngineUnavailableError`, `ReadTimeoutError`.
        """
        span = _history.Span(since, until, limit, newest_first)
        return _history.observed_versions(self._core, self._space.encode(key), span)

    def watch(
        self, prefix: K | None = None, since: When | None = None, *, timeout: float | None = None
    ) -> Watch[K]:
        """Return an iterator of the ticks after `since` (None: after now) with what they stamp.

        Each `Changes` holds all writes since the tick before, in the order of their revisions.
        Each change has the commit that `history` shows: its own revision, the tick's timestamp,
        and neither writer nor note, unless the store that ticks wrote it with a commit. Changes
        wait for their tick; none twice, none missing; resumable from the last timestamp seen.
        `since` a time before the first tick means from the engine's beginning. Iteration ends
        if `timeout` seconds bring nothing (None: it waits); a tick that has arrived may take a
        second longer, until all its changes have. Holds the writes since the tick before in
        memory.

        Raises `CompactedError` when changes after `since` may be gone, `EngineUnavailableError`.
        """
        core = self._core
        core.check_open()
        with within(self._read_timeout):
            mark, first, after = self._watched_from(since)
        return ObservedWatch(core, self._space, prefix, mark, first, after, timeout)

    def _watched_from(self, since: When | None) -> tuple[Mark, int, int]:
        """Return the mark to follow from, the first revision, and the timestamp that was seen."""
        core = self._core
        if since is None:
            mark = core.timeline.head()
            return mark, core.policy.moment(mark).next_revision(), 0
        after = core.resolve(since)
        try:
            mark = core.timeline.at(after).mark
            return mark, first_after(core, mark), after
        except CompactedError as e:
            raise compaction_error(core.policy, after) from e

    @bounds
    def resolved(self, *, timeout: float | None = None) -> int:
        """Return the timestamp at or below which nothing changes any more: that of the newest tick.

        0 before the first one. One round trip. Raises `EngineUnavailableError`,
        `ReadTimeoutError`.
        """
        self._core.check_open()
        return self._core.timeline.head().timestamp

    @bounds
    def info(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return facts about what is observed and its engine, for people, without secrets.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        core = self._core
        core.check_open()
        head = core.timeline.head()
        return {
            "url": core.url,
            "prefix": self._space.whole,
            "name": core.layout.name,
            "store_id": core.format.store_id.hex(),
            "ticks": head.ordinal - CREATION_ORDINAL,
            "newest_timestamp": head.timestamp,
            "newest_revision": head.revision,
            "earliest_timestamp": core.policy.earliest(),
            "ring": f"{len(core.timeline.tracker.ring)} of {core.timeline.tracker.ring.slots}",
            "engine": core.engine.info(),
        }


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
