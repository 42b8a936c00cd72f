"""A capture's term as the leader: one coordinator for each changefeed, and what they write.

When a registration vanishes, the owner counts the capture as present for `GRACE_S`; after an
eviction for its time to live, because the capture may learn of the eviction only then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.watermarks import CANNOT_PROCEED
from cdcmeta.scheduler.owner.cluster import Cluster
from cdcmeta.scheduler.owner.coordinator import FOUND, PLACED, Coordinator, Tick
from cdcmeta.scheduler.protocol.messages import Envelope
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.cluster_view import ClusterView
from cdcmeta.scheduler.runtime.reports import Rate, Scheduled, Weights, feed_reports
from snapkv import ClockSkewError, ConflictError, Election, SnapKVError, SnapshotKV
from snapkv.errors import CorruptStoreError

log = logging.getLogger("cdcmeta.scheduler")

PUTS_MAX = 100
"""What one commit writes at most."""
WRITE_S = 5.0
RETRY_S = 0.3
PAUSE_S = 0.1
"""The shortest time between two commits."""


class OwnerWrites:
    """Writes what an owner decides, in order and under its election, until it is deposed or closed.

    One thread writes, so the owner's tick waits for no store. A newer value replaces one that is
    not written yet: checkpoints never go back, whichever are left out. The guard of the election
    is in each commit, so a deposed owner writes nothing.
    """

    def __init__(self, store: SnapshotKV, cluster: str, election: Election) -> None:
        self._store, self._election = store, election
        self._space = store.space(records.space_of(cluster))
        self.is_deposed = False
        """Whether a write was rejected because another owner was elected."""
        self.is_helpless = False
        """Whether this process can write nothing, while another one could: its clock is wrong."""
        self._waiting: dict[bytes, bytes | None] = {}
        self._evictions: dict[int, records.Registered] = {}
        self._condition = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cdcmeta-owner", daemon=True)
        self._thread.start()

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write a record soon; None removes it."""
        with self._condition:
            self._waiting[key] = value
            self._condition.notify()

    def evict(self, capture: records.Registered) -> None:
        """Write that a capture is evicted, then end its session."""
        with self._condition:
            if capture.session.id not in self._evictions:
                self._evictions[capture.session.id] = capture
                self._condition.notify()

    def close(self) -> None:
        """End the thread; what is not written yet is left to the next owner."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(2 * WRITE_S)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._closed or self._waiting or self._evictions):
                    self._condition.wait()
                if self._closed:
                    return
                batch = dict(islice(self._waiting.items(), PUTS_MAX))
                for key in batch:
                    del self._waiting[key]
                evictions = list(self._evictions.values())
            try:
                self._write(batch)
                for capture in evictions:
                    self._evict(capture)
                    with self._condition:
                        self._evictions.pop(capture.session.id, None)
                wait_s = PAUSE_S
            except ConflictError:
                log.warning("another owner was elected")
                self.is_deposed = True
                return
            except ClockSkewError as e:
                log.error("the owner cannot write, and makes way for another: %s", e)
                self.is_helpless = True
                return
            except SnapKVError as e:
                log.warning("the owner cannot write: %s", e)
                with self._condition:
                    self._waiting = {**batch, **self._waiting}
                wait_s = RETRY_S
            with self._condition:
                if not self._closed:
                    self._condition.wait_for(lambda: self._closed, wait_s)

    def _write(self, batch: dict[bytes, bytes | None]) -> None:
        if batch:
            self._space.commit(
                puts={key: value for key, value in batch.items() if value is not None},
                deletes=[key for key, value in batch.items() if value is None],
                guards=[self._election.guard],
                timeout=WRITE_S,
            )

    def _evict(self, capture: records.Registered) -> None:
        """Keep on record until when it may write; only then end its session."""
        revision, ttl_s = capture.session.revision, capture.said.ttl_s
        record = {"name": capture.name, "revision": revision, "ttl_s": ttl_s}
        key = records.EVICTED + b"%x" % capture.session.id
        self._write({key: records.encoded(record)})
        self._election.end_session(capture.session)


GRACE_S = 1.0
JOINED_US = 5_000_000
"""The microseconds from the last capture that joined to the check of the balance: more may
follow."""
WEIGH_US = 30_000_000
"""The microseconds between two looks at the rates of tables."""
STORE_US = 500_000
"""The microseconds between two stored checkpoints of a changefeed."""


class _Gone(NamedTuple):
    """A capture without a registration that may still write."""

    epoch: int
    until: int


class _Schedule:
    """A changefeed under this owner."""

    def __init__(self, feed: records.Changefeed, coordinator: Coordinator) -> None:
        self.feed, self.coordinator = feed, coordinator
        self.weights = Weights(feed.tables())
        self.stored_at: int | None = None
        self._floors: Mapping[str, int] = {}

    def floors_in(self, view: ClusterView) -> Mapping[str, int]:
        """Return where tables begin that are behind the checkpoint; the same object if equal."""
        found = records.floors_of(self.feed, view.checkpoints.get(self.feed.id))
        if found != self._floors:
            self._floors = found
        return self._floors


class Term:
    """One term of an owner, from its election to its end; `tick` is called by one thread."""

    def __init__(self, capture: str, revision: int, limits: Limits, writes: OwnerWrites) -> None:
        self._capture, self._revision, self._limits = capture, revision, limits
        self._owner_writes = writes
        self._schedules: dict[str, _Schedule] = {}
        self._registered: dict[str, int] = {}
        """The captures of the last tick."""
        self._gone: dict[str, _Gone] = {}
        self._evicted_until: dict[bytes, int] = {}
        self._done: set[bytes] = set()
        self._issued: dict[str, int] = {}
        """The number of tokens of ended changefeeds: later ones are larger in sinks."""
        self._weighed_at = 0
        self._joined_at: int | None = None
        self.wants_to_resign = False
        """Whether this capture is to be drained: another one must lead first."""

    def tick(
        self, view: ClusterView, inbox: Mapping[str, list[Envelope]], now: int
    ) -> list[tuple[str, Envelope]]:
        """Schedule all changefeeds; return the messages, each with its changefeed."""
        captures = self._captures(view, now)
        self._follow(view)
        if now - self._weighed_at >= WEIGH_US:
            self._weighed_at = now
            self._weigh(view)
        if self._joined_at is not None and now - self._joined_at >= JOINED_US:
            self._joined_at = None
            for schedule in self._schedules.values():
                schedule.coordinator.balance_soon()
        sent: list[tuple[str, Envelope]] = []
        for id, schedule in self._schedules.items():
            cluster = Cluster(
                now,
                captures,
                schedule.weights.of_tables,
                records.stored_checkpoint(schedule.feed, view.checkpoints.get(id)),
                view.revision,
                floors=schedule.floors_in(view),
            )
            tick = schedule.coordinator.tick(inbox.get(id, []), cluster)
            sent += [(id, envelope) for envelope in tick.messages]
            self._keep(id, schedule, tick, view, now)
            for name, _ in tick.evict:
                if name in view.captures:
                    self._owner_writes.evict(view.captures[name])
        self._do_requests(view)
        return sent

    def scheduled(self) -> dict[str, Scheduled]:
        """Return how each changefeed is, for monitors."""
        return {id: Scheduled.of(each.coordinator) for id, each in self._schedules.items()}

    # --- the cluster ---

    def _captures(self, view: ClusterView, now: int) -> dict[str, int]:
        """Return all captures that may write."""
        present = {name: each.session.revision for name, each in view.captures.items()}
        for name, (epoch, seen_at) in view.gone.items():
            until = int((seen_at + GRACE_S) * 1e6)
            if name not in present and until > now:
                self._gone.setdefault(name, _Gone(epoch, until))
        if self._registered and present.keys() - self._registered.keys():
            self._joined_at = now
        self._registered = present
        for key, raw in view.evicted.items():
            self._note_evicted(key, raw, view, now)
        for name, gone in list(self._gone.items()):
            if gone.until <= now:
                del self._gone[name]
                log.info("capture %s is gone", name)
        return {**{name: each.epoch for name, each in self._gone.items()}, **present}

    def _note_evicted(self, key: bytes, raw: bytes, view: ClusterView, now: int) -> None:
        try:
            record = records.decoded(raw)
            name, epoch = str(record["name"]), int(record["revision"])
            ttl_us = int((float(record["ttl_s"]) + GRACE_S) * 1e6)
        except (CorruptStoreError, KeyError, TypeError, ValueError) as e:
            log.error("the record %r is not used: %s", key, e)
            return
        if name in view.captures:  # the owner that wrote it did not end the session
            self._owner_writes.evict(view.captures[name])
            return
        until = self._evicted_until.get(key)
        if until is None:
            until = self._evicted_until[key] = now + ttl_us
            self._gone[name] = _Gone(epoch, until)
        elif until <= now:
            self._remove(key)

    def _follow(self, view: ClusterView) -> None:
        """Begin with new and changed changefeeds, and end changefeeds that do not run."""
        for id, schedule in list(self._schedules.items()):
            feed = view.feeds.get(id)
            if feed is None or feed.epoch != schedule.feed.epoch or feed.state != records.RUNNING:
                del self._schedules[id]
                self._issued[id] = schedule.coordinator.replication.issued
                log.info("changefeed %s is no longer scheduled", id)
        for id, feed in view.feeds.items():
            is_seen = view.revision >= max(feed.epoch, self._revision)
            if feed.state == records.RUNNING and id not in self._schedules and is_seen:
                coordinator = Coordinator(
                    records.owner_name(self._capture),
                    self._capture,
                    revision=self._revision,
                    changefeed_epoch=feed.epoch,
                    limits=self._limits,
                )
                coordinator.replication.issued = self._issued.pop(id, 0)
                self._schedules[id] = _Schedule(feed, coordinator)
                for table in view.places.get(id, {}).keys() - set(feed.tables()):
                    self._owner_writes.put(records.place_key(id, table), None)
                log.info("changefeed %s is scheduled", id)

    def _weigh(self, view: ClusterView) -> None:
        """Let the weights of tables follow what captures report."""
        rates: dict[str, dict[str, Rate]] = {}
        for name in view.captures:
            raw = view.others.get(records.report_key(name))
            try:
                found = feed_reports(raw) if raw is not None else {}
            except CorruptStoreError as e:
                log.error("the report of %s is not used: %s", name, e)
                continue
            for id, report in found.items():
                schedule = self._schedules.get(id)
                if schedule is not None:
                    held = schedule.coordinator.replication.primaries.get(name, ())
                    rates.setdefault(id, {}).update(report.rates_of(held))
        for id, schedule in self._schedules.items():
            schedule.weights.update(rates.get(id, {}))

    # --- what is kept ---

    def _keep(self, id: str, schedule: _Schedule, tick: Tick, view: ClusterView, now: int) -> None:
        places = view.places.get(id, {})
        for table, capture, why in tick.decisions:
            key = records.place_key(id, table)
            if why in (FOUND, PLACED) and table in places:
                before = records.place_of(key, places[table]).capture
                if before == capture:
                    continue  # a new owner continues with what it found
                if before is not None and before not in view.captures:
                    why = f"{before} is gone"
            log.info("changefeed %s: table %r is on %s: %s", id, table, capture, why)
            self._owner_writes.put(key, records.encoded_place(capture, why))
        at = schedule.stored_at
        if tick.watermarks != CANNOT_PROCEED and (at is None or now - at >= STORE_US):
            schedule.stored_at = now
            self._store(id, schedule, tick, view)

    def _store(self, id: str, schedule: _Schedule, tick: Tick, view: ClusterView) -> None:
        progress, feed = schedule.coordinator.progress, schedule.feed
        has_passed = not progress.behind and bool(schedule.floors_in(view))
        if tick.watermarks.checkpoint > progress.stored.checkpoint or has_passed:
            epoch = feed.epoch if feed.begins else None
            value = records.encoded_watermarks(tick.watermarks, feed.created, epoch)
            self._owner_writes.put(records.CHECKPOINT + id.encode(), value)

    # --- requests ---

    def _do_requests(self, view: ClusterView) -> None:
        """Do what operators ask for, and remove the reports of captures that are gone."""
        self._done &= view.others.keys() | view.evicted.keys()
        for key in view.others:
            if key.startswith(records.DRAIN):
                self._drain(key, view)
            elif key.startswith(records.ASK) and key not in self._done:
                self._ask(key, view.others[key])
            elif key.startswith(records.REPORT):
                name = key.removeprefix(records.REPORT).decode(errors="replace")
                if name not in view.captures:
                    self._remove(key)

    def _ask(self, key: bytes, value: bytes) -> None:
        try:
            id, what, table = key.removeprefix(records.ASK).decode().split("/", 2)
        except ValueError:
            log.error("the record %r is not used: its key has another form", key)
            self._remove(key)
            return
        schedule = self._schedules.get(id)
        if schedule is None or not schedule.coordinator.captures.is_initialized:
            return  # it is done when the changefeed runs
        self._remove(key)
        try:
            if what == "move":
                schedule.coordinator.move(table, value.decode(errors="replace"))
            elif what == "rebalance":
                schedule.coordinator.rebalance()
        except InvalidArgumentError as e:
            log.warning("changefeed %s: %s %r was not done: %s", id, what, table, e)

    def _drain(self, key: bytes, view: ClusterView) -> None:
        name = key.removeprefix(records.DRAIN).decode(errors="replace")
        if name not in view.captures:
            self._remove(key)
            return
        if name == self._capture:
            self.wants_to_resign = len(view.captures) > 1  # the last one keeps its tables
            return
        for schedule in self._schedules.values():
            try:
                schedule.coordinator.drain(name)
            except InvalidArgumentError:
                continue  # it is the last capture, or not known yet

    def _remove(self, key: bytes) -> None:
        if key not in self._done:
            self._done.add(key)
            self._owner_writes.put(key, None)
