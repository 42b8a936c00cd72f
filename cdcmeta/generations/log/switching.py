"""Switches of generations, in two phases: claim, store, prepare, then commit or abort.

    claim --> storing --> prepared --> committed
                 |            |
                 +------------+------> aborted

Each step is one commit guarded by the switch's own key, so of several coordinators one succeeds,
and one that was overtaken writes nothing more. What is under way is in the store: whoever comes
next completes it, when all members have answered, or ends it after its deadline.

Why no write lands in a stream of the wrong generation: from its acknowledgement on, a member
refuses writes at or after `not_before`, until it hears the outcome; and the new generation begins
at or after that, and after every write that any member let through before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from cdcmeta.errors import CorruptTopologyError, SwitchAbortedError, SwitchPendingError
from cdcmeta.generations.log import layout
from cdcmeta.generations.log.layout import PREPARED, STORING, Aborted, Generation, Switch
from cdcmeta.generations.log.listing import State, generations_at, read_state
from cdcmeta.generations.model.topology import Topology
from snapkv import (
    AtRevision,
    CommitTimeoutError,
    CommitUnknownError,
    CompactedError,
    ConflictError,
    Snapshot,
    SnapshotKV,
    Space,
    SpaceOps,
    Stamp,
    Watch,
    pack,
)
from snapkv.clock import monotonic, pause
from snapkv.errors import CorruptStoreError
from snapkv.times import TIMESTAMP_MAX, format_time

PART_BYTES = 1_000_000
PART_ROWS = 2_000
"""What is written at once of a topology: etcd takes 1.5 MiB."""
TRIES = 3
LOOK_S = 0.25
"""How often a waiting coordinator looks for sessions that ended, which no watch tells."""


class Answers(NamedTuple):
    """What members said to a switch: who lacks by session, refusals, and the newest write of all.

    `newest_member` is the one that let this write through.
    """

    missing: dict[int, str]
    refusals: list[str]
    newest_write: int
    newest_member: str


class Coordinator:
    """Drives switches of one log, its own ones and those that others left."""

    def __init__(
        self,
        store: SnapshotKV,
        space: Space,
        session_prefix: bytes,
        *,
        delay_ms: int,
        patience_ms: int,
        skew_ms_max: int,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Take how far ahead a generation begins, and how long a phase may take.

        And how long after a switch's deadline a write may be that a member let through.
        """
        self._store, self._space, self._session_prefix = store, space, session_prefix
        self._delay, self._patience = pack(delay_ms), pack(patience_ms)
        self._skew_max = pack(skew_ms_max)
        self._random_bytes = random_bytes

    def make(
        self,
        digest: bytes,
        make: Callable[[], Topology],
        timeout: float,
        force: bool,
    ) -> Generation:
        """Return the generation of a ring: the newest, if it is that, or the one made now.

        The ring is known by its `digest`; `make` returns a topology for it. A switch to the same
        ring is joined, another one is waited for. `force` makes a new one anyway. One that was
        joined, and whose coordinator died before the members were asked, is replaced. Raises
        `SwitchAbortedError`, `SwitchPendingError`.
        """
        deadline = monotonic() + timeout
        own: bytes | None = None
        begun = asked = False
        with self._watch() as watch:
            while True:
                state = read_state(self._space)
                if state.switch is not None:
                    if state.switch.ring == digest:
                        same = own == state.switch.id
                        asked = state.switch.phase == PREPARED or (asked and same)
                        own = state.switch.id
                    self._advance(state, watch, deadline)
                    continue
                if own is not None:
                    made = _made(state, own)
                    if made is not None:
                        return made
                    if asked:
                        raise _aborted(state, own)
                newest = _newest(state)
                if newest is not None and newest.ring == digest and not force:
                    return newest
                if begun and monotonic() >= deadline:
                    raise CommitTimeoutError("no switch could be begun in time")
                begun = True
                own = self._begin(state, digest, make(), deadline)
                asked = own is not None

    def finish(self, timeout: float) -> None:
        """Complete or end the switch that is under way, if there is one.

        Raises `SwitchPendingError` when that takes longer.
        """
        deadline = monotonic() + timeout
        with self._watch() as watch:
            while (state := read_state(self._space)).switch is not None:
                self._advance(state, watch, deadline)

    # --- steps ---

    def _begin(
        self, state: State, digest: bytes, topology: Topology, deadline: float
    ) -> bytes | None:
        """Claim the switch, write its rows, ask the members; return its id, None if overtaken."""
        id, refines = self._random_bytes(16), _refines(state, topology)

        def claim(stamp: Stamp) -> SpaceOps:
            switch = Switch(
                id=id,
                ring=digest,
                ranges=len(topology),
                streams=topology.stream_count,
                phase=STORING,
                not_before=0,
                deadline=stamp.ts + self._patience,
                first=not state.head,
                refines=refines,
            )
            return SpaceOps({layout.SWITCH: layout.encode(switch)}, guards=state.guards())

        self._done(claim, "claim", deadline)
        claimed = read_state(self._space)
        switch = claimed.switch
        if switch is None or switch.id != id:
            return None  # somebody else was first
        guard = AtRevision(layout.SWITCH, claimed.switch_revision)
        for part in _parts(id, topology):
            ops = SpaceOps(part, guards=[guard])
            if not self._done(lambda _, ops=ops: ops, "rows", deadline):  # type: ignore[misc]
                return id
        self._done(lambda stamp: self._prepared(stamp, switch, guard), "prepare", deadline)
        return id

    def _prepared(self, stamp: Stamp, switch: Switch, guard: AtRevision) -> SpaceOps:
        asked = replace(
            switch,
            phase=PREPARED,
            not_before=stamp.ts + (0 if switch.first else self._delay),
            deadline=stamp.ts + self._patience,
        )
        return SpaceOps({layout.SWITCH: layout.encode(asked)}, guards=[guard])

    def _advance(self, state: State, watch: Watch[bytes], deadline: float) -> None:
        """Take the next step of a switch, or wait for somebody else's."""
        switch = state.switch
        assert switch is not None
        late = self._store.timestamp_of("-0s") > switch.deadline
        waiting: list[str] = []
        if switch.phase == STORING:
            if late:
                self._abort(state, "its coordinator did not write its rows in time", deadline)
                return
        else:
            answers = self._answers(state.snapshot, switch)
            waiting = sorted(answers.missing.values())
            why = self._why_not(state, switch, answers)
            if why is None and waiting and late:
                why = f"members that did not answer in time: {', '.join(waiting)}"
            if why is not None:
                self._abort(state, why, deadline)
                return
            if not waiting:
                self._commit(state, answers.newest_write, deadline)
                return
        left = deadline - monotonic()
        if left <= 0:
            if waiting:
                raise SwitchPendingError(switch.id, tuple(waiting))
            raise SwitchPendingError(switch.id)
        try:
            watch.next(min(LOOK_S, left))
        except CompactedError:  # it only wakes, and what stands is read anew
            pause(min(LOOK_S, left))

    def _why_not(self, state: State, switch: Switch, answers: Answers) -> str | None:
        """Return why a switch cannot come, None when members have only to answer."""
        if answers.refusals:
            return "; ".join(answers.refusals)
        newest = answers.newest_write
        if not answers.missing and max(state.head, newest) >= TIMESTAMP_MAX:
            return "there is no time behind the newest write"
        if newest > switch.deadline + self._skew_max:  # what the clock of who asked has told
            return (
                f"the clock of {answers.newest_member} is ahead: it let through a write at "
                f"{format_time(newest)}, which the new generation would have to begin behind"
            )
        return None

    def _answers(self, snapshot: Snapshot[bytes], switch: Switch) -> Answers:
        """Return what the members said, and who has not.

        Sessions are listed after the answers were read, and after the switch was prepared. So who
        is not listed is gone, and may write nothing; or came later, and saw the switch first.
        """
        prefixes = layout.ack_prefix(switch.id), layout.refusal_prefix(switch.id)
        acks, refusals = (dict(snapshot.items(prefix)) for prefix in prefixes)
        told = sorted(why.decode(errors="replace") for why in refusals.values())
        writes: dict[int, int] = {}
        for key, raw in acks.items():
            try:
                writes[layout.session_of(key)] = layout.number_of(raw)
            except CorruptStoreError as e:
                told.append(f"an answer cannot be read: {e}")
        names = {
            info.id: _name_of(info.value.removeprefix(self._session_prefix), info.id)
            for info in self._store.sessions()
            if info.value.startswith(self._session_prefix)
        }
        missing = {session: name for session, name in names.items() if session not in writes}
        newest, session = max(
            ((write, session) for session, write in writes.items()), default=(0, 0)
        )
        return Answers(missing, told, newest, names.get(session) or _name_of(b"", session))

    def _commit(self, state: State, newest_write: int, deadline: float) -> None:
        switch = state.switch
        assert switch is not None

        def commit(stamp: Stamp) -> SpaceOps:
            earliest = stamp.ts if switch.first else stamp.ts + self._delay
            time = max(earliest, switch.not_before, state.head + 1, newest_write + 1)
            generation = Generation(
                time,
                switch.id,
                switch.ring,
                switch.ranges,
                switch.streams,
                made=stamp.ts,
                refines=switch.refines,
            )
            puts = {
                layout.HEAD: layout.number(time),
                layout.generation_key(time): layout.encode(generation),
            }
            return _ended(switch.id, puts, state)

        self._done(commit, "commit", deadline)

    def _abort(self, state: State, why: str, deadline: float) -> None:
        switch = state.switch
        assert switch is not None
        puts = {layout.ABORTED: layout.encode(Aborted(switch.id, why))}
        ops = _ended(switch.id, puts, state)
        gone = replace(ops, delete_prefixes=[*ops.delete_prefixes, layout.rows_prefix(switch.id)])
        self._done(lambda _: gone, "abort", deadline)

    # --- helpers ---

    def _done(self, build: Callable[[Stamp], SpaceOps], step: str, deadline: float) -> bool:
        """Commit a step; return whether it is known to have happened.

        Otherwise somebody else was first, or nobody knows: the state tells. It may be sent again,
        for its guards let it happen once. After the deadline `CommitUnknownError` is passed on.
        """
        for left in reversed(range(TRIES)):
            try:
                self._space.commit(build, note=f"generations: {step}")
            except ConflictError:
                return False
            except CommitUnknownError:
                if not left and monotonic() >= deadline:
                    raise
                continue
            return True
        return False

    def _watch(self) -> Watch[bytes]:
        return self._space.watch(layout.SWITCH)


