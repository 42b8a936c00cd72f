"""Watches of a cluster: a stream that resumes without gap or repetition after it breaks."""

from __future__ import annotations

import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from snapkv.base.concurrency import Work, here
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.engine.contract import KeyEvent, WatchBatch
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.cluster_client import ClusterClient, OpenWatch
from snapkv.engine.etcd.codec import event_of
from snapkv.engine.etcd.error_texts import DENIED, FUTURE
from snapkv.engine.etcd.grpc_client import TOO_LARGE, CallFailed, ended_watch
from snapkv.errors import (
    CompactedError,
    EngineUnavailableError,
    SnapKVError,
    StoreClosedError,
    another,
)

QUEUE_BYTES_MAX = 16 << 20
"""The queue's size; the thread reads no more from the server while it is full."""
ASK_S_MIN = 0.02
EAGER_S = 0.2
ASK_S_MAX = 5.0
"""The longest pause between two progress requests of a waiting watcher, in seconds. The first
pauses are short, because a server needs about 100 ms to bring a new watch up to date; each is twice
the one before."""
ASK_AGAIN_S_MAX = 0.5
"""The first request of a call at the latest, if the call before it found nothing."""
SILENCE_S_MAX = 5.0
"""The time without an answer after which the connection is tested, in seconds; the watch leaves a
dead one."""
TRIAL_S = 2.5
REOPEN_S_MIN = 0.05
REOPEN_S_MAX = 2.0
LOOK_S = 1.0
"""The pause between two checks of a reader whether a full queue has room, or was released, in
seconds."""


class ProgressTimer(NamedTuple):
    """When a waiting watcher requests progress next, and how long it waits after that."""

    wait: float
    ask_at: float
    eager_until: float

    def asked(self, now: float) -> ProgressTimer:
        """Return the timer after a request."""
        wait = ASK_S_MIN if now < self.eager_until else min(ASK_S_MAX, self.wait * 2)
        return self._replace(wait=wait, ask_at=now + wait)


