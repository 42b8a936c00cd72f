"""Counts and gauges of an open store, from memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from snapkv.committer.recovery import CommitCounts
from snapkv.reading.metered import Lookups
from snapkv.reading.watch import StoreWatch
from snapkv.store.core import Core


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
    """How many of the newest commits are looked up in memory."""
    ring_slots: int
    watches: int
    """Open watches."""
    watch_commits: int
    """Commits that watches returned."""
    watch_changes: int
    """Changes in them."""
    watch_lag_s: float | None
    """How old the newest of these commits was when it was returned; None before the first."""
    compactions: int
    """Compactions by this store, also for `retain=`."""
    earliest_timestamp: int | None
    """The oldest time that remained after the newest of them, or that `health` found."""
    failovers: int
    """How often another endpoint of the cluster answered than before."""
    restores: int
    """How often the engine turned out to hold another history, such as a restored backup."""
    hook_errors: int
    """Calls of hooks that raised."""

    def as_json(self) -> dict[str, object]:
        """Return it for JSON; timestamps as texts, which JavaScript does not round."""
        found = asdict(self)
        for name in ("newest_timestamp", "earliest_timestamp"):
            found[name] = None if found[name] is None else str(found[name])
        return found


def stats(core: Core) -> Stats:
    """Return the counts and gauges of a store, also of a closed one; no round trip."""
    committer, tracker, delivered = core.made_committer, core.timeline.tracker, core.deliveries
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
        watch_commits=delivered.commits,
        watch_changes=delivered.changes,
        watch_lag_s=delivered.lag_s,
        compactions=core.compactions,
        earliest_timestamp=core.earliest,
        failovers=core.failovers,
        restores=tracker.continuity.epoch,
        hook_errors=0 if core.notify is None else core.notify.errors,
    )
