"""Where a stream is: what its checkpoints hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from snapkv.records import Mark
from snapkv.spark import codes
from snapkv.spark.codes import SourceError

VERSION = 1
_UINT64 = range(1 << 64)


@dataclass(frozen=True, slots=True)
class Offset:
    """All up to a commit was delivered; or of the snapshot at that commit, all up to a key.

    `after` is None once the snapshot is done, or was never asked for. `pinned` is False only in
    the first offset of a new query, which Spark asks for twice and does not log: the next one is
    the same but for that word, makes an empty batch, and so brings the start into the log.
    """

    store: bytes
    mark: Mark
    after: bytes | None = None
    pinned: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""
        return {
            "v": VERSION,
            "store": self.store.hex(),
            "rev": self.mark.revision,
            "ts": self.mark.timestamp,
            "commit": self.mark.ordinal,
            "snapshot": self.after is not None,
            "after": None if self.after is None else self.after.hex(),
            "pinned": self.pinned,
        }

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> Offset:
        """Return the offset that a checkpoint holds. Raises `SourceError` for anything else."""
        try:
            version = given["v"]
            if version != VERSION:
                raise SourceError(
                    codes.CHECKPOINT_INVALID,
                    f"the checkpoint has version {version!r}, this reads {VERSION}",
                )
            mark = Mark(*(_number(given[name]) for name in ("ts", "rev", "commit")))
            after, pinned = given["after"], given["pinned"]
            if not isinstance(pinned, bool):
                raise ValueError(f"neither true nor false: {pinned!r}")
            store = bytes.fromhex(given["store"])
            return Offset(store, mark, None if after is None else bytes.fromhex(after), pinned)
        except SourceError:
            raise
        except (KeyError, TypeError, ValueError) as e:
            raise SourceError(
                codes.CHECKPOINT_INVALID, f"the checkpoint is not one of this format: {given!r}"
            ) from e

    def started(self) -> Offset:
        """Return the first offset as the log has it."""
        return replace(self, pinned=True)

    def at(self, mark: Mark, after: bytes | None = None) -> Offset:
        """Return the offset at which all up to a commit, or of its snapshot to a key, is done."""
        return Offset(self.store, mark, after)


def _number(given: Any) -> int:
    if type(given) is not int or given not in _UINT64:
        raise ValueError(f"no number of 64 bits: {given!r}")
    return given
