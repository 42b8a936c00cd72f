"""The terms of the scheduler: states, tokens, progress; events of a table, requests, and limits.

The states and roles are as in TiCDC's two-phase scheduler (pingcap/tiflow,
`cdc/scheduler/internal/v3`); the token is an addition: see `cdcmeta/DESIGN.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError

INTEGER_MAX = (1 << 63) - 1
"""The largest timestamp or revision in messages and in stores."""


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
    """How far a table is on a capture; a pipeline goes through them in this order."""

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
    """How far a table is replicated; timestamps in microseconds, 0 for unknown."""

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
    """How many they are."""
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


MESSAGES_PER_TABLE_MAX = 1
"""Requests about one table that a capture gets in a tick, and answers that it gives."""


@dataclass(frozen=True)
class Limits:
    """Bounds on what begins in one tick, on what is under way at a time, and on waits.

    >>> from cdcmeta.scheduler import Limits
    >>> Limits(moves_in_flight=2).moves_in_flight
    2
    """

    add_batch: int = 1_000
    """Tables first placed in one tick."""
    adds_in_flight: int = 10_000
    """Tables being placed at a time, over all captures."""
    adds_per_capture: int = 2_000
    """Tables that one capture prepares at a time: protects the last capture from overload."""
    moves_in_flight: int = 10
    """Tables being moved at a time by drain, move and balance."""
    balance_every_us: int = 60_000_000
    """Microseconds between two checks of the balance."""
    retry_first_us: int = 1_000_000
    """Microseconds before a table that failed twice is retried; doubled each time, ..."""
    retry_max_us: int = 60_000_000
    """... up to this."""
    prepare_us: int = 600_000_000
    """Microseconds that a preparation may take; doubled for a table each time that it fails."""
    start_us: int = 600_000_000
    """Microseconds that a start may take after the commit; doubled like `prepare_us`."""
    stop_us: int = 600_000_000
    """Microseconds that a stop may take before the capture counts as broken and is evicted."""
    stuck_us: int = 60_000_000
    """Microseconds after which a table that is not replicated no longer delays balancing."""
    heartbeat_every_us: int = 100_000
    """Microseconds between two rounds of heartbeats."""
    full_every_us: int = 10_000_000
    """Microseconds between two heartbeats to which captures answer with all their tables; answers
    to the heartbeats in between list the tables with news."""
    repeat_max_us: int = 1_000_000
    """The longest pause in microseconds before a request is repeated: the first pause is
    `heartbeat_every_us`, each following one twice as long."""
    mute_us: int = 15_000_000
    """Microseconds that a capture may be silent."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise InvalidArgumentError(f"{field.name} is a positive integer, not {value!r}")
