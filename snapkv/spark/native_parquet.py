"""The files of an archive, read by Spark's own Parquet reader where that is the fastest way.

What is read is decided when the DataFrame is made: the files of one manifest, and a revision.
Rows, columns and types are the same as in the format `snapkv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from snapkv.archive.engine import ArchiveEngine
from snapkv.archive.live_and_archive import archive_of
from snapkv.archive.manifest import File
from snapkv.errors import CompactedError, HistoryGapError
from snapkv.reading import change_tables
from snapkv.reading.arrow import KeyRange
from snapkv.reading.reader import Reader
from snapkv.reading.tables import first_known
from snapkv.spark import errors
from snapkv.spark.errors import as_source_errors
from snapkv.spark.pinned_commits import PinnedCommits, moment_of, present_in, range_of
from snapkv.spark.read_options import ReadOptions, span_of
from snapkv.spark.schema import schema_of
from snapkv.spark.value_formats import BYTES, FORMATS, MODES, PERMISSIVE, UTF8
from snapkv.store.open import open_to_read

BASE = (
    "space STRING, key BINARY, value BINARY, revision BIGINT, created BIGINT, version BIGINT, "
    "time TIMESTAMP"
)
DELTA = f"{BASE}, deleted BOOLEAN, change_ordinal INT"
FILES_MAX = 32
"""The most files that Spark's own reader takes over: Spark lists more files by a job of its own,
which is slow."""
DELTA_SHARE = 20
"""The least rows of a base for each row of the deltas that are joined with it; with fewer, workers
merge."""
TIMED, ORDINAL = "mod_timestamp", "_change_ordinal"


@dataclass(frozen=True, slots=True)
class NativePlan:
    """Files of an archive, and which of their rows are wanted: revisions in (low, high]."""

    root: str
    base: Sequence[File]
    deltas: Sequence[File]
    low: int
    high: int
    span: KeyRange
    space: str
    first_known: int

    def read(self, spark: SparkSession, files: Sequence[File], schema: str) -> DataFrame:
        """Return the wanted rows of some files; filters skip row groups by their statistics."""
        reader = spark.read.schema(schema).options(
            **{"__globPaths__": "false", "parquet.page.verify-checksum.enabled": "true"}
        )
        frame = reader.parquet(*(f"{self.root}/{file.path}" for file in files))
        frame = frame.where(F.col("space") == self.space)
        first, beyond = self.bounds
        if first is not None:
            frame = frame.where(F.col("key") >= F.lit(first))
        if beyond is not None:
            frame = frame.where(F.col("key") < F.lit(beyond))
        return frame

    @property
    def bounds(self) -> tuple[bytes | None, bytes | None]:
        """Return the first key that is wanted, and the one beyond the last; None for the ends."""
        prefix = self.span.space.prefix
        ends_inside = self.span.end.startswith(prefix)
        return (
            self.span.start[len(prefix) :] or None,
            self.span.end[len(prefix) :] if ends_inside else None,
        )

    def changes(self, spark: SparkSession) -> DataFrame:
        """Return the wanted rows of the deltas."""
        revision = F.col("revision")
        wanted = (revision > self.low) & (revision <= self.high)
        return self.read(spark, self.deltas, DELTA).where(wanted)

    def state(self, spark: SparkSession) -> DataFrame:
        """Return the rows in force: rows of the base without a change since, and new ones.

        A change supersedes the row of the base also where it removes the key. So the anti-join
        has the keys of all changes: with keys of living rows only, removed keys would come back.
        """
        base = self.read(spark, self.base, BASE)
        if not self.deltas:
            return base
        changes = self.changes(spark)
        names = [name for name in changes.columns if name != "key"]
        last = F.max_by(F.struct(*names), "revision").alias("last")
        newest = changes.groupBy("key").agg(last).select("key", "last.*")
        left = base.join(changes.select("key"), "key", "left_anti")
        living = newest.where(~F.col("deleted"))
        return left.select(base.columns).unionAll(living.select(base.columns))


# --- what the calls return ---


def snapshot(spark: SparkSession, options: ReadOptions, *, forced: bool) -> DataFrame | None:
    """Return the rows of a moment from the archive's files; None if the format is to read it.

    Raises `SourceError` as the format does.
    """
    schema = _schema(options, forced)
    if schema is None:
        return None
    with as_source_errors(), open_to_read(options.location) as opened:
        reader, archive = opened.reader, archive_of(opened.reader.engine)
        timed = TIMED in schema.names
        if archive is None or (timed and archive is not reader.engine):  # live has older times
            return None
        options = _named(options, reader)
        commits = moment_of(reader, options, present_in(reader))
        plan = _plan(reader, archive, options, commits, None)
    if plan is None or not (forced or _is_fast(plan)):
        return None
    columns = {
        "key": _key(options),
        "value": _value(options),
        "create_version": F.col("created"),
        "mod_version": F.col("revision"),
        "key_version": F.col("version"),
        TIMED: F.when(F.col("revision") >= plan.first_known, F.col("time")),
    }
    return plan.state(spark).select(*(columns[name].alias(name) for name in schema.names))


def changes(spark: SparkSession, options: ReadOptions, *, forced: bool) -> DataFrame | None:
    """Return changes from the archive's files; None if the format is to read them.

    That is so for `preimages`, for what other programs wrote, and with the column `_change_ordinal`
    of the keys with a prefix: the files number the changes of all keys. Raises `SourceError`.
    """
    schema = _schema(options, forced)
    if schema is None or options.flag("preimages"):
        return None
    with as_source_errors(), open_to_read(options.location) as opened:
        reader, archive = opened.reader, archive_of(opened.reader.engine)
        if archive is None:
            return None
        options = _named(options, reader)
        commits = range_of(reader, options, present_in(reader))
        plan = _plan(reader, archive, options, commits, commits.low.revision)
        if plan is None or not archive.is_exact(plan.low + 1, plan.high):
            return None
        if ORDINAL in schema.names and plan.bounds != (None, None):
            return None
    deleted = F.col("deleted")
    kind = F.when(F.col("version") == 1, change_tables.INSERT).when(
        deleted.isNotNull(), change_tables.UPDATE_AFTER
    )
    columns = {
        "key": _key(options),
        "value": F.when(~deleted, _value(options)),
        "_change_type": F.when(deleted, change_tables.DELETE).otherwise(kind),
        "_commit_version": F.col("revision"),
        "_commit_timestamp": F.col("time"),
        ORDINAL: F.col("change_ordinal"),
    }
    frame = plan.changes(spark)
    if options.flag("ignoreDeletes"):
        frame = frame.where(~deleted)
    return frame.select(*(columns[name].alias(name) for name in schema.names))


# --- planning ---


def _schema(options: ReadOptions, forced: bool) -> StructType | None:
    """Return the columns that are asked for; None if Spark's reader cannot fill them."""
    where = options.location
    url = where.archive or where.url.removeprefix("archive:")
    if where.archive is None and not where.url.startswith("archive:"):
        return None
    if "://" in url and not forced:  # Spark needs libraries for object stores
        return None
    plain = options.choice("valueFormat", *FORMATS) in (BYTES, UTF8)
    if where.prefix is not None or options.text("schema") is not None or not plain:
        return None
    found = schema_of(options)
    return found if isinstance(found, StructType) else None


