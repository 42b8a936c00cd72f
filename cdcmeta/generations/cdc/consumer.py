"""Consumers: they read the log window by window, one generation after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from cdcmeta.errors import (
    ConsumerTakenError,
    GenerationNotFoundError,
    InvalidArgumentError,
    LogTrimmedError,
    NoGenerationError,
)
from cdcmeta.generations.cdc.cdclog import CdcLog
from cdcmeta.generations.cdc.rows import SLOTS, LogRow
from cdcmeta.generations.cdc.trimming import trimmed_at
from cdcmeta.generations.cdc.windows import rows_between
from cdcmeta.generations.log.layout import ConsumerId, Generation, Progress
from cdcmeta.generations.log.listing import generations_at
from cdcmeta.generations.log.log import GenerationLog
from cdcmeta.generations.log.progress import consumers_at
from cdcmeta.generations.model.metadata import check_seconds
from snapkv import CommitUnknownError, ConflictError, Snapshot, When, pack
from snapkv.times import dated

WINDOW_S = 30.0
MAX_ROWS = 10_000
GROWTH = 2
"""Each empty window makes the next one so many times as long: idle times are passed quickly.

One that the newest commit or the generation's end cut off does not: whoever asks often would else
look far beyond what it wants to know.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """What was logged in (begin, end], all of one generation; `rows` in the order of commits.

    `is_last` says that the generation ends with it.
    """

    generation: Generation
    begin: int
    end: int
    rows: tuple[LogRow, ...]
    is_last: bool = False


