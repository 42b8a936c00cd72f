"""The messages between owner and agents; pure values, `encoding` makes bytes of them.

Heartbeat and DispatchTable with their responses are as in TiCDC's two-phase scheduler. A new
owner begins with Announce and Sync, which are from TiCDC's earlier protocol.
"""

from __future__ import annotations

from typing import NamedTuple

from cdcmeta.scheduler.core.states import Rest, TableStatus, Token
from cdcmeta.scheduler.core.tasks import Request


class Barrier(NamedTuple):
    """How far tables may be replicated; timestamps in microseconds, 0 for no bound."""

    everywhere: int = 0
    """No table may go beyond it."""
    tables: tuple[tuple[str, int], ...] = ()
    """Tables that must stop earlier."""


NO_BARRIER = Barrier()


class Announce(NamedTuple):
    """A new owner asks a capture for all tables that it holds."""

    version: str
    """The version of the owner's software."""


class Sync(NamedTuple):
    """A capture reports to a new owner all tables that it holds."""

    version: str
    """The version of the capture's software."""
    tables: tuple[TableStatus, ...]
    is_stopping: bool = False


class Heartbeat(NamedTuple):
    """The owner asks a capture about the tables that it should have."""

    tables: tuple[tuple[str, Token], ...]
    barrier: Barrier = NO_BARRIER
    is_stopping: bool = False
    """Whether the capture must leave: it joins no election, and its tables move."""
    number: int = 0
    """Counts the owner's rounds: if two heartbeats overtake each other, the later one counts."""
    is_full: bool = True
    """Whether the capture is to list all tables that it holds, not only those with news."""


class HeartbeatResponse(NamedTuple):
    """A capture reports the tables that it holds, and those it was asked about."""

    tables: tuple[TableStatus, ...]
    is_stopping: bool = False
    """Whether the capture leaves."""
    rest: Rest | None = None
    """Of the tables that it replicates and does not list; None if it lists all."""


class DispatchTable(NamedTuple):
    """The owner sends a request about a table to a capture."""

    request: Request


class DispatchTableResponse(NamedTuple):
    """A capture reports the status of a table after a request."""

    status: TableStatus


Body = Announce | Sync | Heartbeat | HeartbeatResponse | DispatchTable | DispatchTableResponse


class Header(NamedTuple):
    """Sender, receiver, and the revisions that fence off messages that are out of date."""

    sender: str
    to: str
    owner_revision: int
    """The revision of the owner that sends or receives the message."""
    capture_epoch: int
    """The revision at which the capture registered; new after every restart."""
    changefeed_epoch: int
    """New after every restart of the changefeed."""


class Envelope(NamedTuple):
    """A message on its way."""

    header: Header
    body: Body
