"""Kit for data sources of other packages: options, planning, tasks, sinks, errors."""

from snapkv.layout import Keyspace, Layout, Mark
from snapkv.reading import arrow
from snapkv.reading.arrow import Arrays
from snapkv.reading.reader import Reader
from snapkv.reading.spans import Span
from snapkv.spark import errors
from snapkv.spark.batch_commits import TRIES, Batch, Marker, Writes, digest_of
from snapkv.spark.batch_reader import BatchReader, present_of
from snapkv.spark.cuts import cut_keys
from snapkv.spark.decoding import JSON
from snapkv.spark.errors import ANEW, SourceError, coded
from snapkv.spark.limits import Limit
from snapkv.spark.location import absolute, open_to_write
from snapkv.spark.micro_batches import MicroBatches
from snapkv.spark.offset import boolean, checking, store_and_mark, store_fields
from snapkv.spark.pinned import BACKWARDS, Commits, Present, moment_of, present_in, verified_reader
from snapkv.spark.schema import arrow_schema, batch_of, mismatch
from snapkv.spark.sessions import Times, ensure_registered, register_format
from snapkv.spark.sink import OfBatch, OfStream, Sink, check_of_stream, texts_of
from snapkv.spark.sink_options import SinkOptions, check_kind, check_names, sink_texts
from snapkv.spark.source_options import (
    SourceOptions,
    canonical_names,
    check_one_of,
    location_of,
    zone_in,
)
from snapkv.spark.tasks import Columns, Task
from snapkv.spark.timing import exact, is_exact, timestamp_of
from snapkv.spark.value_encoding import Encoder, has_decimals

__all__ = [
    "ANEW",
    "BACKWARDS",
    "JSON",
    "TRIES",
    "Arrays",
    "Batch",
    "BatchReader",
    "Columns",
    "Commits",
    "Encoder",
    "Keyspace",
    "Layout",
    "Limit",
    "Mark",
    "Marker",
    "MicroBatches",
    "OfBatch",
    "OfStream",
    "Present",
    "Reader",
    "Sink",
    "SinkOptions",
    "SourceError",
    "SourceOptions",
    "Span",
    "Task",
    "Times",
    "Writes",
    "absolute",
    "arrow",
    "arrow_schema",
    "batch_of",
    "boolean",
    "canonical_names",
    "check_kind",
    "check_names",
    "check_of_stream",
    "check_one_of",
    "checking",
    "coded",
    "cut_keys",
    "digest_of",
    "ensure_registered",
    "errors",
    "exact",
    "has_decimals",
    "is_exact",
    "location_of",
    "mismatch",
    "moment_of",
    "open_to_write",
    "present_in",
    "present_of",
    "register_format",
    "sink_texts",
    "store_and_mark",
    "store_fields",
    "texts_of",
    "timestamp_of",
    "verified_reader",
    "zone_in",
]
