"""Answers in bulk: columns of bytes and numbers instead of one object per key."""

from __future__ import annotations

from typing import Any, NamedTuple


class Columns(NamedTuple):
    """Versions of keys in bulk, as columns of Arrow: two of bytes, three of int64."""

    keys: Any
    values: Any
    created: Any
    modified: Any
    version: Any


class Changes(NamedTuple):
    """What some revisions did, each of them whole, as columns of Arrow, by revision and key.

    The value of a removal is NULL, its version 0; with `keys_only` all values are NULL. `befores`
    has the values before, NULL for a key that did not exist, if they were asked for.
    """

    keys: Any
    values: Any
    revisions: Any
    versions: Any
    befores: Any = None


class Pairs(NamedTuple):
    """Keys in order, and their values; no values with `keys_only`."""

    keys: list[bytes]
    values: list[bytes]


class Versions(NamedTuple):
    """Successive versions of a key since one creation, newest first, as columns.

    `version` is that of the newest one. Without versions both numbers are 0.
    """

    revisions: list[int]
    values: list[bytes]
    version: int = 0
    create_revision: int = 0
