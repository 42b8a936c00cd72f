"""Members: processes that have a log's generations, follow the log, and vote on its switches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from cdcmeta.errors import GenerationUnavailableError, MemberLostError
from cdcmeta.generations.log import layout
from cdcmeta.generations.log.listing import revision_of, unchanged
from cdcmeta.generations.log.log_follower import Follower
from cdcmeta.generations.model.many_tokens import Tokens
from cdcmeta.generations.model.metadata import Generations
from cdcmeta.generations.model.streams import StreamId
from cdcmeta.generations.model.topology import Streams
from snapkv import SnapKVError, SnapshotKV, Space, pack
from snapkv.base.waiting import pause
from snapkv.errors import StoreRecreatedError, StoreRestoredError
from snapkv.model import Guard

WAIT_S = 0.5
"""How long the thread waits for one commit."""
RETRY_S, POLL_S = 0.2, 0.05
CLOSE_S = 5.0


class Member:
    """A process's part in a log: its generations, kept up to date, and its vote on switches.

    A thread follows the log. While a switch is under way, the member rejects writes that may be the
    next generation's. A member that lost its session rejects all writes: make a new one. It also
    loses its session if its thread ends by an unexpected error, or if the store was restored. Safe
    for threads, and usable as a context manager.
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

        After `patience` seconds between the phases it calls `finish(0.0)`. `clock_skew` is how many
        seconds another clock may be ahead of this one.
        """
        self.store, self.generations = store, generations
        self._patience, self._finish = patience, finish
        self._clock_skew = pack(round(clock_skew * 1_000))
        self._session = store.session(ttl, session_value)
        self._space = space
        self._closed, self._changed = threading.Event(), threading.Condition()
        try:
            self._following = Follower(store, space, self._session, generations)
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
        """Whether it counts in switches: its session is alive."""
        return self._session.alive and not self._closed.is_set()

    def stream(self, ts: int, token: int) -> StreamId:
        """Return the stream of a write, as `Generations.stream`.

        Raises `MemberLostError` once its session ended.
        """
        return self._checked(ts, token, 0)

    def stream_of_commit(self, ts: int, token: int) -> StreamId:
        """Return the stream of a commit with `guards`, by the commit's timestamp; as `stream`.

        The timestamp may be ahead of this clock by `clock_skew`: the guards ensure that no newer
        generation is missed.
        """
        return self._checked(ts, token, self._clock_skew)

    def streams(self, timestamps: Tokens, tokens: Tokens) -> Streams:
        """Return the streams of many writes, as `Generations.streams`.

        Raises `MemberLostError` once its session ended.
        """
        found = self.generations.streams(timestamps, tokens)
        self._check()
        return found

    @property
    def log(self) -> str:
        """The space of its generation log."""
        return self._space.name

    def guards(self) -> dict[str, list[Guard]]:
        """Return the guards with which a write's commit fails if there is a newer generation."""
        revision = self._following.head_revision
        return {self._space.name: [unchanged(layout.HEAD, revision)]}

    def catch_up(self, timeout: float) -> None:
        """Wait for the next commit of the log, for a bounded time and at most `timeout` seconds."""
        (head,) = self._space.entries_of([layout.HEAD])
        with self._changed:
            if revision_of(head) == self._following.head_revision:
                self._changed.wait(min(timeout, POLL_S))
                return
            self._changed.wait_for(
                lambda: self._following.head_revision >= revision_of(head), min(timeout, WAIT_S)
            )

    def close(self) -> None:
        """Leave: switches no longer wait for this member; may be called twice."""
        self._closed.set()
        self._session.close()
        self._following.close()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _checked(self, ts: int, token: int, ahead: int) -> StreamId:
        try:
            found = self.generations.stream(ts, token, ahead)
        except GenerationUnavailableError:
            self._check()  # a lost member gets no news: do not wait for them
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
        finally:  # after any error: a member that does not follow must not count
            self._session.close()
            self._following.close()
            with self._changed:
                self._changed.notify_all()

    def _step(self) -> None:
        try:
            self._following.step(WAIT_S)
            if self._following.held_s > self._patience:
                with suppress(Exception):  # tried again later; following does not depend on it
                    self._finish(0.0)
        except (StoreRestoredError, StoreRecreatedError):
            self._session.close()  # the known generations may not exist in the store
        except SnapKVError:
            self._following.close()  # the next step begins again
            pause(RETRY_S)
        with self._changed:
            self._changed.notify_all()
