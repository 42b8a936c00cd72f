"""Members: processes that have a log's generations, follow the log, and vote on its switches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import snapkv
from cdcmeta import errors
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.known_generations import Generations
from cdcmeta.generations.streams import StreamId
from cdcmeta.generations.tokens import Tokens
from cdcmeta.generations.topology import Streams, Topology
from snapkv import AtRevision, Changes, Session, SnapshotKV, Space, Watch, pack
from snapkv.base.waiting import monotonic, pause
from snapkv.errors import StoreRecreatedError, StoreRestoredError
from snapkv.model import Guard
from snapkv.times import dated

WAIT_S = 0.5
"""The longest that the thread waits for one commit, in seconds."""
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
            self._following = LogFollower(store, space, self._session, generations)
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
        return {self._space.name: [layout.unchanged(layout.HEAD, revision)]}

    def catch_up(self, timeout: float) -> None:
        """Wait for the next commit of the log, for a bounded time and at most `timeout` seconds."""
        (head,) = self._space.entries_of([layout.HEAD])
        with self._changed:
            if layout.revision_of(head) == self._following.head_revision:
                self._changed.wait(min(timeout, POLL_S))
                return
            self._changed.wait_for(
                lambda: self._following.head_revision >= layout.revision_of(head),
                min(timeout, WAIT_S),
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
        except errors.GenerationUnavailableError:
            self._check()  # a lost member gets no news: do not wait for them
            raise
        self._check()
        return found

    def _check(self) -> None:
        if not self.alive:
            raise errors.MemberLostError(self._session.id)

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
        except snapkv.SnapKVError:
            self._following.close()  # the next step begins again
            pause(RETRY_S)
        with self._changed:
            self._changed.notify_all()


# --- following the log, without a thread ---

REASON_BYTES_MAX = 500
CORRUPT_S_MIN, CORRUPT_S_MAX = 0.2, 10.0
"""The pause before a corrupt topology is read again: doubled each time."""


class LogFollower:
    """Applies a log to a member's generations: the newest state, then each commit.

    It has no thread: the member's thread calls `step`.
    """

    def __init__(
        self, store: SnapshotKV, space: Space, session: Session, generations: Generations
    ) -> None:
        """Read the state. The session must be alive already: see `SwitchCoordinator._answers`."""
        self._store, self._space, self._session = store, space, session
        self.generations = generations
        self._missing: dict[int, layout.Generation] = {}
        self._corrupt: dict[int, tuple[float, float]] = {}
        self.head_revision = 0
        self._held_since: tuple[bytes, float] | None = None
        self._pending_switch: tuple[layout.Switch, int] | None = None
        self._prepared: dict[bytes, Topology] = {}
        self._watch: Watch[bytes] | None = None
        self.begin()

    def begin(self) -> None:
        """Apply the newest state, and follow from there.

        Raises `StoreRestoredError` if the log lacks a generation that is known here.
        """
        self.close()
        state = layout.read_state(self._space)
        listed = layout.generations_at(state.snapshot)
        self._check_history([each.time for each in listed])
        self._watch = self._space.watch(since=state.snapshot.timestamp)
        for generation in listed:
            self._add_generation(generation)
        self._apply_switch(state.switch, state.switch_revision)
        self._answer_switch()
        self.head_revision = state.head_revision

    def close(self) -> None:
        """End the watch."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def step(self, timeout: float) -> bool:
        """Apply the next commit, if one comes in time; return whether one came.

        After a failure it applies the newest state instead.
        """
        watch = self._watch
        try:
            found = None if watch is None else watch.next(timeout)
        except snapkv.CompactedError:
            watch = None
        if watch is None:
            self.begin()
            return True
        if found is not None:
            self._apply(found)
        self._answer_switch()
        return found is not None

    @property
    def held_s(self) -> float:
        """Seconds since which writes are rejected for the switch under way; 0 without one."""
        return 0.0 if self._held_since is None else monotonic() - self._held_since[1]

    def _check_history(self, listed: list[int]) -> None:
        """Raise `StoreRestoredError` if the log lacks a known generation that did not expire."""
        for time in set(self.generations.times).difference(listed):
            if not listed or time > min(listed):
                raise StoreRestoredError(
                    f"the log no longer has the generation from {dated(time)} on"
                )

    # --- commits of the log ---

    def _apply(self, changes: Changes[bytes]) -> None:
        """Apply a commit: new generations first, then the end of their switch."""
        for change in changes.changes:
            if change.key.startswith(layout.GENERATION_PREFIX) and change.value is not None:
                self._add_generation(layout.generation_of(change.key, change.value))
        for change in reversed(changes.changes):  # the switch before the head
            if change.key == layout.SWITCH:
                switch = (
                    None if change.value is None else layout.decode(layout.Switch, change.value)
                )
                self._apply_switch(switch, changes.commit.revision)
            elif change.key == layout.HEAD:
                self.head_revision = changes.commit.revision  # last: all of the commit is applied

    def _add_generation(self, generation: layout.Generation) -> None:
        topology = self._prepared.pop(generation.id, None)
        if topology is not None:
            self.generations.insert(generation.time, topology)
        elif self.generations.prepare(generation.time):
            self._missing[generation.time] = generation

    def _apply_switch(self, switch: layout.Switch | None, revision: int) -> None:
        if switch is None or switch.phase != layout.PREPARED:
            self._pending_switch = self._held_since = None
            self._prepared.clear()
            self.generations.hold(None)
            return
        if self._held_since is None or self._held_since[0] != switch.id:
            self._held_since = switch.id, monotonic()
        self._pending_switch = switch, revision

    # --- duties ---

    def _answer_switch(self) -> None:
        """Answer the switch, and read missing topologies."""
        if self._pending_switch is not None:
            self._answer(*self._pending_switch)
        for time, generation in list(self._missing.items()):
            again_at, pause_s = self._corrupt.get(time, (0.0, CORRUPT_S_MIN))
            if self.generations.known_or_obsolete(time):
                self._forget(time)
            elif monotonic() >= again_at:
                try:
                    self.generations.insert(time, layout.topology_at(self._space.at(), generation))
                except errors.GenerationNotFoundError:
                    pass  # expired
                except errors.CorruptTopologyError:  # the rows are complete but corrupt
                    later = min(2 * pause_s, CORRUPT_S_MAX)
                    self._corrupt[time] = monotonic() + pause_s, later
                    continue
                except snapkv.SnapKVError:
                    continue  # the next step tries again; until then its writes are rejected
                self._forget(time)

    def _forget(self, time: int) -> None:
        """Stop reading a topology."""
        del self._missing[time]
        self._corrupt.pop(time, None)

    def _answer(self, switch: layout.Switch, revision: int) -> None:
        """Reject writes that may be the new generation's, read its rows, and commit the answer."""
        newest_write = self.generations.hold(switch.not_before)
        kind, value = layout.ACK, layout.number(newest_write)
        try:
            self._prepared[switch.id] = layout.topology_at(self._space.at(), switch)
        except (errors.CorruptTopologyError, errors.GenerationNotFoundError) as e:
            kind, value = layout.REFUSAL, f"{e}".encode()[:REASON_BYTES_MAX]
        except snapkv.SnapKVError:
            return  # the next step tries again
        key = layout.answer_key(kind, switch.id, self._session.id)
        guards: list[Guard] = [AtRevision(layout.SWITCH, revision), self._session.guard]
        try:
            self._space.commit(puts={key: value}, guards=guards, note="generations: answer")
        except (snapkv.ConflictError, snapkv.SessionLostError):
            pass  # the switch has ended, or the session: a later commit shows it
        except (snapkv.CommitUnknownError, snapkv.CommitTimeoutError, snapkv.SnapKVError):
            return
        self._pending_switch = None
