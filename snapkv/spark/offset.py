"""Where a stream is: what its checkpoints hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from snapkv.layout import Mark
from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError

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
        return standing(self.store, self.mark) | {
            "snapshot": self.after is not None,
            "after": None if self.after is None else self.after.hex(),
            "pinned": self.pinned,
        }

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> Offset:
        """Return the offset that a checkpoint holds. Raises `SourceError` for anything else."""
        with checking(given):
            after = given["after"]
            found = None if after is None else bytes.fromhex(after)
            return Offset(*store_and_mark(given), found, truth(given["pinned"]))

    def started(self) -> Offset:
        """Return the first offset as the log has it."""
        return replace(self, pinned=True)

    def at(self, mark: Mark, after: bytes | None = None) -> Offset:
        """Return the offset at which all up to a commit, or of its snapshot to a key, is done."""
        return Offset(self.store, mark, after)


# --- for every kind of stream ---


@contextmanager
def checking(given: Mapping[str, Any]) -> Iterator[None]:
    """Raise `SourceError` for a checkpoint of another version, or whose fields are none of ours."""
    try:
        version = given["v"]
        if version != VERSION:
            raise SourceError(
                codes.CHECKPOINT_INVALID,
                f"the checkpoint has version {version!r}, this reads {VERSION}",
            )
        yield
    except SourceError:
        raise
    except (KeyError, TypeError, ValueError) as e:
        raise SourceError(
            codes.CHECKPOINT_INVALID, f"the checkpoint is not one of this format: {given!r}"
        ) from e


def standing(store: bytes, mark: Mark) -> dict[str, Any]:
    """Return the fields that tell a store and a commit in it."""
    return {
        "v": VERSION,
        "store": store.hex(),
        "rev": mark.revision,
        "ts": mark.timestamp,
        "commit": mark.ordinal,
    }


def store_and_mark(given: Mapping[str, Any]) -> tuple[bytes, Mark]:
    """Return the store and the commit that a checkpoint tells."""
    mark = Mark(*(_number(given[name]) for name in ("ts", "rev", "commit")))
    return bytes.fromhex(given["store"]), mark


def truth(given: Any) -> bool:
    """Return what is true or false, and nothing else."""
    if not isinstance(given, bool):
        raise ValueError(f"neither true nor false: {given!r}")
    return given


def _number(given: Any) -> int:
    if type(given) is not int or given not in _UINT64:
        raise ValueError(f"no number of 64 bits: {given!r}")
    return given
