"""Additions: keys and values that depend on the timestamp of their commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from snapkv.committer import pairs
from snapkv.errors import InvalidTypeError
from snapkv.model import Build, Ops, Stamp

Addition = Callable[[int], tuple[str, bytes]]
"""Takes the timestamp of its commit; returns a key and a value."""


def building(ops: Ops, additions: tuple[Addition, ...]) -> Build:
    """Return operations as a function of the stamp that calls the additions."""
    if not additions:
        return lambda _: ops

    def build(stamp: Stamp) -> Ops:
        added = [_added(addition, stamp.ts) for addition in additions]
        puts = [*pairs(ops.puts), *added]
        return replace(ops, puts=puts)  # type: ignore[arg-type]

    return build


def _added(addition: Addition, ts: int) -> tuple[str, bytes]:
    if not callable(addition):
        raise InvalidTypeError(f"an addition is a function, not {type(addition).__name__}")
    pair = addition(ts)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InvalidTypeError(f"an addition returns (key, value), not {pair!r}")
    return pair
