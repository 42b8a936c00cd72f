"""From rows to values: the bytes that `decoding` reads again, by the same rules."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any

import msgpack
import pyarrow as pa

from snapkv.spark import errors
from snapkv.spark.decoding import JSON, MISFITS, WHOLE, Written, json_text, spark_name
from snapkv.spark.errors import SourceError

Plain = Callable[[Any], Any]
"""Makes what JSON or msgpack has of a value that is not None."""


class Encoder:
    """Encodes the fields of rows as one value: an object of them, or the field `value` alone.

    A member that is NULL is left out, as in Spark's `to_json`; a value that is NULL is null.
    Raises `SourceError` for a type that the format does not have.
    """

    def __init__(self, fields: Sequence[pa.Field], format_: str) -> None:
        self._fields, self._names = fields, [field.name for field in fields]
        self._whole = self._names == [WHOLE]
        self._plain = [plain(field.type, format_) for field in fields]
        self._dump: Callable[[Any], bytes] = msgpack.packb
        if format_ == JSON:
            self._dump = _with_decimals if any(map(has_decimals, fields)) else _json

    def values(self, batch: pa.RecordBatch, keys: Sequence[Any]) -> list[bytes]:
        """Return the value of each row; `keys` name them in errors. Raises `SourceError`."""
        try:
            rows = zip(*self._columns(batch), strict=True)
        except (ValueError, OverflowError, pa.ArrowException) as e:  # dates that Python has not
            if len(keys) == 1:
                raise self._malformed(keys[0], e) from e
            parts = (self.values(batch.slice(n, 1), [key]) for n, key in enumerate(keys))
            return [value for part in parts for value in part]
        return [self._value(key, row) for key, row in zip(keys, rows, strict=True)]

    def _columns(self, batch: pa.RecordBatch) -> list[list[Any]]:
        """Return the columns, with times in UTC: Python does not know all zones of Spark."""
        columns = (batch.column(field.name) for field in self._fields)
        return [
            (column if column.type == field.type else column.cast(field.type)).to_pylist()
            for column, field in zip(columns, self._fields, strict=True)
        ]

    def _value(self, key: Any, row: tuple[Any, ...]) -> bytes:
        try:
            cells = [
                None if cell is None else convert(cell)
                for cell, convert in zip(row, self._plain, strict=True)
            ]
            return self._dump(cells[0] if self._whole else _members(self._names, cells))
        except MISFITS as e:
            raise self._malformed(key, e) from e

    def _malformed(self, key: Any, error: Exception) -> SourceError:
        return SourceError(
            errors.VALUE_MALFORMED, f"the value of key {key!r} cannot be written: {error}"
        )


def plain(kind: pa.DataType, format_: str) -> Plain:
    """Return the function that makes what a format has of a value of a column's type.

    Binary is base64 in JSON, dates and times are ISO text, a DECIMAL has all its digits.

    >>> plain(pa.binary(), JSON)(b"id"), plain(pa.list_(pa.int8()), JSON)([1, None])
    ('aWQ=', [1, None])
    """
    kinds = pa.types
    if kinds.is_struct(kind):
        inner = {field.name: _or_null(plain(field.type, format_)) for field in kind}
        return lambda value: _members(inner, [inner[name](value[name]) for name in inner])
    if kinds.is_map(kind):
        if not kinds.is_string(kind.key_type) and format_ == JSON:
            raise SourceError(errors.INVALID_SCHEMA, "keys of a MAP are STRING in JSON")
        name, item = plain(kind.key_type, format_), _or_null(plain(kind.item_type, format_))
        return lambda value: {name(key): item(each) for key, each in value}
    if kinds.is_list(kind):
        element = _or_null(plain(kind.value_type, format_))
        return lambda value: [element(each) for each in value]
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return _base64 if format_ == JSON else bytes
    if kinds.is_decimal(kind) and format_ != JSON:
        raise SourceError(errors.INVALID_SCHEMA, "msgpack has no DECIMAL: cast it to STRING")
    if kinds.is_floating(kind) and format_ == JSON:
        return _finite
    for is_kind, convert in _SCALARS:
        if is_kind(kind):
            return convert
    raise SourceError(
        errors.INVALID_SCHEMA, f"values of {spark_name(kind)} cannot be written: cast to STRING"
    )


def _members(names: Sequence[str] | dict[str, Plain], cells: Sequence[Any]) -> dict[str, Any]:
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell is not None}


def _or_null(convert: Plain) -> Plain:
    return lambda value: None if value is None else convert(value)


def has_decimals(field: pa.Field) -> bool:
    """Return whether a DECIMAL is in a type."""
    kind = field.type
    if isinstance(kind, pa.MapType):
        return has_decimals(kind.item_field)
    parts = [kind.field(n) for n in range(kind.num_fields)]
    return pa.types.is_decimal(kind) or any(map(has_decimals, parts))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _with_decimals(value: Any) -> bytes:
    return json_text(value).encode()


def _same(value: Any) -> Any:
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a number of JSON: cast it to STRING")
    return value


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Plain], ...] = (
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), _same),
    (lambda kind: pa.types.is_boolean(kind) or pa.types.is_integer(kind), _same),
    (pa.types.is_floating, _same),
    (pa.types.is_decimal, lambda value: Written(format(value, "f"))),
    (pa.types.is_date, lambda value: value.isoformat()),
    (
        lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
        lambda value: value.astimezone(UTC).isoformat(),
    ),
    (pa.types.is_timestamp, lambda value: value.isoformat()),
)
