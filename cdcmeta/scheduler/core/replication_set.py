"""One table's replication set: the captures that hold it, and how events change it.

`step` is TiCDC's state machine with a token for each assignment. Its rows are facts 1.4 to 1.6 of
TiCDC's sources; `tests/scheduler/test_transitions.py` says where and why a token changes one.
"""

from __future__ import annotations

from typing import NamedTuple

from cdcmeta.scheduler.core.states import (
    ENDED,
    LIVE,
    NO_PROGRESS,
    AbandonTable,
    AddRequest,
    AddTable,
    CaptureLost,
    Event,
    Found,
    MoveTable,
    Progress,
    RemoveRequest,
    RemoveTable,
    Report,
    Role,
    Send,
    SetState,
    TableState,
    TableStatus,
    Token,
)


class Place(NamedTuple):
    """The role of one capture for a table, and its token."""

    capture: str
    role: Role
    token: Token

    def as_primary(self) -> Place:
        """Return it with the role PRIMARY."""
        return Place(self.capture, Role.PRIMARY, self.token)


class ReplicationSet(NamedTuple):
    """Everything that the owner knows about a table."""

    table: str
    state: SetState = SetState.ABSENT
    places: tuple[Place, ...] = ()
    """One for each capture that holds it or was asked to, sorted by name."""
    progress: Progress = NO_PROGRESS
    """Never goes backwards, also when the primary changes."""

    @property
    def primary(self) -> Place | None:
        """The capture that replicates, or was asked to."""
        return self._of(Role.PRIMARY)

    @property
    def secondary(self) -> Place | None:
        """The capture that prepares to take over."""
        return self._of(Role.SECONDARY)

    @property
    def is_undetermined(self) -> bool:
        """Whether a capture that is stopping may still write."""
        return self._of(Role.UNDETERMINED) is not None

    @property
    def is_removed(self) -> bool:
        """Whether it was removed and no capture holds it."""
        return self.state is SetState.REMOVING and not self.places

    @property
    def starting(self) -> Place | None:
        """The capture that was asked to replicate and has not reported that it does."""
        is_starting = self.state is SetState.COMMIT and self.secondary is None
        return self.primary if is_starting else None

    def check(self) -> None:
        """Raise `AssertionError` if an invariant does not hold. O(captures)."""
        state, roles = self.state, [each.role for each in self.places]
        names = [each.capture for each in self.places]
        primaries, secondaries = roles.count(Role.PRIMARY), roles.count(Role.SECONDARY)
        held = (SetState.PREPARE, SetState.COMMIT, SetState.REPLICATING)
        rules = {
            "a capture has one place": len(names) == len(set(names)),
            "places are sorted": list(self.places) == sorted(self.places),
            "a state that needs places has some": state not in held or bool(roles),
            "one primary": primaries <= 1,
            "one secondary": secondaries <= 1,
            "absent: no capture is asked": state is not SetState.ABSENT
            or primaries + secondaries == 0,
            "prepare: a secondary prepares": state is not SetState.PREPARE or secondaries == 1,
            "commit: a capture is to replicate": state is not SetState.COMMIT
            or primaries + secondaries > 0,
            "replicating: by a primary": state is not SetState.REPLICATING or primaries == 1,
            "replicating: no secondary": state is not SetState.REPLICATING or secondaries == 0,
        }
        for rule, holds in rules.items():
            assert holds, f"{rule}: {self}"

    def can_move_to(self, capture: str) -> bool:
        """Return whether the table can move to a capture now."""
        return self.state is SetState.REPLICATING and self.place(capture) is None

    def place(self, capture: str) -> Place | None:
        """Return the place of a capture, None without one."""
        for place in self.places:
            if place.capture == capture:
                return place
        return None

    def _of(self, role: Role) -> Place | None:
        for place in self.places:
            if place.role is role:
                return place
        return None

    # --- changes; each returns another set ---

    def without(self, place: Place) -> ReplicationSet:
        """Return it without a place, in the state that follows from the places left."""
        left = tuple(each for each in self.places if each is not place)
        return self._replace(places=left)._state_after_loss()

    def with_undetermined(self, place: Place) -> ReplicationSet:
        """Return it with a capture that is stopping and may still write."""
        return self.with_place(place._replace(role=Role.UNDETERMINED))._state_after_loss()

    def with_place(self, place: Place, state: SetState | None = None) -> ReplicationSet:
        """Return it with a place for its capture, in a state (None: unchanged)."""
        table, before, places, progress = self
        others = [each for each in places if each.capture != place.capture]
        places = tuple(sorted((*others, place))) if others else (place,)
        return ReplicationSet(table, before if state is None else state, places, progress)

    def with_state(self, state: SetState) -> ReplicationSet:
        """Return it in another state."""
        return ReplicationSet(self.table, state, self.places, self.progress)

    def with_progress(self, progress: Progress) -> ReplicationSet:
        """Return it with the progress that a writer reports."""
        table, state, places, before = self
        farther = before.fold(progress)
        if farther is before:
            return self
        # faster than ReplicationSet(...): each heartbeat makes one for each table
        return tuple.__new__(ReplicationSet, (table, state, places, farther))

    def _state_after_loss(self) -> ReplicationSet:
        state = self.state
        if state is not SetState.REMOVING and self.secondary is None:
            if self.primary is None:
                state = SetState.ABSENT
            elif state is SetState.PREPARE:
                state = SetState.REPLICATING
            # in COMMIT a request to stop may be under way: the primary's report decides
        return self.with_state(state)


