"""Streams for whole DataFrames: a column with the CDC stream of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations.generation_log import GenerationLog
from cdcmeta.generations.streams import STREAM_BYTES
from cdcmeta.generations.tokens import murmur3_tokens_of
from cdcmeta.generations.topology import Topology
from snapkv.times import LOGICAL_BITS, PHYSICAL_MS_MAX, check_timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]
MICROS_MAX = PHYSICAL_MS_MAX * 1_000 + 999
"""The last microsecond that has a timestamp of snapkv, in the year 4199."""


def with_stream(
    df: DataFrame,
    key_column: str,
    ts_column: str,
    generations: GenerationLog | Iterable[tuple[int, Topology]],
    *,
    column: str = "stream",
) -> DataFrame:
    """Return a DataFrame with an additional column: the stream of each row, 16 bytes.

    `key_column` is BINARY or STRING (its UTF-8), `ts_column` TIMESTAMP or BIGINT (snapkv's
    timestamps). The stream is a stream of the generation which operated at the row's time; NULL
    before the first one, and where the key or the time is NULL. This call reads
    `generations`: all of a log, or pairs of a time and a topology. Computed with NumPy, by batches.

    Raises `InvalidArgumentError` for columns that are missing, duplicate or of another type, and
    for invalid generations.
    """
    from pyspark.sql.types import BinaryType, StructField, StructType

    _check_columns(df, key_column, ts_column, column)
    if isinstance(generations, GenerationLog):
        log = generations
        generations = [(each.time, log.topology(each)) for each in log.generations()]
    known = _known(generations)
    fields = [*df.schema.fields, StructField(column, BinaryType())]
    return df.mapInArrow(_added(key_column, ts_column, column, known), StructType(fields))


def _check_columns(df: DataFrame, key_column: str, ts_column: str, column: str) -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType, TimestampType

    names = [field.name for field in df.schema.fields]
    types = {field.name: field.dataType for field in df.schema.fields}
    wanted: list[tuple[str, tuple[type, ...]]] = [
        (key_column, (BinaryType, StringType)),
        (ts_column, (LongType, TimestampType)),
    ]
    for name, kinds in wanted:
        if not isinstance(types.get(name), kinds):
            expected = " or ".join(kind.typeName() for kind in kinds)  # type: ignore[attr-defined]
            raise InvalidArgumentError(f"column {name!r} must be {expected}")
        if names.count(name) > 1:
            raise InvalidArgumentError(f"there are several columns {name!r}")
    if column in types:
        raise InvalidArgumentError(f"a column {column!r} exists already")


def _known(generations: Iterable[tuple[int, Topology]]) -> list[tuple[int, Topology]]:
    try:
        pairs = [(check_timestamp(time), topology) for time, topology in generations]
    except (TypeError, ValueError) as e:
        raise InvalidArgumentError(f"generations are pairs of a time and a topology: {e}") from e
    if not all(isinstance(topology, Topology) for _, topology in pairs):
        raise InvalidArgumentError("generations are pairs of a time and a topology")
    return sorted(pairs, key=lambda pair: pair[0])


def _added(
    key_column: str, ts_column: str, column: str, known: list[tuple[int, Topology]]
) -> Callable[[Batches], Batches]:
    times = np.array([time for time, _ in known], np.uint64)
    topologies = [topology for _, topology in known]

    def added(batches: Batches) -> Batches:
        for batch in batches:
            streams = _streams(batch.column(key_column), batch.column(ts_column), times, topologies)
            names = [*batch.schema.names, column]
            yield pa.RecordBatch.from_arrays([*batch.columns, streams], names=names)

    return added


def _streams(keys: Any, times: Any, starts: Any, topologies: list[Topology]) -> Any:
    """Return a column of streams for columns of keys and times."""
    null = pc.or_(pc.is_null(keys), pc.is_null(times)).to_numpy(zero_copy_only=False)
    stamps = _stamps(times)
    own: Any = np.searchsorted(starts, stamps, "right") - 1
    null |= own < 0
    tokens = _tokens(keys)
    found: Any = np.zeros(len(keys), np.dtype(f"V{STREAM_BYTES}"))
    for at in np.unique(own[~null]).tolist():
        where = np.flatnonzero((own == at) & ~null)
        found[where] = topologies[at].streams_for(tokens[where])
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(STREAM_BYTES), len(found), [None, pa.py_buffer(found.tobytes())]
    )
    return pc.if_else(pa.array(~null), fixed.cast(pa.binary()), pa.scalar(None, pa.binary()))


def _tokens(keys: Any) -> Any:
    whole = keys.fill_null(b"" if pa.types.is_binary(keys.type) else "").cast(pa.large_binary())
    _, offsets, data = whole.buffers()
    edges = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return murmur3_tokens_of(raw, edges)


def _stamps(times: Any) -> Any:
    """Return snapkv's timestamps of a column, clipped to the years 1970 to 4199."""
    if pa.types.is_timestamp(times.type):
        micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).fill_null(0)
        numbers = np.clip(micros.to_numpy(zero_copy_only=False), 0, MICROS_MAX).astype(np.uint64)
        bits = np.uint64(LOGICAL_BITS)
        thousand = np.uint64(1_000)
        return (numbers // thousand << bits) | ((numbers % thousand << bits) // thousand)
    numbers = times.fill_null(0).to_numpy(zero_copy_only=False)
    return np.maximum(numbers, 0).astype(np.uint64)
