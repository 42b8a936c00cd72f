"""Diagnostics of a store: counts and gauges, its health, broken invariants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from snapkv.base.arguments import check_seconds
from snapkv.base.text import stored_text
from snapkv.base.waiting import perf_counter
from snapkv.committer.recovery import CommitCounts
from snapkv.engine.bulk_reads import replayed
from snapkv.engine.contract import WatchBatch
from snapkv.errors import (
    CorruptStoreError,
    HistoryGapError,
    SnapKVError,
    StoreClosedError,
    StoreRecreatedError,
)
from snapkv.layout import Mark, prefix_end
from snapkv.reading.deadline import within
from snapkv.reading.lookup_meter import Lookups
from snapkv.reading.reader import Reader
from snapkv.reading.watches import StoreWatch
from snapkv.store.store_writer import StoreWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a store of this process has done since it was opened, and how it is.

    Counts are of this open store; other stores, and other processes, have their own.
    """

    url: str
    name: str
    commits: int
    """Calls that committed; calls of several threads that shared a transaction count each."""
    transactions: int
    """Transactions that committed something, ticks included."""
    ticks: int
    conflicts: int
    """Calls with a guard that failed."""
    lost_rounds: int
    """Transactions that were sent again because another process committed first."""
    fences: int
    """Transactions without an answer, whose outcome had to be found out."""
    unknown_outcomes: int
    """Calls that ended with `CommitUnknownError`."""
    waiting: int
    """Calls that wait for the transaction before theirs, now."""
    lookups: Lookups | None
    """Lookups by path; None unless the store was opened with `stats=True`, or hooks want it."""
    newest_timestamp: int
    """The newest timestamp that this process knows."""
    newest_revision: int
    ring_size: int
    """The number of newest commits that are looked up in memory."""
    ring_slots: int
    watches: int
    """Open watches."""
    watch_commits: int
    """Commits that watches returned."""
    watch_changes: int
    """Changes in them."""
    watch_lag_s: float | None
    """The age of the newest of these commits when it was returned, in seconds; None before it."""
    compactions: int
    """Compactions by this store, also for `retain=`."""
    earliest_timestamp: int | None
    """The oldest time that remained after the newest of them, or that `health` found."""
    failovers: int
    """The number of times that another endpoint of the cluster answered than before."""
    restores: int
    """The number of times that the engine had another history, such as a restored backup."""
    hook_errors: int
    """Calls of hooks that raised."""

    def as_json(self) -> dict[str, object]:
        """Return it for JSON; timestamps as texts, which JavaScript does not round."""
        return _as_json(asdict(self))


def _as_json(found: dict[str, object]) -> dict[str, object]:
    for name in ("newest_timestamp", "earliest_timestamp"):
        found[name] = None if found[name] is None else str(found[name])
    return found


def stats(core: StoreWriter) -> Stats:
    """Return the counts and gauges of a store, also of a closed one; no round trip."""
    committer, tracker = core.made_committer, core.timeline.tracker
    with core.lock:
        followers = list(core.followers)
    return Stats(
        url=core.url,
        name=core.layout.name,
        **asdict(CommitCounts() if committer is None else committer.counts),
        waiting=0 if committer is None else committer.waiting,
        lookups=None if core.meter is None else core.meter.lookups(),
        newest_timestamp=tracker.newest.timestamp,
        newest_revision=tracker.newest.revision,
        ring_size=len(tracker.ring),
        ring_slots=tracker.ring.slots,
        watches=sum(isinstance(each, StoreWatch) and each.is_open for each in followers),
        watch_commits=core.watch_commits,
        watch_changes=core.watch_changes,
        watch_lag_s=core.watch_lag_s,
        compactions=core.compactions,
        earliest_timestamp=core.earliest,
        failovers=core.failovers,
        restores=tracker.continuity.epoch,
        hook_errors=0 if core.notify is None else core.notify.errors,
    )


# --- health of a store, for probes: one round trip, bounded ---

HEALTH_TIMEOUT_S = 1.0
SIZES = ("used_bytes", "bytes")
"""The names that embedded engines give to the size of what they hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a store answered a probe.

    Only `answers` shows whether it works; the rest is for alerts and people. A store that no
    process writes to gets old without a fault.
    """

    answers: bool
    """Whether the engine answered in time."""
    error: str | None
    """Why it did not answer."""
    latency_s: float
    """The duration of the probe, in seconds."""
    newest_timestamp: int
    """The newest timestamp; without an answer the newest one that this process knows."""
    age_s: float | None
    """The age of that, in seconds: the tick lag, where something ticks. None without commits."""
    skew_s: float | None
    """By how much the local clock is ahead of the server's; None if that is not known."""
    earliest_timestamp: int | None
    """The oldest time that can be read; of a remote engine only as far as this process knows."""
    size_bytes: int | None
    """The size of the engine's data; None for a remote engine."""

    def as_json(self) -> dict[str, object]:
        """Return it for JSON; timestamps as texts, which JavaScript does not round."""
        return _as_json(asdict(self))


