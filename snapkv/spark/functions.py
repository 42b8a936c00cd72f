"""The table functions of SQL, as in `SELECT * FROM snapkv_as_of('lmdb:./meta', '-1d')`.

Spark's analysis calls `analyze`, which pins what the function shows; `eval` yields the rows in a
worker. A call is one task; for millions of rows the format is faster, which has many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType, TimestampNTZType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from snapkv.spark import errors
from snapkv.spark.data_source import SnapKVDataSource
from snapkv.spark.read_options import COMMITS, HISTORY, key_text, option_texts
from snapkv.spark.sessions import Times
from snapkv.spark.source_options import check_free, with_options


@dataclass
class Planned(AnalyzeResult):
    """The columns of a call, and what reads its rows."""

    reader: DataSourceReader | None = None


class _Function:
    """A table function; a subclass makes options of the format from the arguments of a call."""

    def __init__(self, planned: Planned) -> None:
        assert planned.reader is not None
        self._reader = planned.reader

    def eval(self, *_arguments: Any, **_options: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows."""
        for partition in self._reader.partitions():
            for batch in cast(Iterable[pa.RecordBatch], self._reader.read(partition)):
                yield from zip(*map(_values, batch.columns), strict=True)


class AsOfFunction(_Function):
    """The keys at a moment."""

    @staticmethod
    def analyze(
        url: AnalyzeArgument,
        as_of: AnalyzeArgument | None = None,
        prefix: AnalyzeArgument | None = None,
        **options: AnalyzeArgument,
    ) -> Planned:
        """Pin the moment, NULL for now; a `prefix` is exact to the byte. Raises `SourceError`."""
        given = _Arguments(url, options, as_of=as_of, prefix=prefix)
        return _planned(given.options, **given.times.as_of(given["as_of"]), **given.prefix())


class ChangesFunction(_Function):
    """What the commits after a moment changed."""

    @staticmethod
    def analyze(
        url: AnalyzeArgument,
        since: AnalyzeArgument,
        until: AnalyzeArgument | None = None,
        prefix: AnalyzeArgument | None = None,
        **options: AnalyzeArgument,
    ) -> Planned:
        """Pin the range, which excludes `since` and includes `until`. Raises `SourceError`."""
        given = _Arguments(url, options, since=since, until=until, prefix=prefix)
        bounds = given.bounds(after=True)
        return _planned(given.options, readChangeFeed="true", **bounds, **given.prefix())


class HistoryFunction(_Function):
    """The versions of a key, or of all keys without one."""

    @staticmethod
    def analyze(
        url: AnalyzeArgument,
        key: AnalyzeArgument | None = None,
        since: AnalyzeArgument | None = None,
        until: AnalyzeArgument | None = None,
        **options: AnalyzeArgument,
    ) -> Planned:
        """Pin the range, which includes both ends. Raises `SourceError`."""
        given = _Arguments(url, options, key=key, since=since, until=until)
        view = {"view": HISTORY}
        if (key_ := given["key"]) is not None:
            start = key_text(key_, given.options, "key")
            end = start + ("\0" if isinstance(key_, str) else "00")
            view |= {"startKey": start, "endKey": end}
        return _planned(given.options, **given.bounds(after=False), **view)


class CommitsFunction(_Function):
    """The commit log."""

    @staticmethod
    def analyze(
        url: AnalyzeArgument,
        since: AnalyzeArgument | None = None,
        until: AnalyzeArgument | None = None,
        **options: AnalyzeArgument,
    ) -> Planned:
        """Pin the range, which includes both ends. Raises `SourceError`."""
        given = _Arguments(url, options, since=since, until=until)
        return _planned(given.options, view=COMMITS, **given.bounds(after=False))


FUNCTIONS = {
    "snapkv_as_of": AsOfFunction,
    "snapkv_changes": ChangesFunction,
    "snapkv_history": HistoryFunction,
    "snapkv_commits": CommitsFunction,
}


class _Arguments:
    """The arguments of a call, as Python values; options of the format have names of their own."""

    def __init__(
        self,
        url: AnalyzeArgument,
        options: Mapping[str, AnalyzeArgument],
        **arguments: AnalyzeArgument | None,
    ) -> None:
        self._values = {name: _value(name, each) for name, each in arguments.items()}
        texts = {name: _value(name, each) for name, each in options.items()}
        check_free(texts, dict.fromkeys(("store", "path"), "url gives it"))
        self.options = option_texts({"store": _value("url", url)} | texts)
        self.times = Times(self.options)

    def __getitem__(self, name: str) -> Any:
        """Return the value of an argument, None for NULL."""
        return self._values[name]

    def prefix(self) -> dict[str, str]:
        """Return the option of the argument `prefix`."""
        prefix = self["prefix"]
        return {"keyPrefix": key_text(prefix, self.options, "prefix")} if prefix else {}

    def bounds(self, *, after: bool) -> dict[str, str]:
        """Return the options of a range that begins with `since`, or `after` it."""
        return self.times.bounds(self["since"], self["until"], after=after)


def _value(name: str, argument: AnalyzeArgument | None) -> Any:
    """Return the value of an argument. Raises `SourceError` unless it is a constant."""
    if argument is None:
        return None
    if argument.isTable or not argument.isConstantExpression:
        raise errors.INVALID_OPTION(
            f"{name} must be a constant, not a column or computed from one, or from the clock: "
            "what a call shows is decided before rows are read; write -1d for a day ago"
        )
    value = argument.value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):  # a TIMESTAMP comes in the zone of this process
        is_naive = isinstance(argument.dataType, TimestampNTZType)
        return value.isoformat(" ") if is_naive else value.astimezone()
    return value


def _planned(options: Mapping[str, str], **made: str) -> Planned:
    """Return the columns and the reader of a call; `made` are the options of its arguments."""
    source = SnapKVDataSource(with_options(options, made, "an argument"))
    schema = source.schema()
    if not isinstance(schema, StructType):
        raise errors.INVALID_OPTION(
            "a table function has no option schema but in Spark's JSON: decode values in SQL, "
            "from_json(value, '...') with valueFormat => 'utf8'"
        )
    return Planned(schema, reader=source.reader(schema))


def _values(column: pa.Array) -> list[Any]:
    """Return a column as what Spark makes rows of."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(column.type):
        return [None if value is None else dict(value) for value in values]
    return values
