"""The offset of a stream of a feed, as its checkpoints hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdcmeta.changes.sequence import Sequence
from cdcmeta.errors import InvalidSequenceError
from snapkv.spark.sources import Mark, boolean, checking, store_and_mark, store_fields


@dataclass(frozen=True, slots=True)
class Offset:
    """All changes up to `seq` were delivered, from the feed at a commit.

    `pinned` is as in the stream of snapkv's changes.
    """

    store: bytes
    mark: Mark
    database: bytes
    seq: Sequence
    pinned: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""
        return store_fields(self.store, self.mark) | {
            "database": self.database.hex(),
            "seq": str(self.seq),
            "pinned": self.pinned,
        }

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> Offset:
        """Return the offset in a checkpoint. Raises `SourceError` for invalid JSON."""
        with checking(given):
            try:
                seq = Sequence.parse(given["seq"])
            except InvalidSequenceError as e:
                raise ValueError(str(e)) from e
            database = bytes.fromhex(given["database"])
            return Offset(*store_and_mark(given), database, seq, boolean(given["pinned"]))

    def started(self) -> Offset:
        """Return the first offset as Spark's log has it."""
        return replace(self, pinned=True)

    def at(self, mark: Mark, seq: Sequence) -> Offset:
        """Return the offset after all changes up to a place, from the feed at a commit."""
        return Offset(self.store, mark, self.database, seq)
