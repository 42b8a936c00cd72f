"""The owner's side: facts in, decisions and messages out. Reads no clock, no store, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.policies.facts import Facts
from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.states import SetState, TableStatus
from cdcmeta.scheduler.core.tasks import AddTable, MoveTable, Task
from cdcmeta.scheduler.core.watermarks import ToldProgress, Watermarks
from cdcmeta.scheduler.owner.captures import CaptureManager, CaptureState
from cdcmeta.scheduler.owner.cluster import Cluster, check_name, check_revision
from cdcmeta.scheduler.owner.desired_tables import WantedTables
from cdcmeta.scheduler.owner.outbox import Outbox
from cdcmeta.scheduler.owner.scheduling import SchedulerManager
from cdcmeta.scheduler.protocol.fencing import KnownOwner, Verdict, owner_accepts
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    Body,
    DispatchTable,
    DispatchTableResponse,
    Envelope,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Sync,
)

LOOKS_MIN = 4
"""So often at least a capture is looked for before it is mute."""
DRAIN_NOT_READY = 1
"""What `drain` answers before the captures have told what they hold: ask again."""


class Tick(NamedTuple):
    """What an owner wants done.

    What is written to a store for it is to be guarded by the owner still being elected: one that
    was deposed and has not heard of it wants the same things done.
    """

    messages: list[Envelope]
    """For each capture a heartbeat or an announcement at most, and a request for each table."""
    watermarks: Watermarks
    """How far the changefeed is; `CANNOT_PROCEED` when the stored one is to stay."""
    evict: list[tuple[str, int]]
    """Captures (name, epoch) whose registration is to be taken away.

    They have gone silent, or one of them has not stopped a table for `Limits.stop_us`.
    """


class Coordinator:
    """Schedules the tables of one changefeed, as long as one owner lives.

    `name` is the owner's, `capture` the capture on the same process, `revision` that of the
    election: larger than that of all owners before. `changefeed_epoch` is the revision at which the
    changefeed was last restarted, 0 before that. All revisions, and the epochs of captures, are of
    one store.

    >>> from cdcmeta.scheduler import Cluster, Coordinator
    >>> owner = Coordinator("owner", "c1", revision=9)
    >>> tick = owner.tick([], Cluster(0, {"c1": 3}, {"t": 1.0}, checkpoint=100, revision=9))
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
        for what, text in (("an owner", name), ("a capture", capture), ("a version", version)):
            check_name(what, text)
        if name == capture:
            raise InvalidArgumentError(f"owner and capture are both {name!r}: whose is a message?")
        check_revision("an owner's revision", revision, 1)
        check_revision("a changefeed's epoch", changefeed_epoch, 0)
        if limits is not None and not isinstance(limits, Limits):
            raise InvalidArgumentError(f"limits are Limits, not {limits!r}")
        self.limits = limits or Limits()
        self.name = name
        self._own, self._capture = KnownOwner(name, revision), capture
        self._changefeed_epoch, self._version = changefeed_epoch, version
        # after a restart of the changefeed the owner before it may have been this very one
        self._since = max(revision, changefeed_epoch)
        self.captures = CaptureManager(self._since, self.limits.mute_us, self.limits.stop_us)
        self.replication = ReplicationManager(revision, self.limits)
        self.scheduling = SchedulerManager()
        self.progress = ToldProgress()
        self._wanted = WantedTables()
        self.refused: Counter[Verdict] = Counter()
        """How many messages were not listened to, and why."""
        self._found: dict[str, tuple[TableStatus, ...]] = {}
        self._seen: Cluster | None = None
        self._waited = 0
        """Microseconds that count where somebody is waited for."""
        self._told_at: int | None = None
        self._rounds = 0
        self._announced: set[str] = set()
        self._outbox = Outbox(self.limits)
        self._sent: list[Envelope] = []
        self._headers: dict[str, Header] = {}
        """By capture, that of what was sent last."""

    def tick(self, inbox: Iterable[Envelope], cluster: Cluster) -> Tick:
        """Take in what captures say and what the cluster is like; return what is to be done.

        O(messages + tables placed or moved); each heartbeat round and each change of `tables`
        costs O(tables). Messages of other owners, captures and changefeeds of other times are
        counted in `refused`. Raises `InvalidArgumentError` for what cannot be (`Cluster.check`).
        """
        self._check(cluster)
        self.progress.take_in(cluster.checkpoint)
        self._sent, self.replication.now = [], cluster.now
        self.replication.waited = self._waited
        for capture in self.captures.update(cluster.captures, self._waited):
            self._found.pop(capture, None)
            self._announced.discard(capture)
            self._headers.pop(capture, None)
            if self.scheduling.draining == capture:  # who comes back under its name may stay
                self.scheduling.draining = None
            self._outbox.put(self.replication.capture_lost(capture))
        self.replication.is_settled = self.captures.is_settled
        for envelope in inbox:
            self._receive(envelope, cluster)
        if not self.captures.is_initialized and self.captures.may_initialize(self._waited):
            self._initialize(cluster)
        if self.captures.is_initialized:
            self._wanted.take_in(cluster.tables, self.replication, self.progress)
            self._schedule(cluster)
        for capture, request in self._outbox.take(cluster.now):
            self._send(capture, DispatchTable(request))
        self._tell(cluster)
        evict = [(name, cluster.captures[name]) for name in self._evicted()]
        sent, self._sent = self._sent, []
        return Tick(sent, self.progress.current, evict)

    def _check(self, cluster: Cluster) -> None:
        """Refuse what cannot be, before anything is changed by it; else let time pass."""
        before = self._seen
        if not isinstance(cluster, Cluster):
            raise InvalidArgumentError(f"a cluster is a Cluster, not {cluster!r}")
        cluster.check(self._since, self._own.name, before)
        self._wanted.check(cluster.tables)
        if before is not None:
            # an owner that slept, or whose clock was put forward, finds nobody mute because of it
            most = max(1, self.limits.mute_us // LOOKS_MIN)
            self._waited += min(cluster.now - before.now, most)
        self._seen = cluster._replace(captures=dict(cluster.captures))

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
        return not has_it and not self._leaves(capture) and self.scheduling.ask_move(table, capture)

    def rebalance(self) -> None:
        """Even out what the captures have, at once, as soon as every table is replicated."""
        self.scheduling.is_rebalance_asked = True

    def drain(self, capture: str) -> int:
        """Move all tables away from a capture; return how many it still has.

        Ask again until it is 0, or the capture is gone; 1 before the captures have told what they
        hold. Nothing is begun while another is drained. What is drained gets no tables any more,
        until it registers anew. Raises `InvalidArgumentError` for a capture that is not there, the
        last one that does not leave, and the owner's own: let another be the owner first.
        """
        if capture == self._capture:
            raise InvalidArgumentError(f"{capture!r} is the owner's own: elect another first")
        if not self.captures.is_initialized:
            return DRAIN_NOT_READY
        known = self.captures.known
        if capture not in known:
            raise InvalidArgumentError(f"no capture {capture!r}")
        others = [each.state for name, each in known.items() if name != capture]
        if all(state is CaptureState.STOPPING for state in others):
            raise InvalidArgumentError(f"{capture!r} is the last one: nobody could take its tables")
        if not self.captures.has_told(capture):
            return DRAIN_NOT_READY
        is_free = self.scheduling.draining is None and CaptureState.INITIALIZED in others
        if is_free and known[capture].state is not CaptureState.STOPPING:
            self.scheduling.draining = capture
        return len(self.replication.held.get(capture, ()))

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
            self._outbox.put(self.replication.found(sender, sync.tables, self.progress.stored))
            self._wanted.mark(status.table for status in sync.tables)
        else:
            self._found[sender] = sync.tables

    def _reported(self, sender: str, statuses: Iterable[TableStatus]) -> None:
        if self.captures.is_initialized:
            self._outbox.put(self.replication.reported(sender, statuses))

    def _initialize(self, cluster: Cluster) -> None:
        self.replication.begin(cluster.tables, self.progress.stored, self._found)
        self.captures.is_initialized = True
        self._found = {}

    # --- deciding ---

    def _facts(self, cluster: Cluster) -> Facts:
        replication, captures = self.replication, self.captures
        failures, wanted = replication.failures, self._wanted
        resting, failing = failures.resting(replication.running), failures.tables
        left_out = resting.union(wanted.unwanted)
        stuck_since = cluster.now - self.limits.stuck_us
        stopping = {
            name
            for name, capture in captures.known.items()
            if capture.state is CaptureState.STOPPING and name != self._capture
        }
        return Facts(
            wanted=wanted.weights,
            sets=replication.sets,
            primaries=replication.primaries,
            preparing=replication.preparing,
            absent=[each for each in replication.absent if each not in left_out]
            if left_out
            else list(replication.absent),
            overdue=replication.overdue(),
            stuck=set(replication.unsettled_since(stuck_since)),
            avoid=failures.avoid(),
            resting=resting,
            unwanted=list(wanted.unwanted),
            is_quiet=all(
                table in failing or since <= stuck_since
                for table, since in replication.unsettled.items()
            ),
            targets=[each for each in captures.targets() if each != self.scheduling.draining],
            shunned=failures.troubled(),
            stopping=stopping,
            least=wanted.least,
            weights=replication.weights,
            is_complete=all(captures.has_told(name) for name in captures.known),
            adds_in_flight=replication.in_flight(AddTable, stuck_since),
            moves_in_flight=replication.in_flight(MoveTable, stuck_since),
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
        self._outbox.put(self.replication.begin_task(task))
        self.scheduling.accepted(task)

    def _evicted(self) -> list[str]:
        """Return who has gone silent, and who does not stop a table that something waits for."""
        captures, sets = self.captures, self.replication.sets
        hanging = [
            each.capture
            for each in self.replication.hanging()
            if self._leaves(each.capture)
            or (
                each.table in self._wanted.weights
                and sets[each.table].state is not SetState.REPLICATING
            )
        ]
        mute = captures.mute(self._waited)
        return [
            *mute,
            *(each for each in captures.broken(hanging, self._waited) if each not in mute),
        ]

    def _leaves(self, capture: str) -> bool:
        known = self.captures.known.get(capture)
        is_stopping = known is not None and known.state is CaptureState.STOPPING
        return is_stopping or self.scheduling.draining == capture

    # --- telling ---

    def _tell(self, cluster: Cluster) -> None:
        last = self._told_at
        is_round = last is None or cluster.now - last >= self.limits.heartbeat_every_us
        self._rounds += is_round
        for name in list(self.captures.known):
            if not self.captures.has_told(name):
                if is_round or name not in self._announced:
                    self._ask(name, Announce(self._version))
            elif is_round:
                tables, leaves = self.replication.asked(name), name == self.scheduling.draining
                beat = Heartbeat(tables, cluster.barrier, leaves, self._rounds)
                self._ask(name, beat)
        self._announced = set(self.captures.known)
        if is_round:
            self._told_at = cluster.now
            if self.captures.is_initialized and not self._wanted.new:
                self.progress.advance(self._wanted.weights, self.replication.sets, cluster.barrier)

    def _ask(self, capture: str, body: Announce | Heartbeat) -> None:
        self.captures.asked(capture, self._waited)
        self._send(capture, body)

    def _send(self, capture: str, body: Body) -> None:
        known = self.captures.known.get(capture)
        if known is None:
            return
        header = self._headers.get(capture)
        if header is None or header.capture_epoch != known.epoch:
            own = self._own
            header = Header(own.name, capture, own.revision, known.epoch, self._changefeed_epoch)
            self._headers[capture] = header
        self._sent.append(Envelope(header, body))
