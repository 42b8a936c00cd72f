"""Ranges of a CDC log as tables: a row is a log row.

The ring of tokens is divided into equal ranges, and a log row belongs to the range of its key's
token. So all rows of a key are in one table, whichever streams its generations give it to. Rows
come in the order of their commits, so a table reads a generation to its end before the next one.
For example, with two ranges:

    commit 7, generation 1   rows of the tokens -5 and 8      -> -5 to "users:0/2", 8 to "users:1/2"
    commit 9, generation 2   a row of the token 8             -> "users:1/2", after the rows of 7

A feed begins with the rows that are stored, which need no history: writer and note of their commits
are unknown. It reads them once for all tables, and then watches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from cdcmeta.errors import LogTrimmedError
from cdcmeta.generations.consumer import rows_between
from cdcmeta.generations.log_rows import ROW_PREFIX, SLOTS, LogRow, row_of, trimmed_at, upgrade
from cdcmeta.generations.tokens import murmur3_token
from cdcmeta.scheduler.executors.contracts import Part, TableSource
from snapkv import Change, Changes, Commit, CompactedError, Snapshot, SnapshotKV, Space, Watch

ROWS_AT_ONCE = 1_000
TOKEN_BITS = 64
ESCAPE = "~"


@dataclass(frozen=True, slots=True)
class LogChange(Change[str]):
    """A log row as a change: its key as text, its value, and the row."""

    row: LogRow


def range_of(key: bytes, ranges: int) -> int:
    """Return the range of a key's token, counted from 0.

    >>> [range_of(key, 4) for key in (b"users", b"orders")]
    [0, 3]
    """
    return (murmur3_token(key) + (1 << TOKEN_BITS - 1)) * ranges >> TOKEN_BITS


def text_of(key: bytes) -> str:
    """Return a key as text; bytes that are not UTF-8 as `~` and hexadecimal digits.

    >>> [text_of(key) for key in (b"users", bytes([255]), b"~a")]
    ['users', '~ff', '~~a']
    """
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return ESCAPE + key.hex()
    return ESCAPE + text if text.startswith(ESCAPE) else text


class LogFeed:
    """The log rows after a time, split among the ranges: stored rows, then new rows."""

    def __init__(self, source: CdcLogSource, space: Space, since: int | None) -> None:
        self._source, self._space = source, space
        self._watch: Watch[bytes] | None = None
        self._stored: Iterator[Changes[str]] = iter(())
        self._closed = False
        self._until = 0
        self.timestamp = 0
        """The time up to which all commits were returned."""
        if since is None:
            self._watch = space.watch(ROW_PREFIX)
            self.timestamp = self._watch.timestamp
        else:
            self._read_stored(since)

    def next(self, timeout: float) -> dict[str, Part] | None:
        """Return each range's rows of the next commit; None if none comes in time."""
        for changes in self._stored:
            self.timestamp = changes.commit.ts
            return self._source.split(changes)
        if self._watch is None:
            self._follow()
        assert self._watch is not None
        try:
            found = self._watch.next(timeout)
        except CompactedError:
            self._watch.close()
            self._read_stored(self.timestamp)
            return {}
        self.timestamp = max(self.timestamp, self._watch.timestamp)
        return None if found is None else self._source.split(_logged(found))

    def close(self) -> None:
        """End the watch; any thread may call it."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()

    def _read_stored(self, since: int) -> None:
        """Continue with the rows that the log has. Raises `LogTrimmedError`."""
        upgrade(self._space)
        snapshot = self._space.at()
        self._source.check_trimmed(snapshot, since)
        trimmed = max(trimmed_at(snapshot).values(), default=0)
        self._watch, self.timestamp = None, max(since, trimmed)
        self._until = snapshot.timestamp
        self._stored = self._rows()

    def _rows(self) -> Iterator[Changes[str]]:
        """Yield the commits of the stored rows, a window at a time. Raises `LogTrimmedError`."""
        since, until = self.timestamp, self._until
        while since < until:
            snapshot = self._space.at()
            self._source.check_trimmed(snapshot, since)
            rows, since = rows_between(snapshot, range(SLOTS), since, until, ROWS_AT_ONCE)
            for ts, some in groupby(rows, key=lambda row: row.timestamp):
                yield _as_changes(Commit(ts, 0, snapshot.revision, None), some)

    def _follow(self) -> None:
        """Watch what is newer than the stored rows that were read."""
        self.timestamp = self._until
        self._watch = self._space.watch(ROW_PREFIX, self._until)
        if self._closed:
            self._watch.close()


class CdcLogSource(TableSource):
    """Reads a CDC log; the tables, in order, are equal parts of the ring.

    `reader` names who reads in errors.
    """

    def __init__(self, store: SnapshotKV, log: str, tables: Sequence[str], reader: str) -> None:
        self._store, self.log, self.reader = store, log, reader
        self._space = store.space(f"cdc/{log}")
        self._tables = tuple(tables)

    def feed(self, since: int | None) -> LogFeed:
        """Return the commits after a timestamp; after 0 it is all that the log has."""
        return LogFeed(self, self._space, since)

    def check_trimmed(self, snapshot: Snapshot[bytes], since: int) -> None:
        """Raise `LogTrimmedError` if rows after a time were removed; after 0 none are missed."""
        trimmed = max(trimmed_at(snapshot).values(), default=0)
        if 0 < since < trimmed:
            mend = "create another changefeed"
            raise LogTrimmedError(self.reader, self.log, since, trimmed, mend)

    def split(self, changes: Changes[str]) -> dict[str, Part]:
        """Return the part of each table in a commit. O(rows)."""
        parts: dict[str, list[Change[str]]] = {}
        for change in changes.changes:
            assert isinstance(change, LogChange)
            name = self._tables[range_of(change.row.key, len(self._tables))]
            parts.setdefault(name, []).append(change)
        return {name: Changes(changes.commit, tuple(part)) for name, part in parts.items()}


def _logged(changes: Changes[bytes]) -> Changes[str]:
    """Return the rows that a commit has logged, not those removed, or moved from older keys."""
    rows = [row_of(each.key, each.value) for each in changes.changes if each.value is not None]
    return _as_changes(changes.commit, (row for row in rows if row.timestamp == changes.commit.ts))


def _as_changes(commit: Commit, rows: Iterable[LogRow]) -> Changes[str]:
    ordered = sorted(rows)
    return Changes(
        commit, tuple(LogChange(text_of(row.key), row.value, commit, row) for row in ordered)
    )
