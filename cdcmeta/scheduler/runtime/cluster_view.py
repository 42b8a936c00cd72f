"""The cluster as one capture sees it: the records, the registered captures, the leader.

One thread follows the records by a watch, and reads sessions and leader every `LOOK_S` seconds, or
sooner when it is asked to. Everything else reads its `view`, which never changes in place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.changefeed_records import Changefeed, Registered, StoredCheckpoint
from snapkv import CompactedError, Election, Leader, SnapKVError, SnapshotKV, Space, Watch
from snapkv.base.waiting import monotonic
from snapkv.errors import CorruptStoreError

log = logging.getLogger("cdcmeta.scheduler")

LOOK_S = 0.5
"""The pause between two reads of the sessions and the leader, in seconds."""
WAIT_S = 0.1
RETRY_S = 0.5
TIMEOUT_S = 5.0
GONE_S = 60.0


class Gone(NamedTuple):
    """A capture whose registration has vanished, and when that was seen."""

    epoch: int
    seen_at: float


@dataclass(frozen=True)
class ClusterView:
    """The cluster at one moment."""

    revision: int
    """`captures` has all registrations up to this revision of the store."""
    captures: Mapping[str, Registered]
    leader: Leader | None
    feeds: Mapping[str, Changefeed] = field(default_factory=dict)
    checkpoints: Mapping[str, StoredCheckpoint] = field(default_factory=dict)
    """As stored: one may be of an earlier changefeed of the same id."""
    others: Mapping[bytes, bytes] = field(default_factory=dict)
    """The other records, by key: requests and reports."""
    evicted: Mapping[bytes, bytes] = field(default_factory=dict)
    """The records of evictions: of each capture that was evicted and is not in `captures`."""
    places: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """By changefeed, the record of each table's placement."""
    gone: Mapping[str, Gone] = field(default_factory=dict)
    """Captures whose registration has vanished within the last `GONE_S` seconds."""


class Registry:
    """Follows the cluster in one thread, from `start` to `close`."""

    def __init__(self, store: SnapshotKV, cluster: str, election: Election) -> None:
        """Read everything once. Raises what reading raises."""
        self._store, self._cluster, self._election = store, cluster, election
        self._space: Space = store.space(records.space_of(cluster))
        self._feeds: dict[str, Changefeed] = {}
        self._created: dict[bytes, int] = {}
        """The first revision of each changefeed's record, by key."""
        self._checkpoints: dict[str, StoredCheckpoint] = {}
        self._places: dict[str, dict[str, bytes]] = {}
        self._others: dict[bytes, bytes] = {}
        self.began = monotonic()
        """Since when it sees which captures vanish."""
        self._watch = self._read_records()
        self.view = ClusterView(0, {}, None)
        """What was seen last."""
        self.view = self._looked()
        self._is_lost = False
        """Whether the watch has ended, and all records are to be read again."""
        self.error: Exception | None = None
        """Why the view is not up to date."""
        self._asked, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="cdcmeta-registry", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Ask for a new view soon."""
        self._asked.set()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._watch.close()
        self._thread.join(2 * TIMEOUT_S)

    # --- the thread ---

    def _run(self) -> None:
        looked_at = monotonic()
        while not self._closed.is_set():
            try:
                if self._is_lost:
                    self._watch.close()
                    self._watch = self._read_records()
                    self._is_lost = False
                changes = self._watch.next(WAIT_S)
                for change in changes or ():
                    if change.value is None:
                        self._remove(change.key)
                    else:
                        revision = change.commit.revision
                        self._put(change.key, change.value, revision, revision)
                is_asked = changes is not None or self._asked.is_set()
                if is_asked or monotonic() - looked_at >= LOOK_S:
                    self._asked.clear()
                    self.view, looked_at = self._looked(), monotonic()
                    self.error = None
            except CompactedError as e:
                log.warning("the cluster's records are read anew: %s", e)
                self._is_lost = True
            except SnapKVError as e:
                if self._closed.is_set():
                    return
                if self.error is None:
                    log.warning("the cluster's records cannot be read: %s", e)
                self.error = e
                self._asked.wait(RETRY_S)

    def _looked(self) -> ClusterView:
        """Read sessions, leader, then evictions: one is on record before it ends the session."""
        sessions = self._store.sessions(timeout=TIMEOUT_S)
        captures = records.registered(sessions, self._cluster)
        return ClusterView(
            sessions.revision,
            captures,
            self._election.leader(),
            dict(self._feeds),
            dict(self._checkpoints),
            dict(self._others),
            self._evicted(captures),
            {feed: dict(places) for feed, places in self._places.items()},
            self._gone(captures),
        )

    def _gone(self, captures: Mapping[str, Registered]) -> dict[str, Gone]:
        before, now = self.view, monotonic()
        found = {name: each for name, each in before.gone.items() if now - each.seen_at < GONE_S}
        for name in before.captures.keys() - captures.keys():
            found[name] = Gone(before.captures[name].session.revision, now)
        return found

    def _evicted(self, captures: Mapping[str, Registered]) -> dict[bytes, bytes]:
        before = self.view
        if before.revision and captures.keys() == before.captures.keys() and not before.evicted:
            return {}
        return dict(self._space.at(timeout=TIMEOUT_S).items(records.EVICTED))

    # --- records ---

    def _read_records(self) -> Watch[bytes]:
        snapshot = self._space.at(timeout=TIMEOUT_S)
        for known in (self._feeds, self._created, self._checkpoints, self._places, self._others):
            known.clear()
        for key, entry in snapshot.entries():
            self._put(key, entry.value, entry.revision, entry.created)
        return self._space.watch(since=snapshot.timestamp)

    def _put(self, key: bytes, value: bytes, revision: int, created: int) -> None:
        """Take a record; `created` counts for one that is not known yet."""
        try:
            if key.startswith(records.FEED):
                created = self._created.setdefault(key, created)
                feed = records.feed_of(key, value, revision, created)
                self._feeds[feed.id] = feed
            elif key.startswith(records.CHECKPOINT):
                feed_id = key.removeprefix(records.CHECKPOINT).decode()
                self._checkpoints[feed_id] = records.checkpoint_of(value)
            elif key.startswith(records.PLACE):
                feed_id, table = _place(key)
                self._places.setdefault(feed_id, {})[table] = value
            elif not key.startswith(records.EVICTED):
                self._others[key] = value
        except (CorruptStoreError, KeyError, ValueError) as e:  # also a key of another form
            log.error("the record %r is not used: %s", key, e)

    def _remove(self, key: bytes) -> None:
        if key.startswith(records.FEED):
            self._created.pop(key, None)
            self._feeds.pop(key.removeprefix(records.FEED).decode(errors="replace"), None)
        elif key.startswith(records.CHECKPOINT):
            id = key.removeprefix(records.CHECKPOINT).decode(errors="replace")
            self._checkpoints.pop(id, None)
        elif key.startswith(records.PLACE):
            with suppress(ValueError):  # a key of another form was never taken
                feed_id, table = _place(key)
                self._places.get(feed_id, {}).pop(table, None)
        else:
            self._others.pop(key, None)


def _place(key: bytes) -> tuple[str, str]:
    feed, table = key.removeprefix(records.PLACE).split(b"/", 1)
    return feed.decode(), table.decode()
