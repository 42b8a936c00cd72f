"""Consumers: they read the log window by window, one generation after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from cdcmeta.errors import (
    ConsumerTakenError,
    GenerationNotFoundError,
    InvalidArgumentError,
    NoGenerationError,
)
from cdcmeta.generations.cdclog import CdcLog, LogRow
from cdcmeta.generations.layout import Generation, Progress
from cdcmeta.generations.listing import generations_at
from cdcmeta.generations.log import GenerationLog
from cdcmeta.generations.metadata import check_seconds
from cdcmeta.generations.streams import StreamId
from snapkv import CommitUnknownError, ConflictError, When, pack

WINDOW_S = 30.0
GROWTH = 2
"""Each empty window makes the next one so many times as long: idle times are passed quickly.

One that the newest commit or the generation's end cut off does not: whoever asks often would else
get all rows of a long time in one window.
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
    after a crash the rows of at most one come again. A window without rows is yielded, too.

    While it is registered under its `name`, the generations that it has not passed are kept.
    """

    def __init__(
        self,
        log: GenerationLog,
        rows: CdcLog,
        name: str,
        *,
        since: When | None = None,
        window: float = WINDOW_S,
        confidence: float = 0.0,
    ) -> None:
        """Register, or go on where the last one of this name was saved; some round trips.

        A new one begins after `since`, without it with the first generation there is. Raises
        `InvalidArgumentError`, `NoGenerationError` where there is none yet.
        """
        check_seconds("window", window)
        check_seconds("confidence", confidence)
        if rows.store is not log.store:  # both are read at one revision
            raise InvalidArgumentError("the generations and the rows are of one store")
        self._log, self._rows, self.name = log, rows, name
        self._width_min = self._width = max(1, pack(round(window * 1_000)))
        self._confidence = pack(round(confidence * 1_000))
        found = log.progress_of(name)
        if found is None:
            log.register(name, self._first(since))
            found = log.progress_of(name)
        assert found is not None
        self.progress, self._revision = found
        self._unsettled: tuple[CommitUnknownError, Progress] | None = None
        self._streams: tuple[int, list[StreamId]] = (0, [])

    def __repr__(self) -> str:
        return f"<StreamConsumer {self.name!r} at {self.progress.position}>"

    def __iter__(self) -> Iterator[Window]:
        until = self._rows.at().timestamp  # saving commits, too: else it would never end
        while (window := self.next(until)) is not None:
            yield window
            self.save(window)

    def next(self, until: When | None = None) -> Window | None:
        """Return the next window, None while nothing more is final; it stays the next until saved.

        With `until` no window goes beyond that time. Raises `GenerationNotFoundError` when the
        generation was removed all the same.
        """
        snapshot = self._rows.at()
        final = snapshot.timestamp - self._confidence
        if until is not None:
            final = min(final, self._log.timestamp_of(until))
        generations = generations_at(self._log.at(revision=snapshot.revision))
        generation, later = self._place(generations)
        begin = self.progress.position
        end = min(begin + self._width, final)
        if later is not None:
            end = min(end, later.time - 1)
        if end <= begin:
            return None
        rows = self._rows.rows(snapshot, self._streams_of(generation), begin, end)
        is_last = later is not None and end == later.time - 1
        return Window(generation, begin, end, tuple(sorted(rows)), is_last)

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
                self._revision = self._log.save(self.name, self._revision, progress)
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

    def _first(self, since: When | None) -> Progress:
        generations = self._log.generations()
        if not generations:
            raise NoGenerationError(0)
        if since is None:
            return Progress(generations[0].time, generations[0].time - 1)
        position = self._log.timestamp_of(since)
        own = next((each for each in reversed(generations) if each.time <= position), None)
        own = own or generations[0]
        return Progress(own.time, max(position, own.time - 1))

    def _place(self, generations: list[Generation]) -> tuple[Generation, Generation | None]:
        """Return the generation of what comes next, and the one after it."""
        following = self.progress.position + 1
        at = bisect_right(generations, following, key=lambda each: each.time) - 1
        if at < 0:
            raise GenerationNotFoundError(f"what operated at {following} was removed")
        later = generations[at + 1] if at + 1 < len(generations) else None
        return generations[at], later

    def _streams_of(self, generation: Generation) -> list[StreamId]:
        if self._streams[0] != generation.time:
            self._streams = generation.time, self._log.streams_of(generation)
        return self._streams[1]
