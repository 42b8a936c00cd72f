"""What an engine takes: the sizes of keys, values and requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

READ_BYTES = 256
"""What a read takes of a request at most, beside its key."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine takes; None means that only memory binds."""

    key_bytes: int
    value_bytes: int
    request_bytes: int
    ops_per_list: int | None = None

    def reads_together(self, keys: Sequence[bytes], *, beside: int = 2) -> bool:
        """Tell whether keys can be read in one request, with a few short ones beside them."""
        ops = len(keys) + beside
        size = sum(map(len, keys)) + ops * READ_BYTES
        return size <= self.request_bytes and (
            self.ops_per_list is None or ops <= self.ops_per_list
        )
