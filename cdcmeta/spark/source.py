"""The format `cdcmeta.changes`: the feed of a database, as a DataFrame or a stream."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from cdcmeta.spark.options import FORMAT, parsed
from cdcmeta.spark.reader import pin, planned
from cdcmeta.spark.shape import SCHEMA, Shape
from cdcmeta.spark.stream import FeedStream
from snapkv.spark.reader import BatchReader, present_of


class ChangesDataSource(DataSource):
    """A database's feed at a moment, or as a stream; a row for each document.

    What it shows is pinned here, when the DataFrame is made, as in `snapkv.spark`: all actions
    share it, and filters are not pushed down.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = parsed(options)
        self._present = present_of(self._options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns, after checking that the options can be read."""
        pin(self._options, self._present)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        shape, pinned = Shape(schema), pin(self._options, self._present)
        return BatchReader(self._options.location, shape, partial(planned, self._options, pinned))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return FeedStream(self._options, Shape(schema))