class StreamConsumer:
    """Reads all log rows, each once: generations in order, windows in order, progress saved.

    A generation is read to its end before the next begins; empty ones are passed over. A window
    is read when nothing can be committed in it any more, less `confidence` seconds. Iterating
    yields the windows up to the newest commit before, and saves each when the next is asked for:
    after a crash the rows of at most one come again.

    A window with rows spans `window` seconds at most and has `max_rows` rows at most (more only
    where one commit has more); it may have fewer, one at least, although more follow. One without
    rows is yielded, too, and may be as long as nothing was written.

    With `parts` workers, each one is a `part` counted from 0: it reads the streams that live in its
    share of the ring, with progress of its own. The first one registers all of them. A worker
    begins a generation when all have finished the one before, so changes of a row come in order
    although its stream may move from one worker to another: until then `next` returns None and
    `waiting_for` names the others.

    While it is registered under its `name`, the generations and rows that it has not passed are
    kept.
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
        """Register, or go on where the last one of this name was saved; some round trips.

        A new one begins after `since`, without it with the first generation there is. Its
        progress is stored by log, table and name: the same name can read several tables.

        Raises `InvalidArgumentError` (also for `since` with a name that has come to another time:
        it goes on where it was, or is forgotten first, `GenerationLog.forget`),
        `NoGenerationError` where there is none yet, `WrongGenerationLogError` for a log that the
        table's streams are not of, `ConsumerMismatchError`, `LogTrimmedError`.
        """
        check_seconds("window", window)
        check_seconds("confidence", confidence)
        if type(max_rows) is not int or max_rows < 1:
            raise InvalidArgumentError(f"max_rows is a positive number, not {max_rows!r}")
        if not (type(part) is type(parts) is int and 0 <= part < parts <= SLOTS):
            raise InvalidArgumentError(
                f"a part is one of 1 to {SLOTS}, counted from 0, not {part!r} of {parts!r}"
            )
        if rows.store is not log.store:  # both are read at one revision
            raise InvalidArgumentError("the generations and the rows are of one store")
        self._log, self._rows, self.name = log, rows, name
        self.id = ConsumerId(rows.name, name, part, parts)
        self._slots = range(part * SLOTS // parts, (part + 1) * SLOTS // parts)
        self._width_min = self._width = max(1, pack(round(window * 1_000)))
        self._max_rows = max_rows
        self._confidence = pack(round(confidence * 1_000))
        self.progress, self._revision = self._registered(since)
        self.waiting_for: tuple[int, ...] = ()
        self._unsettled: tuple[CommitUnknownError, Progress] | None = None

    def __repr__(self) -> str:
        return f"<StreamConsumer {self.name!r} at {self.progress.position}>"

    def __iter__(self) -> Iterator[Window]:
        until = self._rows.at().timestamp  # saving commits, too: else it would never end
        while (window := self.next(until)) is not None:
            yield window
            self.save(window)

    def next(self, until: When | None = None) -> Window | None:
        """Return the next window, None while nothing more is final; it stays the next until saved.

        With `until` no window goes beyond that time. Four round trips, and one for a generation
        that other workers may have to finish. Raises `GenerationNotFoundError` when the generation
        was removed all the same, `LogTrimmedError` when rows were.
        """
        snapshot = self._rows.at()
        final = snapshot.timestamp - self._confidence
        if until is not None:
            final = min(final, self._log.timestamp_of(until))
        state = self._log.at(revision=snapshot.revision)
        generation, later = self._place(generations_at(state))
        self._check_trimmed(snapshot)
        self.waiting_for = self._behind(state, generation)
        begin = self.progress.position
        end = min(begin + self._width, final)
        if later is not None:
            end = min(end, later.time - 1)
        if end <= begin or self.waiting_for:
            return None
        rows, end = rows_between(snapshot, self._slots, begin, end, self._max_rows)
        rows, end = self._short(rows, begin, end)
        is_last = later is not None and end == later.time - 1
        return Window(generation, begin, end, tuple(rows), is_last)

    def save(self, window: Window) -> None:
        """Save that a window was consumed; one round trip, and none for an empty one.

        Unless that finishes a generation, which somebody may wait for. Raises
        `ConsumerTakenError` when somebody else goes on under this name, and what
        `SnapshotKV.commit` raises. After an unknown outcome save again: what became of it is
        settled first.
        """
        progress = Progress(window.generation.time, window.end)
        self._settle()
        if progress == self.progress:
            pass  # that is what was settled
        elif window.rows or progress.generation != self.progress.generation or window.is_last:
            try:
                self._revision = self._log.save(self.id, self._revision, progress)
            except CommitUnknownError as e:
                self._unsettled = e, progress
                raise
        self.progress = progress
        if window.rows:
            self._width = self._width_min
        elif window.end - window.begin >= self._width:
            self._width *= GROWTH

    # --- helpers ---

    def _settle(self) -> None:
        """Find out whether the last progress was saved, where nobody knew."""
        if self._unsettled is None:
            return
        error, progress = self._unsettled
        try:
            found = self._log.store.resolve(error.timestamp, error.nonce, guards=error.guards)
        except ConflictError as e:
            raise ConsumerTakenError(self.name) from e
        self._unsettled = None
        if found is not None:
            self._revision, self.progress = found.revision, progress

    def _registered(self, since: When | None) -> tuple[Progress, int]:
        """Return how far it has come, and register it where it is new."""
        found = self._log.progress_of(self.id)
        begin = None if found and since is None else self._first(since)
        if found and begin and found[0] != begin:
            raise InvalidArgumentError(
                f"consumer {self.name!r} of table {self.id.table!r} is registered already and came "
                f"to {found[0].position}: leave out `since` to go on there, or forget it first"
            )
        self._rows.bind(self._log.space)
        self._rows.upgrade()
        if not found:
            assert begin is not None
            workers = [self.id._replace(part=part) for part in range(self.id.parts)]
            try:
                self._log.register(workers, begin)
            except InvalidArgumentError:
                if self._log.progress_of(self.id) is None:
                    raise
                return self._registered(since)  # another worker was first
            found = self._log.progress_of(self.id)
            assert found is not None
        return found

    def _first(self, since: When | None) -> Progress:
        """Return where one begins that is new."""
        generations = self._log.generations()
        if not generations:
            raise NoGenerationError(0)
        trimmed = max(trimmed_at(self._rows.at()).values(), default=0)
        wanted = 0 if since is None else self._log.timestamp_of(since)
        if 0 < wanted < trimmed:
            raise LogTrimmedError(self.name, self._rows.name, wanted, trimmed)
        position = max(wanted, trimmed, generations[0].time - 1)
        own = next((each for each in reversed(generations) if each.time <= position), None)
        return Progress((own or generations[0]).time, position)

    def _short(self, rows: list[LogRow], begin: int, end: int) -> tuple[list[LogRow], int]:
        """Return what is left of a window that silence made longer: up to the rows, or with few."""
        last = begin + self._width_min
        if not rows or end <= last:
            return rows, end
        if rows[0].timestamp > last:
            return [], rows[0].timestamp - 1
        return [row for row in rows if row.timestamp <= last], last

    def _check_trimmed(self, snapshot: Snapshot[bytes]) -> None:
        """Raise `LogTrimmedError` where rows are gone that this one has not read."""
        times = trimmed_at(snapshot)
        until = max((time for slot, time in times.items() if slot in self._slots), default=0)
        if until > self.progress.position:
            raise LogTrimmedError(self.name, self._rows.name, self.progress.position, until)

    def _behind(self, state: Snapshot[bytes], generation: Generation) -> tuple[int, ...]:
        """Return the workers that have not finished the generation before the one to begin."""
        if self.id.parts == 1 or generation.time == self.progress.generation:
            return ()
        return tuple(
            sorted(
                id.part
                for id, each in consumers_at(state).items()
                if id[:2] == self.id[:2] and each.position < generation.time - 1
            )
        )

    def _place(self, generations: list[Generation]) -> tuple[Generation, Generation | None]:
        """Return the generation of what comes next, and the one after it."""
        following = self.progress.position + 1
        at = bisect_right(generations, following, key=lambda each: each.time) - 1
        if at < 0:
            raise GenerationNotFoundError(f"what operated at {dated(following)} was removed")
        later = generations[at + 1] if at + 1 < len(generations) else None
        return generations[at], later
