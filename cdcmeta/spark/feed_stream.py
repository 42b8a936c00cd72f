"""The stream of a feed: a batch is the part between two places, at a pinned revision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from cdcmeta.changes.database_layout import ChangeRow
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.changes.feed import Form
from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.errors import InvalidSequenceError
from cdcmeta.spark import feed_options as codes
from cdcmeta.spark.feed_options import FOR_BATCHES, FeedOptions
from cdcmeta.spark.feed_tasks import Shape, feed_of, split_feed
from snapkv.spark import source_kit as kit
from snapkv.times import physical_ms


@dataclass(frozen=True, slots=True)
class FeedOffset(kit.StreamOffset):
    """All changes up to `seq` were delivered, from the feed at a commit."""

    database: bytes
    seq: Seq

    def fields(self) -> dict[str, Any]:
        """Return the database, and the place in its feed."""
        return {"database": self.database.hex(), "seq": str(self.seq)}

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> FeedOffset:
        """Return the offset in a checkpoint. Raises `SourceError` for invalid JSON."""
        with kit.checking(given):
            try:
                seq = Seq.parse(given["seq"])
            except InvalidSequenceError as e:
                raise ValueError(str(e)) from e
            database, pinned = bytes.fromhex(given["database"]), kit.boolean(given["pinned"])
            return FeedOffset(*kit.store_and_mark(given), database, seq, pinned=pinned)

    def at(self, mark: kit.Mark, seq: Seq) -> FeedOffset:
        """Return the offset after all changes up to a place, from the feed at a commit."""
        return FeedOffset(self.store, mark, self.database, seq)


COMMIT = ("sequence.incarnation", "sequence.timestamp")
"""What the rows of one commit have in common."""
DATA_LOSS = (
    "an unfinished batch cannot be read again as it was: failOnDataLoss=false reads the current "
    "feed, in which documents that were changed since come later"
)


class FeedStream(kit.MicroBatches[FeedOffset]):
    """The stream of a database's changes: the last change of each document."""

    advice = DATA_LOSS
    _options: FeedOptions

    def __init__(self, options: FeedOptions, shape: Shape) -> None:
        super().__init__(options, shape, FOR_BATCHES)
        self._feed = feed_of(options)

    def _position(self, given: Mapping[str, Any]) -> FeedOffset:
        return FeedOffset.from_json(given)

    # --- offsets ---

    def _start(self) -> FeedOffset:
        present, state = self._present()
        since = self._options.place_in(state, "since", "0", present.now_ms)
        newest_ms = max(present.now_ms, physical_ms(present.head.timestamp))
        here = since.incarnation == state.database.incarnation
        if here and physical_ms(since.timestamp) > newest_ms:
            raise codes.INVALID_SEQUENCE(f"since {self._options.text('since')} is in the future")
        return FeedOffset(present.store, present.head, state.database.uuid, since, pinned=False)

    def _newest(self) -> FeedOffset:
        present, state = self._present()
        return FeedOffset(present.store, present.head, state.database.uuid, state.end)

    def _present(self) -> tuple[kit.Present, DatabaseState]:
        reader = kit.own_reader(self._location)
        present = kit.present_in(reader)
        head = present.head
        commits = kit.PinnedCommits(present.store, head, head, head.revision)
        state = self._feed.state(reader, commits)
        self._check_here(state)
        return present, state

    def _next(self, at: FeedOffset, limit: kit.Limit) -> FeedOffset:
        """Return the end of the next batch: the same if no commit has a row of this database."""
        reader = kit.verified_reader(self._location, at.store, at.mark)
        commits = self._moment_at(reader, self._head(reader, at.mark))
        state = self._feed.state(reader, commits)
        self._check_same(at, state.database.uuid)
        self._check_here(state)
        if not state.count_rows(at.seq, state.end):
            self._covered = commits.high
            return at
        end = state.end
        if limit.bounded:
            end = limit.last(by_commit(state.rows(at.seq, end), self._feed.form)) or end
        return at.at(commits.high, end)

    # --- rows ---

    def _tasks(self, reader: kit.Reader, first: FeedOffset, last: FeedOffset) -> Sequence[kit.Task]:
        self._check_same(first, last.database)  # PySpark before 4.2 asks for an end without a start
        if last.seq <= first.seq:  # batch 0 of PySpark before 4.2 may be empty
            return []
        commits = self._moment_at(reader, last.mark)
        self._check_same(last, self._feed.state(reader, commits).database.uuid)
        return split_feed(
            reader, self._feed, commits, first.seq, last.seq, self._options.partitions
        )

    # --- the database of the checkpoint ---

    def _check_same(self, at: FeedOffset, database: bytes) -> None:
        if database != at.database:
            raise codes.DATABASE_MISMATCH(
                f"database {self._feed.name!r} was deleted and created again; {kit.ANEW}"
            )

    def _check_here(self, state: DatabaseState) -> None:
        if state.database.moved:
            raise codes.DATABASE_RELOCATED(
                f"database {self._feed.name!r} was moved to another store: continue there with a "
                "new checkpoint, with `since` at the last sequence from here"
            )


def by_commit(rows: Iterable[ChangeRow], form: Form) -> Iterator[tuple[Seq, int, int]]:
    """Yield the places after whole commits, with the rows of each that a batch has."""
    for (incarnation, timestamp), commit in groupby(rows, attrgetter(*COMMIT)):
        yield Seq.behind(timestamp, incarnation), sum(map(form.concerns, commit)), 0
