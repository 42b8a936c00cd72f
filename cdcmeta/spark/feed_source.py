"""The format `cdcmeta.changes`: the feed of a database, as a DataFrame or a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.spark.document_sink import DocumentBatchSink, DocumentStreamSink, document_options
from cdcmeta.spark.feed_options import FORMAT, NOW, FeedOptions, parsed
from cdcmeta.spark.feed_stream import FeedStream
from cdcmeta.spark.feed_tasks import SCHEMA, Shape, feed_of, split_feed
from snapkv.errors import another
from snapkv.spark import source_kit as kit

# --- reading a batch: the driver pins what it shows, and cuts it into tasks ---


@dataclass(frozen=True, slots=True)
class PinnedFeed:
    """The changes in (after, until] of the feed at a moment."""

    commits: kit.PinnedCommits
    after: Seq
    until: Seq


def pin(options: FeedOptions, present: kit.Present) -> PinnedFeed:
    """Pin what a batch shows: the same for the same present. Raises `SourceError`."""
    reader = kit.verified_reader(options.location, present.store, present.head)
    commits = kit.moment_of(reader, options, present)
    with kit.as_source_errors():
        state = feed_of(options).state(reader, commits)
        after = options.place_in(state, "since", "0", present.now_ms)
        until = state.end
        if "until" in options.texts:
            asked = options.place_in(state, "until", NOW, present.now_ms)
            if asked < after:
                raise kit.errors.INVALID_RANGE(f"{kit.BACKWARDS}: {after} to {asked}")
            until = min(until, asked)
    return PinnedFeed(commits, after, until)


def planned(options: FeedOptions, pinned: PinnedFeed) -> Sequence[kit.Task]:
    """Return the tasks that read the pinned changes. Raises `SourceError`."""
    commits = pinned.commits
    reader = kit.verified_reader(options.location, commits.store, commits.high)
    with kit.as_source_errors():
        held = commits.held(reader)
        feed = feed_of(options)
        return split_feed(reader, feed, held, pinned.after, pinned.until, options.partitions)


# --- source ---


class ChangesDataSource(DataSource):
    """A database's feed at a moment, or as a stream; a row for each document.

    What it shows is pinned here, when the DataFrame is made, as in `snapkv.spark`: all actions
    share it, and filters are not pushed down.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._located: tuple[FeedOptions, kit.Present] | kit.SourceError
        try:  # Spark makes a source for a sink, too, which has other options
            self._located = kit.located(parsed(options))
        except kit.SourceError as e:
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
        return kit.BatchReader(options.location, shape, partial(planned, options, pinned))

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
        kit.check_of_stream(options)
        return DocumentStreamSink(schema, options)

    def _read(self) -> tuple[FeedOptions, kit.Present]:
        if isinstance(self._located, kit.SourceError):
            raise another(self._located)
        return self._located
