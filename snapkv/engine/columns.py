"""What engines answer in bulk: columns of bytes and numbers in place of an object a key."""

from __future__ import annotations

from typing import Any, NamedTuple


class Columns(NamedTuple):
    """Versions of keys in bulk, as columns of Arrow: two of bytes, three of int64."""

    keys: Any
    values: Any
    created: Any
    modified: Any
    version: Any


class Pairs(NamedTuple):
    """Keys in order, and their values beside them; no values where only keys were wanted."""

    keys: list[bytes]
    values: list[bytes]


class Versions(NamedTuple):
    """Versions of a key that follow each other, newest first, as columns; of one creation.

    `version` is that of the newest one. Without any, both numbers are 0.
    """

    revisions: list[int]
    values: list[bytes]
    version: int = 0
    create_revision: int = 0
