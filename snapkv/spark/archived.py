"""Tasks for what commits changed: from the files of an archive where it has them, else live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from snapkv.archive.changes import Changed
from snapkv.archive.engine import ArchiveEngine
from snapkv.archive.joined import JoinedEngine, archive_of
from snapkv.archive.manifest import File
from snapkv.engine.arrow import BATCH_BYTES, BATCH_ROWS
from snapkv.engine.contract import Engine
from snapkv.layout import Mark
from snapkv.reading import arrow, tables
from snapkv.reading.arrow import Arrays
from snapkv.reading.reader import Reader
from snapkv.reading.tables import Span
from snapkv.spark.pinned import Commits, mark_at
from snapkv.spark.tasks import ChangesTask, Columns, Task, cut_commits

TASK_ROWS = 50_000
"""Fewer archived changes than this are not worth a task of their own."""
LIVE_ROWS = 5_000
"""So few changes are read from the live engine if it still has them: an archive may be far away."""


def changes_tasks(
    reader: Reader, commits: Commits, span: Span, parts: int, *, preimages: bool, deletes: bool
) -> list[Task]:
    """Return tasks for what some commits changed, in the order of commits.

    The values before come from `ChangesTask` only, because that reads them key by key.
    """
    old = [] if preimages else _archived(reader, commits, parts)
    tasks: list[Task] = [ArchivedTask(part, span, deletes) for part in old]
    low = old[-1].high if old else commits.low
    rest = cut_commits(reader, commits.between(low, commits.high), parts)
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
        for found in archive.changes(self.span.start, self.span.end, low + 1, high):
            if found.exact:
                yield from _arrays(found, self.span, self.deletes)
            else:  # another program wrote between two commits
                ends = (self._mark(reader, end) for end in (found.low - 1, found.high))
                yield from tables.changes(
                    reader, self.span, *ends, preimages=False, deletes=self.deletes
                )

    def _mark(self, reader: Reader, revision: int) -> Mark:
        known = (mark for mark in (self.commits.low, self.commits.high))
        return next((m for m in known if m.revision == revision), None) or mark_at(reader, revision)


def _arrays(found: Changed, span: Span, deletes: bool) -> Iterator[Arrays]:
    """Yield changes as columns of `arrow.CHANGES`, a batch at a time."""
    stored, table = found.rows
    if not table.num_rows:
        return
    revisions, deleted = (table[name].combine_chunks() for name in ("revision", "deleted"))
    created = pc.equal(table["version"].combine_chunks(), 1)
    kinds = pc.if_else(created, tables.INSERT, tables.UPDATE_AFTER)
    numbers = revisions.to_numpy()
    places = pc.cumulative_sum(pa.repeat(1, len(numbers))).to_numpy() - 1
    whole = pa.table(
        {
            "key": stored,
            "value": pc.if_else(
                deleted, pa.scalar(None, pa.binary()), table["value"].combine_chunks()
            ),
            "_change_type": pc.if_else(deleted, tables.DELETE, kinds),
            "_commit_version": revisions,
            "_change_ordinal": pa.array(places - numbers.searchsorted(numbers), pa.int32()),
            "_commit_timestamp": table["time"].combine_chunks(),
        }
    )
    if not deletes:
        whole = whole.filter(pc.invert(deleted))
    for at, rows in _slices(whole):
        part = {name: whole[name].slice(at, rows).combine_chunks() for name in whole.column_names}
        yield part | {"key": arrow.keys(part["key"], span.space, text=span.text)}


def _slices(whole: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield where the batches of a table begin, and how many rows they have."""
    each = min(BATCH_ROWS, max(1, BATCH_BYTES * whole.num_rows // max(1, whole.nbytes)))
    for at in range(0, whole.num_rows, each):
        yield at, min(each, whole.num_rows - at)