class Step(NamedTuple):
    """The changed set, and the requests to send."""

    set: ReplicationSet
    messages: tuple[Send, ...] = ()


def stopping_places(rset: ReplicationSet) -> tuple[Place, ...]:
    """Return the places whose captures must stop and have not reported that they did."""
    if rset.state is SetState.REMOVING:
        return rset.places
    is_replaced = rset.state is SetState.COMMIT and rset.secondary is not None
    return tuple(
        [
            place
            for place in rset.places
            if place.role is Role.UNDETERMINED or (is_replaced and place.role is Role.PRIMARY)
        ]
    )


def continued(rset: ReplicationSet, capture: str, status: TableStatus) -> ReplicationSet | None:
    """Return the set after the usual report: its primary still replicates. Pure.

    None for every other report, which is for `step`. `step` returns the same for the usual
    report; this function makes four objects fewer for each table of a heartbeat.
    """
    _, token, state, progress = status
    if rset.state is not SetState.REPLICATING or state is not TableState.REPLICATING:
        return None
    for place in rset.places:
        if place[0] == capture:
            is_writer = place[1] is Role.PRIMARY and place[2] == token
            return rset.with_progress(progress) if is_writer else None
    return None


def step(rset: ReplicationSet, event: Event, *, fresh: Token, is_settled: bool = True) -> Step:
    """Return the set after an event, and the requests to send. Pure; O(captures of the set).

    `fresh` is the token of the assignment that the event may begin: larger than all before it.
    `is_settled` is False while a capture from an earlier owner's time has not synced: until it
    does, or has ended, no capture is promoted in a set without a primary. An event that does not
    fit the state changes nothing: a task that comes too late, a report about an old assignment.

    >>> from cdcmeta.scheduler import AddTable, ReplicationSet, Token, step
    >>> added, messages = step(ReplicationSet("t"), AddTable("t", "c1"), fresh=Token(7, 1))
    >>> added.state.name, messages[0].capture, messages[0].request.is_prepare
    ('PREPARE', 'c1', True)
    """
    match event:
        case Report(capture, status):
            return _reported(rset, capture, status, fresh, is_settled)
        case CaptureLost(capture):
            place = rset.place(capture)
            return Step(rset) if place is None else _promoted(rset.without(place), is_settled)
        case AddTable(_, capture):
            return _added(rset, capture, fresh, SetState.ABSENT)
        case MoveTable(_, capture):
            return _added(rset, capture, fresh, SetState.REPLICATING)
        case RemoveTable():
            ended = rset._replace(state=SetState.REMOVING)
            return Step(ended, tuple(_removal(rset, place) for place in rset.places))
        case AbandonTable(_, capture):
            return _abandoned(rset, capture)
        case Found(capture, status):
            return _found(rset, capture, status)


