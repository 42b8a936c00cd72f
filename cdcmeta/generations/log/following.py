"""Following a log of generations: what a member knows and does, step by step, without a thread."""

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
from snapkv.clock import monotonic
from snapkv.errors import StoreRestoredError
from snapkv.model import Guard
from snapkv.times import dated

REASON_BYTES_MAX = 500
CORRUPT_S_MIN, CORRUPT_S_MAX = 0.2, 10.0
"""The pause before a topology that was not sound is read again: twice as long each time."""


class Following:
    """What a member knows of a log, step by step: the newest state, then each commit.

    It has no thread: `step` is called by one.
    """

    def __init__(
        self, store: SnapshotKV, space: Space, session: Session, generations: Generations
    ) -> None:
        """Read what there is. The session must live already: see `Coordinator._answers`."""
        self._store, self._space, self._session = store, space, session
        self.generations = generations
        self._missing: dict[int, Generation] = {}
        self._corrupt: dict[int, tuple[float, float]] = {}
        self.head_revision = 0
        self._held_since: tuple[bytes, float] | None = None
        self._asked: tuple[Switch, int] | None = None
        self._prepared: dict[bytes, Topology] = {}
        self._watch: Watch[bytes] | None = None
        self.begin()

    def begin(self) -> None:
        """Take in what stands now, and follow from there.

        Raises `StoreRestoredError` when a generation that is held here never was.
        """
        self.close()
        state = read_state(self._space)
        listed = generations_at(state.snapshot)
        self._check_history([each.time for each in listed])
        self._watch = self._space.watch(since=state.snapshot.timestamp)
        for generation in listed:
            self._learn(generation)
        self._hear(state.switch, state.switch_revision)
        self._work()
        self.head_revision = state.head_revision

    def close(self) -> None:
        """End the watch."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def step(self, timeout: float) -> bool:
        """Take in the next commit, if one comes in time; return whether one came.

        What stands now is taken in where that was not possible the last time.
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
            self._take(found)
        self._work()
        return found is not None

    @property
    def held_s(self) -> float:
        """Seconds for which writes have been refused for the switch under way; 0 for none."""
        return 0.0 if self._held_since is None else monotonic() - self._held_since[1]

    def _check_history(self, listed: list[int]) -> None:
        """Raise `StoreRestoredError` where what is held is not what the log holds.

        The oldest are removed from a log, so what is older than all that it lists is fine.
        """
        for time in set(self.generations.times).difference(listed):
            if not listed or time > min(listed):
                raise StoreRestoredError(
                    f"the log has no generation from {dated(time)} on any more"
                )

    # --- news ---

    def _take(self, changes: Changes[bytes]) -> None:
        """Take in a commit: new generations before what becomes of the switch they come from."""
        for change in changes.changes:
            if change.key.startswith(layout.GENERATION_PREFIX) and change.value is not None:
                self._learn(layout.generation_of(change.key, change.value))
        for change in reversed(changes.changes):  # the switch before the head
            if change.key == layout.SWITCH:
                switch = None if change.value is None else layout.decode(Switch, change.value)
                self._hear(switch, changes.commit.revision)
            elif change.key == layout.HEAD:
                self.head_revision = changes.commit.revision  # when all of it was taken in

    def _learn(self, generation: Generation) -> None:
        topology = self._prepared.pop(generation.id, None)
        if topology is not None:
            self.generations.insert(generation.time, topology)
        elif self.generations.prepare(generation.time):
            self._missing[generation.time] = generation

    def _hear(self, switch: Switch | None, revision: int) -> None:
        if switch is None or switch.phase != PREPARED:
            self._asked = self._held_since = None
            self._prepared.clear()
            self.generations.hold(None)
            return
        if self._held_since is None or self._held_since[0] != switch.id:
            self._held_since = switch.id, monotonic()
        self._asked = switch, revision

    # --- duties ---

    def _work(self) -> None:
        """Answer the switch, and read topologies that could not be read before."""
        if self._asked is not None:
            self._answer(*self._asked)
        for time, generation in list(self._missing.items()):
            again_at, pause_s = self._corrupt.get(time, (0.0, CORRUPT_S_MIN))
            if self.generations.known_or_obsolete(time):
                self._drop(time)
            elif monotonic() >= again_at:
                try:
                    self.generations.insert(time, topology_at(self._space.at(), generation))
                except GenerationNotFoundError:
                    pass  # expired
                except CorruptTopologyError:  # all of it was read
                    later = min(2 * pause_s, CORRUPT_S_MAX)
                    self._corrupt[time] = monotonic() + pause_s, later
                    continue
                except SnapKVError:
                    continue  # the next step tries again; its writes are refused until then
                self._drop(time)

    def _drop(self, time: int) -> None:
        """Need a topology no more."""
        del self._missing[time]
        self._corrupt.pop(time, None)

    def _answer(self, switch: Switch, revision: int) -> None:
        """Refuse writes that may be the new generation's, read its rows, and say so."""
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
            pass  # it is decided, or this member is none any more: news will come
        except (CommitUnknownError, CommitTimeoutError, SnapKVError):
            return
        self._asked = None
