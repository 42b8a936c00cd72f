"""What may happen to a small world: owners, captures and the network, one step at a time.

Driven by the scheduler's own functions: `step`, `rebuilt`, `obey`, `promise`, the rules of fencing.
What is modelled and not run is the executor (prepares, starts, writes and stops after any while),
the network (it reorders, loses, doubles) and the store (registrations and elections in one order;
who loses its registration has stopped).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from cdcmeta.scheduler.capture import table_state as holding
from cdcmeta.scheduler.capture.table_state import Held
from cdcmeta.scheduler.core import replication_set
from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.states import Progress, SetState, TableState, TableStatus, Token
from cdcmeta.scheduler.core.tasks import (
    AddTable,
    CaptureLost,
    Found,
    GiveUp,
    MoveTable,
    RemoveTable,
    Report,
)
from cdcmeta.scheduler.owner.captures import is_settled
from cdcmeta.scheduler.protocol import fencing
from cdcmeta.scheduler.protocol.fencing import KnownOwner, Verdict
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    DispatchTable,
    DispatchTableResponse,
    Envelope,
    Header,
    Heartbeat,
    Sync,
)

from .small_world import TABLE, Capture, Owner, World, counts, name, renumbered

PREPARE = SetState.PREPARE
INTERVENTIONS = ("moves", "removes", "gives up")
"""What owners do because people or policies want it: nothing leads on that needs it."""


class Moves:
    """What may happen next; `channel` messages wait for each receiver at most, more are lost."""

    def __init__(
        self, *, channel: int = 2, data: int = 1, overtaking: bool = False, pruning: bool = True
    ) -> None:
        self._channel, self._data = channel, data
        self._overtaking, self._pruning = overtaking, pruning

    def of(self, world: World) -> Iterator[tuple[str, bool, World]]:
        """Yield each thing that may happen: what, whether it is a fault, and what is then."""
        for what, is_fault, after in self.unnumbered(world):
            yield what, is_fault, renumbered(after)

    def unnumbered(self, world: World) -> Iterator[tuple[str, bool, World]]:
        """Yield the same with the tokens as they are issued: `renumbered` makes them small."""
        for at, owner in enumerate(world.owners):
            for what, after in self._of_owner(world, at, owner):
                yield (
                    f"{owner.name} {what}",
                    what.startswith(INTERVENTIONS),
                    after,
                )
        for at, capture in enumerate(world.captures):
            if capture.epoch:
                for what, after in self._of_capture(world, at, capture):
                    yield f"{name(at)} {what}", capture.hangs, after
        yield from self._deliveries(world)
        for what, after in self._faults(world):
            yield what, True, after

    # --- owners ---

    def _of_owner(self, world: World, at: int, owner: Owner) -> Iterator[tuple[str, World]]:
        epochs = dict(owner.epochs)
        heard = dict(owner.heard)
        for n, capture in enumerate(world.captures):
            if epochs.get(name(n), 0) != capture.epoch:
                yield f"notices {name(n)}", self._notices(world, at, owner, n)
        for capture in epochs:
            if capture not in heard:
                announce = self._to_capture(owner, capture, Announce("1"))
                if announce not in world.network:
                    yield f"announces to {capture}", self._sent(world, announce)
        if owner.rset is None:
            if world.budget.mutes and len(heard) < len(epochs):
                budget = world.budget._replace(mutes=world.budget.mutes - 1)
                began = self._begun(owner)
                yield "waits no longer", self._with_owner(world, at, began)._replace(budget=budget)
            return
        rset = owner.rset
        for place in rset.places:
            if place.capture not in heard:
                continue
            ask = self._to_capture(owner, place.capture, Heartbeat(((TABLE, place.token),)))
            if not any(self._before(ask, each) for each in world.network):
                yield f"asks {place.capture}", self._sent(world, ask)
        if rset.state is SetState.ABSENT:
            for capture in heard:
                if rset.place(capture) is None:
                    task = AddTable(TABLE, capture)
                    yield f"adds to {capture}", self._steps(world, at, owner, task)
        if rset.state is SetState.REPLICATING and world.budget.moves:
            budget = world.budget._replace(moves=world.budget.moves - 1)
            for capture in heard:
                if rset.place(capture) is None:
                    task = MoveTable(TABLE, capture)
                    moved = self._steps(world, at, owner, task)
                    yield f"moves to {capture}", moved._replace(budget=budget)
        yield from self._deadlines(world, at, owner, rset)
        if world.budget.giveups:
            budget = world.budget._replace(giveups=world.budget.giveups - 1)
            for place in rset.places:
                ended = self._steps(world, at, owner, GiveUp(TABLE, place.capture))
                yield f"gives up {place.capture}", ended._replace(budget=budget)
        if rset.state is not SetState.REMOVING and world.budget.removals:
            budget = world.budget._replace(removals=world.budget.removals - 1)
            ended = self._steps(world, at, owner, RemoveTable(TABLE))
            yield "removes", ended._replace(budget=budget)
        if rset.is_removed:  # and somebody wants it back
            again = owner._replace(rset=ReplicationSet(TABLE, progress=rset.progress))
            yield "forgets", self._with_owner(world, at, again)

    def _deadlines(
        self, world: World, at: int, owner: Owner, rset: ReplicationSet
    ) -> Iterator[tuple[str, World]]:
        """Yield what an owner does when a capture hangs: a deadline passes sooner or later."""
        epochs = dict(owner.epochs)
        for n, capture in enumerate(world.captures):
            place = rset.place(name(n))
            if place is None or not capture.hangs or epochs.get(name(n)) != capture.epoch:
                continue
            if place == rset.starting or (place == rset.secondary and rset.state is PREPARE):
                given_up = self._steps(world, at, owner, GiveUp(TABLE, name(n)))
                yield f"has waited for {name(n)}", given_up
            if place in replication_set.ending(rset) and owner is world.owners[-1]:
                yield f"evicts {name(n)}", self._restarted(world, n)

    def _before(self, ask: Envelope, other: Envelope) -> bool:
        """Whether the owner asks only once another message has come: keeps the states few."""
        same = other.header == ask.header
        return same and (not self._overtaking or isinstance(other.body, Heartbeat))

    def _notices(self, world: World, at: int, owner: Owner, n: int) -> World:
        epochs = dict(owner.epochs)
        was = epochs.pop(name(n), 0)
        if epoch := world.captures[n].epoch:
            epochs[name(n)] = epoch
        heard = tuple(each for each in owner.heard if each[0] != name(n))
        owner = owner._replace(epochs=tuple(sorted(epochs.items())), heard=heard)
        world = self._with_owner(world, at, owner)
        if owner.rset is None:
            return self._maybe_begun(world, at)
        return self._steps(world, at, owner, CaptureLost(name(n))) if was else world

    def _maybe_begun(self, world: World, at: int) -> World:
        owner = world.owners[at]
        if owner.rset is None and len(owner.heard) == len(owner.epochs):
            return self._with_owner(world, at, self._begun(owner))
        return world

    @staticmethod
    def _begun(owner: Owner) -> Owner:
        found = [(capture, status) for capture, held in owner.heard for status in held]
        heard = tuple((capture, ()) for capture, _ in owner.heard)
        return owner._replace(rset=replication_set.rebuilt(TABLE, Progress(), found), heard=heard)

    def _steps(self, world: World, at: int, owner: Owner, event) -> World:
        assert owner.rset is not None
        heard = {capture for capture, _ in owner.heard}
        fresh = Token(owner.revision, owner.number + 1)
        settled = is_settled(dict(owner.epochs), heard, owner.revision)
        rset, messages = replication_set.step(owner.rset, event, fresh=fresh, is_settled=settled)
        number = owner.number
        if any(each.request.token == fresh for each in messages):
            number += 1
        world = self._with_owner(world, at, owner._replace(rset=rset, number=number))
        for capture, request in messages:
            if capture in dict(owner.epochs):
                world = self._sent(world, self._to_capture(owner, capture, DispatchTable(request)))
        return world

    @staticmethod
    def _with_owner(world: World, at: int, owner: Owner) -> World:
        clock, captures, owners, network, downstream, budget = world
        owners = (*owners[:at], owner, *owners[at + 1 :])
        return World(clock, captures, owners, network, downstream, budget)

    @staticmethod
    def _to_capture(owner: Owner, capture: str, body) -> Envelope:
        epoch = dict(owner.epochs)[capture]
        return Envelope(Header(owner.name, capture, owner.revision, epoch, 1), body)

    # --- captures ---

    def _of_capture(self, world: World, n: int, capture: Capture) -> Iterator[tuple[str, World]]:
        held = capture.kept
        if not isinstance(held, Held):
            return
        if held.state is TableState.PREPARING:
            kept = held._replace(state=TableState.PREPARED)
            yield "has prepared", self._with_capture(world, n, capture._replace(kept=kept))
        if held.state is TableState.PREPARED and held.is_committed:
            kept = held._replace(state=TableState.REPLICATING)
            writing = capture._replace(kept=kept, is_writing=True)
            yield "replicates", self._with_capture(world, n, writing)
        if capture.is_writing and held.progress.checkpoint < self._data:
            farther = Progress(held.progress.checkpoint + 1, held.progress.checkpoint + 1, 0)
            after = self._with_capture(
                world, n, capture._replace(kept=held._replace(progress=farther))
            )
            done = max(world.downstream, farther.checkpoint)
            yield "writes", after._replace(downstream=done)
        if held.state is TableState.STOPPING:
            yield "has stopped", self._ended(world, n, capture)

    def _ended(self, world: World, n: int, capture: Capture) -> World:
        held = capture.kept
        assert isinstance(held, Held)
        kept = holding.ended(held, held.progress)
        after = self._with_capture(
            world, n, capture._replace(kept=kept, is_writing=False, hangs=False)
        )
        told = TableStatus(TABLE, held.token, TableState.STOPPED, held.progress)
        return self._sent(after, self._to_owner(n, capture, DispatchTableResponse(told)))

    @staticmethod
    def _with_capture(world: World, n: int, capture: Capture) -> World:
        clock, captures, owners, network, downstream, budget = world
        captures = (*captures[:n], capture, *captures[n + 1 :])
        return World(clock, captures, owners, network, downstream, budget)

    @staticmethod
    def _to_owner(n: int, capture: Capture, body) -> Envelope:
        known = capture.known
        return Envelope(Header(name(n), known.name, known.revision, capture.epoch, 1), body)

    # --- the network ---

    def _sent(self, world: World, envelope: Envelope) -> World:
        if envelope in world.network or (self._pruning and not counts(world, envelope)):
            return world
        to = envelope.header.to
        if sum(each.header.to == to for each in world.network) >= self._channel:
            return world
        return _with_network(world, world.network | {envelope})

    def _pruned(self, world: World) -> World:
        """Return the world without messages that nobody would listen to."""
        if not self._pruning:
            return world
        return _with_network(
            world, frozenset(each for each in world.network if counts(world, each))
        )

    def _deliveries(self, world: World) -> Iterator[tuple[str, bool, World]]:
        for envelope in world.network:
            left = _with_network(world, world.network - {envelope})
            yield f"delivers {told(envelope)}", False, self.delivered(left, envelope)
            if world.budget.doubles:
                budget = world.budget._replace(doubles=world.budget.doubles - 1)
                after = self.delivered(world._replace(budget=budget), envelope)
                yield f"doubles {told(envelope)}", True, after
            if world.budget.drops:
                budget = world.budget._replace(drops=world.budget.drops - 1)
                yield f"drops {told(envelope)}", True, left._replace(budget=budget)

    def delivered(self, world: World, envelope: Envelope) -> World:
        """Return the world in which a message has come to whom it is for."""
        to = envelope.header.to
        for at, owner in enumerate(world.owners):
            if owner.name == to:
                return self._heard_by_owner(world, at, owner, envelope)
        for n, capture in enumerate(world.captures):
            if name(n) == to and capture.epoch:
                return self._heard_by_capture(world, n, capture, envelope)
        return world

    def _heard_by_owner(self, world: World, at: int, owner: Owner, envelope: Envelope) -> World:
        own = KnownOwner(owner.name, owner.revision)
        header, body = envelope
        if fencing.owner_accepts(header, own, 1, dict(owner.epochs)) is not Verdict.ACCEPTED:
            return world
        heard = dict(owner.heard)
        match body:
            case Sync(_, tables) if header.sender not in heard:
                kept = tables if owner.rset is None else ()
                everyone = tuple(sorted((*owner.heard, (header.sender, kept))))
                world = self._with_owner(world, at, owner._replace(heard=everyone))
                if owner.rset is None:
                    return self._maybe_begun(world, at)
                events = [Found(header.sender, status) for status in tables]
            case DispatchTableResponse(status) if header.sender in heard:
                events = [Report(header.sender, status)]
            case _:
                return world
        for event in events:
            owner = world.owners[at]
            if owner.rset is not None:
                world = self._steps(world, at, owner, event)
        return world

    def _heard_by_capture(
        self, world: World, n: int, capture: Capture, envelope: Envelope
    ) -> World:
        header, body = envelope
        verdict, known = fencing.agent_accepts(header, name(n), capture.epoch, 1, capture.known)
        if known != capture.known:
            kept = capture.kept if isinstance(capture.kept, Held) else None
            capture = capture._replace(known=known, kept=kept)
            world = self._pruned(self._with_capture(world, n, capture))
        if verdict is not Verdict.ACCEPTED:
            return world
        answer: Sync | DispatchTableResponse
        match body:
            case Announce():
                held = capture.kept if isinstance(capture.kept, Held) else None
                tables = () if held is None else (holding.status(TABLE, held, held.token),)
                answer = Sync("1", tables)
            case Heartbeat(tables):
                kept = capture.kept or capture.forgotten
                for _, token in tables:
                    kept = holding.promise(kept, token)
                capture = capture._replace(kept=kept)
                # a response to a heartbeat says the same of the only table, and counts the same
                answer = DispatchTableResponse(holding.status(TABLE, kept, tables[0][1]))
            case DispatchTable(request):
                before = capture.kept or capture.forgotten
                if holding.is_starting(before, request):
                    return world
                kept, _ = holding.obey(before, request)
                capture = capture._replace(kept=kept)
                answer = DispatchTableResponse(holding.status(TABLE, kept, request.token))
            case _:
                raise AssertionError(body)
        world = self._with_capture(world, n, capture)
        return self._sent(world, self._to_owner(n, capture, answer))

    # --- what goes wrong ---

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        budget = world.budget
        for n, capture in enumerate(world.captures):
            if capture.epoch and budget.crashes:
                after = self._with_capture(world, n, Capture())
                less = budget._replace(crashes=budget.crashes - 1)
                yield f"{name(n)} crashes", self._pruned(after._replace(budget=less))
            if isinstance(capture.kept, Held) and budget.failures:
                less = budget._replace(failures=budget.failures - 1)
                yield f"{name(n)} fails", self._ended(world._replace(budget=less), n, capture)
            if capture.epoch and budget.forgets and not isinstance(capture.kept, Held):
                less = budget._replace(forgets=budget.forgets - 1)
                yield f"{name(n)} forgets", self._forgets(world._replace(budget=less), n, capture)
            if isinstance(capture.kept, Held) and budget.hangs and not capture.hangs:
                less = budget._replace(hangs=budget.hangs - 1)
                after = self._with_capture(world, n, capture._replace(hangs=True))
                yield f"{name(n)} hangs", after._replace(budget=less)
            if capture.epoch and budget.restarts:
                less = budget._replace(restarts=budget.restarts - 1)
                yield f"{name(n)} restarts", self._restarted(world._replace(budget=less), n)
        epochs = tuple((name(n), c.epoch) for n, c in enumerate(world.captures) if c.epoch)
        if budget.reelections:
            process = world.owners[-1].process
            owner = Owner(world.clock + 1, epochs, process=process)
            less = budget._replace(reelections=budget.reelections - 1)
            owners = (*world.owners[:-1], owner)
            after = world._replace(owners=owners, budget=less, clock=world.clock + 1)
            yield "the same owner again", self._pruned(after)
        if budget.failovers:
            owner = Owner(world.clock + 1, epochs, process=world.clock + 1)
            less = budget._replace(failovers=budget.failovers - 1)
            owners = (world.owners[-1], owner)
            after = world._replace(owners=owners, budget=less, clock=world.clock + 1)
            yield "another owner", self._pruned(after)

    def _restarted(self, world: World, n: int) -> World:
        newest = world.owners[-1]
        known = KnownOwner(newest.name, newest.revision)
        after = self._with_capture(world, n, Capture(world.clock + 1, known))
        return self._pruned(after._replace(clock=world.clock + 1))

    def _forgets(self, world: World, n: int, capture: Capture) -> World:
        """Return the world after a capture forgot what ended; other tables had later tokens."""
        tokens = [
            Token(owner.revision, owner.number)
            for owner in world.owners
            if owner.revision == capture.known.revision
        ]
        if capture.kept is not None:
            tokens.append(capture.kept.token)
        counts_then = holding.forgotten(capture.forgotten, tokens)
        return self._with_capture(world, n, capture._replace(kept=None, forgotten=counts_then))


def _with_network(world: World, network: frozenset[Envelope]) -> World:
    clock, captures, owners, _, downstream, budget = world  # `_replace` costs four times as much
    return World(clock, captures, owners, network, downstream, budget)


def follow(world: World, moves: Moves, *story: str) -> World:
    """Return the world after a story: the words of each sentence are in what happens next."""
    for sentence in story:
        for what, _, after in moves.of(world):
            if all(word in what for word in sentence.split()):
                world = after
                break
        else:
            others = [what for what, _, _ in moves.of(world)]
            raise AssertionError(f"not now: {sentence!r}, but {others}")
    return world


@cache
def told(envelope: Envelope) -> str:
    """Return a message for a reader."""
    header, body = envelope
    return f"{header.sender}->{header.to} {type(body).__name__} {tuple(body)}"