def _ended(id: bytes, puts: dict[bytes, bytes], state: State) -> SpaceOps:
    answers = [layout.ack_prefix(id), layout.refusal_prefix(id)]
    return SpaceOps(puts, [layout.SWITCH], answers, state.guards())


def _parts(id: bytes, topology: Topology) -> Iterator[dict[bytes, bytes]]:
    """Yield the rows of a topology in parts of a size that every engine takes."""
    part: dict[bytes, bytes] = {}
    size, prefix = 0, layout.rows_prefix(id)
    for end, value in topology.rows():
        part[layout.row_key(prefix, end)] = value
        size += len(value) + 64
        if size >= PART_BYTES or len(part) == PART_ROWS:
            yield part
            part, size = {}, 0
    if part:
        yield part


def _newest(state: State) -> Generation | None:
    if not state.head:
        return None
    (found,) = state.snapshot.entries_of([layout.generation_key(state.head)])
    return None if found is None else layout.decode(Generation, found.value)


def _refines(state: State, topology: Topology) -> bool | None:
    """Return whether each range lies in one of the newest generation's; None for none to read."""
    newest = _newest(state)
    if newest is None:
        return None
    prefix = layout.rows_prefix(newest.id)
    try:
        before = {layout.end_of(prefix, key) for key in state.snapshot.keys(prefix)}
    except CorruptTopologyError:
        return None
    return before.issubset(end for end, _ in topology.rows())


def _made(state: State, id: bytes) -> Generation | None:
    """Return the generation that a switch became, None if it came to nothing."""
    return next((each for each in generations_at(state.snapshot) if each.id == id), None)


def _aborted(state: State, id: bytes) -> SwitchAbortedError:
    why = state.aborted.why if state.aborted and state.aborted.id == id else "it was ended"
    return SwitchAbortedError(id, why)


def _name_of(value: bytes, session: int) -> str:
    """Return what to call a member that others wait for."""
    return value.decode(errors="replace") or f"session {session:x}"
