"""The format `snapkv`: what Spark makes of `spark.read.format("snapkv").options(...).load(url)`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError
from snapkv.spark.options import CHANGES, FOR_STREAMS, FORMAT, parsed
from snapkv.spark.options_text import check_none_of
from snapkv.spark.reader import BatchReader, anchored, pin, planned
from snapkv.spark.shape import Shape, schema_of
from snapkv.spark.stream import ChangesReader


class SnapKVDataSource(DataSource):
    """A store at a moment, what changed, histories, or the commit log, as a DataFrame.

    What it shows is pinned here, when the DataFrame is made: Spark pickles the instance then, and
    all actions share it. With `.schema(...)` Spark makes it at the first action only, so there is
    an option `schema`, too. There is no push-down of filters: in PySpark 4.1 to 4.3 the narrowed
    read leaks into other scans of the same DataFrame, which return wrong rows.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = parsed(options)
        self._anchor = anchored(self._options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType | str:
        """Return the columns of the view, if what is asked for is there."""
        if self._options.view != CHANGES:  # of those a stream may go on from its checkpoint
            pin(self._options, self._anchor)
        return schema_of(self._options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        check_none_of(self._options.given, FOR_STREAMS, "for a stream, and does nothing in a batch")
        shape, pinned = Shape(schema, self._options), pin(self._options, self._anchor)
        return BatchReader(self._options.place, shape, partial(planned, self._options, pinned))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream of changes."""
        if self._options.view != CHANGES:
            raise SourceError(codes.MISSING_OPTION, "a stream needs readChangeFeed=true")
        return ChangesReader(self._options, Shape(schema, self._options))
