"""The offsets of a stream, which its checkpoints contain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from snapkv.layout import Mark
from snapkv.spark import errors
from snapkv.spark.errors import SourceError

VERSION = 1
_UINT64 = range(1 << 64)


@dataclass(frozen=True, slots=True)
class Offset:
    """All commits up to a mark were delivered; or of the snapshot at that mark, all keys up to one.

    `after` is None once the snapshot is complete, or if the stream has none. `pinned` is False only
    in the first offset of a new query, which Spark asks for twice and does not log. The next offset
    differs in `pinned` only: its batch is empty, and it puts the start into Spark's log.
    """

    store: bytes
    mark: Mark
    after: bytes | None = None
    pinned: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""
        return store_fields(self.store, self.mark) | {
            "snapshot": self.after is not None,
            "after": None if self.after is None else self.after.hex(),
            "pinned": self.pinned,
        }

    @staticmethod
    def from_json(checkpoint: Mapping[str, Any]) -> Offset:
        """Return the offset in a checkpoint. Raises `SourceError` for anything else."""
        with checking(checkpoint):
            after = checkpoint["after"]
            found = None if after is None else bytes.fromhex(after)
            return Offset(*store_and_mark(checkpoint), found, boolean(checkpoint["pinned"]))

    def started(self) -> Offset:
        """Return the first offset as Spark logs it."""
        return replace(self, pinned=True)

    def at(self, mark: Mark, after: bytes | None = None) -> Offset:
        """Return the offset after all commits up to a mark, or after a key of its snapshot."""
        return Offset(self.store, mark, after)


# --- for every kind of stream ---


@contextmanager
def checking(checkpoint: Mapping[str, Any]) -> Iterator[None]:
    """Raise `SourceError` if a checkpoint has another version, or its fields are invalid."""
    try:
        version = checkpoint["v"]
        if version != VERSION:
            raise SourceError(
                errors.CHECKPOINT_INVALID,
                f"the checkpoint has version {version!r}; this snapkv reads version {VERSION}",
            )
        yield
    except SourceError:
        raise
    except (KeyError, TypeError, ValueError) as e:
        raise SourceError(
            errors.CHECKPOINT_INVALID, f"the checkpoint is not one of this format: {checkpoint!r}"
        ) from e


def store_fields(store: bytes, mark: Mark) -> dict[str, Any]:
    """Return the fields that name a store and a commit in it."""
    return {
        "v": VERSION,
        "store": store.hex(),
        "rev": mark.revision,
        "ts": mark.timestamp,
        "commit": mark.ordinal,
    }


def store_and_mark(checkpoint: Mapping[str, Any]) -> tuple[bytes, Mark]:
    """Return the store and the commit that a checkpoint names."""
    mark = Mark(*(number(checkpoint[name]) for name in ("ts", "rev", "commit")))
    return bytes.fromhex(checkpoint["store"]), mark


def boolean(value: Any) -> bool:
    """Return a bool. Raises `ValueError` for any other value."""
    if not isinstance(value, bool):
        raise ValueError(f"neither true nor false: {value!r}")
    return value


def number(value: Any) -> int:
    """Return a number of 64 bits. Raises `ValueError` for any other value."""
    if type(value) is not int or value not in _UINT64:
        raise ValueError(f"not a number of 64 bits: {value!r}")
    return value
