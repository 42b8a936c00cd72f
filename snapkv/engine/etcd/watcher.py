"""Following a cluster: a stream that resumes without gap or repetition, wherever it broke."""

from __future__ import annotations

import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby

from snapkv.clock import monotonic
from snapkv.engine.contract import Event, WatchBatch
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.codec import event_of
from snapkv.engine.etcd.connection import Connection, Watching
from snapkv.engine.etcd.error_texts import DENIED
from snapkv.engine.etcd.grpc_client import TOO_LARGE, CallFailed, ended_watch
from snapkv.errors import (
    CompactedError,
    EngineUnavailableError,
    SnapKVError,
    StoreClosedError,
)
from snapkv.lifecycle import renew_in_children

QUEUE_BYTES_MAX = 16 << 20
"""What may wait to be taken; beyond it the server is not read from."""
ASK_S_MIN = 0.02
EAGER_S = 0.2
ASK_S_MAX = 5.0
"""A watcher that waits asks how far the stream has come: at first often, for a server needs about
100 ms to bring a new watch up to date, then at intervals that double."""
SILENCE_S_MAX = 5.0
"""After so long without a word the connection is tried; one that does not answer is left."""
TRIAL_S = 2.5
REOPEN_S_MIN = 0.05
REOPEN_S_MAX = 2.0
LOOK_S = 1.0
"""How often a reader that waits for a taker looks whether there is one."""


class EtcdWatcher:
    """Events of a range from a revision on; a thread reads them into a bounded queue.

    One that nobody refers to any more ends by itself: the thread knows the `Following` alone.
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
        """Begin to follow. Raises `EngineUnavailableError` where there can be no more threads."""
        self._connection, self._home = connection, home
        self._told = start_revision - 1  # progress told so far
        self._taken = start_revision
        self._closed = False
        self._follow(Following(connection, key, range_end, start_revision, trusts_answers))
        self._following.start()
        renew_in_children(self)

    def _follow(self, following: Following) -> None:
        self._following = following
        self._forgotten = weakref.finalize(self, following.let_go)
        self._forgotten.atexit = False

    @property
    def reopened(self) -> int:
        """How often the stream was opened again."""
        return self._following.reopened

    @property
    def _thread(self) -> threading.Thread | None:
        return self._following.thread

    def after_fork(self) -> None:
        """Begin again, on the next use, where the parent stopped taking: its thread is not here."""
        self._forgotten.detach()
        self._follow(self._following.again(self._taken))

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch, progress, or None after `timeout` seconds.

        With `timeout=0` it returns what has come and asks nobody.
        """
        deadline = None if timeout is None else monotonic() + timeout
        wait, ask_at = ASK_S_MIN, monotonic() + ASK_S_MIN
        eager_until = monotonic() + EAGER_S
        following = self._following
        with following.changed:
            if following.thread is None and not self._closed:
                following.start()
            while True:
                if self._closed:
                    raise StoreClosedError("the watch was closed")
                if (batch := self._take()) is not None:
                    return batch
                if following.error is not None:
                    raise following.error
                now = monotonic()
                if deadline is not None and now >= deadline:
                    return None
                if now >= ask_at:
                    wait = ASK_S_MIN if now < eager_until else min(ASK_S_MAX, wait * 2)
                    ask_at = now + wait
                    self._ask(now)
                until = ask_at if deadline is None else min(ask_at, deadline)
                following.changed.wait(max(0.0, until - now))

    def _take(self) -> WatchBatch | None:
        if (batch := self._following.taken()) is not None:
            self._told, self._taken = batch.revision, batch.revision + 1
            return batch
        if self._following.progress > self._told:
            self._told = self._following.progress
            self._taken = max(self._taken, self._told + 1)
            return WatchBatch(self._told, ())
        return None

    def _ask(self, now: float) -> None:
        """Ask for progress; where nothing at all was heard for long, try the connection."""
        following = self._following
        watching = following.watching
        if watching is None:
            return  # it is being opened
        watching.stream.ask_progress()
        if now - following.heard_at >= SILENCE_S_MAX:
            following.try_connection(watching, self._home)

    def close(self) -> None:
        """End the watch, also for a thread that waits in `next`."""
        self._closed = True
        self._following.close()