def _named(options: ReadOptions, reader: Reader) -> ReadOptions:
    return replace(options, location=replace(options.location, name=reader.layout.name))


def _plan(
    reader: Reader,
    archive: ArchiveEngine,
    options: ReadOptions,
    commits: PinnedCommits,
    low: int | None,
) -> NativePlan | None:
    """Return the files for a moment, or for changes after `low`; None if they are not archived."""
    high = commits.high.revision
    if high > archive.manifest.high:
        archive.refresh()
    if not archive.manifest.since <= (high if low is None else low) <= high:
        return None
    if high > archive.manifest.high:
        return None
    span = span_of(options)
    try:
        base, deltas = archive.files_at(high) if low is None else ([], archive.deltas(low, high))
    except (CompactedError, HistoryGapError):  # the live engine still has what is in a gap
        return None
    pruned = [
        [f for f in files if f.rows and f.last_key >= span.start and f.first_key < span.end]
        for files in (base, deltas)
    ]
    known = first_known(reader, reader.timeline.oldest())
    space = options.location.space or ""
    after = base[0].high if low is None else low
    # Spark reads no empty list: keep one file of a kind even if it has no such key
    first, second = pruned[0] or base[:1], pruned[1] or (deltas[:1] if low is not None else [])
    if not first and not second:
        return None
    return NativePlan(_root(archive.url), first, second, after, high, span, space, known)


def _is_fast(plan: NativePlan) -> bool:
    """Return whether Spark's reader is faster than workers that merge; measured, see the docs."""
    base, deltas = (sum(file.rows for file in files) for files in (plan.base, plan.deltas))
    few = len(plan.base) + len(plan.deltas) <= FILES_MAX
    return few and deltas * DELTA_SHARE <= base


def _root(url: str) -> str:
    """Return the URL of an archive as Hadoop writes it."""
    scheme, remote, rest = url.partition("://")
    if not remote:
        return f"file:{url}"
    return f"s3a://{rest}" if scheme == "s3" else url


# --- columns ---


def _key(options: ReadOptions) -> Column:
    if not span_of(options).text:
        return F.col("key")
    advice = "is not valid UTF-8; keyFormat=binary reads such keys"
    return F.coalesce(_text("key"), _failed(errors.KEY_NOT_TEXT, f"a key {advice}: "))


def _value(options: ReadOptions) -> Column:
    if options.choice("valueFormat", *FORMATS) != UTF8:
        return F.col("value")
    text = _text("value")
    if options.choice("mode", *MODES) == PERMISSIVE:
        return text
    broken = F.col("value").isNotNull() & text.isNull()
    failed = _failed(errors.VALUE_MALFORMED, "the value is not UTF-8 of the key with the bytes ")
    return F.when(broken, failed).otherwise(text)


def _text(name: str) -> Column:
    """Return bytes as text, NULL where they are not valid UTF-8."""
    return F.expr(f"try_validate_utf8(cast({name} as string))")


def _failed(code: str, message: str) -> Column:
    message = F.concat(F.lit(f"[{code}] {message}"), F.hex("key"))
    return F.raise_error(message).cast("string")
