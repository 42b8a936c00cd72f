"""What a member's history is, read from its engine's events, and what each moment of it shows.

An independent model: it shares no code with the time line, the watches and the fleet.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol_remote import DATA, Journal

State = tuple[tuple[str, bytes], ...]
Written = tuple[tuple[str, bytes | None], ...]


class Committed(NamedTuple):
    """A commit or a tick as the engine has it; None is a removed key."""

    timestamp: int
    revision: int
    written: Written


History = tuple[Committed, ...]
"""All commits of a store, in the order of revisions; without its creation."""


class Shown(NamedTuple):
    """What a moment shows of a member: its state, its newest commit and its keys."""

    state: str
    timestamp: int = 0
    revision: int = 0
    items: State = ()


ABSENT, MISSING = Shown("absent"), Shown("missing")


def newest_in(journal: Journal) -> Committed | None:
    """Return the newest commit of a journal; None for the creation of the store."""
    stamp = journal.stamps[-1]
    if not stamp.ts:
        return None
    changes = journal.revisions[stamp.revision]
    written = [
        (key.removeprefix(DATA).decode(), value)
        for key, value in changes.items()
        if key.startswith(DATA)
    ]
    return Committed(stamp.ts, stamp.revision, tuple(sorted(written)))


def newest_of(history: History) -> int:
    """Return up to which timestamp a history is final, 0 without a commit."""
    return max((each.timestamp for each in history), default=0)


def floor_of(history: History, timestamp: int) -> Committed | None:
    """Return the newest commit at or below a time."""
    return next((each for each in reversed(history) if each.timestamp <= timestamp), None)


def state_at(history: History, timestamp: int) -> State:
    """Return the keys and values at a time."""
    found: dict[str, bytes] = {}
    for each in history:
        if each.timestamp <= timestamp:
            for key, value in each.written:
                found.pop(key, None)
                if value is not None:
                    found[key] = value
    return tuple(sorted(found.items()))


def changes_in(history: History, after: int, until: int) -> History:
    """Return the commits in (after, until] that wrote a key."""
    return tuple(each for each in history if after < each.timestamp <= until and each.written)


def shown(history: History | None, timestamp: int, joined: int) -> Shown:
    """Return what a moment has to show of a member; None is an engine without the store."""
    if timestamp < joined:
        return ABSENT
    if not history:
        return MISSING
    floor = floor_of(history, timestamp)
    if floor is None:
        return ABSENT
    state = "live" if timestamp <= newest_of(history) else "behind"
    return Shown(state, floor.timestamp, floor.revision, state_at(history, timestamp))
