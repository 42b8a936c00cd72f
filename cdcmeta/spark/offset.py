"""Where a stream of a feed is: what its checkpoints hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdcmeta.changes.sequence import Sequence
from cdcmeta.errors import InvalidSequenceError
from snapkv.layout import Mark
from snapkv.spark.offset import checking, standing, store_and_mark, truth


@dataclass(frozen=True, slots=True)
class Offset:
    """All changes up to `seq` were delivered, as the feed was at a commit.

    `pinned` is as in the stream of snapkv's changes.
    """

    store: bytes
    mark: Mark
    database: bytes
    seq: Sequence
    pinned: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""
        return standing(self.store, self.mark) | {
            "database": self.database.hex(),
            "seq": str(self.seq),
            "pinned": self.pinned,
        }

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> Offset:
        """Return the offset that a checkpoint holds. Raises `SourceError` for anything else."""
        with checking(given):
            try:
                seq = Sequence.parse(given["seq"])
            except InvalidSequenceError as e:
                raise ValueError(str(e)) from e
            database = bytes.fromhex(given["database"])
            return Offset(*store_and_mark(given), database, seq, truth(given["pinned"]))

    def started(self) -> Offset:
        """Return the first offset as the log has it."""
        return replace(self, pinned=True)

    def at(self, mark: Mark, seq: Sequence) -> Offset:
        """Return the offset at which all up to a place is done, as the feed was at a commit."""
        return Offset(self.store, mark, self.database, seq)
