"""Routes: the stores that a change came through, so that no changefeed sends it back.

A commit that a changefeed writes into a store has in its meta where the changes come from, oldest
first. A store is named by the beginning of its id, which no other store has, whatever its URL.
Commits of different routes are not put into one. A recording repeats the commits of a store with
their metas, and adds nothing to their routes. So what is read from a recording that is on its own
route came around, too.

Documents need no route to come to rest, because a revision is written once: theirs has only the
store that they were read from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from snapkv import Change, Changes, Commit, SnapshotKV
from snapkv.model import Meta, Scalar

ROUTE = "changefeed_route"
"""The name in a commit's meta."""
PLACES_MAX = 100
"""The most stores that a route names. A ring of more stores does not come to rest."""
STORE_ID_DIGITS = 16

RECORDS = "changefeed/"
"""The prefix of the names of the spaces in which changefeeds keep their records of a store."""

Route: TypeAlias = tuple[str, ...]


def place_of(store: SnapshotKV) -> str:
    """Return how a route names a store."""
    return store.reader.format.store_id.hex()[:STORE_ID_DIGITS]


def route_of(commit: Commit) -> Route:
    """Return the stores through which the changes of a commit came, oldest first.

    >>> route_of(Commit(5, 0, 5, None)), route_of(Commit(5, 0, 5, None, meta={ROUTE: "6f 0a"}))
    ((), ('6f', '0a'))
    """
    return _route_in(commit.meta)


def last_place(meta: Meta | None) -> str | None:
    """Return the store from which a changefeed wrote a commit; None if its meta has no route.

    >>> last_place(Meta({ROUTE: "6f 0a"})), last_place(None)
    ('0a', None)
    """
    return next(reversed(_route_in(meta)), None)


def _route_in(meta: Mapping[str, Scalar] | None) -> Route:
    found = meta.get(ROUTE) if meta is not None else None
    return tuple(found.split()) if isinstance(found, str) else ()


def metas_of(store: SnapshotKV, revisions: Collection[int]) -> dict[int, Meta | None]:
    """Return the metas of the commits at some revisions, as far as these are not compacted.

    A read for each 128. Raises `snapkv.CompactedError` if the store is compacted meanwhile.
    """
    point, timeline = store.reader.engine.compacted_revision(), store.reader.timeline
    wanted = sorted(each for each in revisions if each >= point)
    found = timeline.stamps(wanted)
    return {each[0].revision: each[1].meta for each in found if each is not None}


def meta_after(route: Route, source: str) -> dict[str, str]:
    """Return the meta of changes that came through a route and then through `source`."""
    return {ROUTE: " ".join([*route, source][-PLACES_MAX:])}


def without_returning(
    commits: Sequence[Changes[str]], source: str, target: str
) -> list[Changes[str]]:
    """Return commits without the changes that came through the target, and each of one route.

    Writes of other programs have no route.
    """
    left: list[Changes[str]] = []
    for commit in commits:
        found: dict[Route, list[Change[str]]] = {}
        for change in commit.changes:
            route = route_of(change.commit)
            is_recorded = change.commit.source_revision is not None
            if target not in route and not (is_recorded and source in route):
                found.setdefault(route, []).append(change)
        left += [Changes(commit.commit, tuple(each)) for each in found.values()]
    return left


def next_route(commits: Sequence[Changes[str]]) -> int:
    """Return the index of the first commit that has another route than the first one, else 0."""
    routes = [route_of(each.changes[0].commit) for each in commits]
    return next((at for at, route in enumerate(routes) if route != routes[0]), 0)
