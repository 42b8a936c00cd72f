"""A worker's part of the feed at a pinned revision, and how the feed is cut into parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import space_of
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.changes.feed import Change, Form, shaped
from cdcmeta.changes.sequence import Sequence
from cdcmeta.spark.feed_options import FeedOptions, converted
from snapkv import Snapshot
from snapkv.spark import source_kit as kit

# --- converts changes to batches of exactly the schema that Spark expects ---

SCHEMA = T.StructType(
    [
        T.StructField("seq", T.StringType()),
        T.StructField("id", T.StringType()),
        T.StructField("rev", T.StringType()),
        T.StructField("revs", T.ArrayType(T.StringType())),
        T.StructField("deleted", T.BooleanType()),
        T.StructField("doc", T.StringType()),
        T.StructField("_commit_timestamp", T.TimestampType()),
    ]
)
COLUMNS = kit.arrow_schema(SCHEMA)
CELLS = pa.schema(
    [
        COLUMNS.field(name)
        for name in ("id", "doc", "seq", "rev", "revs", "deleted", "_commit_timestamp")
    ]
)
"""The same columns in the order of a row's cells: the one that may be large is second."""


class Shape(kit.BatchSchema):
    """The columns of a DataFrame: all columns of the feed, or the columns that a schema names.

    Raises `SourceError` for a schema with unknown columns.
    """

    def __init__(self, schema: T.StructType) -> None:
        super().__init__(schema)
        self.needs_value = "doc" in self.names  # documents
        for field in self.arrow:
            if field.name not in COLUMNS.names or COLUMNS.field(field.name).type != field.type:
                raise kit.mismatch(field, COLUMNS)


# --- tasks ---

PIECE_ROWS = 4_000
"""The rows of the feed that make a range: each row may cost a document, too."""

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Keeps `_id` and `_rev` first."""


@dataclass(frozen=True, slots=True)
class TaskFeed:
    """The feed of one database: its name, space and form, as a plain value."""

    name: str
    space: kit.Keyspace
    form: Form

    def state(self, reader: kit.Reader, commits: kit.PinnedCommits) -> DatabaseState:
        """Return the database at a pinned moment; one round trip. Raises `SourceError`."""
        source = commits.moment(reader)
        with converted():
            return DatabaseState(Snapshot(source, self.space), self.name)


def feed_of(options: FeedOptions) -> TaskFeed:
    """Return the feed that options name."""
    space = kit.Layout(options.location.name).space(space_of(options.database))
    return TaskFeed(options.database, space, options.form)


@dataclass(frozen=True)
class FeedTask(kit.Task):
    """Some ranges of the index at one moment."""

    commits: kit.PinnedCommits
    feed: TaskFeed
    ranges: tuple[tuple[bytes, bytes], ...]

    def read(self, reader: kit.Reader, wanted: kit.BatchSchema) -> Iterator[kit.Arrays]:
        """Yield the columns of changes, in the order of the feed."""
        feed = self.feed
        form = replace(feed.form, include_docs=feed.form.include_docs and wanted.needs_value)
        state = feed.state(reader, self.commits)
        rows = chain.from_iterable(state.rows_between(*each) for each in self.ranges)
        changes = (change for _, change in shaped(state, form, rows) if change is not None)
        for some in kit.arrow.batches(map(_cells, changes)):
            yield kit.arrow.columns(some, CELLS, None)


def _cells(change: Change) -> tuple[Any, ...]:
    doc = None if change.doc is None else _JSON.encode(change.doc)
    seq = change.seq
    return change.id, doc, str(seq), change.rev, change.revs, change.deleted, seq.timestamp


def split_feed(
    reader: kit.Reader,
    feed: TaskFeed,
    commits: kit.PinnedCommits,
    after: Sequence,
    until: Sequence,
    tasks: int,
) -> list[kit.Task]:
    """Return the tasks that read the changes in (after, until] at a readable moment."""
    if until <= after:
        return []
    start, end = (feed.space.encode(layout.key_after(place)) for place in (after, until))
    span = kit.KeyRange(feed.space, start, end, text=False)
    groups = kit.cut_keys(reader, span, commits.reading, tasks, PIECE_ROWS)
    decode = feed.space.decode
    return [
        FeedTask(commits, feed, tuple((decode(p.key), decode(p.range_end)) for p in group))
        for group in groups
    ]