def health(core: StoreWriter, timeout: float) -> Health:
    """Probe a store; see `SnapshotKV.health`."""
    core.check_open()
    check_seconds("timeout", timeout)
    began, error, size = perf_counter(), None, None
    newest = core.timeline.tracker.newest
    try:
        with within(timeout):
            newest = core.timeline.head()
            if not core.engine.remote:
                size, is_local = _size_of(core)
                if is_local:
                    core.earliest = core.timeline.earliest()
    except StoreClosedError:
        raise
    except SnapKVError as e:
        error = str(e)
    latency_s = perf_counter() - began
    return Health(
        answers=error is None,
        error=error,
        latency_s=latency_s,
        newest_timestamp=newest.timestamp,
        age_s=core.age_s(newest.timestamp),
        skew_s=skew_s(core, core.clock.now_ms()),
        earliest_timestamp=core.earliest,
        size_bytes=size,
    )


def _size_of(core: StoreWriter) -> tuple[int | None, bool]:
    """Return the size of an embedded engine, and whether no history is in an object store."""
    facts = core.engine.info()
    archived = facts["engine"] == "archive" or hasattr(core.engine, "archive")
    return size_of(facts), not archived


def size_of(facts: dict[str, int | str]) -> int | None:
    """Return the size of what an engine holds from its facts, None if they have none."""
    found = next((facts[name] for name in SIZES if name in facts), None)
    return found if isinstance(found, int) else None


def skew_s(core: Reader, now_ms: int) -> float | None:
    """Return the difference of the clocks as far as it is known; an embedded engine has one."""
    if not core.engine.remote:
        return None
    server = core.engine.server_time_ms()
    return None if server is None else (now_ms - server[0]) / 1_000


# --- the invariants of a whole store, engine and time line together ---


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The size of what `check()` examined, and every broken rule that it found."""

    commits: int
    keys: int
    problems: tuple[str, ...]


def check(core: StoreWriter, progress: Callable[[int], None] = lambda _: None) -> CheckReport:
    """Check the engine's own rules, the time line, and that every write carries a timestamp.

    `progress` is called now and then with the number of commits checked.
    """
    core.check_open()
    problems = [f"engine: {problem}" for problem in core.engine.check()]
    try:
        core.timeline.tracker.check()
    except AssertionError as e:
        problems.append(f"timeline: {e!r}")
    commits, until = 0, core.engine.read([]).header.revision
    root = core.layout.root  # all that was written since the store was made, or compacted
    start = max(core.timeline.tracker.creation.revision, core.engine.compacted_revision())
    for batch in replayed(core.engine, root, prefix_end(root), start, until):
        found, stamped = _judge(core, batch)
        problems += found
        commits += stamped
        if stamped:
            progress(commits)
    try:
        problems += _order(core, core.timeline.head())
    except StoreRecreatedError as e:
        problems.append(str(e))
        return CheckReport(commits, 0, tuple(problems))
    data = core.layout.data
    keys = core.source(None, None, False).count(data.prefix, prefix_end(data.prefix))
    return CheckReport(commits, keys, tuple(problems))


def _judge(core: StoreWriter, batch: WatchBatch) -> tuple[list[str], int]:
    layout, problems = core.layout, []
    stamps = [event.kv for event in batch.events if event.kv.key == layout.ts]
    # a part of a recorded commit that found no timestamp belongs to the next one that has one
    stamped = bool(stamps) or any(e.kv.key == layout.part and not e.is_delete for e in batch.events)
    for event in batch.events:
        kv = event.kv
        if kv.key == layout.ts and event.is_delete:
            problems.append(f"revision {batch.revision} deletes the timestamp key")
        elif (
            not stamped
            and kv.key.startswith((layout.data.prefix, layout.spaces))
            and not _is_lost(core, batch.revision)
        ):
            problems.append(f"revision {batch.revision} writes {kv.key!r} without a timestamp")
        if kv.key.startswith(layout.data.prefix) and stored_text(kv.key) is None:
            problems.append(f"key {kv.key!r} is not valid UTF-8")
    return problems, sum(1 for kv in stamps if kv.version > 1)  # 1: the store's creation


def _is_lost(core: StoreWriter, revision: int) -> bool:
    """Return whether a revision is in a gap of an archive, where no write has a time of its own."""
    try:
        core.engine.get(core.layout.data.prefix, revision)
    except HistoryGapError:
        return True
    return False


def _order(core: StoreWriter, head: Mark) -> Iterator[str]:
    """Timestamps, revisions and ordinals of the log rise together, by one in the ordinals."""
    last = core.timeline.oldest()
    try:
        for mark, _ in core.timeline.replay(last, head):
            if not (mark.timestamp > last.timestamp and mark.revision > last.revision):
                yield f"commit {mark} does not come after {last}"
            if mark.ordinal != last.ordinal + 1:
                yield f"commit {mark} does not follow {last}"
            last = mark
    except CorruptStoreError as e:
        yield str(e)
