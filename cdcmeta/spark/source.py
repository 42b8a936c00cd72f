"""The format `cdcmeta.changes`: the feed of a database, as a DataFrame or a stream."""

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

from cdcmeta.spark.options import FORMAT, Options, parsed
from cdcmeta.spark.reader import pin, planned
from cdcmeta.spark.shape import SCHEMA, Shape
from cdcmeta.spark.sink import DocumentBatchSink, DocumentStreamSink, document_options
from cdcmeta.spark.stream import FeedStream
from snapkv.errors import another
from snapkv.spark.errors import SourceError
from snapkv.spark.pinned import Present
from snapkv.spark.reader import BatchReader, present_of
from snapkv.spark.sink import check_of_stream


class ChangesDataSource(DataSource):
    """A database's feed at a moment, or as a stream; a row for each document.

    What it shows is pinned here, when the DataFrame is made, as in `snapkv.spark`: all actions
    share it, and filters are not pushed down.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._located: tuple[Options, Present] | SourceError
        try:  # Spark makes a source for a sink, too, which has other options
            parsed_ = parsed(options)
            self._located = parsed_, present_of(parsed_)
        except SourceError as e:
            self._located = e

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns, after checking that the options can be read."""
        pin(*self._read())
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        options, present = self._read()
        shape, pinned = Shape(schema), pin(options, present)
        return BatchReader(options.location, shape, partial(planned, options, pinned))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        options, _ = self._read()
        return FeedStream(options, Shape(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the sink of a batch."""
        return DocumentBatchSink(schema, document_options(self.options, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the sink of a stream."""
        options = document_options(self.options, overwrite=overwrite)
        check_of_stream(options)
        return DocumentStreamSink(schema, options)

    def _read(self) -> tuple[Options, Present]:
        if isinstance(self._located, SourceError):
            raise another(self._located)
        return self._located
