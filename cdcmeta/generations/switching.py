"""Switches of generations, in two phases: claim, store, prepare, then commit or abort.

    claim --> storing --> prepared --> committed
                 |            |
                 +------------+------> aborted

Each step is one commit guarded by the switch's key: of several coordinators one succeeds, and the
rest write nothing more. The state of the switch is in the store: any process can complete it when
all members have answered, or abort it after its deadline.

No write gets a stream of the wrong generation: from its acknowledgement on, a member rejects writes
at or after `not_before`, until it has applied the outcome. The new generation begins at or after
`not_before`, and after every write that a member accepted before its acknowledgement.

`cdcmeta/DESIGN.md` has an example of a switch, and why the time is the greatest of four.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import snapkv
from cdcmeta.argument_checks import bounded_batches
from cdcmeta.errors import CorruptTopologyError, SwitchAbortedError, SwitchPendingError
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.tokens import Sharding
from cdcmeta.generations.topology import Topology
from snapkv import AtRevision, Snapshot, SnapshotKV, Space, SpaceOps, Stamp, Watch, pack
from snapkv.base.waiting import monotonic, pause
from snapkv.errors import CorruptStoreError
from snapkv.times import TIMESTAMP_MAX, format_time

PART_BYTES = 1_000_000
PART_ROWS = 2_000
"""The bounds of one commit of rows: etcd's requests have at most 1.5 MiB."""
TRIES = 3
POLL_S = 0.25
"""The pause between two lists of sessions by a waiting coordinator, in seconds: no watch reports
their end."""


class Answers(NamedTuple):
    """The members' answers to a switch: missing ones by session, refusals, and the newest write.

    `newest_member` is the member that accepted this write.
    """

    missing: dict[int, str]
    refusals: list[str]
    newest_write: int
    newest_member: str