def _added(rset: ReplicationSet, capture: str, fresh: Token, expected: SetState) -> Step:
    if rset.state is not expected or rset.place(capture) is not None:
        return Step(rset)
    begun = rset.with_place(Place(capture, Role.SECONDARY, fresh), SetState.PREPARE)
    return Step(begun, (_prepare(begun, capture, fresh),))


def _abandoned(rset: ReplicationSet, capture: str) -> Step:
    place = rset.place(capture)
    if place is None or (place.role is not Role.SECONDARY and place != rset.starting):
        return Step(rset)
    removal = _removal(rset, place)
    if rset.state is SetState.PREPARE:
        # it was never asked to write, and under this token never will be: do not wait for its end
        return Step(rset.without(place), (removal,))
    # it, or an earlier owner for it, may have been asked to write: another capture is promoted only
    # after this one has reported that it stopped, or has lost its registration
    return Step(rset.with_undetermined(place), (removal,))


def _reported(
    rset: ReplicationSet, capture: str, status: TableStatus, fresh: Token, is_settled: bool
) -> Step:
    """Apply a report; the order of the tests matters.

    First the token: what an older assignment reports does not count. Progress before the end: in a
    move from A to B, A's last report (STOPPED, checkpoint 70) lets B start from 70. The end before
    a request to stop, which it answers; that before a promotion: a place that must go never writes.
    """
    place = rset.place(capture)
    if place is None or place.token != status.token:
        if place is not None and _is_in_the_way(rset, place, status):
            return Step(rset.with_undetermined(place._replace(token=status.token)))
        if status.state not in LIVE:
            return Step(rset)
        orphan = RemoveRequest(rset.table, status.token)
        return Step(rset, (Send(capture, orphan),))
    if place.role is not Role.SECONDARY:
        rset = rset.with_progress(status.progress)
    if status.state in ENDED:
        is_lost = place.role is Role.SECONDARY and status.state is TableState.ABSENT
        if rset.state is SetState.PREPARE and is_lost:  # the request: it is never started
            again = rset.with_place(place._replace(token=fresh))
            return Step(again, (_prepare(again, capture, fresh),))
        return _promoted(rset.without(place), is_settled)
    if status.state is TableState.STOPPING:
        return Step(rset.with_undetermined(place))
    if rset.state is SetState.REMOVING or place.role is Role.UNDETERMINED:
        return Step(rset, (_removal(rset, place),))
    if status.state is TableState.PREPARED:
        return _prepared(rset, place, is_settled)
    if status.state is TableState.REPLICATING:
        return _replicating(rset, place)
    return Step(rset)


def _is_in_the_way(rset: ReplicationSet, place: Place, status: TableStatus) -> bool:
    """Return whether a capture cannot prepare because it still stops an earlier assignment."""
    return (
        rset.state is SetState.PREPARE
        and place.role is Role.SECONDARY
        and status.state is TableState.STOPPING
        and status.token < place.token
    )


def _prepared(rset: ReplicationSet, place: Place, is_settled: bool) -> Step:
    if place.role is Role.SECONDARY:
        primary = rset.primary
        if primary is not None and not is_settled:
            return Step(rset)  # the primary continues: no capture may be promoted in its place
        committing = rset.with_state(SetState.COMMIT)
        if primary is not None:
            return Step(committing, (_removal(rset, primary),))
        return _promoted(committing, is_settled)
    if rset.state is SetState.COMMIT and rset.secondary is None:
        return Step(rset, (_commit(rset, place),))
    return Step(rset)


def _replicating(rset: ReplicationSet, place: Place) -> Step:
    primary = rset.primary
    if place.role is Role.SECONDARY:
        if primary is not None:  # two writers: the one without this owner's commit ends
            return Step(rset.with_undetermined(place), (_removal(rset, place),))
        # an earlier owner's commit, which arrived after the report that this set was made from
        return Step(rset.with_place(place.as_primary(), SetState.REPLICATING))
    if rset.state is SetState.COMMIT:
        if rset.secondary is not None:
            return Step(rset, (_removal(rset, place),))
        return Step(rset.with_state(SetState.REPLICATING))
    return Step(rset)


