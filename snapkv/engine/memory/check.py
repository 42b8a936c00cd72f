"""Broken rules of what the memory engine holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from snapkv.engine.contract import Event, KeyValue


def problems_of_log(log: Sequence[tuple[Event, ...]], start: int, revision: int) -> Iterator[str]:
    """Yield what is wrong with a log that begins at one revision and ends with another."""
    if len(log) != revision + 1 - start:
        yield f"log has {len(log)} entries up to revision {revision}"
    for at, events in enumerate(log, start):
        for event in events:
            if event.kv.mod_revision != at:
                yield f"log of {at} has an event of {event.kv.mod_revision}"


def problems_of_versions(all_versions: Mapping[bytes, Sequence[KeyValue]]) -> Iterator[str]:
    """Yield what is wrong with the versions of keys, which are given oldest first."""
    for key, versions in all_versions.items():
        for old, new in itertools.pairwise(versions):
            if new.mod_revision <= old.mod_revision:
                yield f"{key!r}: revision {new.mod_revision} after {old.mod_revision}"
            if new.version not in (0, old.version + 1):
                yield f"{key!r}: version {new.version} after {old.version}"
