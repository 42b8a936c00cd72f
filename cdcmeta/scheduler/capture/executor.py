"""What replicates tables on a capture: the interface that an agent drives."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from cdcmeta.scheduler.core.states import Progress, TableState


class ExecutorStatus(NamedTuple):
    """How a table is doing on this capture."""

    state: TableState
    progress: Progress


class TableExecutor(Protocol):
    """Replicates tables; an agent calls it from one thread, and no call may block.

    A table is prepared (allocates, connects, reads ahead; writes nothing downstream), then
    replicated (writes), then removed; each takes its time, and the agent asks how it is going.
    """

    def add_table(self, table: str, start_ts: int, *, is_prepare: bool) -> bool:
        """Begin to prepare a table, or to replicate one that is prepared.

        `start_ts` (microseconds): everything before it is downstream already. False when it
        cannot begin now; it is called again. Adding what is there already is no error.
        """
        ...

    def is_add_finished(self, table: str, *, is_prepare: bool) -> bool:
        """Return whether the table is prepared, or replicates."""
        ...

    def remove_table(self, table: str) -> bool:
        """Begin to stop a table; False when it cannot begin now, it is called again then.

        It may be called at any time, also while the table is being prepared or is about to
        replicate: it does not begin to write after that.
        """
        ...

    def is_remove_finished(self, table: str) -> int | None:
        """Return the last checkpoint once nothing of the table is left that could write.

        None before that.
        """
        ...

    def all_tables(self) -> Collection[str]:
        """Return the tables that it has, in whatever state."""
        ...

    def checkpoint(self) -> Progress:
        """Return how far all its tables are together."""
        ...

    def status(self, table: str) -> ExecutorStatus:
        """Return how a table is doing; `ABSENT` for one that it has not."""
        ...