def _promoted(rset: ReplicationSet, is_settled: bool) -> Step:
    """Let the prepared secondary replicate once no other capture may write."""
    secondary = rset.secondary
    if (
        rset.state is not SetState.COMMIT
        or secondary is None
        or rset.primary is not None
        or rset.is_undetermined
        or not is_settled
    ):
        return Step(rset)
    primary = secondary.as_primary()
    promoted = rset.with_place(primary)
    return Step(promoted, (_commit(promoted, primary),))


def _found(rset: ReplicationSet, capture: str, status: TableStatus) -> Step:
    """Apply the status of a capture that had not synced when the set was made."""
    place = rset.place(capture)
    if status.state in ENDED or (place is not None and place.token > status.token):
        return Step(rset)
    is_writer = status.state is TableState.REPLICATING
    if is_writer and rset.primary is None and rset.state is not SetState.REMOVING:
        left = tuple(each for each in rset.places if each.role is Role.UNDETERMINED)
        found = Place(capture, Role.PRIMARY, status.token)
        taken = rset._replace(state=SetState.REPLICATING, places=left).with_place(found)
        return Step(taken.with_progress(status.progress))
    # an earlier owner may have committed a prepared table: it must end first
    found = Place(capture, Role.UNDETERMINED, status.token)
    return Step(rset.with_progress(status.progress).with_place(found), (_removal(rset, found),))


def _prepare(rset: ReplicationSet, capture: str, token: Token) -> Send:
    return Send(capture, AddRequest(rset.table, token, rset.progress, is_prepare=True))


def _commit(rset: ReplicationSet, place: Place) -> Send:
    return Send(place.capture, AddRequest(rset.table, place.token, rset.progress, is_prepare=False))


def _removal(rset: ReplicationSet, place: Place) -> Send:
    return Send(place.capture, RemoveRequest(rset.table, place.token))


# --- the set of a new owner ---


def rebuilt(table: str, floor: Progress, found: list[tuple[str, TableStatus]]) -> ReplicationSet:
    """Return the set that matches the captures' reports to a new owner. O(captures).

    `floor` is the changefeed's progress; the progress of the set is the farthest reported. The
    newest token that replicates is the primary's. The newest that is prepared or preparing is the
    secondary's, if it is newer than the primary's. An earlier owner may have asked all other
    captures to write, so no capture is promoted before they have ended; they are asked to end at
    their next report.

    >>> from cdcmeta.scheduler import Progress, TableState, TableStatus, Token, rebuilt
    >>> one = TableStatus("t", Token(3, 1), TableState.REPLICATING)
    >>> other = TableStatus("t", Token(3, 9), TableState.PREPARED)
    >>> rebuilt("t", Progress(), [("c1", one), ("c2", other)]).state.name
    'COMMIT'
    """
    progress = floor
    writers, waiting, places = [], [], []
    for capture, status in found:
        progress = progress.fold(status.progress)
        if status.state in ENDED:
            continue
        place = Place(capture, Role.UNDETERMINED, status.token)
        places.append(place)
        if status.state is TableState.REPLICATING:
            writers.append(place)
        elif status.state in LIVE:
            waiting.append((place, status.state))
    rset = ReplicationSet(table, SetState.ABSENT, tuple(sorted(places)), progress)
    writer = max(writers, key=lambda each: each.token, default=None)
    if writer is not None:
        primary = writer._replace(role=Role.PRIMARY)
        rset = rset.with_place(primary)._replace(state=SetState.REPLICATING)
    last, how = max(waiting, key=lambda each: each[0].token, default=(None, None))
    if last is not None and (writer is None or last.token > writer.token):
        state = SetState.COMMIT if how is TableState.PREPARED else SetState.PREPARE
        rset = rset.with_place(last._replace(role=Role.SECONDARY))._replace(state=state)
    return rset
