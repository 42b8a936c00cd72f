"""The limits of the scheduler.

`Limits` bounds what begins in a tick, what is under way at a time, and how long a wait takes. One
`Limits` applies to the replication, the failures and the policies of a changefeed, and to the
heartbeats of its coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from cdcmeta.errors import InvalidArgumentError

INTEGER_MAX = (1 << 63) - 1
"""The largest timestamp or revision in messages and in stores."""
MESSAGES_PER_TABLE_MAX = 1
"""The most requests about one table that a capture gets in a tick, and the most answers that it
gives."""


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
