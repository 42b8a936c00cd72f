"""The format `snapkv`, as in `spark.read.format("snapkv").options(...).load(url)`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from snapkv.spark import errors
from snapkv.spark.connect import check_pinned
from snapkv.spark.errors import SourceError
from snapkv.spark.options import CHANGES, FOR_STREAMS, FORMAT, parsed
from snapkv.spark.reader import BatchReader, located, pin, planned
from snapkv.spark.schema import Schema, schema_of
from snapkv.spark.source_options import check_none_of
from snapkv.spark.stream import ChangesReader


class SnapKVDataSource(DataSource):
    """A store at a moment, what changed, histories, or the commit log, as a DataFrame.

    The constructor pins what is shown: Spark calls it when the DataFrame is made, pickles the
    instance, and all actions share it. With `.schema(...)` Spark calls it only at the first action;
    therefore the option `schema` exists. Filters are not pushed down: in PySpark 4.1 to 4.3 the
    narrowed read leaks into other scans of the same DataFrame, which return wrong rows.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options, self._present = located(parsed(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType | str:
        """Return the columns of the view. Raises `SourceError` if the moment cannot be read."""
        if self._options.view != CHANGES:  # a stream of them may continue from its checkpoint
            check_pinned(self._options, self._present)
            pin(self._options, self._present)
        return schema_of(self._options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        check_none_of(self._options.texts, FOR_STREAMS, "for a stream, without effect in a batch")
        check_pinned(self._options, self._present)
        columns, pinned = Schema(schema, self._options), pin(self._options, self._present)
        return BatchReader(self._options.location, columns, partial(planned, self._options, pinned))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream of changes."""
        if self._options.view != CHANGES:
            raise SourceError(errors.MISSING_OPTION, "a stream needs readChangeFeed=true")
        return ChangesReader(self._options, Schema(schema, self._options))
