"""What a fleet knows, as values that can be compared: two states with the same keys go on alike."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from fleet_servers import Stream

from snapkv.fleet import fleet_watch as watch_module
from snapkv.fleet.fleet_watch import PATIENCE_S, FleetWatch, MemberFollower
from snapkv.fleet.open_member import OpenMember


def connection_key(connection: OpenMember) -> Hashable:
    """Return what a fleet knows of a member."""
    reads = connection._reads
    timeline = None if reads is None else reads.reader.timeline
    silence = connection.silence
    away = None if silence._note is None else silence._note[0]
    tracker = None if timeline is None else tracker_key(timeline.tracker)
    return connection._known, connection.store_id, connection._epoch, away, tracker


def tracker_key(tracker: Any) -> Hashable:
    ring, continuity, lookup, feed = (
        tracker.ring,
        tracker.continuity,
        tracker.lookup,
        tracker._feed,
    )
    marks = [ring._mark((ring.min_pos + at) % ring.slots) for at in range(len(ring))]
    runs = tuple(
        (tuple(run.timestamps), tuple(run.revisions), run.ordinal, run.last_revision)
        for run in lookup.blocks._runs
    )
    return (
        tracker.newest,
        tracker.shown,
        tracker._header.revision,
        tuple(marks),
        (continuity.epoch, continuity._seen, continuity.in_doubt),
        tuple(lookup._anchors._by_timestamp.values()),
        runs,
        (feed._ordinal, feed._revision, continuous_key(feed._watcher)),
    )


def continuous_key(watcher: Any) -> Hashable:
    """Return what a watch has to check, and what its stream will bring."""
    if watcher is None or watcher._watcher.closed:
        return None
    stream: Stream = watcher._watcher
    reopened, epoch = watcher._verified
    return (
        (stream.reopened - reopened, watcher._continuity.epoch - epoch, watcher._fresh),
        None if watcher._held is None else watcher._held.revision,
        (stream.next_revision, tuple(batch.revision for batch in stream.buffer)),
        (stream.broken, stream.is_slow),
        stream.has_news,
    )


def watch_key(watch: FleetWatch) -> Hashable:
    """Return how far a watch is on each member, and what waits in it."""
    return watch.timestamp, tuple(map(follower_key, watch._followers))


def follower_key(follower: MemberFollower) -> Hashable:
    inner = follower._watch
    own = inner and (inner._mark, inner.timestamp, continuous_key(inner._watcher))
    queue = tuple((step.mark, step.changes is None) for step in follower._queue)
    left_out = follower.left_out, follower.missing_since, _held_for(follower)
    return (
        (follower.progress, follower._given, follower._place, follower._base, left_out),
        (follower._witness, follower._ends),
        (follower.has_caught_up, follower._head, type(follower.error), follower._closed),
        queue,
        own,
    )


def _held_for(follower: MemberFollower) -> float | None:
    """Return for how long a follower has held its watch back, as far as that matters."""
    if follower.holds_since is None:
        return None
    since = max(follower.holds_since, follower.moved_at)
    return min(PATIENCE_S, watch_module.monotonic() - since)  # type: ignore[attr-defined]
