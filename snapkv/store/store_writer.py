"""The writer of an open store: its committer, ticks, compaction and `retain=`."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from snapkv.base.arguments import check_seconds
from snapkv.base.clocks import SystemClock
from snapkv.base.concurrency import Lock, here
from snapkv.base.waiting import bounded, perf_counter
from snapkv.clock import too_far_ahead
from snapkv.committer import COMMIT_TIMEOUT_S_MAX, Committer
from snapkv.errors import (
    ClockSkewError,
    ClockWarning,
    CompactedError,
    EngineBusyError,
    EngineUnavailableError,
    ReadOnlyError,
    SnapKVError,
)
from snapkv.hooks import CompactionEvent
from snapkv.layout import CLUSTER, SourceId, StampRecord
from snapkv.model import Build, Commit, Compaction, Ops
from snapkv.reading.reader import Reader
from snapkv.store.recorder_watermarks import slowest_watermark
from snapkv.timeline.lookup import recorded_of
from snapkv.times import LOGICAL_BITS, end_of_ms, physical_ms

# --- locks of keys: calls of one process that update one key try one after another ---


class KeyLocks:
    """Locks of keys, on which nothing relies: a call that gets none in time continues without it.

    So if two calls hold a lock each and wait for the other's, both continue after a while.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_key = WeakValueDictionary[bytes, Lock]()  # while a call holds or wants it

    def __len__(self) -> int:
        return len(self._of_key)

    @contextmanager
    def held(self, key: bytes, seconds: float) -> Iterator[None]:
        """Wait for the lock of a key, for some seconds at most, and hold it in the block."""
        with self._lock:
            found = self._of_key.setdefault(key, here().lock())
        got = False
        try:
            got = found.acquire(timeout=seconds)
            yield
        finally:
            if got:
                found.release()


# --- records ---

FORK = "open(force_fork=True)"
"""What makes a record a store of its own, in messages of errors."""


def what_is_recorded(source: SourceId) -> str:
    """Return why a record takes no commits, and what to do, for the error of one.

    >>> what_is_recorded(SourceId(b"", "plans", 2))[:58]
    "the record of the store 'plans', which only its recorder w"
    """
    what = f"the store {source.name!r}"
    undo = "write it to that store"
    if source.observed is not None:
        is_cluster = source.observed == CLUSTER
        what = "the Kubernetes cluster" if is_cluster else f"the keys below {source.observed}"
        undo = (
            "write it at the source; an object of Kubernetes with 'snapkv get KEY --at TIME "
            "--as kubernetes | kubectl replace -f -'"
        )
    return (
        f"the record of {what}, which only its recorder writes: a commit here would end the "
        f"recording for ever. To undo something, {undo}. {FORK} makes the record a store of its "
        "own, whose recording ends"
    )


# --- the writer ---

RETAIN_CHECK_MS_MAX = 60_000
RETAIN_BATCHES = 2
"""The most batches of space that one commit may free for `retain=`; later commits free the rest."""
RETAIN_S = 1.0
"""The longest that a commit to a remote engine waits for the compaction of `retain=`, in
seconds."""


