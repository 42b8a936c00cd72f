"""Following a generation log: applies its commits and answers its switches, without a thread."""

from __future__ import annotations

from cdcmeta.errors import CorruptTopologyError, GenerationNotFoundError
from cdcmeta.generations.log import layout
from cdcmeta.generations.log.layout import PREPARED, Generation, Switch
from cdcmeta.generations.log.listing import generations_at, read_state, topology_at
from cdcmeta.generations.model.metadata import Generations
from cdcmeta.generations.model.topology import Topology
from snapkv import (
    AtRevision,
    Changes,
    CommitTimeoutError,
    CommitUnknownError,
    CompactedError,
    ConflictError,
    Session,
    SessionLostError,
    SnapKVError,
    SnapshotKV,
    Space,
    Watch,
)
from snapkv.base.waiting import monotonic
from snapkv.errors import StoreRestoredError
from snapkv.model import Guard
from snapkv.times import dated

REASON_BYTES_MAX = 500
CORRUPT_S_MIN, CORRUPT_S_MAX = 0.2, 10.0
"""The pause before a corrupt topology is read again: doubled each time."""


class Follower:
    """Applies a log to a member's generations: the newest state, then each commit.

    It has no thread: the member's thread calls `step`.
    """

    def __init__(
        self, store: SnapshotKV, space: Space, session: Session, generations: Generations
    ) -> None:
        """Read the state. The session must be alive already: see `Coordinator._answers`."""
        self._store, self._space, self._session = store, space, session
        self.generations = generations
        self._missing: dict[int, Generation] = {}
        self._corrupt: dict[int, tuple[float, float]] = {}
        self.head_revision = 0
        self._held_since: tuple[bytes, float] | None = None
        self._pending_switch: tuple[Switch, int] | None = None
        self._prepared: dict[bytes, Topology] = {}
        self._watch: Watch[bytes] | None = None
        self.begin()

    def begin(self) -> None:
        """Apply the newest state, and follow from there.

        Raises `StoreRestoredError` if the log lacks a generation that is known here.
        """
        self.close()
        state = read_state(self._space)
        listed = generations_at(state.snapshot)
        self._check_history([each.time for each in listed])
        self._watch = self._space.watch(since=state.snapshot.timestamp)
        for generation in listed:
            self._add_generation(generation)
        self._apply_switch(state.switch, state.switch_revision)
        self._do_duties()
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
        except CompactedError:
            watch = None
        if watch is None:
            self.begin()
            return True
        if found is not None:
            self._apply(found)
        self._do_duties()
        return found is not None

    @property
    def held_s(self) -> float:
        """Seconds since which writes are rejected for the switch under way; 0 without one."""
        return 0.0 if self._held_since is None else monotonic() - self._held_since[1]

    def _check_history(self, listed: list[int]) -> None:
        """Raise `StoreRestoredError` if a known generation is not in the log.

        Expiry removes the oldest ones, so those before the first listed one may be missing.
        """
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
                switch = None if change.value is None else layout.decode(Switch, change.value)
                self._apply_switch(switch, changes.commit.revision)
            elif change.key == layout.HEAD:
                self.head_revision = changes.commit.revision  # last: all of the commit is applied

    def _add_generation(self, generation: Generation) -> None:
        topology = self._prepared.pop(generation.id, None)
        if topology is not None:
            self.generations.insert(generation.time, topology)
        elif self.generations.prepare(generation.time):
            self._missing[generation.time] = generation

    def _apply_switch(self, switch: Switch | None, revision: int) -> None:
        if switch is None or switch.phase != PREPARED:
            self._pending_switch = self._held_since = None
            self._prepared.clear()
            self.generations.hold(None)
            return
        if self._held_since is None or self._held_since[0] != switch.id:
            self._held_since = switch.id, monotonic()
        self._pending_switch = switch, revision

    # --- duties ---

    def _do_duties(self) -> None:
        """Answer the switch, and read missing topologies."""
        if self._pending_switch is not None:
            self._answer(*self._pending_switch)
        for time, generation in list(self._missing.items()):
            again_at, pause_s = self._corrupt.get(time, (0.0, CORRUPT_S_MIN))
            if self.generations.known_or_obsolete(time):
                self._forget(time)
            elif monotonic() >= again_at:
                try:
                    self.generations.insert(time, topology_at(self._space.at(), generation))
                except GenerationNotFoundError:
                    pass  # expired
                except CorruptTopologyError:  # the rows are complete but corrupt
                    later = min(2 * pause_s, CORRUPT_S_MAX)
                    self._corrupt[time] = monotonic() + pause_s, later
                    continue
                except SnapKVError:
                    continue  # the next step tries again; until then its writes are rejected
                self._forget(time)

    def _forget(self, time: int) -> None:
        """Stop reading a topology."""
        del self._missing[time]
        self._corrupt.pop(time, None)

    def _answer(self, switch: Switch, revision: int) -> None:
        """Reject writes that may be the new generation's, read its rows, and commit the answer."""
        newest_write = self.generations.hold(switch.not_before)
        key, value = layout.ack_key(switch.id, self._session.id), layout.number(newest_write)
        try:
            self._prepared[switch.id] = topology_at(self._space.at(), switch)
        except (CorruptTopologyError, GenerationNotFoundError) as e:
            key = layout.refusal_key(switch.id, self._session.id)
            value = f"{e}".encode()[:REASON_BYTES_MAX]
        except SnapKVError:
            return  # the next step tries again
        guards: list[Guard] = [AtRevision(layout.SWITCH, revision), self._session.guard]
        try:
            self._space.commit(puts={key: value}, guards=guards, note="generations: answer")
        except (ConflictError, SessionLostError):
            pass  # the switch has ended, or the session: a later commit shows it
        except (CommitUnknownError, CommitTimeoutError, SnapKVError):
            return
        self._pending_switch = None
