"""The versions of one key newest first: found from the newest one back, not further than asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from snapkv.engine.contract import Engine, Event, KeyValue
from snapkv.engine.replay import replayed

WINDOW_REVISIONS = 4_096
"""So many revisions are looked through at once; each window is four times as long as the last."""
POINT_READS = 32
"""Of so many versions a remote engine is asked one by one, before it replays windows."""


def events_back(engine: Engine, key: bytes, begin: int, high: int, page: int) -> Iterator[Event]:
    """Yield what happened to a stored key from revision `high` down to `begin`, newest first.

    An embedded engine reads puts one behind the other, `page` at a time; a remote one is asked for
    them one by one, a round trip each. Before the key was created, windows of revisions are
    replayed for the removal of an earlier life, one watch for each.

    Raises `CompactedError` (unit "revision").
    """
    window, reads = WINDOW_REVISIONS, POINT_READS
    while high >= begin:
        puts: list[Event] = []
        if not engine.remote:
            puts = list(puts_back(engine, key, high, page))
        elif reads:
            kv, reads = engine.get(key, high).kv, reads - 1
            puts = [] if kv is None else [Event(kv, False)]
        if puts:
            for event in puts:
                if event.kv.mod_revision < begin:
                    return
                yield event
            high = puts[-1].kv.mod_revision - 1
            continue
        low = max(begin, high - window + 1)
        yield from reversed(events_between(engine, key, low, high))
        high, window, reads = low - 1, 4 * window, POINT_READS


def puts_back(engine: Engine, key: bytes, revision: int, limit: int) -> Iterator[Event]:
    """Yield successive puts from a revision down, as far as the key's creation; of an embedded one.

    The last ones may be older than the compaction point.
    """
    found = engine.versions(key, revision, limit)
    for at, (modified, value) in enumerate(zip(found.revisions, found.values, strict=True)):
        version = found.version - at
        yield Event(KeyValue(key, value, found.create_revision, modified, version, 0), False)


def events_between(
    engine: Engine, key: bytes, low: int, high: int, limit: int | None = None
) -> deque[Event]:
    """Return the newest events between two revisions, oldest first; from one watch."""
    batches = replayed(engine, key, b"", low, high)
    return deque((event for batch in batches for event in batch.events), limit)
