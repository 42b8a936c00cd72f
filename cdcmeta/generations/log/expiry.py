"""Expiry: removes superseded generations that no consumer needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from cdcmeta.generations.log import layout
from cdcmeta.generations.log.consumers import consumers_at
from cdcmeta.generations.log.layout import Generation
from cdcmeta.generations.log.listing import generations_at, revision_of, unchanged
from snapkv import AtRevision, ConflictError, Space, SpaceOps
from snapkv.model import Guard


@dataclass(frozen=True, slots=True)
class Expired:
    """The result of an expiry: generations marked and removed, and the number of rows trimmed."""

    marked: tuple[Generation, ...]
    removed: tuple[Generation, ...]
    rows: int = 0


def expire(space: Space, now: int, retention: int) -> Expired:
    """Mark the generations that were superseded by `now`; remove them `retention` later.

    Keeps the current generation, and generations that a registered consumer has not passed. Costs a
    listing, and a commit for each one marked or removed. Times and `retention` are timestamps.
    """
    snapshot = space.at()
    (count,) = snapshot.entries_of([layout.CONSUMERS])
    same_consumers = unchanged(layout.CONSUMERS, revision_of(count))
    slowest = min((each.position for each in consumers_at(snapshot).values()), default=now)
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
            if not _committed(space, SpaceOps({}, [key], [rows], [unmarked, same_consumers])):
                break  # not a later one first: its writes would seem to be this one's
            removed.append(generation)
        elif generation.expired is None:
            record = replace(generation, expired=now)
            ops = SpaceOps({key: layout.encode(record)}, guards=[unmarked])
            if _committed(space, ops):
                marked.append(record)
    return Expired(tuple(marked), tuple(removed))


def _committed(space: Space, ops: SpaceOps) -> bool:
    try:
        space.commit(lambda _: ops)
    except ConflictError:
        return False
    return True
