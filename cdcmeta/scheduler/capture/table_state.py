"""What an agent does about one table when an owner asks: pure, the executor is elsewhere."""

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


class Held(NamedTuple):
    """A table that an agent has a pipeline for."""

    token: Token
    state: TableState = TableState.PREPARING
    is_committed: bool = False
    """Whether it was told to replicate; it says so once it does."""
    progress: Progress = NO_PROGRESS


class Ended(NamedTuple):
    """What an agent keeps of a table that it has not: it starts nothing up to the token."""

    token: Token
    progress: Progress = NO_PROGRESS
    """The last of the pipeline that had this very token."""


class Action(Enum):
    """What an executor is to do."""

    PREPARE = "prepare"
    REPLICATE = "replicate"
    REMOVE = "remove"


class Obeyed(NamedTuple):
    """What an agent knows of a table afterwards, and what its executor has to do."""

    kept: Held | Ended | None
    action: Action | None = None


def obey(kept: Held | Ended | None, request: Request) -> Obeyed:
    """Return what follows from an owner's request.

    A table is prepared only under a token newer than all that were ended, and replicated only if
    it was prepared under the very token of the commit. A removal ends what has its token or an
    earlier one; where there is nothing, it keeps such from starting. Everything else changes
    nothing: the status tells the owner.
    """
    if isinstance(kept, Held):
        return _obey_held(kept, request)
    if isinstance(request, AddRequest) and request.is_prepare:
        if kept is None or request.token > kept.token:
            return Obeyed(Held(request.token, progress=request.progress), Action.PREPARE)
        return Obeyed(kept)
    return Obeyed(promise(kept, request.token))


def _obey_held(held: Held, request: Request) -> Obeyed:
    if isinstance(request, RemoveRequest):
        if request.token < held.token or held.state is TableState.STOPPING:
            return Obeyed(held)
        return Obeyed(held._replace(state=TableState.STOPPING), Action.REMOVE)
    if request.is_prepare or request.token != held.token or held.is_committed:
        return Obeyed(held)
    if held.state is not TableState.PREPARED:
        return Obeyed(held)
    committed = held._replace(is_committed=True, progress=request.progress)
    return Obeyed(committed, Action.REPLICATE)


def is_starting(kept: Held | Ended | None, request: Request) -> bool:
    """Return whether a request is the commit that a table is starting under already.

    Such a commit is not answered: "prepared" would make the owner repeat it, and so on.
    """
    return (
        isinstance(kept, Held)
        and kept.is_committed
        and kept.state is TableState.PREPARED
        and isinstance(request, AddRequest)
        and not request.is_prepare
        and request.token == kept.token
    )


def promise(kept: Held | Ended | None, token: Token) -> Held | Ended:
    """Return what is kept once somebody asked about a token: it will not start if it is not here.

    This is what makes "absent" an answer that stays true.
    """
    if isinstance(kept, Held) or (kept is not None and kept.token >= token):
        return kept
    return Ended(token)


def ended(held: Held, progress: Progress) -> Ended:
    """Return what is kept of a table that has stopped."""
    return Ended(held.token, held.progress.fold(progress))


def forgotten(before: Ended | None, tokens: Iterable[Token]) -> Ended:
    """Return what counts for all tables that nothing is kept of, when more are forgotten."""
    return Ended(max(tokens, default=NO_TOKEN) if before is None else max(before.token, *tokens))


def status(table: str, kept: Held | Ended | None, asked: Token) -> TableStatus:
    """Return what to tell an owner that asked about a token."""
    if isinstance(kept, Held):
        token, state, _, progress = kept
        return tuple.__new__(TableStatus, (table, token, state, progress))
    known = kept is not None and kept.token == asked
    progress = kept.progress if known and kept is not None else NO_PROGRESS
    return TableStatus(table, asked, TableState.ABSENT, progress)
