"""Checks of arguments that several packages share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cdcmeta.errors import InvalidArgumentError
from snapkv import SnapshotKV


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
