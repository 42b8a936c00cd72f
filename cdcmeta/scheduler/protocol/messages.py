"""What owner and agents tell each other; pure values, `encoding` makes bytes of them.

Heartbeat and DispatchTable with their responses are of TiCDC's two-phase scheduler; Announce and
Sync of the protocol before it are what a new owner begins with.
"""

from __future__ import annotations

from typing import NamedTuple

from cdcmeta.scheduler.core.states import TableState, TableStatus, Token
from cdcmeta.scheduler.core.tasks import Request


class Barrier(NamedTuple):
    """How far tables may be replicated; timestamps in microseconds, 0 for no bound."""

    everywhere: int = 0
    """No table may go beyond it."""
    tables: tuple[tuple[str, int], ...] = ()
    """Tables that must stop earlier."""


NO_BARRIER = Barrier()


class Announce(NamedTuple):
    """A new owner asks a capture for all it holds."""

    version: str
    """Of the owner's software."""


class Sync(NamedTuple):
    """A capture tells a new owner all it holds."""

    version: str
    """Of the capture's software."""
    tables: tuple[TableStatus, ...]
    is_stopping: bool = False

    def running(self) -> list[str]:
        """Return the tables that it replicates."""
        return [each.table for each in self.tables if each.state is TableState.REPLICATING]

    def adding(self) -> list[str]:
        """Return the tables that it prepares, or has prepared."""
        states = (TableState.PREPARING, TableState.PREPARED)
        return [each.table for each in self.tables if each.state in states]

    def removing(self) -> list[str]:
        """Return the tables that it stops."""
        states = (TableState.STOPPING, TableState.STOPPED)
        return [each.table for each in self.tables if each.state in states]


class Heartbeat(NamedTuple):
    """The owner asks a capture about the tables that it should have."""

    tables: tuple[tuple[str, Token], ...]
    barrier: Barrier = NO_BARRIER
    is_stopping: bool = False
    """Whether the capture shall leave: it takes part in no election, its tables go elsewhere."""
    number: int = 0
    """The how-manieth round of the owner: of two that overtook each other the later one counts."""


class HeartbeatResponse(NamedTuple):
    """A capture tells of all tables it holds, and of those it was asked about and has not."""

    tables: tuple[TableStatus, ...]
    is_stopping: bool = False
    """Whether the capture is about to leave."""


class DispatchTable(NamedTuple):
    """The owner asks a capture to do something about a table."""

    request: Request


class DispatchTableResponse(NamedTuple):
    """A capture tells how a table is doing after it was asked to do something about it."""

    status: TableStatus


Body = Announce | Sync | Heartbeat | HeartbeatResponse | DispatchTable | DispatchTableResponse


class Header(NamedTuple):
    """Who says it, to whom, and in which time: what fences off those who are out of date."""

    sender: str
    to: str
    owner_revision: int
    """The revision of the owner that speaks or is answered."""
    capture_epoch: int
    """The revision at which the capture registered: another after every restart."""
    changefeed_epoch: int
    """Another after every stop and restart of the changefeed."""


class Envelope(NamedTuple):
    """A message on its way."""

    header: Header
    body: Body
