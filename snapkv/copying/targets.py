"""Targets of a record: an archive (`archive_target`), or another store (`store_target`)."""

from __future__ import annotations

from typing import Protocol

from snapkv.copying.gaps import Pages
from snapkv.copying.sources import Step
from snapkv.engine.contract import KeyValue
from snapkv.layout import SourceId


class Target(Protocol):
    """Takes steps in order, each once."""

    @property
    def pending(self) -> int:
        """Bytes that are not durable yet."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether a flush is due, whatever its age."""
        ...

    def known(self) -> SourceId | None:
        """Return the source that is recorded there."""
        ...

    def open(self, identity: SourceId) -> None:
        """Take a source; raises `ArchiveError` if the target holds anything else."""
        ...

    def last(self) -> KeyValue | None:
        """Return the newest mark of the source that is recorded durably."""
        ...

    def begin(self, mark: KeyValue, state: Pages) -> None:
        """Record a first state, and its mark."""
        ...

    def close_gap(self, last: KeyValue, mark: KeyValue, state: Pages) -> None:
        """Record what differs between the newest recorded state and that of a mark."""
        ...

    def add(self, step: Step) -> None:
        """Take a step."""
        ...

    def settle_in(self) -> float:
        """Return after how many seconds steps should `settle` that wait for more to go along."""
        ...

    def settle(self) -> None:
        """Make durable what waits only for more to go along."""
        ...

    def flush(self) -> None:
        """Make all steps durable."""
        ...

    def tend(self, keep_before_ms: int | None) -> None:
        """Do what is due besides: merge, clean, and drop what is older than a time."""
        ...

    def close(self) -> None:
        """Free what it holds, without a flush."""
        ...
