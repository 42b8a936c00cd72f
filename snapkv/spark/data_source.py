"""The format `snapkv`, as in `spark.read.format("snapkv").options(...).load(url)`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from snapkv.errors import another
from snapkv.spark import errors
from snapkv.spark.changes_stream import ChangesReader
from snapkv.spark.errors import SourceError
from snapkv.spark.fleet_stream import FleetSource
from snapkv.spark.key_sink import BatchSink, StreamSink, check_of_stream, key_options
from snapkv.spark.read_options import CHANGES, FOR_STREAMS, FORMAT, ReadOptions, parsed
from snapkv.spark.read_tasks import BatchReader, located, pin, planned
from snapkv.spark.schema import FrameSchema, schema_of
from snapkv.spark.sessions import check_pinned
from snapkv.spark.source_options import check_none_of


class PinnedStore:
    """One store, pinned when this is made; can be pickled. Raises `SourceError`."""

    def __init__(self, options: ReadOptions) -> None:
        self.options, self._present = located(options)

    def schema(self) -> StructType | str:
        """Return the columns of the view. Raises `SourceError` if the moment cannot be read."""
        options, present = self.options, self._present
        if options.view != CHANGES:  # a stream of them may continue from its checkpoint
            check_pinned(options, present)
            pin(options, present)
        return schema_of(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        options, present = self.options, self._present
        check_none_of(options.texts, FOR_STREAMS, "for a stream, without effect in a batch")
        check_pinned(options, present)
        columns, pinned = FrameSchema(schema, options), pin(options, present)
        return BatchReader(options.location, columns, partial(planned, options, pinned))

    def stream(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream of changes."""
        return ChangesReader(self.options, FrameSchema(schema, self.options))


class SnapKVDataSource(DataSource):
    """A store or a fleet at a moment, what changed, histories, or the commit log, as a DataFrame.

    The constructor pins what is shown: Spark calls it when the DataFrame is made, pickles the
    instance, and all actions share it. With `.schema(...)` Spark calls it only at the first action;
    therefore the option `schema` exists. Spark also calls it for a sink, which has other options
    and may create the store, so the methods that read raise what is wrong with these. Filters are
    not pushed down (`DESIGN.md`).
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._source: PinnedStore | FleetSource | SourceError
        try:
            asked = parsed(options)
            self._source = FleetSource(asked) if asked.is_of_fleet else PinnedStore(asked)
        except SourceError as e:
            self._source = e

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType | str:
        """Return the columns of the view. Raises `SourceError` if the moment cannot be read."""
        return self._read().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        return self._read().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream of changes."""
        found = self._read()
        if found.options.view != CHANGES:
            raise errors.MISSING_OPTION("a stream needs readChangeFeed=true")
        return found.stream(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the sink of a batch; `overwrite` replaces the keys with a prefix."""
        return BatchSink(schema, key_options(self.options, replace=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the sink of a stream; `overwrite` is its output mode "complete"."""
        options = key_options(self.options, replace=overwrite)
        check_of_stream(options)
        return StreamSink(schema, options)

    def _read(self) -> PinnedStore | FleetSource:
        if isinstance(self._source, SourceError):
            raise another(self._source)
        return self._source
