"""Values decoded into columns, and encoded from rows by the same rules: JSON, msgpack or text."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type

from snapkv.reading.arrow import Arrays
from snapkv.spark import errors
from snapkv.spark.errors import SourceError

BYTES, UTF8, JSON, MSGPACK = "bytes", "utf8", "json", "msgpack"
FORMATS = (BYTES, UTF8, JSON, MSGPACK)
FAILFAST, PERMISSIVE = MODES = ("FAILFAST", "PERMISSIVE")
WHOLE = "value"
"""The name of a field that is the whole value, not a part of it."""
SHOWN_MAX = 80

Convert = Callable[[Any], Any]
MISFITS = (ValueError, TypeError, OverflowError, RecursionError)
"""The errors that decoders and Arrow raise for bytes and values that do not fit."""
_DIGITS_MAX = 640
"""The digits that Python always converts; longer numbers fit only into text."""
_DECIMAL = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,3})?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ValueDecoder:
    """Decodes values into fields of an Arrow schema; with `permissive` a misfit becomes NULL.

    A value that is not an object has only the field `value`, which is all of it. Fields that a
    value lacks are NULL, and so are all fields of a removal. If an object has a name twice, the
    last one counts. Raises `SourceError` for types into which no value is decoded.
    """

    def __init__(self, fields: Sequence[pa.Field], format_: str, permissive: bool) -> None:
        self._fields, self._format, self._permissive = list(fields), format_, permissive
        for field in fields:
            converter(field.type, format_)

    def columns(self, found: Arrays) -> Arrays:
        """Return the columns that come from `found["value"]`.

        Raises `SourceError` for the first value that does not fit, unless permissive.
        """
        values = found["value"].to_pylist()
        if self._format == UTF8:
            return {WHOLE: self._texts(found["value"], values, found)}
        decoded = [self._decoded(n, value, found) for n, value in enumerate(values)]
        return {field.name: self._column(field, decoded, found) for field in self._fields}

    def _texts(self, raw: pa.Array, values: list[bytes | None], found: Arrays) -> pa.Array:
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [self._text(n, value, found) for n, value in enumerate(values)]
            return pa.array(texts, pa.string())

    def _text(self, n: int, value: bytes | None, found: Arrays) -> str | None:
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError as e:
            self._malformed(n, found, f"is not UTF-8: {e}")
            return None

    def _decoded(self, n: int, value: bytes | None, found: Arrays) -> Any:
        if value is None:
            return None
        try:
            if self._format == JSON:
                return _parsed(value)
            return msgpack.unpackb(value, timestamp=3, strict_map_key=False)
        except MISFITS as e:
            self._malformed(n, found, f"is not {self._format}: {_shown(e)}")
            return None

    def _column(self, field: pa.Field, decoded: list[Any], found: Arrays) -> pa.Array:
        convert = converter(field.type, self._format)
        cells: list[Any] = []
        for n, value in enumerate(decoded):
            try:
                part = value
                if value is not None and field.name != WHOLE:
                    part = _of(dict, value).get(field.name)
                cells.append(None if part is None else convert(part))
            except MISFITS as e:
                self._misfit(n, found, field, e)
                cells.append(None)
        try:
            return pa.array(cells, field.type)
        except MISFITS:  # Arrow does not say which
            return pa.concat_arrays(
                [self._cell(n, cell, field, found) for n, cell in enumerate(cells)]
            )

    def _cell(self, n: int, cell: Any, field: pa.Field, found: Arrays) -> pa.Array:
        try:
            return pa.array([cell], field.type)
        except MISFITS as e:
            self._misfit(n, found, field, e)
            return pa.nulls(1, field.type)

    def _misfit(self, n: int, found: Arrays, field: pa.Field, error: Exception) -> None:
        self._malformed(
            n, found, f"does not fit {field.name} {spark_name(field.type)}: {_shown(error)}"
        )

    def _malformed(self, n: int, found: Arrays, why: str) -> None:
        if self._permissive:
            return
        key = repr(found["key"][n].as_py())[:SHOWN_MAX]
        raise errors.VALUE_MALFORMED(f"the value of key {key} {why}; mode=PERMISSIVE makes it NULL")


class TextFloat(float):
    """A float with the text of the number, which may have more digits."""

    def __new__(cls, text: str) -> TextFloat:
        """Return the number that a text says."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


