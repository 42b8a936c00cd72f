"""Members: processes that hold the generations of a log, follow it, and vote on its switches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from cdcmeta.errors import GenerationUnavailableError, MemberLostError
from cdcmeta.generations.log import layout
from cdcmeta.generations.log.following import Following
from cdcmeta.generations.log.listing import revision_of, unchanged
from cdcmeta.generations.model.batches import Tokens
from cdcmeta.generations.model.metadata import Generations
from cdcmeta.generations.model.streams import StreamId
from cdcmeta.generations.model.topology import Streams
from snapkv import SnapKVError, SnapshotKV, Space, pack
from snapkv.clock import pause
from snapkv.errors import StoreRecreatedError, StoreRestoredError
from snapkv.model import Guard

WAIT_S = 0.5
"""How long the thread waits for news at once."""
RETRY_S, LOOK_S = 0.2, 0.05
CLOSE_S = 5.0


class Member:
    """A process's part in a log: its generations, kept up to date, and its vote on switches.

    A thread follows the log. While a switch is under way, writes that may be the next
    generation's are refused; a member that lost its session refuses all of them, and a new one is
    to be made. It loses it, too, when its thread ends by an error that nobody foresaw, and when
    the store was restored under it. Safe for threads, and usable as a context manager.
    """

    def __init__(
        self,
        store: SnapshotKV,
        space: Space,
        session_value: bytes,
        generations: Generations,
        *,
        ttl: float,
        patience: float,
        clock_skew: float,
        finish: Callable[[float], None],
    ) -> None:
        """Make a session and read the generations: three round trips and one for each of them.

        After `patience` seconds between the phases it calls `finish(0.0)`, as coordinators do.
        `clock_skew` is how many seconds another clock may be ahead of this one.
        """
        self.store, self.generations = store, generations
        self._patience, self._finish = patience, finish
        self._clock_skew = pack(round(clock_skew * 1_000))
        self._session = store.session(ttl, session_value)
        self._space = space
        self._closed, self._news = threading.Event(), threading.Condition()
        try:
            self._following = Following(store, space, self._session, generations)
            self._thread = threading.Thread(target=self._follow, name="generations", daemon=True)
            self._thread.start()
        except BaseException:
            self._session.close()
            raise

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Member {self._session.id:x} {'alive' if self.alive else 'lost'}>"

    @property
    def id(self) -> int:
        """Its session's id."""
        return self._session.id

    @property
    def alive(self) -> bool:
        """Whether it still counts: its session lives."""
        return self._session.alive and not self._closed.is_set()

    def stream(self, ts: int, token: int) -> StreamId:
        """Return the stream of a write; as `Generations.stream`, and raises as that.

        Raises `MemberLostError` once its session ended.
        """
        return self._checked(ts, token, 0)

    def stream_of_commit(self, ts: int, token: int) -> StreamId:
        """Return the stream of a commit that carries `guards`, by the timestamp it gets.

        That may be as far ahead of this clock as another process's clock may be: the guards make
        sure that no newer generation is missed. Else as `stream`.
        """
        return self._checked(ts, token, self._clock_skew)

    def streams(self, timestamps: Tokens, tokens: Tokens) -> Streams:
        """Return the streams of many writes; as `Generations.streams`, and raises as that.

        Raises `MemberLostError` once its session ended.
        """
        found = self.generations.streams(timestamps, tokens)
        self._check()
        return found

    @property
    def log(self) -> str:
        """The space of the log whose generations it holds."""
        return self._space.name

    def guards(self) -> dict[str, list[Guard]]:
        """Return what a commit of a write takes to fail when there is a newer generation."""
        revision = self._following.head_revision
        return {self._space.name: [unchanged(layout.HEAD, revision)]}

    def catch_up(self, timeout: float) -> None:
        """Wait for news of the log; for a bounded time, and no longer than `timeout` seconds."""
        (head,) = self._space.entries_of([layout.HEAD])
        with self._news:
            if revision_of(head) == self._following.head_revision:
                self._news.wait(min(timeout, LOOK_S))
                return
            self._news.wait_for(
                lambda: self._following.head_revision >= revision_of(head), min(timeout, WAIT_S)
            )

    def close(self) -> None:
        """Leave: no switch waits for this member any more; twice is fine."""
        self._closed.set()
        self._session.close()
        self._following.close()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _checked(self, ts: int, token: int, ahead: int) -> StreamId:
        try:
            found = self.generations.stream(ts, token, ahead)
        except GenerationUnavailableError:
            self._check()  # or who waits for news would wait in vain
            raise
        self._check()
        return found

    def _check(self) -> None:
        if not self.alive:
            raise MemberLostError(self._session.id)

    def _follow(self) -> None:
        try:
            while self.alive:
                self._step()
        finally:  # whatever it was: who does not hear must not count
            self._session.close()
            self._following.close()
            with self._news:
                self._news.notify_all()

    def _step(self) -> None:
        try:
            self._following.step(WAIT_S)
            if self._following.held_s > self._patience:
                with suppress(Exception):  # it is tried again, and this one hears all the same
                    self._finish(0.0)
        except (StoreRestoredError, StoreRecreatedError):
            self._session.close()  # what was learnt may never have been
        except SnapKVError:
            self._following.close()  # the next step begins again
            pause(RETRY_S)
        with self._news:
            self._news.notify_all()