class Following:
    """What the thread of a watcher does, and what it shares with who takes.

    The stream is opened again, at the next endpoint, from the revision after the last complete
    one. It is asked for its progress while somebody waits: the answer tells that there was
    nothing, and that the other side still lives. Servers before 3.5.8 answer what is not so, while
    the watch is still catching up; of those only what they tell by themselves is believed.
    """

    def __init__(
        self,
        connection: Connection,
        key: bytes,
        range_end: bytes,
        start_revision: int,
        trusts_answers: Callable[[], bool],
    ) -> None:
        self._connection, self._trusts_answers = connection, trusts_answers
        self._key, self._range_end = key, range_end
        self._resume = start_revision  # all before it is in the queue, or was taken
        self._floor = start_revision  # nothing older is taken: some servers send too much
        self.reopened, self._opened = 0, False
        self._denied = self._in_fragments = False
        self._rng = random.Random()
        self.changed = threading.Condition()
        self.queue: deque[WatchBatch] = deque()
        self.queued_bytes = 0
        self.progress = 0  # how far it has come without events, whether told or not
        self.error: SnapKVError | None = None
        self.watching: Watching | None = None
        self.heard_at = monotonic()
        self.thread: threading.Thread | None = None
        self._trial: threading.Thread | None = None
        self._closed = False

    def try_connection(self, watching: Watching, home: bytes) -> None:
        """Call on the connection of a stream, and leave it when nobody answers; in a thread.

        Whoever takes may have little time. A stream that catches up may be silent for long: its
        connection is not.
        """
        if self._trial is not None and self._trial.is_alive():
            return

        def call() -> None:
            if self._connection.is_alive(watching.endpoint, home, TRIAL_S):
                self.heard_at = monotonic()
            elif self.watching is watching:
                watching.stream.cancel()

        self._trial = threading.Thread(target=call, name="snapkv watch trial", daemon=True)
        with suppress(RuntimeError):  # no more threads, or the process ends: another time
            self._trial.start()

    def again(self, start_revision: int) -> Following:
        """Return one that begins anew, in a forked child."""
        following = Following(
            self._connection, self._key, self._range_end, start_revision, self._trusts_answers
        )
        following.reopened, following._opened = self.reopened, self._opened
        return following

    def start(self) -> None:
        """Start the thread; raises `EngineUnavailableError` when there can be no more."""
        name = f"snapkv watch from {self._resume}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            raise EngineUnavailableError(f"there is no thread to watch with: {e}") from e
        self.thread = thread

    def taken(self) -> WatchBatch | None:
        """Take the oldest batch out of the queue; for who holds `changed`."""
        if not self.queue:
            return None
        batch = self.queue.popleft()
        self.queued_bytes -= _bytes_of(batch)
        self.changed.notify_all()
        return batch

    def close(self) -> None:
        """End the stream, and wake who waits."""
        with self.changed:
            self._closed = True
            watching = self.watching
            self.changed.notify_all()
        if watching is not None:
            watching.stream.cancel()

    def let_go(self) -> None:
        """End the stream soon: nobody takes any more.

        Without a lock: garbage may be collected in any thread, whatever it holds.
        """
        self._closed = True
        if (watching := self.watching) is not None:
            watching.stream.let_go()

    def _run(self) -> None:
        try:
            self._keep_following()
        except SnapKVError as e:
            self._end(e)
        except BaseException as e:  # or who waits would wait for ever
            error = EngineUnavailableError(f"following ended by {type(e).__name__}: {e}")
            error.__cause__ = e
            self._end(error)

    def _keep_following(self) -> None:
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
                self.watching = None
                failures = 0 if self.heard_at > heard_at else failures + 1
                wait = min(REOPEN_S_MAX, REOPEN_S_MIN * 2 ** min(failures, 10))
                self.changed.wait_for(lambda: self._closed, wait * self._rng.uniform(0.5, 1))

    def _follow(self) -> None:
        """Open the stream and read it to its end."""
        create = pb.WatchCreateRequest(
            key=self._key,
            range_end=self._range_end,
            start_revision=self._resume,
            progress_notify=True,
            fragment=self._in_fragments,
        )
        watching = self._connection.watch(pb.WatchRequest(create_request=create))
        with self.changed:
            self.reopened += self._opened
            self._opened = True
            self.watching = watching
            closed = self._closed
        try:
            if not closed:
                self._read(watching)
        finally:
            watching.stream.cancel()

    def _read(self, watching: Watching) -> None:
        held: list[Event] = []  # the newest revision, which a fragment may go on with
        for answer in watching.stream:
            self.heard_at = monotonic()
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
        with self.changed:
            while self.queued_bytes >= QUEUE_BYTES_MAX and not self._closed:
                self.changed.wait(LOOK_S)  # letting go notifies nobody
            self.queue.append(batch)
            self.queued_bytes += _bytes_of(batch)
            self._resume = self._floor = batch.revision + 1
            self.changed.notify_all()

    def _come_to(self, revision: int) -> None:
        """Take in that nothing else happened up to a revision."""
        with self.changed:
            self.progress = max(self.progress, revision)
            self._resume = max(self._resume, revision + 1)
            self.changed.notify_all()

    def _canceled(self, answer: pb.WatchResponse) -> SnapKVError:
        if answer.compact_revision:
            return CompactedError(self._resume, answer.compact_revision, unit="revision")
        return ended_watch(answer.cancel_reason)

    def _look_into(self, failure: CallFailed) -> None:
        """Find out whether and where to go on; raises what going on would not change.

        Some servers say "denied" where a token has run out, so that gets one new token.
        """
        if self.watching is not None:
            denied, self._denied = self._denied, failure.text.startswith(DENIED)
            self._connection.broken(self.watching, failure, renew=self._denied and not denied)

    def _end(self, error: SnapKVError) -> None:
        with self.changed:
            self.error = error
            self.changed.notify_all()


def _batches(events: list[Event]) -> Iterator[WatchBatch]:
    """Yield events by revision, in key order."""
    for revision, group in groupby(events, key=lambda event: event.kv.mod_revision):
        yield WatchBatch(revision, tuple(sorted(group, key=lambda event: event.kv.key)))


def _bytes_of(batch: WatchBatch) -> int:
    return 128 * len(batch.events) + sum(len(e.kv.key) + len(e.kv.value) for e in batch.events)
