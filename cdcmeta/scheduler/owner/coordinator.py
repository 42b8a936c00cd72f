"""The owner's side: reports and cluster state in, messages out; no clock, store or network."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core import states
from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.policies import Facts, SchedulerManager
from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.watermarks import ReportedProgress, Watermarks
from cdcmeta.scheduler.owner.cluster import (
    CaptureManager,
    CaptureState,
    Cluster,
    DesiredTables,
    check_name,
    check_revision,
)
from cdcmeta.scheduler.protocol import messages
from cdcmeta.scheduler.protocol.messages import Envelope, Header, KnownOwner

# --- why tables have another primary: what an owner decided, for operators to read later ---

FOUND, PLACED = "found", "placed"
"""The reasons of decisions that have no other: a new owner found the table there, or it is new."""


class Decision(NamedTuple):
    """A table has another primary: the capture that replicates it, or None without one."""

    table: str
    capture: str | None
    why: str
    """Why it has no primary, or why this one was chosen."""


class Reasons:
    """Keeps why a table moves, until it has another primary."""

    def __init__(self, replication: ReplicationManager) -> None:
        self._replication = replication
        self._why: dict[str, str] = {}

    def lost(self, capture: str, tables: Iterable[str]) -> None:
        """Note that a capture has ended, which was the primary of some tables."""
        for table in tables:
            self._why[table] = f"{capture} is gone"

    def begun(self, task: states.Task, why: str) -> None:
        """Note a task, and the reason of its plan."""
        if isinstance(task, states.AddTable):
            return  # what ended the last assignment is the reason
        if isinstance(task, states.RemoveTable):
            why = "not wanted"
        elif isinstance(task, states.AbandonTable):
            why = f"{task.capture} did not start it in time"
        self._why[task.table] = why

    def take(self, why: str) -> list[Decision]:
        """Return the changes of primaries since the last call, by default because of `why`."""
        decisions = []
        for table, capture in self._replication.take_new_primaries().items():
            if capture is not None:
                decisions.append(Decision(table, capture, self._why.pop(table, why)))
                continue
            decisions.append(Decision(table, None, self._why.setdefault(table, self._end(table))))
            if table not in self._replication.sets:
                del self._why[table]
        return decisions

    def _end(self, table: str) -> str:
        failed = self._replication.failures.tables.get(table)
        if failed is not None and failed.captures:
            return f"it failed on {failed.captures[-1]}"
        return "it ended"


# --- the requests that an owner sends in a tick: few, however many reports ask for them ---


class _Sent(NamedTuple):
    """A request that was sent and may have been lost."""

    token: states.Token
    kind: str
    at: int
    pause_us: int
    """The pause before it is repeated."""


class Outbox:
    """Collects the requests of one tick, at most one for each table and capture.

    Of several requests, the last with the newest token is sent. A request is repeated only if it
    is still due after a pause, which doubles each time, from `Limits.heartbeat_every_us` to
    `Limits.repeat_max_us`. A request that is left out counts as lost.
    """

    def __init__(self, limits: Limits) -> None:
        self._first_us = limits.heartbeat_every_us
        self._max_us = max(limits.repeat_max_us, self._first_us)
        self._waiting: dict[tuple[str, str], states.Send] = {}
        self._sent: OrderedDict[tuple[str, str], _Sent] = OrderedDict()
        """In the order of sending; the oldest are forgotten after twice the longest pause."""

    def put(self, sends: Iterable[states.Send]) -> None:
        """Add requests. O(sends)."""
        for send in sends:
            key = send.capture, send.request.table
            before = self._waiting.get(key)
            if before is None or send.request.token >= before.request.token:
                self._waiting[key] = send

    def take(self, now: int) -> list[states.Send]:
        """Return the requests to send now; `now` in microseconds. O(requests)."""
        sent, waiting, self._waiting = self._sent, self._waiting, {}
        while sent and next(iter(sent.values())).at + 2 * self._max_us < now:
            sent.popitem(last=False)
        return [send for key, send in waiting.items() if self._is_due(key, send, now)]

    def _is_due(self, key: tuple[str, str], send: states.Send, now: int) -> bool:
        token, kind = send.request.token, _kind(send)
        before, pause_us = self._sent.get(key), self._first_us
        if before is not None and (before.token, before.kind) == (token, kind):
            if now < before.at + before.pause_us:
                return False
            pause_us = min(2 * before.pause_us, self._max_us)
        self._sent[key] = _Sent(token, kind, now, pause_us)
        self._sent.move_to_end(key)
        return True


def _kind(send: states.Send) -> str:
    request = send.request
    if isinstance(request, states.AddRequest):
        return "prepare" if request.is_prepare else "commit"
    return "remove"


# --- coordinator ---

LOOKS_MIN = 4
"""The least number of times that a capture is asked before it counts as mute."""
QUIET_ROUNDS = 5
"""The number of equal answers without news after which a capture is asked only in one of so many
rounds."""
DRAIN_NOT_READY = 1
"""The answer of `drain` before the captures have synced: ask again."""


class Tick(NamedTuple):
    """What the caller does for an owner: send, store, evict.

    Guard each write to a store with the owner's election: a deposed owner that does not know it yet
    returns the same.
    """

    messages: list[Envelope]
    """For each capture at most a heartbeat or an announcement, and a request for each table."""
    watermarks: Watermarks
    """The progress of the changefeed; `CANNOT_PROCEED`: keep the stored one."""
    evict: list[tuple[str, int]]
    """Captures (name, epoch) whose registration the caller deletes.

    They are silent for too long, or have not stopped a table for `Limits.stop_us`.
    """
    decisions: list[Decision]
    """The tables whose primary has changed; the first tick of a term lists those it found."""


class Coordinator:
    """Schedules the tables of one changefeed during the term of one owner.

    `name` is the owner's name, `capture` the name of the capture in the same process, `revision`
    that of the election: larger than that of all earlier owners. `changefeed_epoch` is the
    revision of the changefeed's last restart, 0 before the first. All revisions, and the epochs of
    captures, are of one store.

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
            raise InvalidArgumentError(
                f"owner and capture are both {name!r}: give them different names"
            )
        check_revision("an owner's revision", revision, 1)
        check_revision("a changefeed's epoch", changefeed_epoch, 0)
        if limits is not None and not isinstance(limits, Limits):
            raise InvalidArgumentError(f"limits= takes Limits(), not {limits!r}")
        self.limits = limits or Limits()
        self.name = name
        self._own, self._capture = KnownOwner(name, revision), capture
        self._changefeed_epoch, self._version = changefeed_epoch, version
        # before a restart of the changefeed the same owner may have assigned tables
        self._since = max(revision, changefeed_epoch)
        self.captures = CaptureManager(self._since, self.limits.mute_us, self.limits.stop_us)
        self.replication = ReplicationManager(revision, self.limits)
        self.scheduling = SchedulerManager()
        self.progress = ReportedProgress()
        self._desired = DesiredTables()
        self.refused: Counter[messages.MessageVerdict] = Counter()
        """The number of rejected messages, by reason."""
        self._found: dict[str, tuple[states.TableStatus, ...]] = {}
        self._seen: Cluster | None = None
        self._waited = 0
        """The clock of all waits for captures, in microseconds."""
        self._last_round_at: int | None = None
        self._rounds = 0
        self._announced: set[str] = set()
        self._outbox = Outbox(self.limits)
        self._sent: list[Envelope] = []
        self._decided: list[Decision] = []
        self._reasons = Reasons(self.replication)
        self._answers: dict[str, tuple[states.Rest | None, int]] = {}
        """By capture, the rest of the last answer, and how often in a row it was the same."""
        self._full_at: dict[str, int] = {}
        """By capture, when it was last asked for all tables; 0 to ask again at once."""
        self._headers: dict[str, Header] = {}
        """By capture, the header of the last message."""

    def tick(self, inbox: Iterable[Envelope], cluster: Cluster) -> Tick:
        """Apply the captures' messages and the cluster's state; return what to do.

        O(messages + tables placed or moved); each heartbeat round and each change of `tables`
        costs O(tables). Messages for other owners, or from before the restart of a capture or
        of the changefeed, are counted in `refused`. Raises `InvalidArgumentError` for an invalid
        cluster (`Cluster.check`).
        """
        self._check(cluster)
        self.progress.update_stored(cluster.checkpoint, cluster.floors)
        self._sent, self.replication.now = [], cluster.now
        self.replication.waited = self._waited
        for capture in self.captures.update(cluster.captures, self._waited):
            self._found.pop(capture, None)
            self._announced.discard(capture)
            self._headers.pop(capture, None)
            self._full_at.pop(capture, None)
            self._answers.pop(capture, None)
            if self.scheduling.draining == capture:  # a new capture of that name is not drained
                self.scheduling.draining = None
            self._reasons.lost(capture, self.replication.primaries.get(capture, ()))
            self._outbox.put(self.replication.capture_lost(capture))
        self.replication.is_settled = self.captures.is_settled
        for envelope in inbox:
            self._receive(envelope, cluster)
        if not self.captures.is_initialized and self.captures.may_initialize(self._waited):
            self.replication.begin(cluster.tables, self.progress.floor_of, self._found)
            self.captures.is_initialized, self._found = True, {}
            self._decided = self._reasons.take(FOUND)
        if self.captures.is_initialized:
            self._desired.update(cluster.tables, self.replication, self.progress)
            self._schedule(cluster)
        for capture, request in self._outbox.take(cluster.now):
            self._send(capture, messages.DispatchTable(request))
        self._send_round(cluster)
        evict = [(name, cluster.captures[name]) for name in self._evicted()]
        sent, self._sent = self._sent, []
        decided, self._decided = self._decided, []
        return Tick(sent, self.progress.current, evict, decided + self._reasons.take(PLACED))

    def _check(self, cluster: Cluster) -> None:
        """Raise for an invalid cluster before anything changes; else advance the clock of waits."""
        before = self._seen
        if not isinstance(cluster, Cluster):
            raise InvalidArgumentError(f"a cluster is a Cluster, not {cluster!r}")
        cluster.check(self._since, self._own.name, before)
        self._desired.check(cluster.tables)
        if before is not None:
            # if the owner slept or its clock jumped, no capture becomes mute because of it
            most = max(1, self.limits.mute_us // LOOKS_MIN)
            self._waited += min(cluster.now - before.now, most)
        self._seen = cluster._replace(captures=dict(cluster.captures))

    # --- requests of operators ---

    def move(self, table: str, capture: str) -> bool:
        """Move a table to a capture as soon as possible.

        False if it will not move: another move of it is pending, or the capture has it or leaves.
        Raises `InvalidArgumentError` for an unknown table or capture.
        """
        if table not in self.replication.sets:
            raise InvalidArgumentError(f"table {table!r} does not exist")
        if capture not in self.captures.known:
            raise InvalidArgumentError(f"capture {capture!r} is not registered")
        has_it = table in self.replication.held.get(capture, ())
        may_move = not has_it and not self._is_leaving(capture)
        return may_move and self.scheduling.request_move(table, capture)

    def rebalance(self) -> None:
        """Balance the captures at once, as soon as every table is replicated."""
        self.scheduling.is_rebalance_requested = True

    def balance_soon(self) -> None:
        """Check the balance at the next chance, for example because a capture has joined."""
        self.scheduling.check_balance_soon()

    def drain(self, capture: str) -> int:
        """Move all tables away from a capture; return how many it still has.

        Call it again until it returns 0, or the capture is gone; 1 before the captures have synced.
        It has no effect while another capture is drained. A drained capture gets no tables until it
        registers again. Raises `InvalidArgumentError` for an unknown capture, for the last one that
        does not leave, and for the owner's own: elect another owner first.
        """
        if capture == self._capture:
            raise InvalidArgumentError(
                f"{capture!r} is the owner's own capture: elect another owner first"
            )
        if not self.captures.is_initialized:
            return DRAIN_NOT_READY
        known = self.captures.known
        if capture not in known:
            raise InvalidArgumentError(f"capture {capture!r} is not registered")
        others = [each.state for name, each in known.items() if name != capture]
        if all(state is CaptureState.STOPPING for state in others):
            raise InvalidArgumentError(
                f"{capture!r} is the last capture: no other can take its tables"
            )
        if not self.captures.has_synced(capture):
            return DRAIN_NOT_READY
        is_free = self.scheduling.draining is None and CaptureState.INITIALIZED in others
        if is_free and known[capture].state is not CaptureState.STOPPING:
            self.scheduling.draining = capture
        return len(self.replication.held.get(capture, ()))

    # --- receiving ---

    def _receive(self, envelope: Envelope, cluster: Cluster) -> None:
        header, body = envelope
        verdict = messages.owner_accepts(
            header, self._own, self._changefeed_epoch, cluster.captures
        )
        if verdict is not messages.MessageVerdict.ACCEPTED:
            self.refused[verdict] += 1
            return
        sender = header.sender
        if isinstance(body, messages.Sync):
            if not self.captures.has_synced(sender):
                self.captures.heard(sender, is_stopping=body.is_stopping)
                self.replication.is_settled = self.captures.is_settled
                self._synced(sender, body)
        elif not self.captures.has_synced(sender):
            return
        elif isinstance(body, messages.HeartbeatResponse):
            self.captures.heard(sender, is_stopping=body.is_stopping)
            self._reported(sender, body.tables)
            if self.captures.is_initialized:
                self._heard_rest(sender, body)
        elif isinstance(body, messages.DispatchTableResponse):
            self._reported(sender, (body.status,))

    def _heard_rest(self, sender: str, answer: messages.HeartbeatResponse) -> None:
        """Take what an answer says of tables that it does not list; count the same answers."""
        rest, (last, times) = answer.rest, self._answers.get(sender, (None, 0))
        if rest is not None and not self.replication.rest_reported(sender, answer.tables, rest):
            self._full_at[sender] = 0
        is_same = rest is not None and rest == last and not answer.tables
        self._answers[sender] = rest, times + 1 if is_same else 0

    def _synced(self, sender: str, sync: messages.Sync) -> None:
        if self.captures.is_initialized:
            self._outbox.put(self.replication.found(sender, sync.tables, self.progress.floor_of))
            self._desired.note_held(status.table for status in sync.tables)
        else:
            self._found[sender] = sync.tables

    def _reported(self, sender: str, statuses: Iterable[states.TableStatus]) -> None:
        if self.captures.is_initialized:
            self._outbox.put(self.replication.reported(sender, statuses))

    # --- deciding ---

    def _facts(self, cluster: Cluster) -> Facts:
        replication, captures = self.replication, self.captures
        failures, desired = replication.failures, self._desired
        resting, failing = failures.resting(replication.running), failures.tables
        left_out = resting.union(desired.unwanted)
        stuck_since = cluster.now - self.limits.stuck_us
        leaving = {
            name: each.state is CaptureState.STOPPING for name, each in captures.known.items()
        }
        stopping = {name for name, leaves in leaving.items() if leaves and name != self._capture}
        return Facts(
            desired=desired.weights,
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
            unwanted=list(desired.unwanted),
            is_quiet=all(
                table in failing or since <= stuck_since
                for table, since in replication.unsettled.items()
            ),
            targets=[each for each in captures.targets() if each != self.scheduling.draining],
            failing_captures=failures.failing_captures(),
            stopping=stopping,
            least=desired.least,
            weights=replication.weights,
            is_complete=all(captures.has_synced(name) for name in captures.known),
            adds_in_flight=replication.in_flight(states.AddTable, stuck_since),
            moves_in_flight=replication.in_flight(states.MoveTable, stuck_since),
            limits=self.limits,
        )

    def _schedule(self, cluster: Cluster) -> None:
        facts = self._facts(cluster)
        plan = self.scheduling.plan(facts, cluster.now)
        room = self.limits.moves_in_flight - facts.moves_in_flight
        for task in plan.tasks:
            if isinstance(task, states.MoveTable) and not plan.is_burst:
                if room <= 0:
                    break
                room -= 1
            self._begin(task, plan.why)

    def _begin(self, task: states.Task, why: str) -> None:
        self._reasons.begun(task, why)
        self._outbox.put(self.replication.begin_task(task))
        self.scheduling.accepted(task)

    def _evicted(self) -> list[str]:
        """Return the captures that are mute, or do not stop a table that must move."""
        captures, sets = self.captures, self.replication.sets
        hanging = [
            each.capture
            for each in self.replication.hanging()
            if self._is_leaving(each.capture)
            or (
                each.table in self._desired.weights
                and sets[each.table].state is not states.SetState.REPLICATING
            )
        ]
        mute = captures.mute(self._waited)
        broken = captures.broken(hanging, self._waited)
        return mute + [each for each in broken if each not in mute]

    def _is_leaving(self, capture: str) -> bool:
        known = self.captures.known.get(capture)
        is_stopping = known is not None and known.state is CaptureState.STOPPING
        return is_stopping or self.scheduling.draining == capture

    # --- sending ---

    def _send_round(self, cluster: Cluster) -> None:
        last = self._last_round_at
        is_round = last is None or cluster.now - last >= self.limits.heartbeat_every_us
        self._rounds += is_round
        for name in list(self.captures.known):
            if not self.captures.has_synced(name):
                if is_round or name not in self._announced:
                    self._ask(name, messages.Announce(self._version))
            elif is_round and self._is_due(name):
                self._ask(name, self._beat(name, cluster))
        self._announced = set(self.captures.known)
        if is_round:
            self._last_round_at = cluster.now
            if self.captures.is_initialized and not self._desired.new:
                known = self.replication.known_progress(self._desired.weights)
                self.progress.advance(known, cluster.barrier)

    def _is_due(self, capture: str) -> bool:
        """Return whether to ask a capture in this round: rarely while its answers are the same."""
        _, times = self._answers.get(capture, (None, 0))
        is_quiet = times >= QUIET_ROUNDS and not self.replication.unsettled
        return not is_quiet or self._rounds % QUIET_ROUNDS == 0

    def _beat(self, capture: str, cluster: Cluster) -> messages.Heartbeat:
        """Return a heartbeat; a full one rarely, after another answer, and to begin with."""
        last = self._full_at.get(capture, 0)
        is_due = not last or cluster.now - last >= self.limits.full_every_us
        is_full = is_due or not self.captures.is_initialized
        if is_full:
            self._full_at[capture] = max(1, cluster.now)
        asked = self.replication.asked if is_full else self.replication.asked_briefly
        leaves = capture == self.scheduling.draining
        return messages.Heartbeat(asked(capture), cluster.barrier, leaves, self._rounds, is_full)

    def _ask(self, capture: str, body: messages.Announce | messages.Heartbeat) -> None:
        self.captures.asked(capture, self._waited)
        self._send(capture, body)

    def _send(self, capture: str, body: messages.Body) -> None:
        known = self.captures.known.get(capture)
        if known is None:
            return
        header = self._headers.get(capture)
        if header is None or header.capture_epoch != known.epoch:
            own = self._own
            header = Header(own.name, capture, own.revision, known.epoch, self._changefeed_epoch)
            self._headers[capture] = header
        self._sent.append(Envelope(header, body))
