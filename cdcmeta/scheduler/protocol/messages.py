"""The messages between owner and agents, and the rules by which each side rejects old ones.

Messages are pure values; `encoding` makes bytes of them. Heartbeat and DispatchTable with their
responses are as in TiCDC's two-phase scheduler. A new owner begins with Announce and Sync, which
are from TiCDC's earlier protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from cdcmeta.scheduler.core.states import Request, Rest, TableStatus, Token


class Barrier(NamedTuple):
    """The bounds of replication of tables; timestamps in microseconds, 0 for no bound."""

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
    """A capture reports the tables that it holds, and the tables it was asked about."""

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


class MessageVerdict(Enum):
    """Whether a message is accepted, and if not, why."""

    ACCEPTED = "accepted"
    NOT_FOR_US = "not for us"
    OTHER_OWNER = "of another owner"
    OTHER_CAPTURE_EPOCH = "of a capture before its restart"
    OTHER_CHANGEFEED_EPOCH = "of the changefeed before its restart"
    UNKNOWN_CAPTURE = "of a capture that is not registered"


class KnownOwner(NamedTuple):
    """The newest owner that an agent knows."""

    name: str = ""
    revision: int = 0


def owner_accepts(
    header: Header, own: KnownOwner, changefeed_epoch: int, epochs: Mapping[str, int]
) -> MessageVerdict:
    """Return whether an owner accepts a message; `epochs` has registered captures' epochs."""
    if header.to != own.name:
        return MessageVerdict.NOT_FOR_US
    if header.owner_revision != own.revision:
        return MessageVerdict.OTHER_OWNER
    if header.changefeed_epoch != changefeed_epoch:
        return MessageVerdict.OTHER_CHANGEFEED_EPOCH
    epoch = epochs.get(header.sender)
    if epoch is None:
        return MessageVerdict.UNKNOWN_CAPTURE
    if header.capture_epoch != epoch:
        return MessageVerdict.OTHER_CAPTURE_EPOCH
    return MessageVerdict.ACCEPTED


def agent_accepts(
    header: Header, name: str, epoch: int, changefeed_epoch: int, known: KnownOwner
) -> tuple[MessageVerdict, KnownOwner]:
    """Return whether an agent accepts an owner's message, and the newest owner it then knows.

    A larger revision counts at once, even if the message is rejected: from then on all earlier
    owners are rejected. Two owners never have the same revision; the second is rejected.
    """
    if header.to != name:
        return MessageVerdict.NOT_FOR_US, known
    if header.owner_revision < known.revision:
        return MessageVerdict.OTHER_OWNER, known
    if header.owner_revision > known.revision or not known.name:
        known = KnownOwner(header.sender, header.owner_revision)
    elif known.name != header.sender:
        return MessageVerdict.OTHER_OWNER, known
    if header.changefeed_epoch != changefeed_epoch:
        return MessageVerdict.OTHER_CHANGEFEED_EPOCH, known
    if header.capture_epoch != epoch:
        return MessageVerdict.OTHER_CAPTURE_EPOCH, known
    return MessageVerdict.ACCEPTED, known
