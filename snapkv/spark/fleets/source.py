"""The format `snapkv` with the option `fleet`."""

from __future__ import annotations

from functools import partial

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from snapkv.clock import SystemClock
from snapkv.errors import another
from snapkv.spark import errors
from snapkv.spark.connect import check_fleet_pinned
from snapkv.spark.errors import SourceError
from snapkv.spark.fleets.pinned import Cut, cut_of, described
from snapkv.spark.fleets.planning import planned
from snapkv.spark.fleets.stream import FleetStream
from snapkv.spark.fleets.tasks import FleetReader
from snapkv.spark.options import CHANGES, COMMITS, FOR_STREAMS, Options
from snapkv.spark.schema import Schema, schema_of
from snapkv.spark.source_options import check_none_of


class FleetSource:
    """A fleet whose members, and one cut of them, are pinned when it is made; can be pickled.

    Raises `SourceError`.
    """

    def __init__(self, options: Options) -> None:
        now_ms = SystemClock().now_ms()
        self.options, self._now_ms = options, now_ms
        self._members = described(options, now_ms)
        self._cut: Cut | SourceError
        if options.view != CHANGES:
            self._check_pinned()
        try:
            self._cut = cut_of(options, self._members, now_ms)
        except SourceError as e:
            if options.view != CHANGES:  # a stream of them may wait for members
                raise
            self._cut = e

    def schema(self) -> StructType | str:
        """Return the columns of the view, with the member before."""
        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        options = self.options
        check_none_of(options.texts, FOR_STREAMS, "for a stream, without effect in a batch")
        if options.view == CHANGES and options.text("startingTimestamp") is None:
            raise SourceError(errors.NO_START, "changes of a fleet need startingTimestamp")
        if options.view != COMMITS:
            check_none_of(options.texts, ("startingVersion",), "for a stream, and for view=commits")
        return FleetReader(Schema(schema, options), partial(planned, options, self._pinned()))

    def stream(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream of changes."""
        return FleetStream(self.options, self._members, Schema(schema, self.options))

    def _pinned(self) -> Cut:
        self._check_pinned()
        if isinstance(self._cut, SourceError):
            raise another(self._cut)
        return self._cut

    def _check_pinned(self) -> None:
        observed = sum(member.prefix is not None for member in self._members)
        check_fleet_pinned(self.options, observed, self._now_ms)
