"""The states of tables; tokens, progress, events, and requests.

The states and roles are as in TiCDC's two-phase scheduler (pingcap/tiflow,
`cdc/scheduler/internal/v3`); the token is an addition: see `cdcmeta/DESIGN.md`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class _State(IntEnum):
    __hash__ = int.__hash__  # that of Enum is Python code, and heartbeats hash millions of states


class SetState(_State):
    """What the owner does with a table."""

    ABSENT = 1
    """No capture replicates it or was asked to."""
    PREPARE = 2
    """A secondary is preparing; a primary may replicate meanwhile."""
    COMMIT = 3
    """The secondary is prepared: the primary stops, then the secondary is promoted."""
    REPLICATING = 4
    """The primary replicates it."""
    REMOVING = 5
    """It is not desired: all captures that hold it stop."""


class Role(_State):
    """What a capture does for a table."""

    PRIMARY = 1
    """It replicates, or was asked to."""
    SECONDARY = 2
    """It prepares and does not write."""
    UNDETERMINED = 3
    """It is stopping and may still write: no capture is promoted before it has ended."""


class TableState(_State):
    """The state of a table on a capture; a pipeline goes through these in this order."""

    ABSENT = 1
    PREPARING = 2
    PREPARED = 3
    REPLICATING = 4
    STOPPING = 5
    STOPPED = 6


LIVE = frozenset((TableState.PREPARING, TableState.PREPARED, TableState.REPLICATING))
"""States in which a table continues until a request or a failure ends it."""
ENDED = frozenset((TableState.ABSENT, TableState.STOPPED))
"""States in which nothing on the capture can write the table."""


class Token(NamedTuple):
    """Names one assignment of a table to a capture; a later one of any owner is larger.

    The owner issues it with the request to prepare. A commit needs a table prepared under the same
    token. A removal ends a table with that token or an earlier one. A capture that answers
    "absent" to a token promises never to start it.
    """

    owner: int
    """The revision of the owner that issued it: later owners have larger ones."""
    number: int
    """Counts the tokens of that owner."""


NO_TOKEN = Token(0, 0)
"""Less than every issued token."""


class Progress(NamedTuple):
    """The progress of a table; timestamps in microseconds, 0 for unknown."""

    checkpoint: int = 0
    """Every change before it is downstream."""
    resolved: int = 0
    """Every change before it has been captured."""
    synced: int = 0
    """When the last change went downstream."""

    def fold(self, newer: Progress) -> Progress:
        """Return the larger of each member: progress does not go backwards.

        A report without a resolved timestamp counts as resolved up to its checkpoint.
        """
        if newer == self:
            return self
        before, (checkpoint, resolved, synced) = self, newer
        if checkpoint >= before[0] and resolved >= before[1] and synced >= before[2] and resolved:
            return newer  # the usual case, in each heartbeat for each table
        return Progress(
            max(before.checkpoint, checkpoint),
            max(before.resolved, resolved or checkpoint),
            max(before.synced, synced),
        )


NO_PROGRESS = Progress()


class Rest(NamedTuple):
    """What a capture reports of all tables that it replicates and does not list: `coverage`."""

    progress: Progress
    """Each of them is at least here."""
    size: int
    """The number of these tables."""
    digest: int
    """Of their names and tokens."""


class TableStatus(NamedTuple):
    """What a capture reports of one table."""

    table: str
    token: Token
    """The token of its pipeline; without one, the token that it was asked about."""
    state: TableState
    progress: Progress = NO_PROGRESS


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