class _Integer(int):
    """An integer with its text: of very many digits it has the first, too many for a column."""

    def __new__(cls, text: str) -> _Integer:
        number = super().__new__(cls, text[:_DIGITS_MAX])
        number.text = text
        return number

    text: str


_WRITTEN = (TextFloat, _Integer)


def _parsed(value: bytes) -> Any:
    return json.loads(value.decode("utf-8-sig"), parse_float=TextFloat, parse_int=_parsed_int)


def _parsed_int(text: str) -> int:
    return _Integer(text) if text == "-0" or len(text) > _DIGITS_MAX else int(text)


def _shown(error: Exception) -> str:
    return (str(error) or type(error).__name__)[: 2 * SHOWN_MAX]


def converter(kind: pa.DataType, format_: str) -> Convert:
    """Return the function that turns a decoded value into one of a column's type, or raises.

    It does not guess, and rounds only to floats and to microseconds. As in Spark's own JSON, a text
    column takes any value, as JSON; times are ISO text or seconds. In JSON, and only there, binary
    is base64.

    >>> converter(pa.int8(), JSON)(7), converter(pa.string(), JSON)({"a": 1})
    (7, '{"a":1}')
    """
    kinds = pa.types
    if kinds.is_struct(kind):
        inner = {field.name: _nested(field, format_) for field in kind}
        return lambda value: _struct(_of(dict, value), inner)
    if kinds.is_map(kind):
        key, item = _nested(kind.key_field, format_), _nested(kind.item_field, format_)
        return lambda value: _map(_of(dict, value), key, item)
    if kinds.is_list(kind):
        item = _nested(kind.value_field, format_)
        return lambda value: [item(each) for each in _of(list, value)]
    if kinds.is_integer(kind):
        return lambda value: _integer(value, kind)
    if kinds.is_binary(kind):
        return _base64 if format_ == JSON else lambda value: _of(bytes, value)
    for is_kind, convert in _SCALARS:
        if is_kind(kind):
            return convert
    raise errors.INVALID_SCHEMA(f"values are not decoded into {spark_name(kind)}")


def spark_name(kind: pa.DataType) -> str:
    """Return the name that Spark's users know a type by.

    >>> spark_name(pa.int64()), spark_name(pa.list_(pa.timestamp("us", "UTC")))
    ('BIGINT', 'ARRAY<TIMESTAMP>')
    """
    try:
        name = str(from_arrow_type(kind).simpleString())
    except PySparkException:
        return str(kind)
    return name if "struct<" in name else name.upper()  # not the names of its fields


