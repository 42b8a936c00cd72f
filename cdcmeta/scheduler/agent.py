"""The agent of a capture: it obeys the owner, drives an executor, and reports its tables.

* `TableExecutor`, the interface that an agent drives.
* `apply_request` and what follows: how requests change an agent's state of one table; pure.
* `Agent`, which keeps these states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.limits import INTEGER_MAX
from cdcmeta.scheduler.core.states import (
    ENDED,
    LIVE,
    NO_PROGRESS,
    NO_TOKEN,
    AddRequest,
    Progress,
    RemoveRequest,
    Request,
    TableState,
    TableStatus,
    Token,
)
from cdcmeta.scheduler.core.watermarks import Digest
from cdcmeta.scheduler.owner.cluster import check_name, check_revision
from cdcmeta.scheduler.protocol import messages
from cdcmeta.scheduler.protocol.messages import Envelope, KnownOwner


class ExecutorStatus(NamedTuple):
    """The status of a table on this capture."""

    state: TableState
    progress: Progress


class TableExecutor(Protocol):
    """Replicates tables; an agent calls it from one thread, and no call may block.

    A table is prepared (allocates, connects, reads ahead; writes nothing downstream), then
    replicated (writes), then removed. Each step may take long; the agent asks whether it is done.

    An executor may also have `laggards()`: it returns progress (`Progress`), and the tables that
    have not at least that, or that do not replicate, or that ended by themselves since. Then a
    heartbeat costs what has changed; without it, every table is asked for its status each time.
    """

    def add_table(self, table: str, start_ts: int, token: Token, *, is_prepare: bool) -> bool:
        """Begin to prepare a table, or to replicate one that is prepared.

        `start_ts`: everything before it is downstream already. `token` names the assignment, and
        later assignments of the table have larger ones: a sink that keeps the largest can reject
        what an earlier assignment still writes. Return False if it cannot begin now: the agent
        calls again. Adding a table twice is not an error.
        """

    def is_add_finished(self, table: str, *, is_prepare: bool) -> bool:
        """Return whether the table is prepared, or replicates, depending on `is_prepare`."""

    def remove_table(self, table: str) -> bool:
        """Begin to stop a table; return False if it cannot begin now: the agent calls again.

        The agent may call it at any time, also while the table is being prepared or started: after
        that the table must not begin to write.
        """

    def is_remove_finished(self, table: str) -> int | None:
        """Return the last checkpoint once nothing can write the table any more, else None."""

    def all_tables(self) -> Collection[str]:
        """Return the tables that it has, in any state."""

    def status(self, table: str) -> ExecutorStatus:
        """Return the status of a table; `ABSENT` for an unknown one."""


class RunningTable(NamedTuple):
    """A table that an agent has a pipeline for."""

    token: Token
    state: TableState = TableState.PREPARING
    is_committed: bool = False
    """Whether it was asked to replicate; `state` is REPLICATING once it does."""
    progress: Progress = NO_PROGRESS


class EndedTable(NamedTuple):
    """A table without a pipeline, and a promise: it will not start up to this token."""

    token: Token
    progress: Progress = NO_PROGRESS
    """The last progress of the pipeline that had this token."""


class Action(Enum):
    """What the executor must do."""

    PREPARE = "prepare"
    REPLICATE = "replicate"
    REMOVE = "remove"


class Applied(NamedTuple):
    """The state after a request, and what the executor must do."""

    kept: RunningTable | EndedTable | None
    action: Action | None = None


def apply_request(kept: RunningTable | EndedTable | None, request: Request) -> Applied:
    """Return the state after an owner's request.

    A table is prepared only under a token newer than all ended ones, and replicated only if it was
    prepared under the token of the commit. A removal ends a table with its token or an earlier one;
    without a table, it is a promise not to start one. Every other request changes nothing: the
    reported status informs the owner.
    """
    if isinstance(kept, RunningTable):
        return _apply_running(kept, request)
    if isinstance(request, AddRequest) and request.is_prepare:
        if kept is None or request.token > kept.token:
            return Applied(RunningTable(request.token, progress=request.progress), Action.PREPARE)
        return Applied(kept)
    return Applied(promise_of(kept, request.token))


def _apply_running(held: RunningTable, request: Request) -> Applied:
    if isinstance(request, RemoveRequest):
        if request.token < held.token or held.state is TableState.STOPPING:
            return Applied(held)
        return Applied(held._replace(state=TableState.STOPPING), Action.REMOVE)
    if request.is_prepare or request.token != held.token or held.is_committed:
        return Applied(held)
    if held.state is not TableState.PREPARED:
        return Applied(held)
    committed = held._replace(is_committed=True, progress=request.progress)
    return Applied(committed, Action.REPLICATE)


def is_starting(kept: RunningTable | EndedTable | None, request: Request) -> bool:
    """Return whether a request repeats the commit under which a table is already starting.

    Such a commit is not answered: the answer "prepared" would make the owner repeat it.
    """
    return (
        isinstance(kept, RunningTable)
        and kept.is_committed
        and kept.state is TableState.PREPARED
        and isinstance(request, AddRequest)
        and not request.is_prepare
        and request.token == kept.token
    )


def promise_of(kept: RunningTable | EndedTable | None, token: Token) -> RunningTable | EndedTable:
    """Return the state after a question about a token: a table that is absent will not start.

    So the answer "absent" stays true.
    """
    if isinstance(kept, RunningTable) or (kept is not None and kept.token >= token):
        return kept
    return EndedTable(token)


def ended_table(held: RunningTable, progress: Progress) -> EndedTable:
    """Return the state of a table that has stopped."""
    return EndedTable(held.token, held.progress.fold(progress))


def forgotten_tables(before: EndedTable | None, tokens: Iterable[Token]) -> EndedTable:
    """Return the promise for all forgotten tables when more are forgotten."""
    earlier = NO_TOKEN if before is None else before.token
    return EndedTable(max([earlier, *tokens]))


def status_of(table: str, kept: RunningTable | EndedTable | None, asked: Token) -> TableStatus:
    """Return the status to report to an owner that asked about a token."""
    if isinstance(kept, RunningTable):
        token, state, _, progress = kept
        return tuple.__new__(TableStatus, (table, token, state, progress))
    known = kept is not None and kept.token == asked
    progress = kept.progress if known and kept is not None else NO_PROGRESS
    return TableStatus(table, asked, TableState.ABSENT, progress)


ENDED_MAX = 10_000
"""The most ended tables that are remembered; of older ones only the newest token is kept."""


class Agent:
    """Runs the tables that owners assign to one capture.

    `epoch` is the revision at which the capture registered, `owner` the newest owner known then,
    `KnownOwner()` without one. Read the owner after registering, so that an owner deposed before
    that cannot assign tables.

    `docs/scheduler_core.md` has an example.
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
            raise InvalidArgumentError(f"owner is a KnownOwner, not {owner!r}")
        if executor.all_tables():
            raise InvalidArgumentError("the executor of a new agent must have no tables")
        self.name, self.epoch = name, epoch
        self.owner = owner
        self.barrier = messages.NO_BARRIER
        """How far tables may be replicated, as of the owner's last heartbeat; for executors."""
        self._barrier_of = (0, 0)
        self.is_stopping = False
        """Whether this capture leaves; it is never reset."""
        self.refused: Counter[messages.MessageVerdict] = Counter()
        """The number of rejected messages, by reason."""
        self.failures: dict[str, Exception] = {}
        """The last error of the executor, by table, until it replicates."""
        self._executor, self._version = executor, version
        self._changefeed_epoch = changefeed_epoch
        self._kept: dict[str, RunningTable | EndedTable] = {}
        self._replicated = Digest()
        """The tables of `_kept` that are replicated."""
        self._unsettled: dict[str, None] = {}
        """The tables of `_kept` that have a pipeline and are not replicated."""
        self._forgotten: EndedTable | None = None
        """The promise for all tables without an entry in `_kept`."""
        self._busy: dict[str, Action] = {}
        """Actions that the executor has not begun or not finished."""
        self._begun: set[str] = set()
        """The tables of `_busy` whose action the executor has begun."""
        self._reports: dict[str, TableStatus] = {}
        """What is to be reported in this tick, by table."""
        self._heartbeat: messages.Heartbeat | None = None
        """The newest heartbeat, to be answered in this tick."""
        self._is_announced = False
        """Whether a new owner gets a Sync in this tick."""
        self._rest: Progress | None = None
        """Where all tables without news are at least, in an answer that does not list them."""
        self._news: dict[str, None] = {}
        """The tables that such an answer lists."""

    def stop(self) -> None:
        """Ask the owner to move all tables to other captures."""
        self.is_stopping = True

    def tables(self) -> list[str]:
        """Return the tables that it has a pipeline for, by name."""
        return sorted(table for table, kept in self._kept.items() if isinstance(kept, RunningTable))

    def tick(self, inbox: Iterable[Envelope]) -> list[Envelope]:
        """Apply the owner's messages, continue the actions under way, and return the answers.

        These are at most one answer to all heartbeats and one to all announcements, or one message
        for each table. O(messages + tables that are being added or removed), and O(tables) with a
        heartbeat. Messages of other owners, or from before a restart, are counted in `refused`.
        """
        for envelope in inbox:
            self._receive(envelope)
        self._rest = None
        if self._is_announced or (self._heartbeat is not None and self._heartbeat.is_full):
            self._refresh_all(self._kept)
        elif self._heartbeat is not None:
            self._refresh_news(self._heartbeat)
        for table in list(self._busy):
            self._continue(table)
        owner, bodies = self.owner, self._answers()
        header = messages.Header(
            self.name, owner.name, owner.revision, self.epoch, self._changefeed_epoch
        )
        return [Envelope(header, body) for body in bodies]

    # --- receiving ---

    def _receive(self, envelope: Envelope) -> None:
        header, body = envelope
        if not isinstance(body, messages.Announce | messages.Heartbeat | messages.DispatchTable):
            # messages of captures are for an owner; their senders do not count as one
            self.refused[messages.MessageVerdict.NOT_FOR_US] += 1
            return
        verdict, known = messages.agent_accepts(
            header, self.name, self.epoch, self._changefeed_epoch, self.owner
        )
        if known.revision > self.owner.revision:
            # earlier owners are rejected from now on, so promises to them can be forgotten
            self._kept = {
                t: kept for t, kept in self._kept.items() if isinstance(kept, RunningTable)
            }
            self.failures = {t: e for t, e in self.failures.items() if t in self._kept}
            self._reports, self._heartbeat, self._is_announced = {}, None, False
        self.owner = known
        if verdict is not messages.MessageVerdict.ACCEPTED:
            self.refused[verdict] += 1
            return
        match body:
            case messages.Announce():
                self._is_announced = True
            case messages.Heartbeat():
                self._accept_heartbeat(body)
            case messages.DispatchTable(request):
                self._apply(request)

    def _accept_heartbeat(self, heartbeat: messages.Heartbeat) -> None:
        when = (self.owner.revision, heartbeat.number)
        if when >= self._barrier_of:
            self.barrier, self._barrier_of = heartbeat.barrier, when
        self.is_stopping |= heartbeat.is_stopping
        if self._heartbeat is None or heartbeat.number >= self._heartbeat.number:
            self._heartbeat = heartbeat

    def _forget(self) -> None:
        """Forget the older half of the ended tables, and keep the newest of their tokens.

        A request under that token or an earlier one starts nothing, even for a table that was never
        here: the owner gets "absent" and issues another token.
        """
        every = self._kept.items()
        ended = sorted((kept.token, table) for table, kept in every if isinstance(kept, EndedTable))
        older = ended[: -(ENDED_MAX // 2)]
        for _, table in older:
            del self._kept[table]
            self.failures.pop(table, None)
        self._forgotten = forgotten_tables(self._forgotten, [token for token, _ in older])

    def _apply(self, request: Request) -> None:
        table = request.table
        before = self._kept.get(table, self._forgotten)
        kept, action = apply_request(before, request)
        if kept is not None:
            self._keep(table, kept)
        if action is not None:
            self._busy[table] = action
            self._begun.discard(table)
            self._continue(table)
        kept = self._kept.get(table, self._forgotten)
        # a finished action is reported at its end, a stop also at its begin
        is_reported_later = action is None and is_starting(before, request)
        is_stopping = action is Action.REMOVE and isinstance(kept, RunningTable)
        if is_stopping or (action is None and not is_reported_later):
            self._report(status_of(table, kept, request.token))

    def _keep(self, table: str, kept: RunningTable | EndedTable) -> None:
        """Replace what is known of a table: its token or its state, not only its progress."""
        self._kept[table] = kept
        if isinstance(kept, RunningTable) and kept.state is TableState.REPLICATING:
            self._replicated.put(table, kept.token)
            self._unsettled.pop(table, None)
            return
        self._replicated.remove(table)
        if isinstance(kept, RunningTable):
            self._unsettled[table] = None
        else:
            self._unsettled.pop(table, None)

    # --- the executor ---

    def _continue(self, table: str) -> None:
        try:
            self._run_action(table)
        except Exception as e:
            self._failed(table, e)

    def _failed(self, table: str, error: Exception) -> None:
        self.failures[table] = error
        held = self._kept[table]
        if isinstance(held, RunningTable) and self._busy.get(table) is not Action.REMOVE:
            # its remains must stop; a removal that fails is retried
            self._stop(table, held)

    def _stop(self, table: str, held: RunningTable) -> None:
        self._keep(table, held._replace(state=TableState.STOPPING))
        self._busy[table] = Action.REMOVE
        self._begun.discard(table)

    def _run_action(self, table: str) -> None:
        action = self._busy[table]
        if table not in self._begun:
            if action is Action.REPLICATE:
                self._refresh(table)  # a table that ended since it was prepared is not started
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
            self._keep(table, self._held(table)._replace(state=done))
            self._refresh(table)
            kept = self._kept[table]
            if isinstance(kept, RunningTable):
                self._report(status_of(table, kept, kept.token))

    def _held(self, table: str) -> RunningTable:
        held = self._kept[table]
        assert isinstance(held, RunningTable)
        return held

    def _begin(self, table: str, action: Action) -> bool:
        if action is Action.REMOVE:
            return self._executor.remove_table(table)
        token, _, _, (start, *_) = self._held(table)
        return self._executor.add_table(table, start, token, is_prepare=action is Action.PREPARE)

    def _refresh_news(self, heartbeat: messages.Heartbeat) -> None:
        """Read the status of tables with news; of all, if the executor cannot say which have."""
        laggards = getattr(self._executor, "laggards", None)
        if laggards is None:
            self._refresh_all(self._kept)
            return
        least, behind = laggards()
        _check_progress(least)
        news = {table: None for table, _ in heartbeat.tables} | self._unsettled
        news |= dict.fromkeys(behind)
        self._refresh_all(news)
        self._news, self._rest = news, least

    def _refresh_all(self, tables: Iterable[str]) -> None:
        kept, busy, ask = self._kept, self._busy, self._executor.status
        for table in list(tables):
            held = kept.get(table)
            if not isinstance(held, RunningTable):
                continue
            try:
                if table in busy:
                    self._refresh(table)
                    continue
                state, progress = ask(table)
                if progress != held.progress:
                    kept[table] = held = _farther(held, progress)
                if state not in LIVE:
                    self._ended_by_itself(table, held, state, progress)
            except Exception as e:
                self._failed(table, e)

    def _refresh(self, table: str) -> None:
        """Read a table's status from the executor; it may have ended by itself."""
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
        self, table: str, held: RunningTable, state: TableState, progress: Progress
    ) -> None:
        if state is TableState.ABSENT:
            self._end(table, progress)
        else:
            self._stop(table, held)  # is_remove_finished() frees what has stopped

    def _end(self, table: str, progress: Progress) -> None:
        held = self._held(table)
        ended = ended_table(held, progress)
        self._keep(table, ended)
        self._busy.pop(table, None)
        self._begun.discard(table)
        self._report(TableStatus(table, held.token, TableState.STOPPED, ended.progress))

    # --- reporting ---

    def _report(self, status: TableStatus) -> None:
        """Report a table in this tick: the last status of its newest assignment."""
        before = self._reports.get(status.table)
        if before is None or status.token >= before.token:
            self._reports[status.table] = status

    def _answers(self) -> list[messages.Body]:
        """Return the messages of this tick to the owner."""
        reports, self._reports = self._reports, {}
        answers: list[messages.Body] = []
        if self._is_announced:
            held = ((t, kept) for t, kept in self._kept.items() if isinstance(kept, RunningTable))
            statuses = tuple(status_of(table, kept, kept.token) for table, kept in held)
            answers.append(messages.Sync(self._version, statuses, self.is_stopping))
        if self._heartbeat is not None:
            answers.append(self._answered(self._heartbeat, reports))
        else:
            answers += [messages.DispatchTableResponse(status) for status in reports.values()]
        self._heartbeat, self._is_announced = None, False
        return answers

    def _answered(
        self, heartbeat: messages.Heartbeat, reports: dict[str, TableStatus]
    ) -> messages.HeartbeatResponse:
        """Return the answer to a heartbeat, which includes the reports of single tables."""
        statuses: dict[str, TableStatus] = {}
        kept, forgotten = self._kept, self._forgotten
        for table, token in heartbeat.tables:
            held = kept.get(table, forgotten)
            if not isinstance(held, RunningTable):  # a running table needs no promise
                kept[table] = held = promise_of(held, token)
            statuses[table] = status_of(table, held, token)
        listed: Iterable[str] = kept if self._rest is None else (self._news | self._unsettled)
        for table in listed if len(statuses) < len(kept) else ():
            running = kept.get(table)
            if isinstance(running, RunningTable) and table not in statuses:
                statuses[table] = status_of(table, running, running.token)
        for table, status in reports.items():
            asked = statuses.get(table)
            # "stopped" says more than "absent": the table was here and has ended
            if asked is None or (asked.token == status.token and asked.state in ENDED):
                statuses[table] = status
        if len(kept) - len(statuses) > ENDED_MAX:
            self._forget()
        rest = None if self._rest is None else self._replicated.rest(statuses, self._rest)
        return messages.HeartbeatResponse(tuple(statuses.values()), self.is_stopping, rest)


def _farther(held: RunningTable, progress: Progress) -> RunningTable:
    """Return a running table with the progress that its executor reports."""
    _check_progress(progress)
    token, state, is_committed, before = held
    # faster than RunningTable(...): each heartbeat makes one for each table
    return tuple.__new__(RunningTable, (token, state, is_committed, before.fold(progress)))


def _check_progress(progress: Progress) -> None:
    """Raise `InvalidArgumentError` for progress that no message can carry: the executor's error."""
    if not isinstance(progress, Progress):
        raise InvalidArgumentError(f"the progress of a table is a Progress, not {progress!r}")
    for number in progress:
        if type(number) is not int or not 0 <= number <= INTEGER_MAX:
            raise InvalidArgumentError(f"progress is microseconds >= 0, not {number!r}")
