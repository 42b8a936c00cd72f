"""Targets of a record, and the gaps in it: commits that were compacted before it read them.

A target is an archive (`archive_target`), or another store (`store_target`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from snapkv.copying.sources import SourceCommit
from snapkv.engine.contract import KeyEvent, KeyValue
from snapkv.layout import SourceId, StampRecord, stamp_of
from snapkv.reading.snapshot import paired
from snapkv.times import format_time

Pages = Iterable[Sequence[KeyValue]]


class RecordTarget(ABC):
    """Takes steps in order, each once."""

    pending: int
    """Bytes that are not durable yet."""
    is_full: bool
    """Whether a flush is due, whatever its age."""

    @abstractmethod
    def known(self) -> SourceId | None:
        """Return the source that is recorded there."""

    @abstractmethod
    def open(self, identity: SourceId) -> None:
        """Take a source; raises `ArchiveError` if the target holds anything else."""

    @abstractmethod
    def last(self) -> KeyValue | None:
        """Return the newest mark of the source that is recorded durably."""

    @abstractmethod
    def begin(self, mark: KeyValue, state: Pages) -> None:
        """Record a first state, and its mark."""

    @abstractmethod
    def close_gap(self, last: KeyValue, mark: KeyValue, state: Pages) -> None:
        """Record what differs between the newest recorded state and the state of a mark."""

    @abstractmethod
    def add(self, step: SourceCommit) -> None:
        """Take a step."""

    def settle_in(self) -> float:
        """Return after how many seconds `settle` is due; infinity if steps wait for a flush."""
        return math.inf

    def settle(self) -> None:  # noqa: B027
        """Make durable what waits only for more steps."""

    @abstractmethod
    def flush(self) -> None:
        """Make all steps durable."""

    @abstractmethod
    def tend(self, keep_before_ms: int | None) -> None:
        """Do what is due besides: merge, clean, and drop what is older than a time."""


def lost_marks(last: KeyValue, mark: KeyValue) -> list[KeyValue]:
    """Return marks in place of the lost ones between two marks.

    As many commits as their ordinals say had revisions and timestamps between the two. So there is
    a place for each.

    >>> def mark(timestamp, revision, ordinal):
    ...     value = StampRecord(timestamp).encode()
    ...     return KeyValue(b"sys/ts", value, 2, revision, ordinal)
    >>> [m.mod_revision for m in lost_marks(mark(100, 7, 5), mark(900, 40, 8))]
    [8, 9]
    """
    count, after = mark.version - last.version - 1, stamp_of(last.value)
    note = gap_note(last, mark)
    return [
        last._replace(
            value=StampRecord(after + n, note=note if n == 1 else "lost").encode(),
            mod_revision=last.mod_revision + n,
            version=last.version + n,
        )
        for n in range(1, count + 1)
    ]


def gap_note(last: KeyValue, mark: KeyValue) -> str:
    """Return the note of a gap for the commit log."""
    after, before = (format_time(stamp_of(kv.value)) for kv in (last, mark))
    return (
        f"gap: revisions {last.mod_revision + 1} to {mark.mod_revision - 1} were compacted before "
        f"they were recorded; their changes fell between {after} and {before}"
    )


def part_note(number: int, count: int, stamp: StampRecord) -> str:
    """Return the note of a part of a commit that the target does not take at once."""
    revision = 0 if stamp.source is None else stamp.source[0]
    return (
        f"part {number} of {count}: revision {revision} is larger than a commit may be here; "
        f"it is whole at {format_time(stamp.timestamp)}"
    )


def differences(before: Pages, after: Pages, mark: KeyValue) -> Iterator[KeyEvent]:
    """Yield the changes that make one state of the other, both sorted by key.

    Keys are the same if their revisions are, or their values where revisions are not comparable
    (0). A removal gets the revision of the mark: when it happened is lost.
    """
    for old, new in paired(chain.from_iterable(before), chain.from_iterable(after)):
        if old and new:
            if old.mod_revision != new.mod_revision if old.mod_revision else old.value != new.value:
                yield KeyEvent(new, False)
        elif new:
            yield KeyEvent(new, False)
        elif old:
            yield KeyEvent(KeyValue(old.key, b"", 0, mark.mod_revision, 0), True)
