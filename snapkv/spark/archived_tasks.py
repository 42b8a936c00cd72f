"""Tasks for what commits changed: from the files of an archive where it has them, else live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from snapkv.archive.engine import ArchiveEngine
from snapkv.archive.live_and_archive import JoinedEngine, archive_of
from snapkv.archive.manifest import File
from snapkv.archive.state_rows import changes_of
from snapkv.engine.contract import Engine
from snapkv.layout import Mark
from snapkv.reading import tables
from snapkv.reading.arrow import Arrays
from snapkv.reading.change_tables import columns_of
from snapkv.reading.reader import Reader
from snapkv.reading.spans import Span
from snapkv.spark.cuts import cut_commits
from snapkv.spark.options import Options
from snapkv.spark.pinned import Commits, mark_at
from snapkv.spark.tasks import ChangesTask, Columns, Task

TASK_ROWS = 50_000
"""Fewer archived changes than this are not worth a task of their own."""
LIVE_ROWS = 5_000
"""So few changes are read from the live engine if it still has them: an archive may be far away."""


def changes_tasks(reader: Reader, options: Options, span: Span, commits: Commits) -> list[Task]:
    """Return tasks for what some commits changed, in the order of commits.

    The values before come from `ChangesTask` only, because that reads them key by key.
    """
    preimages, deletes = options.flag("preimages"), not options.flag("ignoreDeletes")
    parts, exactly = options.partitions, options.count("numPartitions") is not None
    old = [] if preimages else _archived(reader, commits, parts)
    tasks: list[Task] = [ArchivedTask(part, span, deletes) for part in old]
    low = old[-1].high if old else commits.low
    live = commits.between(low, commits.high)
    rest = cut_commits(reader, span, live, parts, exactly=exactly and not old)
    return tasks + [ChangesTask(part, span, preimages, deletes) for part in rest]


def _archived(reader: Reader, commits: Commits, parts: int) -> list[Commits]:
    """Return the commits that are read from the archive, cut between its files."""
    archive = archive_of(reader.engine)
    low, high = commits.low.revision, commits.high.revision
    if archive is None or low < archive.manifest.since:
        return []
    files = [file for file in archive.manifest.of_kind("delta") if low < file.high]
    files = [file for file in files if file.low <= high]
    rows = sum(file.rows for file in files)
    if not files or (rows < LIVE_ROWS and _is_live(reader.engine, low)):
        return []
    ends = _ends(files, min(parts, max(1, rows // TASK_ROWS)))
    marks = [mark_at(reader, end) for end in ends if end < high]
    last = commits.high if files[-1].high >= high else mark_at(reader, files[-1].high)
    return [commits.between(a, b) for a, b in pairwise([commits.low, *marks, last])]


def _is_live(engine: Engine, revision: int) -> bool:
    """Return whether a live engine still has the changes after a revision."""
    return isinstance(engine, JoinedEngine) and revision >= engine.live.compacted_revision()


def _ends(files: Sequence[File], parts: int) -> list[int]:
    """Return after which revisions to cut files into parts of about as many rows."""
    total, before = sum(file.rows for file in files), 0
    ends: list[int] = []
    for file in files[:-1]:
        before += file.rows
        if before * parts >= (len(ends) + 1) * total:
            ends.append(file.high)
    return ends


@dataclass(frozen=True)
class ArchivedTask(Task):
    """What some commits changed, read from the files of an archive as columns."""

    commits: Commits
    span: Span
    deletes: bool

    def read(self, reader: Reader, columns: Columns) -> Iterator[Arrays]:
        """Yield the columns of changes in commit order; one delta is in memory at a time."""
        archive = archive_of(reader.engine)
        assert isinstance(archive, ArchiveEngine), "the location of this task has an archive"
        low, high = self.commits.low.revision, self.commits.high.revision
        for found in archive.delta_changes(self.span.start, self.span.end, low + 1, high):
            if not found.exact:  # another program wrote between two commits
                ends = (self._mark(reader, end) for end in (found.low - 1, found.high))
                yield from tables.changes(
                    reader, self.span, *ends, preimages=False, deletes=self.deletes
                )
            elif found.rows.table.num_rows:
                times = found.rows.table["time"].combine_chunks()
                part = changes_of(found.rows, keys_only=not columns.needs_value)
                yield from columns_of(part, times, self.span, preimages=False, deletes=self.deletes)

    def _mark(self, reader: Reader, revision: int) -> Mark:
        known = (mark for mark in (self.commits.low, self.commits.high))
        return next((m for m in known if m.revision == revision), None) or mark_at(reader, revision)
