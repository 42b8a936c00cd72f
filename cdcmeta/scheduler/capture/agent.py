"""A capture's side: obeys the owner, drives an executor, and tells how its tables are doing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.capture import table_state as holding
from cdcmeta.scheduler.capture.executor import TableExecutor
from cdcmeta.scheduler.capture.table_state import Action, Ended, Held
from cdcmeta.scheduler.core.states import (
    ENDED,
    INTEGER_MAX,
    LIVE,
    Progress,
    TableState,
    TableStatus,
)
from cdcmeta.scheduler.core.tasks import Request
from cdcmeta.scheduler.owner.cluster import check_name, check_revision
from cdcmeta.scheduler.protocol.fencing import KnownOwner, Verdict, agent_accepts
from cdcmeta.scheduler.protocol.messages import (
    NO_BARRIER,
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

ENDED_MAX = 10_000
"""Of so many ended tables each is remembered; of what ended before only the newest token."""


class Agent:
    """Runs the tables that owners assign to one capture.

    `epoch` is the revision at which the capture registered, `owner` the newest owner known then,
    `KnownOwner()` if there was none: read it after registering, so that an owner deposed before
    cannot give it tables.

    >>> from cdcmeta.scheduler import Agent, KnownOwner, SimulatedExecutor
    >>> Agent("c1", SimulatedExecutor(), epoch=3, owner=KnownOwner()).tick([])
    []
    """

    def __init__(
        self,
        name: str,
        executor: TableExecutor,
        *,
        epoch: int,
        changefeed_epoch: int = 0,
        owner: KnownOwner,
        version: str = "1",
    ) -> None:
        check_name("a capture", name)
        check_name("a version", version)
        check_revision("a capture's epoch", epoch, 0)
        check_revision("a changefeed's epoch", changefeed_epoch, 0)
        if not isinstance(owner, KnownOwner):
            raise InvalidArgumentError(f"the owner known is a KnownOwner, not {owner!r}")
        if executor.all_tables():
            raise InvalidArgumentError("an agent begins with an executor that has no tables")
        self.name, self.epoch = name, epoch
        self.owner = owner
        self.barrier = NO_BARRIER
        """How far tables may be replicated, as the owner said last; for executors to read."""
        self._barrier_of = (0, 0)
        self.is_stopping = False
        """Whether this capture is about to leave; there is no way back."""
        self.refused: Counter[Verdict] = Counter()
        """How many messages were not listened to, and why."""
        self.failures: dict[str, Exception] = {}
        """The last error of the executor, by table, until it replicates."""
        self._executor, self._version = executor, version
        self._changefeed_epoch = changefeed_epoch
        self._kept: dict[str, Held | Ended] = {}
        self._forgotten: Ended | None = None
        """What counts for all tables that nothing is kept of."""
        self._busy: dict[str, Action] = {}
        """What the executor has not begun, or not finished."""
        self._begun: set[str] = set()
        """The tables of `_busy` of which the executor has begun what is to be done."""
        self._told: dict[str, TableStatus] = {}
        """What is to be reported in this tick, by table."""
        self._heartbeat: Heartbeat | None = None
        """The newest that is to be answered in this tick."""
        self._is_announced = False
        """Whether a new owner is to be told everything in this tick."""

    def stop(self) -> None:
        """Ask the owner to take the tables elsewhere."""
        self.is_stopping = True

    def tables(self) -> list[str]:
        """Return the tables that it has a pipeline for, by name."""
        return sorted(table for table, kept in self._kept.items() if isinstance(kept, Held))

    def tick(self, inbox: Iterable[Envelope]) -> list[Envelope]:
        """Take in what owners say, go on with what is to be done, return what to tell.

        Whatever comes in, this is one answer to heartbeats and one to announcements at most, or
        one message for each table. O(messages + tables that are being added or removed), and
        O(tables) where there is a heartbeat. Messages of other owners and other times are
        counted in `refused`.
        """
        for envelope in inbox:
            self._receive(envelope)
        if self._heartbeat is not None or self._is_announced:
            self._look_at_all()
        for table in list(self._busy):
            self._go_on(table)
        return self._addressed(self._answers())

    # --- receiving ---

    def _receive(self, envelope: Envelope) -> None:
        header, body = envelope
        if not isinstance(body, Announce | Heartbeat | DispatchTable):
            # what captures say is for an owner, and nobody becomes one by it
            self.refused[Verdict.NOT_FOR_US] += 1
            return
        verdict, known = agent_accepts(
            header, self.name, self.epoch, self._changefeed_epoch, self.owner
        )
        if known.revision > self.owner.revision:
            # earlier owners are refused from now on: what they were promised can be forgotten
            self._kept = {t: kept for t, kept in self._kept.items() if isinstance(kept, Held)}
            self.failures = {t: e for t, e in self.failures.items() if t in self._kept}
            self._told, self._heartbeat, self._is_announced = {}, None, False
        self.owner = known
        if verdict is not Verdict.ACCEPTED:
            self.refused[verdict] += 1
            return
        match body:
            case Announce():
                self._is_announced = True
            case Heartbeat():
                self._take_in(body)
            case DispatchTable(request):
                self._obey(request)

    def _take_in(self, heartbeat: Heartbeat) -> None:
        when = (self.owner.revision, heartbeat.number)
        if when >= self._barrier_of:
            self.barrier, self._barrier_of = heartbeat.barrier, when
        self.is_stopping |= heartbeat.is_stopping
        if self._heartbeat is None or heartbeat.number >= self._heartbeat.number:
            self._heartbeat = heartbeat

    def _forget(self) -> None:
        """Forget the older half of what has ended, all but the newest of its tokens.

        What is on its way under such a token starts nothing any more, also where it would be the
        first of its table: the owner hears "absent", and takes another token.
        """
        ended = sorted(
            (kept.token, table) for table, kept in self._kept.items() if isinstance(kept, Ended)
        )
        older = ended[: -(ENDED_MAX // 2)]
        for _, table in older:
            del self._kept[table]
            self.failures.pop(table, None)
        self._forgotten = holding.forgotten(self._forgotten, [token for token, _ in older])

    def _all(self) -> tuple[TableStatus, ...]:
        return tuple(
            holding.status(table, held, held.token)
            for table, held in self._kept.items()
            if isinstance(held, Held)
        )

    def _obey(self, request: Request) -> None:
        table = request.table
        before = self._kept.get(table, self._forgotten)
        kept, action = holding.obey(before, request)
        if kept is not None:
            self._kept[table] = kept
        if action is not None:
            self._busy[table] = action
            self._begun.discard(table)
            self._go_on(table)
        kept = self._kept.get(table, self._forgotten)
        # what has begun is told once it is done; that it is stopping, at once
        is_told_later = action is None and holding.is_starting(before, request)
        is_stopping = action is Action.REMOVE and isinstance(kept, Held)
        if is_stopping or (action is None and not is_told_later):
            self._tell(holding.status(table, kept, request.token))

    # --- the executor ---

    def _go_on(self, table: str) -> None:
        try:
            self._try_on(table)
        except Exception as e:
            self._failed(table, e)

    def _failed(self, table: str, error: Exception) -> None:
        self.failures[table] = error
        held = self._kept[table]
        if isinstance(held, Held) and self._busy.get(table) is not Action.REMOVE:
            # whatever is left of it has to stop; where removing fails it is tried again
            self._stop(table, held)

    def _stop(self, table: str, held: Held) -> None:
        self._kept[table] = held._replace(state=TableState.STOPPING)
        self._busy[table] = Action.REMOVE
        self._begun.discard(table)

    def _try_on(self, table: str) -> None:
        action = self._busy[table]
        if table not in self._begun:
            if action is Action.REPLICATE:
                self._look(table)  # what has ended since it was prepared is not begun again
                if self._busy.get(table) is not action:
                    return
            if not self._begin(table, action):
                return
            self._begun.add(table)
        if action is Action.REMOVE:
            checkpoint = self._executor.is_remove_finished(table)
            if checkpoint is not None:
                last = Progress(checkpoint, checkpoint)
                _check_progress(last)
                self._end(table, last)
        elif self._executor.is_add_finished(table, is_prepare=action is Action.PREPARE):
            del self._busy[table]
            done = TableState.PREPARED if action is Action.PREPARE else TableState.REPLICATING
            if action is Action.REPLICATE:
                self.failures.pop(table, None)
            self._kept[table] = self._held(table)._replace(state=done)
            self._look(table)
            kept = self._kept[table]
            if isinstance(kept, Held):
                self._tell(holding.status(table, kept, kept.token))

    def _held(self, table: str) -> Held:
        held = self._kept[table]
        assert isinstance(held, Held)
        return held

    def _begin(self, table: str, action: Action) -> bool:
        if action is Action.REMOVE:
            return self._executor.remove_table(table)
        start = self._held(table).progress.checkpoint
        return self._executor.add_table(table, start, is_prepare=action is Action.PREPARE)

    def _look_at_all(self) -> None:
        kept, busy, ask = self._kept, self._busy, self._executor.status
        for table in list(kept):
            held = kept[table]
            if not isinstance(held, Held):
                continue
            try:
                if table in busy:
                    self._look(table)
                    continue
                state, progress = ask(table)
                if progress != held.progress:
                    kept[table] = held = _farther(held, progress)
                if state not in LIVE:
                    self._ended_by_itself(table, held, state, progress)
            except Exception as e:
                self._failed(table, e)

    def _look(self, table: str) -> None:
        """Take in how the executor is doing with a table; it may have ended by itself."""
        held = self._held(table)
        action = self._busy.get(table)
        if action is Action.PREPARE and table not in self._begun:
            return
        state, progress = self._executor.status(table)
        if progress != held.progress:
            self._kept[table] = held = _farther(held, progress)
        if state not in LIVE and action is not Action.REMOVE:
            self._ended_by_itself(table, held, state, progress)

    def _ended_by_itself(
        self, table: str, held: Held, state: TableState, progress: Progress
    ) -> None:
        if state is TableState.ABSENT:
            self._end(table, progress)
        else:
            self._stop(table, held)  # what has stopped is freed by asking whether it has

    def _end(self, table: str, progress: Progress) -> None:
        held = self._held(table)
        ended = holding.ended(held, progress)
        self._kept[table] = ended
        self._busy.pop(table, None)
        self._begun.discard(table)
        self._tell(TableStatus(table, held.token, TableState.STOPPED, ended.progress))

    # --- telling ---

    def _tell(self, status: TableStatus) -> None:
        """Report a table in this tick: of its newest assignment, what came last."""
        before = self._told.get(status.table)
        if before is None or status.token >= before.token:
            self._told[status.table] = status

    def _answers(self) -> list[Body]:
        """Return what this tick has to tell the owner."""
        told, self._told = self._told, {}
        answers: list[Body] = []
        if self._is_announced:
            answers.append(Sync(self._version, self._all(), self.is_stopping))
        if self._heartbeat is not None:
            answers.append(self._answered(self._heartbeat, told))
        else:
            answers += [DispatchTableResponse(status) for status in told.values()]
        self._heartbeat, self._is_announced = None, False
        return answers

    def _answered(self, heartbeat: Heartbeat, told: dict[str, TableStatus]) -> HeartbeatResponse:
        """Return the answer to a heartbeat; it has what would be told of single tables, too."""
        statuses: dict[str, TableStatus] = {}
        kept, forgotten = self._kept, self._forgotten
        for table, token in heartbeat.tables:
            held = kept.get(table, forgotten)
            if not isinstance(held, Held):  # else there is nothing to promise
                kept[table] = held = holding.promise(held, token)
            statuses[table] = holding.status(table, held, token)
        if len(statuses) < len(kept):
            for table, held in kept.items():
                if isinstance(held, Held) and table not in statuses:
                    statuses[table] = holding.status(table, held, held.token)
        for table, status in told.items():
            asked = statuses.get(table)
            # "stopped" says more than "absent": the table was there, and has ended
            if asked is None or (asked.token == status.token and asked.state in ENDED):
                statuses[table] = status
        if len(kept) - len(statuses) > ENDED_MAX:
            self._forget()
        return HeartbeatResponse(tuple(statuses.values()), self.is_stopping)

    def _addressed(self, bodies: list[Body]) -> list[Envelope]:
        owner = self.owner
        header = Header(self.name, owner.name, owner.revision, self.epoch, self._changefeed_epoch)
        return [Envelope(header, body) for body in bodies]


def _farther(held: Held, progress: Progress) -> Held:
    """Return what is held with what the executor says of its progress."""
    _check_progress(progress)
    token, state, is_committed, before = held
    # past the Python code of named tuples: each heartbeat does it for each table
    return tuple.__new__(Held, (token, state, is_committed, before.fold(progress)))


def _check_progress(progress: Progress) -> None:
    """Refuse what no message could carry: it is an error of the executor."""
    if not isinstance(progress, Progress):
        raise InvalidArgumentError(f"how far a table is, is a Progress, not {progress!r}")
    for number in progress:
        if type(number) is not int or not 0 <= number <= INTEGER_MAX:
            raise InvalidArgumentError(f"progress is microseconds from 0 on, not {number!r}")
