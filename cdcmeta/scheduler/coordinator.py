"""The owner's side: facts in, decisions and messages out. Reads no clock, no store, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.captures import CaptureManager, CaptureState
from cdcmeta.scheduler.fencing import KnownOwner, Verdict, owner_accepts
from cdcmeta.scheduler.limits import Limits
from cdcmeta.scheduler.messages import (
    NO_BARRIER,
    Announce,
    Barrier,
    Body,
    DispatchTable,
    DispatchTableResponse,
    Envelope,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Sync,
)
from cdcmeta.scheduler.policies.facts import Facts
from cdcmeta.scheduler.replication import ReplicationManager
from cdcmeta.scheduler.scheduling import SchedulerManager
from cdcmeta.scheduler.states import NO_PROGRESS, Progress, TableStatus
from cdcmeta.scheduler.tasks import AddTable, MoveTable, Send, Task
from cdcmeta.scheduler.watermarks import CANNOT_PROCEED, Watermarks, advance

LEAST_SHARE = 0.1
"""Of the mean: what a table counts for at the least when captures are compared."""
DRAIN_NOT_READY = 1
"""What `drain` answers before the captures have told what they hold: ask again."""


class Cluster(NamedTuple):
    """What an owner sees of the world at one moment."""

    now: int
    """Microseconds; needs to be of one clock only, and not to go back."""
    captures: Mapping[str, int]
    """Who is registered, and at which revision: another after every restart."""
    tables: Mapping[str, float]
    """What to replicate, by name, and what each weighs. The same object while nothing changed."""
    checkpoint: int
    """How far the changefeed is, as it was stored last; microseconds."""
    barrier: Barrier = NO_BARRIER


class Tick(NamedTuple):
    """What an owner wants done.

    What is written to a store for it is to be guarded by the owner still being elected: one that
    was deposed and has not heard of it wants the same things done.
    """

    messages: list[Envelope]
    watermarks: Watermarks
    """How far the changefeed is; `CANNOT_PROCEED` when the stored one is to stay."""
    evict: list[tuple[str, int]]
    """Captures (name, epoch) whose registration is to be taken away: they have gone silent."""


class Coordinator:
    """Schedules the tables of one changefeed, as long as one owner lives.

    `name` is the owner's, `capture` the capture on the same process, `revision` that of the
    election: larger than that of all owners before. `changefeed_epoch` is the revision at which the
    changefeed was last restarted, 0 before that. All revisions, and the epochs of captures, are of
    one store.

    >>> from cdcmeta.scheduler import Cluster, Coordinator
    >>> owner = Coordinator("owner", "c1", revision=9)
    >>> tick = owner.tick([], Cluster(0, {"c1": 3}, {"t": 1.0}, checkpoint=100))
    >>> [type(each.body).__name__ for each in tick.messages]
    ['Announce']
    """

    def __init__(
        self,
        name: str,
        capture: str,
        *,
        revision: int,
        changefeed_epoch: int = 0,
        limits: Limits | None = None,
        version: str = "1",
    ) -> None:
        for what, text in (("an owner", name), ("a capture", capture)):
            if type(text) is not str or not text:
                raise InvalidArgumentError(f"the name of {what} is a text, not {text!r}")
        if name == capture:
            raise InvalidArgumentError(f"owner and capture are both {name!r}: whose is a message?")
        for what, number, least in (
            ("an owner's revision", revision, 1),
            ("a changefeed's epoch", changefeed_epoch, 0),
        ):
            if type(number) is not int or number < least:
                raise InvalidArgumentError(f"{what} is an integer from {least} on, not {number!r}")
        self.limits = limits or Limits()
        self._own, self._capture = KnownOwner(name, revision), capture
        self._changefeed_epoch, self._version = changefeed_epoch, version
        # after a restart of the changefeed the owner before it may have been this very one
        self.captures = CaptureManager(max(revision, changefeed_epoch), self.limits.mute_us)
        self.replication = ReplicationManager(revision, self.limits)
        self.scheduling = SchedulerManager()
        self.refused: Counter[Verdict] = Counter()
        """How many messages were not listened to, and why."""
        self._found: dict[str, tuple[TableStatus, ...]] = {}
        self._tables: Mapping[str, float] | None = None
        self._least = 1.0
        self._unwanted: dict[str, None] = {}
        self._told_at: int | None = None
        self._rounds = 0
        self._announced: set[str] = set()
        self._watermarks = CANNOT_PROCEED
        self._floor, self._told = NO_PROGRESS, CANNOT_PROCEED
        self._sent: list[Envelope] = []

    def tick(self, inbox: Iterable[Envelope], cluster: Cluster) -> Tick:
        """Take in what captures say and what the cluster is like; return what is to be done.

        O(messages + tables placed or moved); each heartbeat round and each change of `tables`
        costs O(tables). Messages of other owners, captures and changefeeds of other times are
        counted in `refused`. Raises `InvalidArgumentError` for a time below 0, a table without a
        name, or a weight that is no number from 0 on.
        """
        self._check(cluster)
        self._sent, self.replication.now = [], cluster.now
        for capture in self.captures.update(cluster.captures, cluster.now):
            self._found.pop(capture, None)
            self._announced.discard(capture)
            self._dispatch(self.replication.capture_lost(capture))
        self.replication.is_settled = self.captures.is_settled
        for envelope in inbox:
            self._receive(envelope, cluster)
        if not self.captures.is_initialized and self.captures.may_initialize(cluster.now):
            self._initialize(cluster)
        if self.captures.is_initialized:
            self._reconcile(cluster)
            self._schedule(cluster)
        self._tell(cluster)
        evict = [(name, cluster.captures[name]) for name in self.captures.mute(cluster.now)]
        sent, self._sent = self._sent, []
        return Tick(sent, self._watermarks, evict)

    def _check(self, cluster: Cluster) -> None:
        """Refuse what cannot be, before anything is changed by it."""
        for what, number in (("now", cluster.now), ("checkpoint", cluster.checkpoint)):
            if type(number) is not int or number < 0:
                raise InvalidArgumentError(f"{what} is microseconds from 0 on, not {number!r}")
        if cluster.tables is self._tables:
            return
        for table, weight in cluster.tables.items():
            if type(table) is not str or not table:
                raise InvalidArgumentError(f"a table's name is a text, not {table!r}")
            if not isinstance(weight, int | float) or not 0 <= weight < inf:
                raise InvalidArgumentError(f"{table!r} cannot weigh {weight!r}")

    # --- what people ask for ---

    def move(self, table: str, capture: str) -> bool:
        """Move a table to a capture when that is possible.

        False when it will not be: another move of it is asked for, the capture has it, or leaves.
        Raises `InvalidArgumentError` for a table or capture that is not there.
        """
        if table not in self.replication.sets:
            raise InvalidArgumentError(f"no table {table!r}")
        if capture not in self.captures.known:
            raise InvalidArgumentError(f"no capture {capture!r}")
        has_it = table in self.replication.held.get(capture, ())
        leaves = self.captures.known[capture].state is CaptureState.STOPPING
        return not has_it and not leaves and self.scheduling.ask_move(table, capture)

    def rebalance(self) -> None:
        """Even out what the captures have, at once, as soon as every table is replicated."""
        self.scheduling.is_rebalance_asked = True

    def drain(self, capture: str) -> int:
        """Move all tables away from a capture; return how many it still has.

        Ask again until it is 0; 1 before the captures have told what they hold. Nothing is begun
        for the last capture, the owner's own, or while another is drained. Raises
        `InvalidArgumentError` for a capture that is not there.
        """
        if not self.captures.is_initialized:
            return DRAIN_NOT_READY
        if capture not in self.captures.known:
            raise InvalidArgumentError(f"no capture {capture!r}")
        left = len(self.replication.held.get(capture, ()))
        others = len(self.captures.known) > 1 and capture != self._capture
        if left and others and self.scheduling.draining is None:
            self.scheduling.draining = capture
        return left

    # --- receiving ---

    def _receive(self, envelope: Envelope, cluster: Cluster) -> None:
        header, body = envelope
        verdict = owner_accepts(header, self._own, self._changefeed_epoch, cluster.captures)
        if verdict is not Verdict.ACCEPTED:
            self.refused[verdict] += 1
            return
        sender = header.sender
        if isinstance(body, Sync):
            if not self.captures.has_told(sender):
                self.captures.heard(sender, is_stopping=body.is_stopping)
                self.replication.is_settled = self.captures.is_settled
                self._synced(sender, body)
        elif not self.captures.has_told(sender):
            return
        elif isinstance(body, HeartbeatResponse):
            self.captures.heard(sender, is_stopping=body.is_stopping)
            self._reported(sender, body.tables)
        elif isinstance(body, DispatchTableResponse):
            self._reported(sender, (body.status,))

    def _synced(self, sender: str, sync: Sync) -> None:
        if self.captures.is_initialized:
            self._dispatch(self.replication.found(sender, sync.tables, self._floor))
            self._mark_unwanted(status.table for status in sync.tables)
        else:
            self._found[sender] = sync.tables

    def _reported(self, sender: str, statuses: Iterable[TableStatus]) -> None:
        if self.captures.is_initialized:
            self._dispatch(self.replication.reported(sender, statuses))

    def _initialize(self, cluster: Cluster) -> None:
        self._advance_floor(cluster)
        self.replication.begin(cluster.tables, self._floor, self._found)
        self.captures.is_initialized = True
        self._found = {}

    # --- deciding ---

    def _advance_floor(self, cluster: Cluster) -> None:
        # only what is stored counts: the next owner knows of nothing else, and a deposed one
        # stores nothing; a table begun beyond would lack what is between
        farthest = max(cluster.checkpoint, self._floor.checkpoint)
        self._floor = Progress(farthest, farthest)

    def _reconcile(self, cluster: Cluster) -> None:
        removed = self.replication.take_removed()
        self._advance_floor(cluster)
        if cluster.tables is not self._tables:
            self._tables = cluster.tables
            for table in cluster.tables:
                self.replication.want(table, self._floor)
            self._unwanted = {}
            self._mark_unwanted(self.replication.sets)
            mean = sum(cluster.tables.values()) / max(1, len(cluster.tables))
            self._least = mean * LEAST_SHARE or 1.0
            self._watermarks = CANNOT_PROCEED
        for table in removed:
            if table in cluster.tables:  # wanted again while it was being removed
                self.replication.want(table, self._floor)

    def _mark_unwanted(self, tables: Iterable[str]) -> None:
        wanted = self._tables if self._tables is not None else {}
        for table in tables:
            if table not in wanted:
                self._unwanted[table] = None

    def _facts(self, cluster: Cluster) -> Facts:
        replication, captures = self.replication, self.captures
        for table in [each for each in self._unwanted if not replication.may_remove(each)]:
            del self._unwanted[table]
        waiting = replication.waiting()
        stopping = {
            name
            for name, capture in captures.known.items()
            if capture.state is CaptureState.STOPPING and name != self._capture
        }
        draining = self.scheduling.draining
        return Facts(
            wanted=cluster.tables,
            sets=replication.sets,
            held=replication.held,
            primaries=replication.primaries,
            preparing=replication.preparing,
            absent=[
                each
                for each in replication.absent
                if each not in self._unwanted and each not in waiting
            ],
            avoid={table: failed.capture for table, failed in replication.failing.items()},
            unwanted=list(self._unwanted),
            is_quiet=all(table in waiting for table in replication.unsettled),
            targets=[each for each in captures.targets() if each != draining],
            stopping=stopping,
            least=self._least,
            is_complete=all(captures.has_told(name) for name in captures.known),
            adds_in_flight=replication.in_flight(AddTable),
            moves_in_flight=replication.in_flight(MoveTable),
            limits=self.limits,
        )

    def _schedule(self, cluster: Cluster) -> None:
        facts = self._facts(cluster)
        plan = self.scheduling.plan(facts, cluster.now)
        room = self.limits.moves_in_flight - facts.moves_in_flight
        for task in plan.tasks:
            if isinstance(task, MoveTable) and not plan.is_burst:
                if room <= 0:
                    break
                room -= 1
            self._begin(task)

    def _begin(self, task: Task) -> None:
        self._dispatch(self.replication.begin_task(task))
        self.scheduling.accepted(task)

    # --- telling ---

    def _tell(self, cluster: Cluster) -> None:
        last = self._told_at
        is_round = last is None or cluster.now - last >= self.limits.heartbeat_every_us
        self._rounds += is_round
        for name in list(self.captures.known):
            if not self.captures.has_told(name):
                if is_round or name not in self._announced:
                    self._ask(name, Announce(self._version), cluster.now)
            elif is_round:
                tables, leaves = self.replication.asked(name), name == self.scheduling.draining
                beat = Heartbeat(tables, cluster.barrier, leaves, self._rounds)
                self._ask(name, beat, cluster.now)
        self._announced = set(self.captures.known)
        if is_round:
            self._told_at = cluster.now
            if self.captures.is_initialized:
                self._advance(cluster)

    def _advance(self, cluster: Cluster) -> None:
        told = advance(cluster.tables, self.replication.sets, cluster.barrier)
        if told != CANNOT_PROCEED:
            # a barrier may be behind what is downstream already: that stays true
            least = self._floor.checkpoint
            told = told._replace(
                checkpoint=max(told.checkpoint, least), resolved=max(told.resolved, least)
            )
            before = self._told
            if told.checkpoint < before.checkpoint or told.resolved < before.resolved:
                told = CANNOT_PROCEED  # a table that is new has not caught up
            else:
                self._told = told
        self._watermarks = told

    def _dispatch(self, messages: Iterable[Send]) -> None:
        for capture, request in messages:
            self._send(capture, DispatchTable(request))

    def _ask(self, capture: str, body: Announce | Heartbeat, now: int) -> None:
        self.captures.asked(capture, now)
        self._send(capture, body)

    def _send(self, capture: str, body: Body) -> None:
        known = self.captures.known.get(capture)
        if known is None:
            return
        own = self._own
        header = Header(own.name, capture, own.revision, known.epoch, self._changefeed_epoch)
        self._sent.append(Envelope(header, body))