class EtcdWatcher:
    """Events of a range from a revision on; a thread reads them into a bounded queue.

    The thread refers to the `WatchReader` only, so a watcher that is garbage-collected ends it.
    """

    def __init__(self, reader: WatchReader, home: bytes) -> None:
        """Start the thread. Raises `EngineUnavailableError` when no thread can be started."""
        self._home, self._taken = home, reader.resume
        self._reported = reader.resume - 1  # progress reported so far
        self._closed = False
        self.reopened = 0
        """The number of times that the stream was opened again before what `next` returned last."""
        self._timer: ProgressTimer | None = None
        """When to request progress next; None after news."""
        self._follow(reader)
        self._reader.start()
        renew_in_children(self)

    def _follow(self, reader: WatchReader) -> None:
        self._reader = reader
        self._forgotten = weakref.finalize(self, reader.release)
        self._forgotten.atexit = False

    @property
    def _thread(self) -> Work | None:
        return self._reader.thread

    def after_fork(self) -> None:
        """Continue, on the next use, after the parent's last batch, with a new thread."""
        self._forgotten.detach()
        self._follow(self._reader.again(self._taken))

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch, progress, or None after `timeout` seconds.

        With `timeout=0` it returns what is in the queue and sends no request.
        """
        now = monotonic()
        deadline = None if timeout is None else now + timeout
        timer = self._timer or ProgressTimer(ASK_S_MIN, now + ASK_S_MIN, now + EAGER_S)
        timer = timer._replace(ask_at=min(timer.ask_at, now + ASK_AGAIN_S_MAX))
        reader = self._reader
        with reader.changed:
            if reader.thread is None and not self._closed:
                reader.start()
            while True:
                if self._closed:
                    raise StoreClosedError("the watch was closed")
                if (batch := self._take()) is not None:
                    self._timer = None
                    return batch
                self.reopened = reader.reopened
                if reader.error is not None:
                    raise another(reader.error)
                now = monotonic()
                if deadline is not None and now >= deadline:
                    self._timer = timer
                    return None
                if now >= timer.ask_at:
                    timer = timer.asked(now)
                    self._ask(now)
                until = timer.ask_at if deadline is None else min(timer.ask_at, deadline)
                reader.changed.wait(max(0.0, until - now))

    def _take(self) -> WatchBatch | None:
        if (queued := self._reader.taken()) is not None:
            batch, self.reopened = queued
            self._reported, self._taken = batch.revision, batch.revision + 1
            return batch
        if self._reader.progress > self._reported:
            self.reopened = self._reader.reopened
            self._reported = self._reader.progress
            self._taken = max(self._taken, self._reported + 1)
            return WatchBatch(self._reported, ())
        return None

    def _ask(self, now: float) -> None:
        """Request progress; test the connection if nothing arrived for long."""
        reader = self._reader
        open_watch = reader.open_watch
        if open_watch is None:
            return  # it is being opened
        open_watch.stream.ask_progress()
        if now - reader.heard_at >= SILENCE_S_MAX:
            reader.try_connection(open_watch, self._home)

    def close(self) -> None:
        """End the watch, also for a thread that waits in `next`."""
        self._closed = True
        self._reader.close()


class WatchReader:
    """The thread of a watcher, and the state that it shares with the watcher.

    After a failure it opens the stream again, at the next endpoint, from the revision after the
    last complete one. While a caller waits, the watcher requests progress: the answer shows that
    nothing happened, and that the server is alive. Servers before 3.5.8 answer wrongly while the
    watch catches up; of those only unrequested progress is used.
    """

    def __init__(
        self,
        connection: ClusterClient,
        key: bytes,
        range_end: bytes,
        start_revision: int,
        trusts_answers: Callable[[], bool],
    ) -> None:
        self._connection, self._trusts_answers = connection, trusts_answers
        self._key, self._range_end = key, range_end
        self.resume = start_revision  # all earlier batches are in the queue, or were taken
        self._floor = start_revision  # older batches are dropped: some servers send too much
        self.reopened, self._was_open = 0, False
        self._denied = self._in_fragments = False
        self._rng = random.Random()
        self.changed = here().condition()
        self.queue: deque[tuple[WatchBatch, int]] = deque()  # each with `reopened`
        self.queued_bytes = 0
        self.progress = 0  # nothing else happened up to here
        self.error: SnapKVError | None = None
        self.open_watch: OpenWatch | None = None
        self.heard_at = monotonic()
        self.thread: Work | None = None
        self._trial: Work | None = None
        self._closed = False

    def try_connection(self, open_watch: OpenWatch, home: bytes) -> None:
        """Test the connection of a stream in a thread; end the stream if nothing answers.

        In a thread, because the caller may have little time. A stream that catches up may be
        silent for long, but its connection answers.
        """
        if self._trial is not None and self._trial.is_alive():
            return

        def call() -> None:
            if self._connection.is_alive(open_watch.endpoint, home, TRIAL_S):
                self.heard_at = monotonic()
            elif self.open_watch is open_watch:
                open_watch.stream.cancel()

        with suppress(RuntimeError):  # no more threads, or the process ends: another time
            self._trial = here().start(call, "snapkv watch trial")

    def again(self, start_revision: int) -> WatchReader:
        """Return a reader that begins anew, in a forked child."""
        reader = WatchReader(
            self._connection, self._key, self._range_end, start_revision, self._trusts_answers
        )
        reader.reopened, reader._was_open = self.reopened, self._was_open
        return reader

    def start(self) -> None:
        """Start the thread; raises `EngineUnavailableError` when that fails."""
        name = f"snapkv watch from {self.resume}"
        try:
            self.thread = here().start(self._run, name)
        except RuntimeError as e:
            raise EngineUnavailableError(f"cannot start a thread for the watch: {e}") from e

    def taken(self) -> tuple[WatchBatch, int] | None:
        """Take the oldest batch out of the queue; the caller holds `changed`.

        With it comes how often the stream had been opened again when the batch was received.
        """
        if not self.queue:
            return None
        batch, reopened = self.queue.popleft()
        self.queued_bytes -= _bytes_of(batch)
        self.changed.notify_all()
        return batch, reopened

    def close(self) -> None:
        """End the stream, and wake waiting callers."""
        with self.changed:
            self._closed = True
            open_watch = self.open_watch
            self.changed.notify_all()
        if open_watch is not None:
            open_watch.stream.cancel()

    def release(self) -> None:
        """End the stream soon, because no caller takes batches any more.

        Without a lock: the garbage collector may run in any thread, whatever locks it holds.
        """
        self._closed = True
        if (open_watch := self.open_watch) is not None:
            open_watch.stream.cancel_soon()

    def _run(self) -> None:
        try:
            self._keep_reading()
        except SnapKVError as e:
            self._end(e)
        except BaseException as e:  # or a waiting caller would wait for ever
            error = EngineUnavailableError(f"the watch ended with {type(e).__name__}: {e}")
            error.__cause__ = e
            self._end(error)

    def _keep_reading(self) -> None:
        failures = 0
        while not self._closed:
            heard_at = self.heard_at
            try:
                self._follow()
                failure = CallFailed("UNAVAILABLE", "the stream ended")
            except CallFailed as e:
                failure = e
            if failure.code == TOO_LARGE and not self._in_fragments:
                self._in_fragments = True
            else:
                self._look_into(failure)
            with self.changed:
                self.open_watch = None
                waits = self.heard_at == heard_at or failure.text.startswith(FUTURE)
                failures = failures + 1 if waits else 0
                wait = min(REOPEN_S_MAX, REOPEN_S_MIN * 2 ** min(failures, 10))
                self.changed.wait_for(lambda: self._closed, wait * self._rng.uniform(0.5, 1))

    def _follow(self) -> None:
        """Open the stream and read it to its end."""
        create = pb.WatchCreateRequest(
            key=self._key,
            range_end=self._range_end,
            start_revision=self.resume,
            progress_notify=True,
            fragment=self._in_fragments,
        )
        open_watch = self._connection.watch(pb.WatchRequest(create_request=create))
        with self.changed:
            self.reopened += self._was_open
            self._was_open = True
            self.open_watch = open_watch
            closed = self._closed
        try:
            if not closed:
                self._read(open_watch)
        finally:
            open_watch.stream.cancel()

    def _read(self, open_watch: OpenWatch) -> None:
        held: list[KeyEvent] = []  # of the newest revision, which the next fragment may continue
        for answer in open_watch.stream:
            self.heard_at = monotonic()
            if answer.canceled and answer.compact_revision:
                raise CompactedError(self.resume, answer.compact_revision, unit="revision")
            if answer.canceled:
                raise ended_watch(answer.cancel_reason)
            if answer.created:
                self._connection.heard_from(open_watch.endpoint)
                continue
            held += map(event_of, answer.events)
            if answer.fragment:
                newest = held[-1].kv.mod_revision if held else 0
                whole = [event for event in held if event.kv.mod_revision < newest]
                held = held[len(whole) :]
            else:
                whole, held = held, []
            for batch in _batches(whole):
                self._enqueue(batch)
            by_itself = answer.watch_id >= 0
            if not answer.events and not answer.fragment and (by_itself or self._trusts_answers()):
                with self.changed:  # nothing else happened up to there
                    self.progress = max(self.progress, answer.header.revision)
                    self.resume = max(self.resume, answer.header.revision + 1)
                    self.changed.notify_all()

    def _enqueue(self, batch: WatchBatch) -> None:
        if batch.revision < self._floor:
            return
        with self.changed:
            while self.queued_bytes >= QUEUE_BYTES_MAX and not self._closed:
                self.changed.wait(LOOK_S)  # `release` notifies no thread
            self.queue.append((batch, self.reopened))
            self.queued_bytes += _bytes_of(batch)
            self.resume = self._floor = batch.revision + 1
            self.changed.notify_all()

    def _look_into(self, failure: CallFailed) -> None:
        """Prepare for the next stream; raises errors that are final."""
        if failure.text.startswith(FUTURE):
            return  # kine rejects what etcd waits for
        if self.open_watch is not None:  # some servers answer "denied" for an expired token
            denied, self._denied = self._denied, failure.text.startswith(DENIED)
            self._connection.broken(self.open_watch, failure, renew=self._denied and not denied)

    def _end(self, error: SnapKVError) -> None:
        with self.changed:
            self.error = error
            self.changed.notify_all()


def _batches(events: list[KeyEvent]) -> Iterator[WatchBatch]:
    """Yield events by revision, in key order."""
    for revision, group in groupby(events, key=lambda event: event.kv.mod_revision):
        yield WatchBatch(revision, tuple(sorted(group, key=lambda event: event.kv.key)))


def _bytes_of(batch: WatchBatch) -> int:
    return 128 * len(batch.events) + sum(len(e.kv.key) + len(e.kv.value) for e in batch.events)
