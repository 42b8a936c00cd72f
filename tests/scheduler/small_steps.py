"""What owners and captures of a small world do: each afterwards, and the messages it sends."""

from __future__ import annotations

from collections.abc import Iterator

from cdcmeta.scheduler import agent
from cdcmeta.scheduler.agent import RunningTable
from cdcmeta.scheduler.core import replication_set
from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.states import (
    AbandonTable,
    AddTable,
    CaptureLost,
    Event,
    Found,
    MoveTable,
    Progress,
    RemoveTable,
    Report,
    SetState,
    Token,
)
from cdcmeta.scheduler.owner.cluster import is_settled
from cdcmeta.scheduler.protocol import messages as fencing
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    Body,
    DispatchTable,
    DispatchTableResponse,
    Envelope,
    Header,
    Heartbeat,
    KnownOwner,
    MessageVerdict,
    Sync,
)

from .small_world import TABLE, Budget, Capture, Owner, name

PREPARE = SetState.PREPARE
INTERVENTIONS = ("moves", "removes", "gives up")
"""What owners do because people or policies want it: nothing leads on that needs it."""


# --- an owner ---


def plain_choices(
    owner: Owner, seen: tuple[tuple[int, bool], ...]
) -> Iterator[tuple[str, Owner, tuple[Envelope, ...]]]:
    epochs, rset = dict(owner.epochs), owner.rset
    for n, (epoch, _) in enumerate(seen):
        if epochs.get(name(n), 0) != epoch:
            yield f"notices {name(n)}", *notices(owner, n, epoch)
    if rset is None:
        return
    if rset.state is SetState.ABSENT:
        for capture, _ in owner.heard:
            if rset.place(capture) is None:
                yield f"adds to {capture}", *steps(owner, AddTable(TABLE, capture))
    for n in hanging(owner, seen):  # a deadline passes sooner or later
        place = rset.place(name(n))
        if place == rset.starting or (place == rset.secondary and rset.state is PREPARE):
            yield f"has waited for {name(n)}", *steps(owner, AbandonTable(TABLE, name(n)))
    if rset.is_removed:  # and somebody wants it back
        again = owner._replace(rset=ReplicationSet(TABLE, progress=rset.progress))
        yield "forgets", again, ()


def questions(owner: Owner) -> Iterator[tuple[str, Envelope]]:
    heard = dict(owner.heard)
    for capture, _ in owner.epochs:
        if capture not in heard:
            yield f"announces to {capture}", to_capture(owner, capture, Announce("1"))
    if owner.rset is not None:
        for place in owner.rset.places:
            if place.capture in heard:
                ask = Heartbeat(((TABLE, place.token),))
                yield f"asks {place.capture}", to_capture(owner, place.capture, ask)


def interventions(
    owner: Owner, budget: Budget
) -> Iterator[tuple[str, Owner, tuple[Envelope, ...], Budget]]:
    """Yield what may happen so many times."""
    rset = owner.rset
    if rset is None:
        if budget.mutes and len(owner.heard) < len(owner.epochs):
            yield "waits no longer", begun(owner), (), budget._replace(mutes=budget.mutes - 1)
        return
    if rset.state is SetState.REPLICATING and budget.moves:
        less = budget._replace(moves=budget.moves - 1)
        for capture, _ in owner.heard:
            if rset.place(capture) is None:
                yield f"moves to {capture}", *steps(owner, MoveTable(TABLE, capture)), less
    if budget.giveups:
        less = budget._replace(giveups=budget.giveups - 1)
        for place in rset.places:
            ended = steps(owner, AbandonTable(TABLE, place.capture))
            yield f"gives up {place.capture}", *ended, less
    if rset.state is not SetState.REMOVING and budget.removals:
        less = budget._replace(removals=budget.removals - 1)
        yield "removes", *steps(owner, RemoveTable(TABLE)), less


def evictions(owner: Owner, seen: tuple[tuple[int, bool], ...]) -> Iterator[int]:
    if owner.rset is not None:
        stopping = replication_set.stopping_places(owner.rset)
        for n in hanging(owner, seen):
            if owner.rset.place(name(n)) in stopping:
                yield n


def hanging(owner: Owner, seen: tuple[tuple[int, bool], ...]) -> Iterator[int]:
    """Yield the captures with a place that hang."""
    epochs = dict(owner.epochs)
    for n, (epoch, hangs) in enumerate(seen):
        has_place = owner.rset is not None and owner.rset.place(name(n)) is not None
        if has_place and hangs and epochs.get(name(n)) == epoch:
            yield n


