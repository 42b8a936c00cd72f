"""What an open store is made of beside what it reads with, and what its faces do with that."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass

from snapkv.clock import bounded
from snapkv.committer import COMMIT_TIMEOUT_S_MAX, Committer
from snapkv.errors import (
    ClockSkewError,
    ClockWarning,
    CompactedError,
    EngineBusyError,
    EngineUnavailableError,
    InvalidOptionError,
    InvalidTypeError,
    SnapKVError,
)
from snapkv.model import Build, Commit, Compaction
from snapkv.reading.reader import Reader
from snapkv.times import end_of_ms, format_time, physical_ms

RETAIN_CHECK_MS_MAX = 60_000
RETAIN_BATCHES = 2
"""Batches of space that one commit may free for `retain=`; the next ones go on."""
RETAIN_S = 1.0
"""How long a commit to a remote engine waits for that."""


@dataclass(slots=True, eq=False)
class Core(Reader):
    """The parts of an open store."""

    committer: Committer
    commit_timeout_s: float
    max_clock_skew_ms: int
    retain_ms: int | None = None
    retained_at_ms: int = 0
    retain_error: SnapKVError | None = None

    # --- ticking ---

    def finish(self, timestamp: int) -> None:
        """Make sure that nothing can commit at or below a timestamp any more: tick past it."""
        if self.timeline.head().timestamp >= timestamp:
            return
        self.check_not_ahead(timestamp)
        # in the time that the read has, where that is less
        self.tick(timestamp, timeout=max(0.001, bounded(self.commit_timeout_s)))

    def tick(self, at_least: int = 0, *, timeout: float | None = None) -> Commit:
        """Commit nothing but a timestamp, `at_least` that large.

        `ClockSkewError` when it would be beyond now + skew, for what it stamps happened now.
        """
        self.check_open()
        commit = self.committer.tick(
            at_least, timeout=timeout or self.commit_timeout_s, check=self.check_not_ahead
        )
        self._retain()
        return commit

    def check_not_ahead(self, timestamp: int) -> None:
        """Raise `ClockSkewError` for a timestamp beyond now + skew: it would spoil the clock."""
        ahead_ms = physical_ms(timestamp) - self.clock.now_ms()
        if ahead_ms > self.max_clock_skew_ms:
            raise ClockSkewError(
                f"{format_time(timestamp)} is {ahead_ms} ms ahead of the clock, "
                f"more than max_clock_skew ({self.max_clock_skew_ms} ms)",
                ahead_ms,
                self.max_clock_skew_ms,
            )

    # --- writing ---

    def commit(self, build: Build, timeout: float | None) -> Commit:
        """Commit what `build` returns, then do a little of what `retain=` asks for."""
        self.check_open()
        commit = self.committer.commit(build, timeout=self.timeout_s(timeout))
        self._retain()
        return commit

    def timeout_s(self, timeout: float | None) -> float:
        """Return the seconds that a commit may take."""
        return self.commit_timeout_s if timeout is None else check_timeout(timeout)

    def check_clock(self) -> None:
        """Refuse to commit while the local clock and the server's are too far apart.

        In an embedded engine the machine's clock stands for the server's, and only a store's
        clock ahead of it is refused: that one would move the times of all other processes. One
        behind moves nobody's, and stores of imports and tests live there.

        Before it refuses it looks again: a machine that slept, or a clock that was set, makes an
        old look at the server's clock wrong.
        """
        skew_ms, beyond = self._skew(self.engine.server_time_ms())
        if beyond:
            skew_ms, beyond = self._skew(self.engine.server_time_ms(fresh=True))
        if beyond:
            whose = "server's" if self.engine.remote else "machine's"
            raise ClockSkewError(
                f"the local clock differs from the {whose} by {skew_ms} ms, "
                f"more than max_clock_skew ({self.max_clock_skew_ms} ms)",
                skew_ms,
                self.max_clock_skew_ms,
            )

    def _skew(self, server: tuple[int, int] | None) -> tuple[int, bool]:
        """Return by how much the clocks differ, and whether surely by too much."""
        if server is None:
            return 0, False
        at_ms, uncertainty_ms = server
        skew_ms = self.clock.now_ms() - at_ms
        harmful_ms = abs(skew_ms) if self.engine.remote else skew_ms
        return skew_ms, harmful_ms - uncertainty_ms > self.max_clock_skew_ms

    def warn_if_ahead(self) -> None:
        """Warn when the store's newest timestamp is far ahead of the clock; repair nothing."""
        newest = self.timeline.newest_known().timestamp
        ahead_ms = physical_ms(newest) - self.clock.now_ms()
        if ahead_ms > self.max_clock_skew_ms:
            warnings.warn(
                f"the newest commit of {self.url} is {ahead_ms} ms ahead of the clock; "
                "times of new commits follow it, not the clock",
                ClockWarning,
                stacklevel=4,
            )

    # --- forgetting ---

    def compact(
        self, before: int, *, batches: int | None = None, timeout: float | None = None
    ) -> Compaction:
        """Compact up to a timestamp, never into the time that open outcomes may need."""
        try:
            return self._compact(before, batches, timeout)
        except CompactedError:  # a neighbour went further meanwhile
            oldest = self.timeline.oldest()
            return Compaction(self.engine.compacted_revision(), oldest.timestamp)

    def _compact(self, before: int, batches: int | None, timeout: float | None) -> Compaction:
        keep_ms = round(COMMIT_TIMEOUT_S_MAX * 1_000) + 2 * self.max_clock_skew_ms
        limit_ms = self.clock.now_ms() - keep_ms
        if limit_ms <= 0:
            return Compaction(self.engine.compacted_revision(), self.timeline.earliest())
        target = min(before, end_of_ms(limit_ms))
        compacted = self.engine.compacted_revision()
        oldest = self.timeline.oldest()
        if target <= oldest.timestamp:
            if compacted:
                self.engine.compact(compacted, batches=batches, timeout=timeout)  # frees more
            return Compaction(compacted, oldest.timestamp)
        mark = self.timeline.at(target).mark
        revision = max(mark.revision, compacted)
        if mark.ordinal > 1:
            self.engine.compact(revision, batches=batches, timeout=timeout)
            return Compaction(revision, mark.timestamp)
        return Compaction(compacted, oldest.timestamp)

    def _retain(self) -> None:
        """Forget what is older than `retain=`; now and then, in small pieces, never in the way."""
        retain_ms = self.retain_ms
        if retain_ms is None:
            return
        now_ms = self.clock.now_ms()
        every_ms = min(RETAIN_CHECK_MS_MAX, retain_ms // 10)
        if abs(now_ms - self.retained_at_ms) < every_ms or now_ms < retain_ms:
            return
        self.retained_at_ms = now_ms
        before = end_of_ms(now_ms - retain_ms)
        if self.engine.remote:
            self._forget_beside(before)
        else:
            self.retain_error = self._forget(before, 0)

    def _forget(self, before: int, timeout: float | None) -> SnapKVError | None:
        try:
            self.compact(before, batches=RETAIN_BATCHES, timeout=timeout)
        except EngineBusyError:
            return self.retain_error  # somebody writes: there will be a quieter moment
        except SnapKVError as e:  # the commit stands; info() tells
            return e
        return None

    def _forget_beside(self, before: int) -> None:
        """Compact in a thread: the commit stands, and each of the calls has a long bound."""
        found: list[SnapKVError | None] = []

        def forget() -> None:
            found.append(self._forget(before, None))
            self.retain_error = found[0]

        thread = threading.Thread(target=forget, name="snapkv retain", daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            self.retain_error = EngineUnavailableError(f"there is no thread for retain=: {e}")
            return
        thread.join(RETAIN_S)
        if not found:
            self.retain_error = EngineUnavailableError(
                f"compacting for retain= takes longer than {RETAIN_S:g} s; it goes on"
            )
            if found:  # it ended in between
                self.retain_error = found[0]

    # --- life ---

    def stop(self) -> None:
        """Let threads go that wait for commits."""
        self.committer.close()


def check_timeout(timeout: float) -> float:
    """Return seconds a commit may take; raise a typed error when out of bounds."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise InvalidTypeError(f"a timeout is seconds, not {type(timeout).__name__}")
    if not 0 < timeout <= COMMIT_TIMEOUT_S_MAX:
        raise InvalidOptionError(f"a commit's timeout is in (0, {COMMIT_TIMEOUT_S_MAX:.0f}] s")
    return float(timeout)
