"""Consumers: their registration by table, and their progress."""

from __future__ import annotations

from collections.abc import Sequence

from cdcmeta.errors import (
    ConsumerTakenError,
    GenerationNotFoundError,
    InvalidArgumentError,
)
from cdcmeta.generations.log import layout
from cdcmeta.generations.log.layout import ConsumerId, Progress
from cdcmeta.generations.log.listing import revision_of, unchanged
from snapkv import AtRevision, ConflictError, Entry, Snapshot, Space, format_time
from snapkv.model import Guard


def progress_of(space: Space, id: ConsumerId) -> tuple[Progress, int] | None:
    """Return a consumer's progress and the revision of its save; None if not registered.

    Raises `InvalidArgumentError` where the name is in use by another number of workers, or was
    registered by a version that did not record which table it reads.
    """
    snapshot = space.at()
    if id.table is None:
        (found,) = snapshot.entries_of([layout.consumer_key(id)])
        return None if found is None else (layout.decode(Progress, found.value), found.revision)
    entries = dict(snapshot.entries(layout.consumers_prefix(id.table, id.name)))
    if not entries:
        _check_no_old_one(snapshot, id)
        return None
    own = entries.get(layout.consumer_key(id))
    if own is None:
        parts = layout.consumer_of(next(iter(entries))).parts
        raise InvalidArgumentError(
            f"consumer {id.name!r} of table {id.table!r} has {parts} workers, not {id.parts}: "
            "let all of them read to one moment, forget it, and register it with `since` of that"
        )
    return layout.decode(Progress, own.value), own.revision


def consumers(space: Space) -> dict[ConsumerId, Progress]:
    """Return the registered consumers and their progress."""
    return consumers_at(space.at())


def consumers_at(snapshot: Snapshot[bytes]) -> dict[ConsumerId, Progress]:
    """Return the consumers registered at a moment, and their progress."""
    items = snapshot.items(layout.CONSUMER_PREFIX)
    return {layout.consumer_of(key): layout.decode(Progress, value) for key, value in items}


def register(space: Space, ids: Sequence[ConsumerId], progress: Progress) -> None:
    """Register the workers of a consumer, all or none; they begin in a generation.

    Expiry then keeps that generation. Raises `GenerationNotFoundError` when it was removed
    meanwhile, `InvalidArgumentError` for a name that is in use.
    """
    own = [layout.consumer_key(id) for id in ids]
    while True:
        snapshot = space.at()
        key = layout.generation_key(progress.generation)
        generation, count, *known = snapshot.entries_of([key, layout.CONSUMERS, *own])
        if any(known):
            raise InvalidArgumentError(f"consumer {ids[0].name!r} is registered already")
        if generation is None:
            raise GenerationNotFoundError(
                f"the generation from {format_time(progress.generation)} "
                f"({progress.generation}) on was removed"
            )
        puts = dict.fromkeys(own, layout.encode(progress)) | {layout.CONSUMERS: _counted(count)}
        guards: list[Guard] = [
            AtRevision(key, generation.revision),
            unchanged(layout.CONSUMERS, revision_of(count)),  # no consumer was registered meanwhile
        ]
        try:
            space.commit(puts=puts, guards=guards)
        except ConflictError:
            continue
        return


def save(space: Space, id: ConsumerId, revision: int, progress: Progress) -> int:
    """Save a consumer's progress if it is unchanged since a revision; return the next one.

    Raises `ConsumerTakenError` if another process saved meanwhile.
    """
    own = layout.consumer_key(id)
    try:
        commit = space.commit(
            puts={own: layout.encode(progress)}, guards=[AtRevision(own, revision)]
        )
    except ConflictError as e:
        raise ConsumerTakenError(id.name) from e
    return commit.revision


def forget(space: Space, name: str, table: str) -> bool:
    """Forget a consumer of a table, and one of this name without a recorded table.

    Return whether one existed. Expiry no longer keeps anything for it.
    """
    snapshot = space.at()
    found = list(snapshot.keys(layout.consumers_prefix(table, name)))
    old = layout.old_consumer_key(name)
    found += [old] * (snapshot.entries_of([old])[0] is not None)
    if found:
        space.commit(deletes=found)
    return bool(found)


def _check_no_old_one(snapshot: Snapshot[bytes], id: ConsumerId) -> None:
    (old,) = snapshot.entries_of([layout.old_consumer_key(id.name)])
    if old is not None:
        position = layout.decode(Progress, old.value).position
        raise InvalidArgumentError(
            f"consumer {id.name!r} was registered by an older version, which did not record its "
            f"table, and came to {position}: if it read table {id.table!r}, forget it and register "
            f"it again with since={position}"
        )


def _counted(entry: Entry | None) -> bytes:
    return layout.number(1 + (layout.number_of(entry.value) if entry else 0))