def notices(owner: Owner, n: int, epoch: int) -> tuple[Owner, tuple[Envelope, ...]]:
    epochs = dict(owner.epochs)
    was = epochs.pop(name(n), 0)
    if epoch:
        epochs[name(n)] = epoch
    heard = tuple(each for each in owner.heard if each[0] != name(n))
    owner = owner._replace(epochs=tuple(sorted(epochs.items())), heard=heard)
    if owner.rset is None:
        return maybe_begun(owner), ()
    return steps(owner, CaptureLost(name(n))) if was else (owner, ())


def maybe_begun(owner: Owner) -> Owner:
    if owner.rset is None and len(owner.heard) == len(owner.epochs):
        return begun(owner)
    return owner


def begun(owner: Owner) -> Owner:
    found = [(capture, status) for capture, held in owner.heard for status in held]
    heard = tuple((capture, ()) for capture, _ in owner.heard)
    return owner._replace(rset=replication_set.rebuilt(TABLE, Progress(), found), heard=heard)


def steps(owner: Owner, event: Event) -> tuple[Owner, tuple[Envelope, ...]]:
    assert owner.rset is not None
    epochs = dict(owner.epochs)
    heard = {capture for capture, _ in owner.heard}
    fresh = Token(owner.revision, owner.number + 1)
    settled = is_settled(epochs, heard, owner.revision)
    rset, requests = replication_set.step(owner.rset, event, fresh=fresh, is_settled=settled)
    number = owner.number
    if any(each.request.token == fresh for each in requests):
        number += 1
    messages = tuple(
        to_capture(owner, capture, DispatchTable(request))
        for capture, request in requests
        if capture in epochs
    )
    return owner._replace(rset=rset, number=number), messages


def owner_hears(owner: Owner, envelope: Envelope) -> tuple[Owner, tuple[Envelope, ...]]:
    own = KnownOwner(owner.name, owner.revision)
    header, body = envelope
    if fencing.owner_accepts(header, own, 1, dict(owner.epochs)) is not MessageVerdict.ACCEPTED:
        return owner, ()
    heard = dict(owner.heard)
    events: list[Event]
    match body:
        case Sync(_, tables) if header.sender not in heard:
            kept = tables if owner.rset is None else ()
            everyone = tuple(sorted((*owner.heard, (header.sender, kept))))
            owner = owner._replace(heard=everyone)
            if owner.rset is None:
                return maybe_begun(owner), ()
            events = [Found(header.sender, status) for status in tables]
        case DispatchTableResponse(status) if header.sender in heard and owner.rset is not None:
            events = [Report(header.sender, status)]
        case _:
            return owner, ()
    messages: tuple[Envelope, ...] = ()
    for event in events:
        owner, more = steps(owner, event)
        messages += more
    return owner, messages


def to_capture(owner: Owner, capture: str, body: Body) -> Envelope:
    epoch = dict(owner.epochs)[capture]
    return Envelope(Header(owner.name, capture, owner.revision, epoch, 1), body)


# --- a capture ---


def capture_hears(n: int, capture: Capture, envelope: Envelope) -> tuple[Capture, Envelope | None]:
    header, body = envelope
    verdict, known = fencing.agent_accepts(header, name(n), capture.epoch, 1, capture.known)
    if known != capture.known:
        running = capture.kept if isinstance(capture.kept, RunningTable) else None
        capture = capture._replace(known=known, kept=running)
    if verdict is not MessageVerdict.ACCEPTED:
        return capture, None
    answer: Sync | DispatchTableResponse
    match body:
        case Announce():
            held = capture.kept if isinstance(capture.kept, RunningTable) else None
            tables = () if held is None else (agent.status_of(TABLE, held, held.token),)
            answer = Sync("1", tables)
        case Heartbeat(tables):
            kept = capture.kept or capture.forgotten
            for _, token in tables:
                kept = agent.promise_of(kept, token)
            capture = capture._replace(kept=kept)
            # a response to a heartbeat says the same of the only table, and counts the same
            answer = DispatchTableResponse(agent.status_of(TABLE, kept, tables[0][1]))
        case DispatchTable(request):
            before = capture.kept or capture.forgotten
            if agent.is_starting(before, request):
                return capture, None
            kept, _ = agent.apply_request(before, request)
            capture = capture._replace(kept=kept)
            answer = DispatchTableResponse(agent.status_of(TABLE, kept, request.token))
        case _:
            raise AssertionError(body)
    return capture, to_owner(n, capture, answer)


def to_owner(n: int, capture: Capture, body: Body) -> Envelope:
    known = capture.known
    return Envelope(Header(name(n), known.name, known.revision, capture.epoch, 1), body)
