"""Following a cluster: a stream that resumes without gap or repetition, wherever it broke."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby

from snapkv.clock import monotonic
from snapkv.engine.base import Event, WatchBatch
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.connection import Connection, Watching
from snapkv.engine.etcd.refusals import DENIED
from snapkv.engine.etcd.rpc import CallFailed, ended_watch
from snapkv.engine.etcd.wire import event_of
from snapkv.errors import CompactedError, SnapKVError, StoreClosedError
from snapkv.forks import renew_in_children

QUEUE_BYTES_MAX = 16 << 20
"""What may wait to be taken; beyond it the server is not read from."""
ASK_S_MIN = 0.02
EAGER_S = 0.2
ASK_S_MAX = 5.0
"""A watcher that waits asks how far the stream has come: at first often, for a server needs about
100 ms to bring a new watch up to date, then at intervals that double."""
SILENCE_S_MAX = 5.0
"""After so long without a word the connection is tried; one that does not answer is left."""
TRIAL_S_MIN, TRIAL_S_MAX = 0.5, 2.5
REOPEN_S_MIN = 0.05
REOPEN_S_MAX = 2.0


class EtcdWatcher:
    """Events of a range from a revision on; a thread reads them into a bounded queue.

    The stream is opened again, at the next endpoint, from the revision after the last complete
    one. It is asked for its progress while somebody waits: the answer tells that there was
    nothing, and that the other side still lives. Servers before 3.5.8 answer what is not so, while
    the watch is still catching up; of those only what they tell by themselves is believed.
    """

    def __init__(
        self,
        connection: Connection,
        home: bytes,
        key: bytes,
        range_end: bytes,
        start_revision: int,
        *,
        trusts_answers: Callable[[], bool] = lambda: True,
    ) -> None:
        self._connection, self._home = connection, home
        self._trusts_answers = trusts_answers
        self._key, self._range_end = key, range_end
        self._resume = start_revision  # all before it is in the queue, or was taken
        self._floor = start_revision  # nothing older is taken: some servers send too much
        self._told = start_revision - 1  # progress told so far
        self.reopened, self._opened = 0, False
        self._denied = False
        self._rng = random.Random()
        self._closed = False
        self._renew()
        self._start()
        renew_in_children(self)

    def _renew(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[WatchBatch] = deque()
        self._queued_bytes = 0
        self._taken = self._resume
        self._progress = 0  # how far it has come without events, not yet told
        self._error: SnapKVError | None = None
        self._watching: Watching | None = None
        self._heard_at = monotonic()
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        name = f"snapkv watch from {self._resume}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def after_fork(self) -> None:
        """Begin again, on the next use, where the parent stopped taking: its thread is not here."""
        self._resume = self._floor = self._taken
        self._renew()

    # --- the taker's side ---

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch, progress, or None after `timeout` seconds.

        With `timeout=0` it returns what has come and asks nobody.
        """
        deadline = None if timeout is None else monotonic() + timeout
        wait, ask_at = ASK_S_MIN, monotonic() + ASK_S_MIN
        eager_until = monotonic() + EAGER_S
        with self._changed:
            if self._thread is None and not self._closed:
                self._start()
            while True:
                if self._closed:
                    raise StoreClosedError("the watch was closed")
                if (batch := self._take()) is not None:
                    return batch
                if self._error is not None:
                    raise self._error
                now = monotonic()
                if deadline is not None and now >= deadline:
                    return None
                if now >= ask_at:
                    wait = ASK_S_MIN if now < eager_until else min(ASK_S_MAX, wait * 2)
                    ask_at = now + wait
                    self._ask(now, SILENCE_S_MAX if deadline is None else deadline - now)
                until = ask_at if deadline is None else min(ask_at, deadline)
                self._changed.wait(max(0.0, until - now))

    def _take(self) -> WatchBatch | None:
        if self._queue:
            batch = self._queue.popleft()
            self._queued_bytes -= _bytes_of(batch)
            self._told, self._taken = batch.revision, batch.revision + 1
            self._changed.notify_all()
            return batch
        if self._progress > self._told:
            self._told = self._progress
            self._taken = max(self._taken, self._told + 1)
            return WatchBatch(self._told, ())
        return None

    def _ask(self, now: float, left_s: float) -> None:
        """Ask for progress; where nothing at all was heard for long, try the connection.

        That needs time, which not every caller has; then gRPC notices, in `KEEPALIVE_MS` x 1.5.
        """
        watching = self._watching
        if watching is None:
            return  # it is being opened
        watching.stream.ask_progress()
        if now - self._heard_at < SILENCE_S_MAX or left_s < TRIAL_S_MIN:
            return
        self._changed.release()
        try:  # a stream that catches up may be silent for long: its connection is not
            alive = self._connection.is_alive(
                watching.endpoint, self._home, min(left_s, TRIAL_S_MAX)
            )
        finally:
            self._changed.acquire()
        if alive:
            self._heard_at = monotonic()
        elif self._watching is watching:
            watching.stream.cancel()

    def close(self) -> None:
        """End the watch, also for a thread that waits in `next`."""
        with self._changed:
            self._closed = True
            watching = self._watching
            self._changed.notify_all()
        if watching is not None:
            watching.stream.cancel()

    # --- the reader's side ---

    def _run(self) -> None:
        thread, failures = threading.current_thread(), 0
        while not self._closed and self._thread is thread:
            heard_at = self._heard_at
            try:
                self._follow()
                failure = CallFailed("UNAVAILABLE", "the stream ended")
            except CallFailed as e:
                failure = e
            except SnapKVError as e:
                self._end(e)
                return
            try:
                self._look_into(failure)
            except SnapKVError as e:
                self._end(e)
                return
            with self._changed:
                self._watching = None
                failures = 0 if self._heard_at > heard_at else failures + 1
                wait = min(REOPEN_S_MAX, REOPEN_S_MIN * 2 ** min(failures, 10))
                self._changed.wait_for(lambda: self._closed, wait * self._rng.uniform(0.5, 1))

    def _follow(self) -> None:
        """Open the stream and read it to its end."""
        create = pb.WatchCreateRequest(
            key=self._key,
            range_end=self._range_end,
            start_revision=self._resume,
            progress_notify=True,
            fragment=True,
        )
        watching = self._connection.watch(pb.WatchRequest(create_request=create))
        with self._changed:
            self.reopened += self._opened
            self._opened = True
            self._watching = watching
            closed = self._closed
        try:
            if not closed:
                self._read(watching)
        finally:
            watching.stream.cancel()

    def _read(self, watching: Watching) -> None:
        held: list[Event] = []  # the newest revision, which a fragment may go on with
        for answer in watching.stream:
            self._heard_at = monotonic()
            if answer.canceled:
                raise self._canceled(answer)
            if answer.created:
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
                self._come_to(answer.header.revision)

    def _enqueue(self, batch: WatchBatch) -> None:
        if batch.revision < self._floor:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queued_bytes < QUEUE_BYTES_MAX)
            self._queue.append(batch)
            self._queued_bytes += _bytes_of(batch)
            self._resume = self._floor = batch.revision + 1
            self._changed.notify_all()

    def _come_to(self, revision: int) -> None:
        """Take in that nothing else happened up to a revision."""
        with self._changed:
            self._progress = max(self._progress, revision)
            self._resume = max(self._resume, revision + 1)
            self._changed.notify_all()

    def _canceled(self, answer: pb.WatchResponse) -> SnapKVError:
        if answer.compact_revision:
            return CompactedError(self._resume, answer.compact_revision, unit="revision")
        return ended_watch(answer.cancel_reason)

    def _look_into(self, failure: CallFailed) -> None:
        """Find out whether and where to go on; raises what going on would not change.

        Some servers say "denied" where a token has run out, so that gets one new token.
        """
        if self._watching is not None:
            denied, self._denied = self._denied, failure.text.startswith(DENIED)
            self._connection.broken(self._watching, failure, renew=self._denied and not denied)

    def _end(self, error: SnapKVError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()


def _batches(events: list[Event]) -> Iterator[WatchBatch]:
    """Yield events by revision, in key order."""
    for revision, group in groupby(events, key=lambda event: event.kv.mod_revision):
        yield WatchBatch(revision, tuple(sorted(group, key=lambda event: event.kv.key)))


def _bytes_of(batch: WatchBatch) -> int:
    return 128 * len(batch.events) + sum(len(e.kv.key) + len(e.kv.value) for e in batch.events)
