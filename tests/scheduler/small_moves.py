"""What may happen to a small world: owners, captures and the network, one step at a time.

Driven by the scheduler's own functions: `step`, `rebuilt`, `obey`, `promise`, the rules of fencing.
What is modelled and not run is the executor (prepares, starts, writes and stops after any while),
the network (it reorders, loses, doubles) and the store (registrations and elections in one order;
who loses its registration has stopped).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from cdcmeta.scheduler import agent
from cdcmeta.scheduler.agent import RunningTable
from cdcmeta.scheduler.core.states import Progress, TableState, TableStatus, Token
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    DispatchTableResponse,
    Envelope,
    Heartbeat,
    KnownOwner,
)

from .small_steps import (
    INTERVENTIONS,
    capture_hears,
    evictions,
    interventions,
    owner_hears,
    plain_choices,
    questions,
    to_owner,
)
from .small_world import TABLE, Budget, Capture, Owner, World, counts, name, renumbered


class Choice(NamedTuple):
    """Something that an owner may do."""

    what: str
    is_fault: bool
    owner: Owner
    """The owner afterwards."""
    messages: tuple[Envelope, ...]
    budget: Budget
    question: Envelope | None = None
    """What it announces or asks, unless something like it is on its way."""
    evicted: int | None = None


class Moves:
    """What may happen next; `channel` messages wait for each receiver at most, more are lost.

    Most moves concern one owner or one capture, and many worlds have the same ones: what follows
    for these is computed once. So an object serves one exploration, before another mutant comes.
    """

    def __init__(
        self, *, channel: int = 2, data: int = 1, overtaking: bool = False, pruning: bool = True
    ) -> None:
        self._channel, self._data = channel, data
        self._overtaking, self._pruning = overtaking, pruning
        self._choices = cache(lambda *args: tuple(self._choices_of(*args)))
        self._owner_hears = cache(owner_hears)
        self._capture_hears = cache(capture_hears)
        self._added = cache(self._network_with)
        self._removed = cache(_network_without)

    def of(self, world: World) -> Iterator[tuple[str, bool, World]]:
        """Yield each thing that may happen: what, whether it is a fault, and what is then."""
        for what, is_fault, after in self.unnumbered(world):
            yield what, is_fault, renumbered(after)

    def unnumbered(self, world: World) -> Iterator[tuple[str, bool, World]]:
        """Yield the same with the tokens as they are issued: `renumbered` makes them small."""
        for at, owner in enumerate(world.owners):
            yield from self._of_owner(world, at, owner)
        for at, capture in enumerate(world.captures):
            if capture.epoch:
                for what, after in self._of_capture(world, at, capture):
                    yield f"{name(at)} {what}", capture.hangs, after
        yield from self._worlds_after_delivery(world)
        if not any(world.budget):
            return
        for what, after in self._faults(world):
            yield what, True, after

    # --- owners ---

    def _of_owner(self, world: World, at: int, owner: Owner) -> Iterator[tuple[str, bool, World]]:
        seen = tuple([(each.epoch, each.hangs) for each in world.captures])
        is_newest = at == len(world.owners) - 1
        for choice in self._choices(owner, seen, world.budget, is_newest):
            what, is_fault, after, messages, budget, question, evicted = choice
            if question is not None and any(self._before(question, x) for x in world.network):
                continue
            if evicted is not None:
                yield what, is_fault, self._restarted(world, evicted)
                continue
            yield what, is_fault, self._with_owner(world, at, after, messages, budget)

    def _choices_of(
        self, owner: Owner, seen: tuple[tuple[int, bool], ...], budget: Budget, is_newest: bool
    ) -> Iterator[Choice]:
        """Yield what an owner may do; `seen` has the epoch of each capture, and if it hangs."""
        for what, after, messages in plain_choices(owner, seen):
            yield Choice(f"{owner.name} {what}", False, after, messages, budget)
        for what, question in questions(owner):
            yield Choice(f"{owner.name} {what}", False, owner, (question,), budget, question)
        for what, after, messages, spent in interventions(owner, budget):
            is_fault = what.startswith(INTERVENTIONS)
            yield Choice(f"{owner.name} {what}", is_fault, after, messages, spent)
        if is_newest:
            for n in evictions(owner, seen):
                what = f"{owner.name} evicts {name(n)}"
                yield Choice(what, False, owner, (), budget, evicted=n)

    def _before(self, question: Envelope, other: Envelope) -> bool:
        """Whether the owner asks only once another message has come: keeps the states few."""
        if other.header != question.header:
            return False
        if isinstance(question.body, Announce):
            return other.body == question.body
        return not self._overtaking or isinstance(other.body, Heartbeat)

    def _with_owner(
        self, world: World, at: int, owner: Owner, messages: Iterable[Envelope], budget: Budget
    ) -> World:
        clock, captures, owners, network, downstream, _ = world
        if owner is not owners[at]:
            owners = (*owners[:at], owner, *owners[at + 1 :])
        after = World(clock, captures, owners, network, downstream, budget)
        for envelope in messages:
            after = self._sent(after, envelope)
        return after

    # --- captures ---

    def _of_capture(self, world: World, n: int, capture: Capture) -> Iterator[tuple[str, World]]:
        held = capture.kept
        if not isinstance(held, RunningTable):
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
        assert isinstance(held, RunningTable)
        kept = agent.ended_table(held, held.progress)
        after = self._with_capture(
            world, n, capture._replace(kept=kept, is_writing=False, hangs=False)
        )
        status = TableStatus(TABLE, held.token, TableState.STOPPED, held.progress)
        return self._sent(after, to_owner(n, capture, DispatchTableResponse(status)))

    @staticmethod
    def _with_capture(world: World, n: int, capture: Capture) -> World:
        clock, captures, owners, network, downstream, budget = world
        captures = (*captures[:n], capture, *captures[n + 1 :])
        return World(clock, captures, owners, network, downstream, budget)

    # --- the network ---

    def _sent(self, world: World, envelope: Envelope) -> World:
        if self._pruning and not counts(world, envelope):
            return world
        network = self._added(world.network, envelope)
        return world if network is world.network else _with_network(world, network)

    def _network_with(
        self, network: frozenset[Envelope], envelope: Envelope
    ) -> frozenset[Envelope]:
        to = envelope.header.to
        if envelope in network or sum(each.header.to == to for each in network) >= self._channel:
            return network
        return network | {envelope}

    def _pruned(self, world: World) -> World:
        """Return the world without messages that nobody would listen to."""
        if not self._pruning:
            return world
        network = world.network
        for each in world.network:
            if not counts(world, each):
                network = self._removed(network, each)
        return _with_network(world, network)

    def _worlds_after_delivery(self, world: World) -> Iterator[tuple[str, bool, World]]:
        budget = world.budget
        for envelope in world.network:
            left = _with_network(world, self._removed(world.network, envelope))
            yield f"delivers {told(envelope)}", False, self.delivered(left, envelope)
            if budget.doubles:
                less = budget._replace(doubles=budget.doubles - 1)
                after = self.delivered(world._replace(budget=less), envelope)
                yield f"doubles {told(envelope)}", True, after
            if budget.drops:
                less = budget._replace(drops=budget.drops - 1)
                yield f"drops {told(envelope)}", True, left._replace(budget=less)

    def delivered(self, world: World, envelope: Envelope) -> World:
        """Return the world in which a message has come to whom it is for."""
        to = envelope.header.to
        for at, owner in enumerate(world.owners):
            if owner.name == to:
                after, messages = self._owner_hears(owner, envelope)
                return self._with_owner(world, at, after, messages, world.budget)
        for n, capture in enumerate(world.captures):
            if name(n) == to and capture.epoch:
                changed, answer = self._capture_hears(n, capture, envelope)
                if changed is not capture:
                    world = self._with_capture(world, n, changed)
                if changed.known != capture.known:
                    world = self._pruned(world)
                return world if answer is None else self._sent(world, answer)
        return world

    # --- what goes wrong ---

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        budget = world.budget
        for n, capture in enumerate(world.captures):
            if capture.epoch and budget.crashes:
                after = self._with_capture(world, n, Capture())
                less = budget._replace(crashes=budget.crashes - 1)
                yield f"{name(n)} crashes", self._pruned(after._replace(budget=less))
            if isinstance(capture.kept, RunningTable) and budget.failures:
                less = budget._replace(failures=budget.failures - 1)
                yield f"{name(n)} fails", self._ended(world._replace(budget=less), n, capture)
            if capture.epoch and budget.forgets and not isinstance(capture.kept, RunningTable):
                less = budget._replace(forgets=budget.forgets - 1)
                yield f"{name(n)} forgets", self._forgets(world._replace(budget=less), n, capture)
            if isinstance(capture.kept, RunningTable) and budget.hangs and not capture.hangs:
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
        counts_then = agent.forgotten_tables(capture.forgotten, tokens)
        return self._with_capture(world, n, capture._replace(kept=None, forgotten=counts_then))


def _network_without(network: frozenset[Envelope], envelope: Envelope) -> frozenset[Envelope]:
    return network - {envelope}


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