@dataclass(slots=True, eq=False)
class StoreWriter(Reader):
    """The parts that an open store needs to write, and to read."""

    writer: str
    commit_timeout_s: float
    max_clock_skew_ms: int
    retain_ms: int | None = None
    retained_at_ms: int = 0
    retain_error: SnapKVError | None = None
    key_locks: KeyLocks = field(default_factory=KeyLocks)
    compactions: int = 0
    earliest: int | None = None
    """The oldest time that can be read, as far as it is known without a request."""
    made_committer: Committer | None = None
    """The committer; None before the first commit."""
    may_be_record: bool = False
    """Whether its newest commit was recorded when it was opened."""
    force_fork: bool = False

    @property
    def committer(self) -> Committer:
        """The committer, made at the first commit, where that runs; to read, a store needs none.

        Raises `ReadOnlyError` for a record.
        """
        self.check_own()
        with self.lock:
            if self.made_committer is None:
                own_clock = not self.engine.remote and type(self.clock.wall) is SystemClock
                self.made_committer = Committer(
                    self.layout,
                    self.clock,
                    self.timeline,
                    writer=self.writer,
                    max_clock_skew_ms=self.max_clock_skew_ms,
                    before_send=None if own_clock else self.check_clock,
                    notify=self.notify,
                )
                if self.closed:
                    self.made_committer.close()
            return self.made_committer

    def recorded_now(self) -> SourceId | None:
        """Return what a recorder writes here; None for a store of its own.

        A record whose newest commit is not its recorder's has become a store of its own. No round
        trip for a store that had such a commit when it was opened; else two.
        """
        if not self.may_be_record:
            return None
        newest = self.engine.get(self.layout.ts).kv
        if newest is None or StampRecord.decode(newest.value).source is None:
            return None
        return recorded_of(self.engine, self.layout.ts)

    def check_own(self) -> None:
        """Raise `ReadOnlyError` if a commit here would end a recording; see `recorded_now`."""
        if self.made_committer is not None or self.force_fork:
            return
        if (source := self.recorded_now()) is not None:
            raise ReadOnlyError(f"{self.url} is {what_is_recorded(source)}")

    def after_fork(self) -> None:
        """Renew the locks; a child has none of the threads that hold one."""
        Reader.after_fork(self)
        self.key_locks = KeyLocks()

    # --- ticking ---

    def finish(self, timestamp: int) -> None:
        """Make sure that no commit at or below a timestamp can come any more: tick above it."""
        if self.timeline.head().timestamp >= timestamp:
            return
        self.check_not_ahead(timestamp)
        # within the time that the read has left
        self.tick(timestamp, timeout=max(0.001, bounded(self.commit_timeout_s)))

    def tick(self, at_least: int = 0, *, timeout: float | None = None) -> Commit:
        """Commit only a timestamp, `at_least` that large.

        Raises `ClockSkewError` if it is beyond now + skew: the writes that it stamps happened now.
        """
        self.check_open()
        commit = self.committer.tick(
            at_least, timeout=timeout or self.commit_timeout_s, check=self.check_not_ahead
        )
        self._retain()
        return commit

    def check_not_ahead(self, timestamp: int) -> None:
        """Raise `ClockSkewError` for a timestamp beyond now + skew: later ones would follow it."""
        ahead_ms = physical_ms(timestamp) - self.clock.now_ms()
        if ahead_ms > self.max_clock_skew_ms:
            raise too_far_ahead(timestamp, ahead_ms, self.max_clock_skew_ms)

    # --- writing ---

    def commit(self, build: Build | Ops, timeout: float | None) -> Commit:
        """Commit operations, or what `build` returns; then compact a little for `retain=`."""
        if self.closed:
            self.check_open()
        committer = self.made_committer or self.committer
        seconds = self.commit_timeout_s if timeout is None else check_timeout(timeout)
        commit = committer.commit(build, timeout=seconds)
        if self.retain_ms is not None:
            self._retain()
        return commit

    def timeout_s(self, timeout: float | None) -> float:
        """Return the seconds that a commit may take."""
        return self.commit_timeout_s if timeout is None else check_timeout(timeout)

    def check_clock(self) -> None:
        """Raise `ClockSkewError` if the local clock and the server's differ by too much.

        For an embedded engine the machine's clock is the server's, and only a store clock ahead of
        it is an error, because it would move the times of all other processes.

        The server's clock is read again before raising: an old reading is wrong if this machine
        slept or a clock was set.
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
        """Return by how much the clocks differ, and whether that is certainly too much."""
        if server is None:
            return 0, False
        at_ms, uncertainty_ms = server
        skew_ms = self.clock.now_ms() - at_ms
        harmful_ms = abs(skew_ms) if self.engine.remote else skew_ms
        return skew_ms, harmful_ms - uncertainty_ms > self.max_clock_skew_ms

    def warn_if_ahead(self) -> None:
        """Warn if the store's newest timestamp is far ahead of the clock; repair nothing."""
        newest = self.timeline.tracker.newest.timestamp
        ahead_ms = (newest - self.clock.reading()) >> LOGICAL_BITS
        if ahead_ms > self.max_clock_skew_ms:
            warnings.warn(
                f"the newest commit of {self.url} is {ahead_ms} ms ahead of the clock; "
                "times of new commits follow it, not the clock",
                ClockWarning,
                stacklevel=5,
            )

    # --- compaction ---

    def compact(
        self,
        before: int,
        *,
        past_recordings: bool = False,
        batches: int | None = None,
        timeout: float | None = None,
    ) -> Compaction:
        """Compact up to a timestamp, but keep the history that unknown outcomes may need.

        History that a recording has not copied stays, too, except with `past_recordings`.
        """
        began = perf_counter()
        try:
            done = self._compact(before, past_recordings, batches, timeout)
        except CompactedError:  # another process compacted further meanwhile
            oldest = self.timeline.oldest()
            done = Compaction(self.engine.compacted_revision(), oldest.timestamp)
        self.compactions, self.earliest = self.compactions + 1, done.earliest
        if self.notify is not None:
            took_s = perf_counter() - began
            self.notify(
                CompactionEvent(
                    self.notify.store, done.revision, done.earliest, done.waits_for, took_s
                )
            )
        return done

    def _compact(
        self, before: int, past_recordings: bool, batches: int | None, timeout: float | None
    ) -> Compaction:
        keep_ms = round(COMMIT_TIMEOUT_S_MAX * 1_000) + 2 * self.max_clock_skew_ms
        limit_ms = self.clock.now_ms() - keep_ms
        if limit_ms <= 0:
            return Compaction(self.engine.compacted_revision(), self.timeline.earliest())
        target, waits_for = min(before, end_of_ms(limit_ms)), None
        slowest = None if past_recordings else slowest_watermark(self.engine, self.layout)
        if slowest is not None and slowest.timestamp < target:
            target, waits_for = slowest.timestamp, slowest.into
        compacted = self.engine.compacted_revision()
        oldest = self.timeline.oldest()
        if target <= oldest.timestamp:
            if compacted:
                self.engine.compact(compacted, batches=batches, timeout=timeout)  # frees more
            return Compaction(compacted, oldest.timestamp, waits_for)
        mark = self.timeline.at(target).mark
        revision = max(mark.revision, compacted)
        if mark.ordinal > 1:
            self.engine.compact(revision, batches=batches, timeout=timeout)
            return Compaction(revision, mark.timestamp, waits_for)
        return Compaction(compacted, oldest.timestamp, waits_for)

    def _retain(self) -> None:
        """Compact history older than `retain=`: now and then, in small pieces."""
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
            self._compact_in_thread(before)
        else:
            self.retain_error = self._try_compact(before, 0)

    def _try_compact(self, before: int, timeout: float | None) -> SnapKVError | None:
        try:
            self.compact(before, batches=RETAIN_BATCHES, timeout=timeout)
        except EngineBusyError:
            return self.retain_error  # another process writes: a later commit compacts
        except SnapKVError as e:  # the commit was made; info() reports the error
            return e
        return None

    def _compact_in_thread(self, before: int) -> None:
        """Compact in a thread: the commit was made, and its caller should not wait long."""
        found: list[SnapKVError | None] = []

        def run() -> None:
            found.append(self._try_compact(before, None))
            self.retain_error = found[0]

        try:
            thread = here().start(run, "snapkv retain")
        except RuntimeError as e:
            self.retain_error = EngineUnavailableError(
                f"no thread for retain= could be started: {e}"
            )
            return
        thread.join(RETAIN_S)
        if not found:
            self.retain_error = EngineUnavailableError(
                f"compaction for retain= takes longer than {RETAIN_S:g} s; it continues"
            )
            if found:  # it ended meanwhile
                self.retain_error = found[0]

    # --- life ---

    def stop(self) -> None:
        """Wake the threads that wait for commits."""
        if self.made_committer is not None:
            self.made_committer.close()


def check_timeout(timeout: float) -> float:
    """Return the seconds that a commit may take; raise a typed error if they are out of bounds."""
    return float(
        check_seconds("the timeout of a commit", timeout, above=0, most=COMMIT_TIMEOUT_S_MAX)
    )
