"""The health strip: how fresh a source is, how far back it goes, and how large it is."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from snapkv.base.waiting import monotonic
from snapkv.store.recorder_watermarks import watermarks
from snapkv.times import format_time, physical_ms
from snapkv.ui.source import Source

KEPT_S = 2.0
"""The facts of so long ago are shown again."""


@dataclass(frozen=True, slots=True)
class Health:
    """Facts that cost a few round trips; times are timestamps, lags milliseconds.

    `skew_ms` is by how much this machine's clock is ahead of the server's (None: embedded),
    `archive_lag_ms` how far the recording that is furthest behind is behind the newest commit.
    """

    newest: int
    revision: int
    commits: int
    resolved: int
    lag_ms: int
    skew_ms: int | None
    earliest: int | None
    recordings: tuple[tuple[str, int], ...]
    archive_lag_ms: int | None
    size_bytes: int | None
    engine: dict[str, int | str]
    writable: bool

    def as_json(self) -> dict[str, object]:
        """Return them for JSON."""
        return {
            "newest": str(self.newest),
            "newest_time": format_time(self.newest),
            "revision": self.revision,
            "commits": self.commits,
            "resolved": str(self.resolved),
            "lag_ms": self.lag_ms,
            "skew_ms": self.skew_ms,
            "earliest": None if self.earliest is None else str(self.earliest),
            "recordings": {into: format_time(timestamp) for into, timestamp in self.recordings},
            "archive_lag_ms": self.archive_lag_ms,
            "size_bytes": self.size_bytes,
            "engine": self.engine,
            "writable": self.writable,
        }


SIZES = ("db_size_in_use", "used_bytes", "db_size", "bytes")


def health(source: Source) -> Health:
    """Return the facts of now; a few round trips."""
    reader = source.reader
    head = reader.timeline.head()
    engine = reader.engine.info()
    server = reader.engine.server_time_ms()
    skew = (
        reader.clock.now_ms() - server[0] if server is not None and reader.engine.remote else None
    )
    copied = [] if source.observed else watermarks(reader.engine, reader.layout)
    newest_ms = physical_ms(head.timestamp)
    behind = [newest_ms - physical_ms(each.timestamp) for each in copied]
    size = next((engine[name] for name in SIZES if name in engine), None)
    return Health(
        head.timestamp,
        head.revision,
        head.ordinal - 1,
        head.timestamp,
        max(0, reader.clock.now_ms() - newest_ms),
        skew,
        source.earliest(),
        tuple((each.into, each.timestamp) for each in copied),
        max(behind, default=None) if behind else None,
        size if isinstance(size, int) else None,
        engine,
        source.writable,
    )


class KeptHealth:
    """The facts, read again when they are two seconds old; safe for threads."""

    def __init__(self, source: Source) -> None:
        self._source, self._lock = source, threading.Lock()
        self._found: tuple[float, Health] | None = None

    def __call__(self) -> Health:
        """Return the facts."""
        with self._lock:
            found = self._found
        if found is None or monotonic() - found[0] > KEPT_S:
            found = monotonic(), health(self._source)
            with self._lock:
                self._found = found
        return found[1]