class SwitchCoordinator:
    """Drives the switches of one log, its own and the switches of dead coordinators."""

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

        `skew_ms_max` is how long after a switch's deadline a member's newest write may be.
        """
        self._store, self._space, self._session_prefix = store, space, session_prefix
        self._delay, self._patience = pack(delay_ms), pack(patience_ms)
        self._skew_max = pack(skew_ms_max)
        self._random_bytes = random_bytes

    def make(
        self, ring: Mapping[int, Sharding], timeout: float, *, force: bool
    ) -> layout.Generation:
        """Return the newest generation if it is of this ring, else make one.

        `ring` is from `limited_ring`. A switch to the same ring is joined; another one is waited
        for. `force` always makes a new one. A joined switch whose coordinator died before it was
        prepared is replaced. Raises `SwitchAbortedError`, `SwitchPendingError`.
        """
        deadline, digest = monotonic() + timeout, layout.digest_of(ring)
        topology: Topology | None = None
        # `own` is the switch to this ring that was begun here, or joined. `asked` is whether its
        # end without a generation is an answer to this call: it was begun here, or was seen
        # prepared, so members may have refused it. Otherwise it was joined while another
        # coordinator stored its rows, and that one died: then a new switch is begun.
        own: bytes | None = None
        begun = asked = False
        with self._space.watch(layout.SWITCH) as watch:
            while True:
                state = layout.read_state(self._space)
                if state.switch is not None:
                    if state.switch.ring == digest:
                        same = own == state.switch.id
                        asked = state.switch.phase == layout.PREPARED or (asked and same)
                        own = state.switch.id
                    self._advance(state, watch, deadline)
                    continue
                if own is not None:
                    for made in layout.generations_at(state.snapshot):
                        if made.id == own:
                            return made
                    if asked:
                        ended = state.aborted
                        why = ended.why if ended and ended.id == own else "another process ended it"
                        raise SwitchAbortedError(own, why)
                newest = _newest(state)
                if newest is not None and newest.ring == digest and not force:
                    return newest
                if begun and monotonic() >= deadline:
                    raise snapkv.CommitTimeoutError("no switch could be begun in time")
                begun = True
                topology = topology or Topology.of_ring(ring, self._random_bytes)
                own = self._begin(state, digest, topology, deadline)
                asked = own is not None

    def finish(self, timeout: float) -> None:
        """Complete or abort the switch under way, if there is one.

        Raises `SwitchPendingError` if that takes longer than `timeout`.
        """
        deadline = monotonic() + timeout
        with self._space.watch(layout.SWITCH) as watch:
            while (state := layout.read_state(self._space)).switch is not None:
                self._advance(state, watch, deadline)

    # --- steps ---

    def _begin(
        self, state: layout.LogState, digest: bytes, topology: Topology, deadline: float
    ) -> bytes | None:
        """Claim the switch, write its rows, prepare it; return its id, None without the claim."""
        id, refines = self._random_bytes(16), _refines(state, topology)

        def claim(stamp: Stamp) -> SpaceOps:
            switch = layout.Switch(
                id=id,
                ring=digest,
                ranges=len(topology),
                streams=topology.stream_count,
                phase=layout.STORING,
                not_before=0,
                deadline=stamp.ts + self._patience,
                first=not state.head,
                refines=refines,
            )
            return SpaceOps({layout.SWITCH: layout.encode(switch)}, guards=state.guards())

        self._committed(claim, "claim", deadline)
        claimed = layout.read_state(self._space)
        switch = claimed.switch
        if switch is None or switch.id != id:
            return None  # another coordinator was first
        guard = AtRevision(layout.SWITCH, claimed.switch_revision)
        for part in _parts(id, topology):
            ops = SpaceOps(part, guards=[guard])
            if not self._committed(lambda _, ops=ops: ops, "rows", deadline):  # type: ignore[misc]
                return id
        self._committed(lambda stamp: self._prepared(stamp, switch, guard), "prepare", deadline)
        return id

    def _prepared(self, stamp: Stamp, switch: layout.Switch, guard: AtRevision) -> SpaceOps:
        asked = replace(
            switch,
            phase=layout.PREPARED,
            not_before=stamp.ts + (0 if switch.first else self._delay),
            deadline=stamp.ts + self._patience,
        )
        return SpaceOps({layout.SWITCH: layout.encode(asked)}, guards=[guard])

    def _advance(self, state: layout.LogState, watch: Watch[bytes], deadline: float) -> None:
        """Take the next step of a switch, or wait for another process to take it."""
        switch = state.switch
        assert switch is not None
        late = self._store.timestamp_of("-0s") > switch.deadline
        waiting: list[str] = []
        if switch.phase == layout.STORING:
            if late:
                self._abort(state, "its coordinator did not write its rows in time", deadline)
                return
        else:
            answers = self._answers(state.snapshot, switch)
            waiting = sorted(answers.missing.values())
            why = self._abort_reason(state, switch, answers)
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
            watch.next(min(POLL_S, left))
        except snapkv.CompactedError:  # the watch only wakes; the caller reads the state again
            pause(min(POLL_S, left))

    def _abort_reason(
        self, state: layout.LogState, switch: layout.Switch, answers: Answers
    ) -> str | None:
        """Return why a switch must be aborted, None if it must not."""
        if answers.refusals:
            return "; ".join(answers.refusals)
        newest = answers.newest_write
        if not answers.missing and max(state.head, newest) >= TIMESTAMP_MAX:
            return "no time after the newest write is left"
        if newest > switch.deadline + self._skew_max:  # the deadline is by the coordinator's clock
            return (
                f"the clock of {answers.newest_member} is ahead: it accepted a write at "
                f"{format_time(newest)}, after which the new generation would have to begin"
            )
        return None

    def _answers(self, snapshot: Snapshot[bytes], switch: layout.Switch) -> Answers:
        """Return the members' answers, and the members that have not answered.

        Sessions are listed after the answers were read, and after the switch was prepared. So a
        member that is not listed has ended and cannot write, or began later and saw the switch.
        """
        prefixes = _answer_prefixes(switch.id)
        acks, refusals = (dict(snapshot.items(prefix)) for prefix in prefixes)
        reasons = sorted(why.decode(errors="replace") for why in refusals.values())
        writes: dict[int, int] = {}
        for key, raw in acks.items():
            try:
                writes[layout.session_of(key)] = layout.number_of(raw)
            except CorruptStoreError as e:
                reasons.append(f"an answer is not valid: {e}")
        names = {
            info.id: _name_of(info.value.removeprefix(self._session_prefix), info.id)
            for info in self._store.sessions()
            if info.value.startswith(self._session_prefix)
        }
        missing = {session: name for session, name in names.items() if session not in writes}
        newest, session = max(
            ((write, session) for session, write in writes.items()), default=(0, 0)
        )
        return Answers(missing, reasons, newest, names.get(session) or _name_of(b"", session))

    def _commit(self, state: layout.LogState, newest_write: int, deadline: float) -> None:
        switch = state.switch
        assert switch is not None

        def commit(stamp: Stamp) -> SpaceOps:
            earliest = stamp.ts if switch.first else stamp.ts + self._delay
            time = max(earliest, switch.not_before, state.head + 1, newest_write + 1)
            generation = layout.Generation(
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

        self._committed(commit, "commit", deadline)

    def _abort(self, state: layout.LogState, why: str, deadline: float) -> None:
        switch = state.switch
        assert switch is not None
        puts = {layout.ABORTED: layout.encode(layout.Aborted(switch.id, why))}
        ops = _ended(switch.id, puts, state)
        gone = replace(ops, delete_prefixes=[*ops.delete_prefixes, layout.rows_prefix(switch.id)])
        self._committed(lambda _: gone, "abort", deadline)

    # --- helpers ---

    def _committed(self, build: Callable[[Stamp], SpaceOps], step: str, deadline: float) -> bool:
        """Commit a step; return whether it certainly happened.

        If not, another process was first, or the outcome is unknown: read the state. A step may be
        sent again, because its guards let it happen only once. After the deadline it raises
        `CommitUnknownError`.
        """
        for left in reversed(range(TRIES)):
            try:
                self._space.commit(build, note=f"generations: {step}")
            except snapkv.ConflictError:
                return False
            except snapkv.CommitUnknownError:
                if not left and monotonic() >= deadline:
                    raise
                continue
            return True
        return False


def _ended(id: bytes, puts: dict[bytes, bytes], state: layout.LogState) -> SpaceOps:
    return SpaceOps(puts, [layout.SWITCH], _answer_prefixes(id), state.guards())


def _answer_prefixes(id: bytes) -> list[bytes]:
    return [layout.answer_key(kind, id) for kind in (layout.ACK, layout.REFUSAL)]


def _parts(id: bytes, topology: Topology) -> Iterator[dict[bytes, bytes]]:
    """Yield the rows of a topology in parts that every engine accepts."""
    prefix = layout.rows_prefix(id)
    rows = ((layout.row_key(prefix, end), value) for end, value in topology.rows())
    parts = bounded_batches(rows, lambda row: len(row[1]) + 64, PART_ROWS, PART_BYTES)
    return map(dict, parts)


def _newest(state: layout.LogState) -> layout.Generation | None:
    if not state.head:
        return None
    (found,) = state.snapshot.entries_of([layout.generation_key(state.head)])
    return None if found is None else layout.decode(layout.Generation, found.value)


def _refines(state: layout.LogState, topology: Topology) -> bool | None:
    """Return whether each range lies in one of the newest generation's; None if unknown."""
    newest = _newest(state)
    if newest is None:
        return None
    prefix = layout.rows_prefix(newest.id)
    try:
        before = {layout.end_of(prefix, key) for key in state.snapshot.keys(prefix)}
    except CorruptTopologyError:
        return None
    return before.issubset(end for end, _ in topology.rows())


def _name_of(value: bytes, session: int) -> str:
    """Return the name of a member, or its session without one."""
    return value.decode(errors="replace") or f"session {session:x}"
