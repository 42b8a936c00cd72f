"""Consumers and expiry: which superseded generations somebody still needs; the others go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from cdcmeta.errors import (
    ConsumerTakenError,
    GenerationNotFoundError,
    InvalidArgumentError,
)
from cdcmeta.generations import layout
from cdcmeta.generations.layout import Generation, Progress
from cdcmeta.generations.listing import generations_at, revision_of, unchanged
from snapkv import Absent, AtRevision, ConflictError, Entry, Space, SpaceOps
from snapkv.model import Guard


@dataclass(frozen=True, slots=True)
class Expired:
    """What an expiry did: generations that were marked as superseded, and those removed."""

    marked: tuple[Generation, ...]
    removed: tuple[Generation, ...]


def expire(space: Space, now: int, retention: int) -> Expired:
    """Mark the generations that were superseded by `now`; remove them `retention` later.

    Not the one that operates, nor any that a registered consumer has not passed. One listing, and a
    commit for each that is marked or removed. Times and `retention` are timestamps.
    """
    snapshot = space.at()
    (count,) = snapshot.entries_of([layout.CONSUMERS])
    same_consumers = unchanged(layout.CONSUMERS, revision_of(count))
    found = snapshot.items(layout.CONSUMER_PREFIX)
    slowest = min((layout.decode(Progress, raw).position for _, raw in found), default=now)
    marked: list[Generation] = []
    removed: list[Generation] = []
    for generation, later in pairwise(generations_at(snapshot)):
        if later.time > now:
            break
        key = layout.generation_key(generation.time)
        (entry,) = snapshot.entries_of([key])
        assert entry is not None
        unmarked: Guard = AtRevision(key, entry.revision)
        if later.time + retention <= now and later.time - 1 <= slowest:
            rows = layout.rows_prefix(generation.id)
            if not _done(space, SpaceOps({}, [key], [rows], [unmarked, same_consumers])):
                break  # a later one must not go first: its time would seem to be this one's
            removed.append(generation)
        elif generation.expired is None:
            record = replace(generation, expired=now)
            ops = SpaceOps({key: layout.encode(record)}, guards=[unmarked])
            if _done(space, ops):
                marked.append(record)
    return Expired(tuple(marked), tuple(removed))


def progress_of(space: Space, name: str) -> tuple[Progress, int] | None:
    """Return how far a consumer has come and the revision of that; None: not registered."""
    (found,) = space.entries_of([layout.consumer_key(name)])
    return None if found is None else (layout.decode(Progress, found.value), found.revision)


def consumers(space: Space) -> dict[str, Progress]:
    """Return the registered consumers, and how far each has come."""
    items = space.at().items(layout.CONSUMER_PREFIX)
    return {layout.consumer_of(key): layout.decode(Progress, value) for key, value in items}


def register(space: Space, name: str, progress: Progress) -> None:
    """Register a consumer that begins in a generation; from now on that is kept for it.

    Raises `GenerationNotFoundError` when it was removed meanwhile, `InvalidArgumentError` for a
    name that is in use.
    """
    own = layout.consumer_key(name)
    while True:
        snapshot = space.at()
        key = layout.generation_key(progress.generation)
        generation, count, known = snapshot.entries_of([key, layout.CONSUMERS, own])
        if known is not None:
            raise InvalidArgumentError(f"consumer {name!r} is registered already")
        if generation is None:
            raise GenerationNotFoundError(f"there is no generation {progress.generation} any more")
        puts = {own: layout.encode(progress), layout.CONSUMERS: _counted(count)}
        guards: list[Guard] = [
            Absent(own),
            AtRevision(key, generation.revision),
            unchanged(layout.CONSUMERS, revision_of(count)),
        ]
        if _done(space, SpaceOps(puts, guards=guards)):
            return


def save(space: Space, name: str, revision: int, progress: Progress) -> int:
    """Save how far a consumer has come since a revision; return the next one.

    Raises `ConsumerTakenError` when somebody else saved meanwhile.
    """
    own = layout.consumer_key(name)
    try:
        commit = space.commit(
            puts={own: layout.encode(progress)}, guards=[AtRevision(own, revision)]
        )
    except ConflictError as e:
        raise ConsumerTakenError(name) from e
    return commit.revision


def forget(space: Space, name: str) -> bool:
    """Forget a consumer; return whether there was one. Nothing is kept for it any more."""
    own = layout.consumer_key(name)
    return bool(space.entries_of([own])[0]) and space.commit(deletes=[own]) is not None


def _counted(entry: Entry | None) -> bytes:
    return layout.number(1 + (layout.number_of(entry.value) if entry else 0))


def _done(space: Space, ops: SpaceOps) -> bool:
    try:
        space.commit(lambda _: ops)
    except ConflictError:
        return False
    return True
