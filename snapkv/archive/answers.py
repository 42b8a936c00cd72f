"""Answers of an archive in the form of an engine's."""

from __future__ import annotations

from collections.abc import Iterator

from snapkv.archive.opened import Rows
from snapkv.engine.contract import KeyValue, Range, RangeResult


def values_of(rows: Rows) -> Iterator[tuple[bytes, bytes, int, int, int]]:
    """Yield the fields of a `KeyValue` for each row."""
    names = ("value", "created", "revision", "version")
    columns = (rows.table[name].to_pylist() for name in names)
    return zip(rows.stored.to_pylist(), *columns, strict=True)


def limited(wanted: Range, found: list[KeyValue], count: int) -> RangeResult:
    """Return sorted keys as the answer of a range: as many, and as much of them, as it wants."""
    if wanted.count_only:
        return RangeResult([], count)
    kvs = found[: wanted.limit] if wanted.limit else found
    if wanted.keys_only:
        kvs = [kv._replace(value=b"") for kv in kvs]
    return RangeResult(kvs, count, len(kvs) < count)
