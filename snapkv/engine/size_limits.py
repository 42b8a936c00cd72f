"""The limits of an engine: the sizes of keys, values and requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

READ_BYTES = 256
"""The most bytes that a read takes of a request, beside its key."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an engine; None means no limit but memory."""

    key_bytes: int
    value_bytes: int
    request_bytes: int
    ops_per_list: int | None = None

    def reads_together(self, keys: Sequence[bytes], *, beside: int = 2) -> bool:
        """Return whether one request can read these keys and a few short ones."""
        ops = len(keys) + beside
        size = sum(map(len, keys)) + ops * READ_BYTES
        return size <= self.request_bytes and (
            self.ops_per_list is None or ops <= self.ops_per_list
        )
