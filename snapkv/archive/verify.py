"""The verification of an archive: each file, compared with the manifest and the log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapkv.archive.data_files import KeyedRows, OpenFiles
from snapkv.archive.engine import moved_since
from snapkv.archive.folder import Files
from snapkv.archive.manifest import File, Manifest, existing, resolved
from snapkv.archive.rows import BASE, Keys
from snapkv.archive.state_rows import base_parts, chunks, joined, key_order, latest, merged
from snapkv.engine.contract import ALL_KEYS_END
from snapkv.errors import ArchiveError, CorruptStoreError, FileMissingError
from snapkv.layout import FIRST_KEY, Layout, StampRecord
from snapkv.times import format_time

CACHE_BYTES = 16 << 20
PART_BYTES = 8 << 20
"""The most bytes of a file that are read at once for its digest."""
PIECE_ROWS = 200_000
"""The number of rows, about, of two bases and the deltas between them that are compared at once."""
STATE = [*(name for name in BASE.names if name not in ("timestamp", "time")), "deleted"]
"""The columns that are compared: the first base does not have all times."""


class Verified(NamedTuple):
    """What was read of an archive, and what is wrong with it."""

    files: int
    rows: int
    size: int
    problems: tuple[str, ...]


def verify(
    files: Files, progress: Callable[[int, int], None] = lambda done, total: None
) -> Verified:
    """Read an archive whole, and compare: checksums, rows, order, tiling, the log, the bases.

    Each base must be what the base before it and the deltas in between give. `progress` gets the
    number of files that were read, and of all. Reads each file three times; in memory are some
    columns of one delta, or the rows of a range of keys of one delta and of one state.

    Raises `ArchiveError` without a manifest, and what reading raises, except for missing files.
    """
    manifest = existing(files)
    checked = _Verifying(files, manifest)
    checked.newest()
    for done, file in enumerate(manifest.files):
        progress(done, len(manifest.files))
        checked.file(file)
    if not checked.problems:  # damaged files would be reported many times
        checked.log()
        checked.states()
    progress(len(manifest.files), len(manifest.files))
    rows = sum(file.rows for file in manifest.files)
    size = sum(file.size for file in manifest.files)
    return Verified(len(manifest.files), rows, size, tuple(checked.problems))


class _Verifying:
    def __init__(self, files: Files, manifest: Manifest) -> None:
        self._files, self._manifest = files, manifest
        self._files_open = OpenFiles(
            files, Keys(Layout(manifest.source.name)), cache_bytes=CACHE_BYTES
        )
        self.problems: list[str] = []
        self._wrong = self.problems.append
        self._wrong_versions: set[str] = set()

    def newest(self) -> None:
        """Check that no later manifest was lost: an empty file beside each says how far it goes."""
        reached = resolved(self._files)
        if reached > self._manifest.resolved:
            self._wrong(
                f"a manifest is lost that reached {format_time(reached)}: the newest one reaches "
                f"{format_time(self._manifest.resolved)}"
            )

    # --- one file ---

    def file(self, file: File) -> None:
        """Check the bytes of a file, and its rows by themselves."""
        try:
            is_same = self._digest(file) == (file.size, file.sha256)
        except FileMissingError:
            self._wrong(f"{file.path} is missing")
            return
        if not is_same:
            self._wrong(f"{file.path} differs from the {file.size} bytes that the manifest records")
            return
        try:
            for group in self._files_open.groups(file):
                rows = self._files_open.rows(file, group)
                if file.kind != "log":
                    self._group(file, group.first, group.last, rows)
                self._revisions(file, rows.table["revision"])
        except ArchiveError as e:
            self._wrong(str(e))

    def _digest(self, file: File) -> tuple[int, str]:
        """Return how many bytes a file has, and their SHA-256; of a longer one, a part's."""
        size, digest = 0, hashlib.sha256()
        while size <= file.size:
            part = self._files.read_part(file.path, size, PART_BYTES)
            size += len(part)
            digest.update(part)
            if len(part) < PART_BYTES:
                break
        return size, digest.hexdigest()

    def _group(self, file: File, first: bytes, last: bytes, rows: KeyedRows) -> None:
        ends = rows.stored[0].as_py(), rows.stored[-1].as_py()
        if ends != (first, last) or not file.first_key <= first <= last <= file.last_key:
            self._wrong(f"{file.path} has a group of the keys {ends}, which its metadata denies")
        order = key_order(rows).to_numpy()
        if (order[1:] < order[:-1]).any():
            self._wrong(f"{file.path} is not sorted by key and revision")

    def _revisions(self, file: File, revisions: Any) -> None:
        low, high = pc.min_max(revisions).as_py().values()
        if low is not None and (high > file.high or (file.kind == "delta" and low < file.low)):
            self._wrong(f"{file.path} has revisions {low} to {high}, not {file.low} to {file.high}")

    # --- the log ---

    def log(self) -> None:
        """Check that timestamps rise with revisions, and that no ordinal is missing."""
        before: tuple[int, int, int] | None = None
        for revision, timestamp, ordinal, stamp in self._marks():
            mark = revision, timestamp, ordinal
            if before is not None and not (
                revision > before[0] and timestamp > before[1] and ordinal == before[2] + 1
            ):
                self._wrong(f"the log goes from {before} to {mark} (revision, timestamp, ordinal)")
            try:
                if StampRecord.decode(stamp).timestamp != timestamp:
                    self._wrong(f"the log has another timestamp than the commit at {revision}")
            except CorruptStoreError as e:
                self._wrong(f"the log at revision {revision}: {e}")
            before = mark
        manifest = self._manifest
        if before is None or before[:2] != (manifest.high, manifest.resolved):
            self._wrong(f"the log ends with {before}, the manifest with {manifest.resolved}")

    def _marks(self) -> Iterator[tuple[int, int, int, bytes]]:
        names = ("revision", "timestamp", "ordinal", "stamp")
        for file in self._manifest.of_kind("log"):
            for group in self._files_open.groups(file):
                table = self._files_open.rows(file, group).table
                yield from zip(*(table[name].to_pylist() for name in names), strict=True)

    # --- states ---

    def states(self) -> None:
        """Check each base against the one before it, and each delta against the log."""
        low, *bases = sorted({base.high for base in self._manifest.of_kind("base")})
        deltas = self._manifest.of_kind("delta", low + 1)
        observed = self._manifest.source.observed
        self._moved = [] if observed is None else moved_since(self._files_open, self._manifest)
        for delta in deltas:
            self._stamps(delta)
            self._ordinals(delta)
        for high in sorted({*bases, self._manifest.high} - {low}):
            span = [delta for delta in deltas if low < delta.high <= high]
            if self._agrees(low, span, high):
                low = high  # else the next span begins where this one did

    def _agrees(self, low: int, deltas: list[File], high: int) -> bool:
        """Check what changed between two bases; return whether the second is what that gives."""
        parts, next_parts = (base_parts(self._manifest, at) for at in (low, high))
        files = [*parts, *deltas, *next_parts]
        is_base = True
        for start, end, _ in chunks(self._files_open, files, FIRST_KEY, ALL_KEYS_END, PIECE_ROWS):
            found = _living(
                [r for part in parts for r in self._files_open.within(part, start, end)]
            )
            for delta in deltas:
                rows = [
                    each._replace(table=each.table.select(STATE))
                    for each in self._files_open.within(delta, start, end)
                ]
                if rows and delta.path not in self._wrong_versions:
                    self._versions(delta, found, rows)
                found = latest([found, *rows]) if rows else found
            if next_parts:
                wanted = [
                    r for part in next_parts for r in self._files_open.within(part, start, end)
                ]
                is_base = is_base and _same(merged([], [found]), joined(wanted))
        if not is_base:
            self._wrong(f"the base at revision {high} is not what the changes give")
        return is_base

    def _stamps(self, delta: File) -> None:
        """Check that each change has the timestamp of the first commit at or after its revision."""
        logs = self._manifest.of_kind("log", delta.low, delta.high)
        names = ["revision", "timestamp"]
        marks = [self._columns(log, names) for log in logs if log.rows]
        if not delta.rows or not marks:
            return
        table = pa.concat_tables(marks)
        revisions, stamps = (table[name].to_numpy() for name in names)
        own = self._columns(delta, names)
        mine = own["revision"].to_numpy()
        known: Any = np.ones(len(mine), bool)
        for gap in self._manifest.gaps:  # where commits were is not known exactly
            known &= (mine < gap.low) | (mine > gap.high)
        at = revisions.searchsorted(mine[known])
        theirs = own["timestamp"].to_numpy()[known]
        if (at >= len(stamps)).any() or (stamps[at] != theirs).any():
            self._wrong(f"{delta.path} has changes with the times of other commits")

    def _columns(self, file: File, names: list[str]) -> Any:
        """Return columns of a file as a table."""
        return pa.table({name: self._files_open.column(file, name) for name in names})

    def _ordinals(self, delta: File) -> None:
        """Check that the changes of each revision in a space are numbered in the order of keys."""
        if not delta.rows:
            return
        names = ["space", "revision", "change_ordinal"]
        table = self._columns(delta, names)
        spaces = table["space"].combine_chunks().dictionary_encode().indices.to_numpy()
        revisions, ordinals = (table[name].to_numpy() for name in names[1:])
        order = np.lexsort((revisions, spaces))  # stable: rows are sorted by key
        begins: Any = np.ones(len(order), bool)
        for column in (spaces[order], revisions[order]):
            begins[1:] &= column[1:] == column[:-1]
        begins[1:] = ~begins[1:]
        place = np.arange(len(order))
        wanted = place - np.maximum.accumulate(np.where(begins, place, 0))
        if (ordinals[order] != wanted).any():
            self._wrong(f"{delta.path} has changes with wrong ordinals")

    def _versions(self, delta: File, state: KeyedRows, rows: list[KeyedRows]) -> None:
        """Check that versions rise by one from a state on, which has the removed keys, too."""
        gaps = self._manifest.gaps
        if any(gap.low <= delta.high and delta.low <= gap.high for gap in gaps):
            return  # in a gap, changes are missing
        names = ["revision", "version", "created"]
        table = pa.concat_tables(
            each.table.select(names).append_column("stored", each.stored) for each in (state, *rows)
        ).sort_by([("stored", "ascending"), ("revision", "ascending")])
        stored, last = table["stored"].combine_chunks(), len(table) - 1
        revisions, versions, created = (table[name].to_numpy() for name in names)
        known, since = np.zeros_like(versions), revisions.copy()  # 0: removed, or never there
        same = pc.equal(stored.slice(0, last), stored.slice(1)).to_numpy(zero_copy_only=False)
        known[1:][same] = versions[:-1][same]
        since[1:] = np.where(known[1:], created[:-1], revisions[1:])
        wrong = (versions != 0) & ((versions != known + 1) | (created != since))
        wrong &= revisions >= delta.low  # what the state has was checked before
        wrong &= ~np.isin(revisions, self._moved)
        if wrong.any():
            at = int(wrong.argmax())
            self._wrong_versions.add(delta.path)
            self._wrong(
                f"{delta.path} has version {versions[at]} of key {stored[at].as_py()!r} "
                f"at revision {revisions[at]}, after version {known[at]}"
            )


def _living(rows: list[KeyedRows]) -> KeyedRows:
    """Return rows of a base as changes that set their keys."""
    found = joined(rows)
    deleted = pa.repeat(False, found.table.num_rows)
    return KeyedRows(found.stored, found.table.append_column("deleted", deleted).select(STATE))


def _same(a: KeyedRows, b: KeyedRows) -> bool:
    """Compare states, without the times that the first base does not know."""
    names = [name for name in STATE if name != "deleted"]
    return bool(a.stored.equals(b.stored)) and bool(
        a.table.select(names).combine_chunks().equals(b.table.select(names).combine_chunks())
    )
