"""The events of a replication set (reports, tasks, lost captures), and requests to captures."""

from __future__ import annotations

from typing import NamedTuple

from cdcmeta.scheduler.core.states import Progress, TableStatus, Token


class AddTable(NamedTuple):
    """Let a capture replicate a table that no capture has."""

    table: str
    capture: str


class MoveTable(NamedTuple):
    """Let another capture take over from the primary."""

    table: str
    capture: str
    """The capture that takes over."""


class RemoveTable(NamedTuple):
    """End a table everywhere."""

    table: str


class AbandonTable(NamedTuple):
    """End a preparation or a start that takes too long, or whose capture leaves."""

    table: str
    capture: str


Task = AddTable | MoveTable | RemoveTable | AbandonTable
"""What policies return."""


class Report(NamedTuple):
    """A capture reported the status of a table."""

    capture: str
    status: TableStatus


class Found(NamedTuple):
    """A capture that was not in the set when it was made reported that it has the table."""

    capture: str
    status: TableStatus


class CaptureLost(NamedTuple):
    """A capture has ended, with all its tables."""

    capture: str


Event = Task | Report | Found | CaptureLost


class AddRequest(NamedTuple):
    """Asks a capture to prepare a table, or to replicate the prepared table."""

    table: str
    token: Token
    progress: Progress
    """Where to start."""
    is_prepare: bool


class RemoveRequest(NamedTuple):
    """Asks a capture to end a table that has this token or an earlier one."""

    table: str
    token: Token


Request = AddRequest | RemoveRequest


class Send(NamedTuple):
    """A request, and the capture that gets it."""

    capture: str
    request: Request
