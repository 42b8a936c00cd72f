"""Executors replicate the tables of a capture: the interface that an agent drives."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from cdcmeta.scheduler.core.states import Progress, TableState, Token


class ExecutorStatus(NamedTuple):
    """The status of a table on this capture."""

    state: TableState
    progress: Progress


class TableExecutor(Protocol):
    """Replicates tables; an agent calls it from one thread, and no call may block.

    A table is prepared (allocates, connects, reads ahead; writes nothing downstream), then
    replicated (writes), then removed. Each step may take long; the agent asks whether it is done.

    An executor may also have `laggards()`: it returns progress (`Progress`), and the tables that
    have not at least that, or that do not replicate, or that ended by themselves since. Then a
    heartbeat costs what has changed; without it, every table is asked for its status each time.
    """

    def add_table(self, table: str, start_ts: int, token: Token, *, is_prepare: bool) -> bool:
        """Begin to prepare a table, or to replicate one that is prepared.

        `start_ts`: everything before it is downstream already. `token` names the assignment, and
        later assignments of the table have larger ones: a sink that keeps the largest can reject
        what an earlier assignment still writes. Return False if it cannot begin now: the agent
        calls again. Adding a table twice is not an error.
        """
        ...

    def is_add_finished(self, table: str, *, is_prepare: bool) -> bool:
        """Return whether the table is prepared, or replicates, depending on `is_prepare`."""
        ...

    def remove_table(self, table: str) -> bool:
        """Begin to stop a table; return False if it cannot begin now: the agent calls again.

        The agent may call it at any time, also while the table is being prepared or started: after
        that the table must not begin to write.
        """
        ...

    def is_remove_finished(self, table: str) -> int | None:
        """Return the last checkpoint once nothing can write the table any more, else None."""
        ...

    def all_tables(self) -> Collection[str]:
        """Return the tables that it has, in any state."""
        ...

    def checkpoint(self) -> Progress:
        """Return the progress common to all its tables."""
        ...

    def status(self, table: str) -> ExecutorStatus:
        """Return the status of a table; `ABSENT` for an unknown one."""
        ...
