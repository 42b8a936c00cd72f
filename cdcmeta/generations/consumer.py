"""Consumers: they read the log window by window, one generation after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdcmeta import errors
from cdcmeta.argument_checks import check_int, check_seconds
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.cdclog import CdcLog
from cdcmeta.generations.generation_layout import ConsumerId, Generation, Progress
from cdcmeta.generations.generation_log import GenerationLog
from cdcmeta.generations.log_rows import SLOTS, LogRow, row_of, span_of, trimmed_at
from snapkv import CommitUnknownError, ConflictError, Snapshot, When, pack
from snapkv.times import dated

WINDOW_S = 30.0
MAX_ROWS = 10_000
GROWTH = 2
"""The factor by which each empty window makes the next one longer: idle times are passed quickly. A
window that ends early, at the newest commit or the generation's end, does not count: otherwise a
consumer that asks often would get very long windows."""


@dataclass(frozen=True, slots=True)
class Window:
    """All rows logged in (begin, end], of one generation, in the order of commits.

    `is_last` is whether the generation ends with it.
    """

    generation: Generation
    begin: int
    end: int
    rows: tuple[LogRow, ...]
    is_last: bool = False


class StreamConsumer:
    """Reads all log rows, each once: generations in order, windows in order, progress saved.

    A generation is read to its end before the next begins; empty ones are skipped. A window is read
    `confidence` seconds after nothing can be committed in it any more. Iterating yields the windows
    up to the newest commit, and saves each one when the next is requested: after a crash it yields
    at most one window twice.

    A window with rows spans at most `window` seconds and has at most `max_rows` rows (more only if
    one commit has more). It may have fewer rows, at least one, even if more follow. Windows without
    rows are yielded, too, and grow while nothing is written.

    With `parts` workers, each one is a `part` counted from 0: it reads the streams in its share of
    the ring, with its own progress. The first worker registers all of them. A worker begins a
    generation when all workers have finished the previous one, so changes of a row come in order
    although its stream may move to another worker. Until then `next` returns None, and
    `waiting_for` names the workers that have not finished.

    While it is registered under its `name`, generations and rows that it has not passed are kept.
    """

    def __init__(
        self,
        log: GenerationLog,
        rows: CdcLog,
        name: str,
        *,
        since: When | None = None,
        window: float = WINDOW_S,
        max_rows: int = MAX_ROWS,
        confidence: float = 0.0,
        part: int = 0,
        parts: int = 1,
    ) -> None:
        """Register, or continue after the saved progress of this name; some round trips.

        A new consumer begins after `since`, by default with the first generation. Its progress is
        stored by log, table and name: the same name can read several tables.

        Raises `InvalidArgumentError` (also for `since` if the name has other progress: leave it
        out to continue there, or call `GenerationLog.forget` first),
        `GenerationUnavailableError` if the log has no generation yet, `LogTrimmedError`, and
        `InvalidArgumentError` also for another log than the table's, or another number of workers.
        """
        check_seconds("window", window)
        check_seconds("confidence", confidence)
        check_int("max_rows", max_rows, 1)
        if not (type(part) is type(parts) is int and 0 <= part < parts <= SLOTS):
            raise errors.InvalidArgumentError(
                f"give part from 0 to parts - 1, and parts up to {SLOTS}, not {part!r} of {parts!r}"
            )
        if rows.store is not log.store:  # both are read at one revision
            raise errors.InvalidArgumentError("log and rows must be of the same store")
        self._log, self._rows, self.name = log, rows, name
        self.id = ConsumerId(rows.name, name, part, parts)
        self._slots = range(part * SLOTS // parts, (part + 1) * SLOTS // parts)
        self._width_min = self._width = max(1, pack(round(window * 1_000)))
        self._max_rows = max_rows
        self._confidence = pack(round(confidence * 1_000))
        self.progress, self._revision = self._registered(since)
        self.waiting_for: tuple[int, ...] = ()
        self._unknown: tuple[CommitUnknownError, Progress] | None = None

    def __repr__(self) -> str:
        return f"<StreamConsumer {self.name!r} at {self.progress.position}>"

    def __iter__(self) -> Iterator[Window]:
        until = self._rows.at().timestamp  # fixed at the beginning: saving makes commits, too
        while (window := self.next(until)) is not None:
            yield window
            self.save(window)

    def next(self, until: When | None = None) -> Window | None:
        """Return the next window, None until more is final; the same one until it is saved.

        With `until` no window ends after that time. Four round trips, and one more at the begin of
        a generation with several workers. Raises `GenerationNotFoundError` if the generation was
        removed, `LogTrimmedError` if rows were.
        """
        snapshot = self._rows.at()
        final = snapshot.timestamp - self._confidence
        if until is not None:
            final = min(final, self._log.timestamp_of(until))
        state = self._log.at(revision=snapshot.revision)
        generation, later = self._next_generation(layout.generations_at(state))
        self._check_trimmed(snapshot)
        self.waiting_for = self._unfinished(state, generation)
        begin = self.progress.position
        end = min(begin + self._width, final)
        if later is not None:
            end = min(end, later.time - 1)
        if end <= begin or self.waiting_for:
            return None
        rows, end = rows_between(snapshot, self._slots, begin, end, self._max_rows)
        rows, end = self._shortened(rows, begin, end)
        is_last = later is not None and end == later.time - 1
        return Window(generation, begin, end, tuple(rows), is_last)

    def save(self, window: Window) -> None:
        """Save that a window was consumed; one round trip, and none for an empty one.

        An empty one that ends a generation is saved, too: other workers may wait for that. Raises
        `ConsumerTakenError` if another process continues under this name, and as
        `SnapshotKV.commit`. After an unknown outcome call it again: it first resolves that.
        """
        progress = Progress(window.generation.time, window.end)
        self._recover()
        if progress == self.progress:
            pass  # the resolved save was this one
        elif window.rows or progress.generation != self.progress.generation or window.is_last:
            try:
                self._revision = self._log.save(self.id, self._revision, progress)
            except CommitUnknownError as e:
                self._unknown = e, progress
                raise
        self.progress = progress
        if window.rows:
            self._width = self._width_min
        elif window.end - window.begin >= self._width:
            self._width *= GROWTH

    # --- helpers ---

    def _recover(self) -> None:
        """Resolve the last save, if its outcome is unknown."""
        if self._unknown is None:
            return
        error, progress = self._unknown
        try:
            found = self._log.store.resolve(error.timestamp, error.nonce, guards=error.guards)
        except ConflictError as e:
            raise errors.ConsumerTakenError(self.name) from e
        self._unknown = None
        if found is not None:
            self._revision, self.progress = found.revision, progress

    def _registered(self, since: When | None) -> tuple[Progress, int]:
        """Return its progress; register it if it is new."""
        found = self._log.progress_of(self.id)
        begin = None if found and since is None else self._first(since)
        if found and begin and found[0] != begin:
            raise errors.InvalidArgumentError(
                f"consumer {self.name!r} of table {self.id.table!r} is registered already, at "
                f"{dated(found[0].position)}: leave out `since` to continue, or forget it first"
            )
        self._rows.bind(self._log.space)
        self._rows.upgrade()
        if not found:
            assert begin is not None
            workers = [self.id._replace(part=part) for part in range(self.id.parts)]
            try:
                self._log.register(workers, begin)
            except errors.InvalidArgumentError:
                if self._log.progress_of(self.id) is None:
                    raise
                return self._registered(since)  # another worker registered first
            found = self._log.progress_of(self.id)
            assert found is not None
        return found

    def _first(self, since: When | None) -> Progress:
        """Return where a new consumer begins."""
        generations = self._log.generations()
        if not generations:
            raise errors.GenerationUnavailableError("none", "the log has no generation yet")
        trimmed = max(trimmed_at(self._rows.at()).values(), default=0)
        since_ts = 0 if since is None else self._log.timestamp_of(since)
        if 0 < since_ts < trimmed:
            raise errors.LogTrimmedError(self.name, self._rows.name, since_ts, trimmed)
        position = max(since_ts, trimmed, generations[0].time - 1)
        own = next((each for each in reversed(generations) if each.time <= position), None)
        return Progress((own or generations[0]).time, position)

    def _shortened(self, rows: list[LogRow], begin: int, end: int) -> tuple[list[LogRow], int]:
        """Return a window that grew without rows, shortened before or after its first rows."""
        last = begin + self._width_min
        if not rows or end <= last:
            return rows, end
        if rows[0].timestamp > last:
            return [], rows[0].timestamp - 1
        return [row for row in rows if row.timestamp <= last], last

    def _check_trimmed(self, snapshot: Snapshot[bytes]) -> None:
        """Raise `LogTrimmedError` if rows were removed that this worker has not read."""
        times = trimmed_at(snapshot)
        until = max((time for slot, time in times.items() if slot in self._slots), default=0)
        if until > self.progress.position:
            raise errors.LogTrimmedError(self.name, self._rows.name, self.progress.position, until)

    def _unfinished(self, state: Snapshot[bytes], generation: Generation) -> tuple[int, ...]:
        """Return the workers that have not finished the generation before the next one."""
        if self.id.parts == 1 or generation.time == self.progress.generation:
            return ()
        workers = layout.consumers_at(state).items()
        own = ((id.part, each.position) for id, each in workers if id[:2] == self.id[:2])
        return tuple(sorted(part for part, position in own if position < generation.time - 1))

    def _next_generation(
        self, generations: list[Generation]
    ) -> tuple[Generation, Generation | None]:
        """Return the generation of the next window, and the one after it."""
        following = self.progress.position + 1
        at = bisect_right(generations, following, key=lambda each: each.time) - 1
        if at < 0:
            raise errors.GenerationNotFoundError(
                f"the generation that operated at {dated(following)} was removed"
            )
        later = generations[at + 1] if at + 1 < len(generations) else None
        return generations[at], later


def rows_between(
    snapshot: Snapshot[bytes], slots: Sequence[int], begin: int, end: int, rows_max: int
) -> tuple[list[LogRow], int]:
    """Return sorted rows of some slots in (begin, end], and the time up to which they are complete.

    That time is `end`, or earlier after `rows_max` rows: at the end of a commit, so a commit with
    more rows gives more. One round trip for all slots; more if few slots have most rows. At most
    about three times `rows_max` rows are in memory.

    Fewer than `rows_max` rows do not mean that no more follow: only the time `end` does. A slot
    with more rows than were read limits the time. When half of `rows_max` rows are complete (at
    least one), it does not read further.
    """
    limit = 2 * rows_max // len(slots) + 1
    rows: list[LogRow] = []
    more = {slot: span_of(slot, begin, end) for slot in slots}
    newest: dict[int, int] = {}  # the time of the newest row read, for slots with more rows
    unread = list(slots)
    while True:
        answers = snapshot.items_of([more[slot] for slot in unread], limit=limit)
        for slot, items in zip(unread, answers, strict=True):
            rows += [row_of(*item) for item in items]
            newest.pop(slot, None)
            if len(items) == limit:
                more[slot] = (items[-1][0] + b"\0", more[slot][1])
                newest[slot] = rows[-1].timestamp
        complete = min(newest.values()) - 1 if newest else end
        found = sum(row.timestamp <= complete for row in rows)
        if not newest or found >= max(1, rows_max // 2):
            break
        unread = [slot for slot, time in newest.items() if time == complete + 1]
    return first_commits(
        sorted(row for row in rows if row.timestamp <= complete), complete, rows_max
    )


def first_commits(rows: list[LogRow], end: int, rows_max: int) -> tuple[list[LogRow], int]:
    """Return the first rows, of whole commits and at least one, and their time."""
    if len(rows) <= rows_max:
        return rows, end
    end = max(rows[rows_max].timestamp - 1, rows[0].timestamp)
    return [row for row in rows if row.timestamp <= end], end
