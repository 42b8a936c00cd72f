"""What can happen to a replication set: reports, tasks, and losses of captures."""

from __future__ import annotations

from typing import NamedTuple

from cdcmeta.scheduler.core.states import Progress, TableStatus, Token


class AddTable(NamedTuple):
    """Let a capture replicate a table that nobody has."""

    table: str
    capture: str


class MoveTable(NamedTuple):
    """Let another capture take over from the primary."""

    table: str
    capture: str
    """Where to."""


class RemoveTable(NamedTuple):
    """End a table everywhere."""

    table: str


class GiveUp(NamedTuple):
    """End a preparation or a start: it takes too long, or its capture leaves."""

    table: str
    capture: str


Task = AddTable | MoveTable | RemoveTable | GiveUp
"""What policies decide."""


class Report(NamedTuple):
    """A capture told how a table is doing."""

    capture: str
    status: TableStatus


class Found(NamedTuple):
    """A capture that nobody could ask before told what it has of a table."""

    capture: str
    status: TableStatus


class CaptureLost(NamedTuple):
    """A capture has ended, and with it all that it did."""

    capture: str


Event = Task | Report | Found | CaptureLost


class AddRequest(NamedTuple):
    """Tell a capture to prepare a table, or to replicate what it prepared."""

    table: str
    token: Token
    progress: Progress
    """Where to start from."""
    is_prepare: bool


class RemoveRequest(NamedTuple):
    """Tell a capture to end what it has of a table under this token or an earlier one."""

    table: str
    token: Token


Request = AddRequest | RemoveRequest


class Send(NamedTuple):
    """A request, and who gets it."""

    capture: str
    request: Request
