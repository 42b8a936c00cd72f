"""Checks of arguments, and batches of a bounded size, that several packages share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any, TypeVar

from cdcmeta.errors import InvalidArgumentError, InvalidNameError
from snapkv import SnapshotKV

T = TypeVar("T")
DATABASE_NAME = re.compile(r"[a-z][a-z0-9_$()+/-]*")
DATABASE_NAME_CHARACTERS_MAX = 128


def listed(items: Iterable[Any], what: str) -> list[Any]:
    """Return the items of an iterable.

    Raises `InvalidArgumentError` for a text, bytes, a mapping, or a value that is not iterable.
    """
    if not isinstance(items, str | bytes | Mapping):
        try:
            return list(items)
        except TypeError:
            pass
    raise InvalidArgumentError(f"{what}: give an iterable, not {type(items).__name__}")


def check_int(what: str, value: object, least: int, most: int | None = None) -> int:
    """Return an integer within bounds; raise `InvalidArgumentError` for anything else."""
    if type(value) is int and value >= least and (most is None or value <= most):
        return value
    bounds = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
    raise InvalidArgumentError(f"{what} must be an integer {bounds}, not {value!r}")


def check_store(store: object) -> None:
    """Raise `InvalidArgumentError` unless the value is an open store of snapkv."""
    if not isinstance(store, SnapshotKV):
        raise InvalidArgumentError(
            f"a store is what snapkv.open() returns, not {type(store).__name__}"
        )
    if store.codec is not None:
        raise InvalidArgumentError("a store has values of bytes, not of a codec: pass store.raw")


def check_timeout(timeout: object) -> None:
    """Raise `InvalidArgumentError` unless the value is a number of seconds or None."""
    if timeout is None:
        return
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or timeout != timeout:
        raise InvalidArgumentError(f"a timeout is seconds or None, not {timeout!r}")


def check_seconds(what: str, seconds: object, *, most: float = inf) -> None:
    """Raise `InvalidArgumentError` for an invalid duration, or one of more than `most`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < inf:
        raise InvalidArgumentError(f"{what} is seconds, not {seconds!r}")
    if seconds > most:
        shown = f"{seconds:g}" if seconds < 1e300 else "1e300 or more"
        raise InvalidArgumentError(f"{what} is at most {most:,.0f} seconds, not {shown}")


def checked_name(what: str, name: object) -> str:
    """Return a name: any text that is not empty. Raises `InvalidArgumentError`."""
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"{what} is a text that is not empty, not {name!r}")
    return name


def checked_database_name(name: object) -> str:
    """Return a valid name of a database. Raises `InvalidNameError`."""
    if not isinstance(name, str) or not DATABASE_NAME.fullmatch(name):
        raise InvalidNameError(
            f"name {name!r}: only lower-case letters, digits, and _$()+-/ are allowed, and the "
            "first character must be a letter"
        )
    if len(name) > DATABASE_NAME_CHARACTERS_MAX:
        raise InvalidNameError(f"a name has at most {DATABASE_NAME_CHARACTERS_MAX} characters")
    return name


def bounded_batches(
    items: Iterable[T], size_of: Callable[[T], int], items_max: int, bytes_max: int
) -> Iterator[list[T]]:
    """Yield items in lists of at most so many items, and so many bytes, but for one item.

    >>> list(bounded_batches(["a", "bb", "c", "dddd"], len, 2, 3))
    [['a', 'bb'], ['c'], ['dddd']]
    """
    batch, size = list[T](), 0
    for item in items:
        added = size_of(item)
        if batch and (len(batch) >= items_max or size + added > bytes_max):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += added
    if batch:
        yield batch
