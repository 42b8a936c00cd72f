"""Kit for data sources of other packages: options, planning, tasks, sinks, errors."""

from snapkv.layout import Keyspace, Layout, Mark
from snapkv.reading import arrow
from snapkv.reading.arrow import Arrays, KeyRange
from snapkv.reading.reader import Reader
from snapkv.spark import errors
from snapkv.spark.batch_commits import TRIES, Batch, Marker, Writes, digest_of
from snapkv.spark.errors import ANEW, SourceError, as_source_errors
from snapkv.spark.key_sink import (
    OF_SINKS,
    OfBatch,
    OfStream,
    RowSink,
    SinkOptions,
    check_kind,
    check_names,
    check_of_stream,
    sink_texts,
    texts_of,
)
from snapkv.spark.micro_batches import (
    Limit,
    MicroBatches,
    StreamOffset,
    boolean,
    checking,
    store_and_mark,
)
from snapkv.spark.pinned_commits import BACKWARDS, PinnedCommits, Present, moment_of, present_in
from snapkv.spark.process_readers import own_reader, verified_reader
from snapkv.spark.read_tasks import BatchReader, Task, cut_keys, located
from snapkv.spark.schema import BatchSchema, arrow_schema, mismatch
from snapkv.spark.sessions import Times, ensure_registered, register_format
from snapkv.spark.source_options import (
    OF_SOURCES,
    SourceOptions,
    absolute,
    canonical_names,
    check_free,
    check_one_of,
    location_of,
    open_to_write,
    zone_in,
)
from snapkv.spark.timing import exact, is_exact, timestamp_of
from snapkv.spark.value_formats import JSON, Encoder, has_decimals
