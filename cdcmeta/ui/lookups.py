"""Look up what several views need: names that spaces have, and the time of a revision."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile

from snapkv import CompactedError, SnapshotKV, When


def space_names(store: SnapshotKV, prefix: str, start: str, when: When | None) -> Iterator[str]:
    """Yield the names after a prefix of spaces at a moment, from a name on; in stored order.

    One round trip for each, also for those before `start`.
    """
    names = (name.removeprefix(prefix) for name in store.spaces(prefix, when))
    return dropwhile(lambda name: bool(start) and _stored(name) < _stored(start), names)


def time_of(store: SnapshotKV, revision: int) -> int | None:
    """Return the timestamp of a revision's commit, None if it was compacted; one round trip."""
    try:
        return store.timestamp_of(f"rev:{revision}")
    except CompactedError:
        return None


def _stored(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F") + "/"
