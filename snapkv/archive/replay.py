"""The changes in an archive, revision by revision, as a watch of an engine would bring them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import groupby, repeat

import pyarrow.compute as pc

from snapkv.archive.manifest import File, Manifest
from snapkv.archive.marks import Marks
from snapkv.archive.opened import OpenFiles
from snapkv.archive.state import joined
from snapkv.engine.contract import Event, KeyValue, WatchBatch, in_range


def batches(
    opened: OpenFiles, marks: Marks, ts: bytes, manifest: Manifest, key: bytes, end: bytes, low: int
) -> Iterator[WatchBatch]:
    """Yield the events of a range from revision `low` on; one delta is in memory at a time.

    Of the first known revision only the keys are known that it set, as of an engine's compaction.
    """
    wanted = key, end or key + b"\0"
    files = [delta for delta in manifest.of_kind("delta") if delta.high >= low]
    if low == manifest.since:
        files = [base for base in manifest.of_kind("base") if base.high == low] + files
    for high, parts in groupby(files, key=lambda file: file.high):
        several = list(parts)
        first = max(low, several[0].low)
        changes = _changes(opened, several, *wanted, first)
        if in_range(ts, key, end):
            stamps = (Event(kv, False) for kv in marks.between(manifest, first, high))
            changes = merge(changes, stamps, key=_place)
        for revision, events in groupby(changes, key=lambda event: event.kv.mod_revision):
            yield WatchBatch(revision, tuple(events))


def _place(event: Event) -> tuple[int, bytes]:
    return event.kv.mod_revision, event.kv.key


def _changes(
    opened: OpenFiles, files: list[File], key: bytes, end: bytes, low: int
) -> Iterator[Event]:
    """Yield the events of a delta, or of the parts of a base, sorted by revision and key."""
    parts = [rows for file in files for rows in opened.within(file, key, end)]
    if not parts:
        return
    rows = joined(parts)
    table = rows.table.append_column("stored", rows.stored)
    table = table.filter(pc.greater_equal(table["revision"], low))
    order = pc.sort_indices(table, sort_keys=[("revision", "ascending"), ("stored", "ascending")])
    names = ("stored", "value", "created", "revision", "version")
    for batch in table.take(order).to_batches(max_chunksize=1_000):
        columns = [batch[name].to_pylist() for name in names]
        deleted = batch["deleted"].to_pylist() if "deleted" in table.column_names else repeat(False)
        for stored, value, created, revision, version, gone in zip(*columns, deleted, strict=False):
            if gone:
                yield Event(KeyValue(stored, b"", 0, revision, 0), True)
            else:
                yield Event(KeyValue(stored, value, created, revision, version), False)
