"""An agent's state of one table, and how requests change it: pure, without the executor."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from cdcmeta.scheduler.core.states import (
    NO_PROGRESS,
    NO_TOKEN,
    Progress,
    TableState,
    TableStatus,
    Token,
)
from cdcmeta.scheduler.core.tasks import AddRequest, RemoveRequest, Request


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


def apply(kept: RunningTable | EndedTable | None, request: Request) -> Applied:
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
    return Applied(promise(kept, request.token))


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


def promise(kept: RunningTable | EndedTable | None, token: Token) -> RunningTable | EndedTable:
    """Return the state after a question about a token: a table that is absent will not start.

    So the answer "absent" stays true.
    """
    if isinstance(kept, RunningTable) or (kept is not None and kept.token >= token):
        return kept
    return EndedTable(token)


def ended(held: RunningTable, progress: Progress) -> EndedTable:
    """Return the state of a table that has stopped."""
    return EndedTable(held.token, held.progress.fold(progress))


def forgotten(before: EndedTable | None, tokens: Iterable[Token]) -> EndedTable:
    """Return the promise for all forgotten tables when more are forgotten."""
    earlier = NO_TOKEN if before is None else before.token
    return EndedTable(max([earlier, *tokens]))


def status(table: str, kept: RunningTable | EndedTable | None, asked: Token) -> TableStatus:
    """Return the status to report to an owner that asked about a token."""
    if isinstance(kept, RunningTable):
        token, state, _, progress = kept
        return tuple.__new__(TableStatus, (table, token, state, progress))
    known = kept is not None and kept.token == asked
    progress = kept.progress if known and kept is not None else NO_PROGRESS
    return TableStatus(table, asked, TableState.ABSENT, progress)
