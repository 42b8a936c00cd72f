"""A cluster of one table, small enough that all that can happen to it is tried.

All of a cluster is one immutable value; what may happen to it next is in `small_moves`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import NamedTuple

from cdcmeta.scheduler.agent import EndedTable, RunningTable
from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.states import SetState, TableStatus, Token
from cdcmeta.scheduler.protocol.messages import (
    DispatchTable,
    DispatchTableResponse,
    Envelope,
    Heartbeat,
    KnownOwner,
    Sync,
)

TABLE = "t"


class Capture(NamedTuple):
    """A capture, its agent and its executor."""

    epoch: int = 0
    """When it registered; 0 while it is down."""
    known: KnownOwner = KnownOwner()
    kept: RunningTable | EndedTable | None = None
    forgotten: EndedTable | None = None
    """What counts where nothing is kept."""
    is_writing: bool = False
    hangs: bool = False
    """Whether its pipeline does not go on, as far as anyone can rely on: it may all the same."""


class Owner(NamedTuple):
    """An owner, or one that does not know that it is none any more."""

    revision: int
    epochs: tuple[tuple[str, int], ...]
    """What it has seen of the registrations."""
    heard: tuple[tuple[str, tuple[TableStatus, ...]], ...] = ()
    rset: ReplicationSet | None = None
    """None until it has heard of all, or waits no longer."""
    number: int = 0
    process: int = 0

    @property
    def name(self) -> str:
        """The name of the process that it runs in."""
        return f"o{self.process}"


class Budget(NamedTuple):
    """How often each of what goes wrong may still happen, and how often someone intervenes."""

    moves: int = 0
    crashes: int = 0
    restarts: int = 0
    failovers: int = 0
    reelections: int = 0
    doubles: int = 0
    drops: int = 0
    mutes: int = 0
    removals: int = 0
    failures: int = 0
    forgets: int = 0
    giveups: int = 0
    hangs: int = 0


class World(NamedTuple):
    """Everything, at one moment."""

    clock: int
    captures: tuple[Capture, ...]
    owners: tuple[Owner, ...]
    """The newest last; at most one that was deposed."""
    network: frozenset[Envelope]
    downstream: int
    """How much of the data is there."""
    budget: Budget


def begin(captures: int, budget: Budget) -> World:
    """Return a cluster that has just started."""
    clock = captures + 1
    agents = tuple(Capture(n + 1, KnownOwner(f"o{clock}", clock)) for n in range(captures))
    owner = Owner(clock, tuple((name(n), n + 1) for n in range(captures)), process=clock)
    return World(clock, agents, (owner,), frozenset(), 0, budget)


@cache
def name(n: int) -> str:
    """Return the name of a capture."""
    return f"c{n}"


def counts(world: World, envelope: Envelope) -> bool:
    """Return whether somebody would still listen to a message."""
    header = envelope.header
    for n, capture in enumerate(world.captures):
        if name(n) == header.to:
            known = capture.known.revision
            return capture.epoch == header.capture_epoch and known <= header.owner_revision
    return any(owner.name == header.to for owner in world.owners)


def renumbered(world: World) -> World:
    """Return the same world with the smallest numbers in its tokens: only their order counts."""
    if all(owner.number < 2 for owner in world.owners):
        return world
    used = set(_tokens(world))
    numbers = {owner.revision: 0 for owner in world.owners}
    smaller, same = {}, True
    for token in sorted(used):
        number = numbers[token.owner] = numbers.get(token.owner, 0) + 1
        if number == token.number:
            smaller[token] = token
        else:
            smaller[token], same = Token(token.owner, number), False
    if same and all(owner.number == numbers[owner.revision] for owner in world.owners):
        return world
    changed = tuple([item for item in smaller.items() if item[0] is not item[1]])
    owners = tuple(
        [_mapped(owner, changed)._replace(number=numbers[owner.revision]) for owner in world.owners]
    )
    network = frozenset([_mapped(each, changed) for each in world.network])
    captures = tuple([_mapped(each, changed) for each in world.captures])
    return World(world.clock, captures, owners, network, world.downstream, world.budget)


def _tokens(world: World) -> Iterator[Token]:
    for owner in world.owners:
        if owner.rset is not None:
            for place in owner.rset.places:
                yield place.token
        for _, tables in owner.heard:
            for status in tables:
                yield status.token
    for capture in world.captures:
        for kept in (capture.kept, capture.forgotten):
            if kept is not None:
                yield kept.token
    for _, body in world.network:
        match body:
            case DispatchTable(request):
                yield request.token
            case DispatchTableResponse(status):
                yield status.token
            case Heartbeat(((_, token),)):
                yield token
            case Sync(_, tables):
                for status in tables:
                    yield status.token


@lru_cache(maxsize=10_000)
def _mapped(part, changed):
    return _with_tokens(part, dict(changed))


def _with_tokens(part, changed):
    if type(part) is Token:
        return changed.get(part, part)
    if not isinstance(part, tuple):
        return part
    each = [_with_tokens(inner, changed) for inner in part]
    return type(part)(*each) if hasattr(part, "_fields") else tuple(each)


# --- what must hold ---


def wrong(world: World) -> str | None:
    """Return what is wrong with a state of the world, if anything is."""
    writers = [name(n) for n, capture in enumerate(world.captures) if capture.is_writing]
    if len(writers) > 1:
        return f"{' and '.join(writers)} write"
    for owner in world.owners:
        if owner.rset is not None and owner.rset.progress.checkpoint > world.downstream:
            return f"{owner.name} believes in {owner.rset.progress}"
    for n, capture in enumerate(world.captures):
        kept = capture.kept if capture.is_writing else None
        if isinstance(kept, RunningTable) and kept.progress.checkpoint > world.downstream:
            return f"{name(n)} began beyond what is downstream"
    return None


def is_good(world: World) -> bool:
    """Return whether the newest owner's table is replicated, by whom it believes."""
    rset = world.owners[-1].rset
    if rset is None or rset.state is not SetState.REPLICATING or rset.primary is None:
        return False
    writers = [name(n) for n, capture in enumerate(world.captures) if capture.is_writing]
    return writers == [rset.primary.capture]