def _nested(field: pa.Field, format_: str) -> Convert:
    """Return the converter of a part of a value, which may be None if the schema allows NULL."""
    convert = converter(field.type, format_)

    def convert_or_null(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if not field.nullable:
            raise ValueError(f"{field.name} is NOT NULL")
        return None

    return convert_or_null


def _struct(value: dict[Any, Any], inner: dict[str, Convert]) -> dict[str, Any]:
    return {name: convert(value.get(name)) for name, convert in inner.items()}


def _map(value: dict[Any, Any], key: Convert, item: Convert) -> list[tuple[Any, Any]]:
    pairs = [(key(k), item(v)) for k, v in value.items()]
    if len(dict(pairs)) < len(pairs):
        raise ValueError("two keys of a map become the same")
    return pairs


def _of(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind):
        expected = "number" if isinstance(kind, tuple) else kind.__name__
        raise TypeError(f"{_kind(value)} instead of {expected}")
    return value


def _kind(value: Any) -> str:
    kind = {TextFloat: float, _Integer: int}.get(type(value), type(value))
    return kind.__name__


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError("bool instead of a number")
    return value


def _integer(value: Any, kind: pa.DataType) -> int:
    number = _of(int, _no_bool(value))
    if number.bit_length() >= kind.bit_width and number != -(1 << kind.bit_width - 1):
        raise OverflowError(f"{number} is too large")
    return int(number)


def _double(value: Any) -> float:
    number = float(_of((int, float), _no_bool(value)))
    if math.isinf(number) and isinstance(value, TextFloat):
        raise OverflowError(f"{value.text} is too large")
    return number


def _single(value: Any) -> float:
    number = _double(value)
    struct.pack("<f", number)  # raises if the number is too large for a float of 32 bits
    return number


def _decimal(value: Any) -> Decimal:
    number = _of((int, float), _no_bool(value))
    text = number.text if isinstance(number, _WRITTEN) else str(number)
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{text!r} is not a decimal")
    return Decimal(text)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any) -> str:
    """Return a value as JSON, with the original text of its numbers."""
    if isinstance(value, _WRITTEN):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{_name(k)}:{json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _name(key: Any) -> str:
    return json.dumps(key if isinstance(key, str) else json.dumps(key), ensure_ascii=False)


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return _to_base64(value)
    return str(_of(datetime, value).isoformat())


def _base64(value: Any) -> bytes:
    return base64.b64decode(_of(str, value), validate=True)


def _moment(value: Any) -> datetime:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _EPOCH + timedelta(seconds=value)
    found = value if isinstance(value, datetime) else datetime.fromisoformat(_of(str, value))
    if found.tzinfo is None:
        raise ValueError("a time without an offset")
    return found.astimezone(UTC)


def _naive(value: Any) -> datetime:
    found = datetime.fromisoformat(_of(str, value))
    if found.tzinfo is not None:
        raise ValueError("a time with an offset")
    return found


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pa.types.is_string, _text),
    (pa.types.is_boolean, lambda value: _of(bool, value)),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_float32, _single),
    (pa.types.is_float64, _double),
    (pa.types.is_date, lambda value: date.fromisoformat(_of(str, value))),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, _moment),
    (pa.types.is_timestamp, _naive),
)


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
        return errors.VALUE_MALFORMED(f"the value of key {key!r} cannot be written: {error}")


def plain(kind: pa.DataType, format_: str) -> Convert:
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
            raise errors.INVALID_SCHEMA("keys of a MAP are STRING in JSON")
        name, item = plain(kind.key_type, format_), _or_null(plain(kind.item_type, format_))
        return lambda value: {name(key): item(each) for key, each in value}
    if kinds.is_list(kind):
        element = _or_null(plain(kind.value_type, format_))
        return lambda value: [element(each) for each in value]
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return _to_base64 if format_ == JSON else bytes
    if kinds.is_decimal(kind) and format_ != JSON:
        raise errors.INVALID_SCHEMA("msgpack has no DECIMAL: cast it to STRING")
    if kinds.is_floating(kind) and format_ == JSON:
        return _finite
    for is_kind, convert in _PLAIN_SCALARS:
        if is_kind(kind):
            return convert
    raise errors.INVALID_SCHEMA(f"values of {spark_name(kind)} cannot be written: cast to STRING")


def _members(names: Sequence[str] | dict[str, Convert], cells: Sequence[Any]) -> dict[str, Any]:
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell is not None}


def _or_null(convert: Convert) -> Convert:
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


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_PLAIN_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), _same),
    (lambda kind: pa.types.is_boolean(kind) or pa.types.is_integer(kind), _same),
    (pa.types.is_floating, _same),
    (pa.types.is_decimal, lambda value: TextFloat(format(value, "f"))),
    (pa.types.is_date, lambda value: value.isoformat()),
    (
        lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
        lambda value: value.astimezone(UTC).isoformat(),
    ),
    (pa.types.is_timestamp, lambda value: value.isoformat()),
)
