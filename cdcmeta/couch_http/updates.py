"""`_db_updates`: which databases were created, updated or deleted since a moment.

The store has no index of that: each question asks every database, and a feed asks again when
anything was committed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import anyio
from starlette.responses import Response

from cdcmeta.changes.database import databases
from cdcmeta.couch_http.changes_query import (
    CONTINUOUS,
    EVENTSOURCE,
    NORMAL,
    FeedRequest,
    feed_request,
)
from cdcmeta.couch_http.errors import bad_request
from cdcmeta.couch_http.request import Call, encoded
from cdcmeta.couch_http.service import Service
from cdcmeta.couch_http.streaming import Streamed
from cdcmeta.errors import DatabaseNotFoundError
from snapkv.clock import monotonic

POLL_S = 0.5
"""How often a feed looks whether anything was committed."""


@dataclass(frozen=True, slots=True)
class Update:
    """What became of a database, and the timestamp of that."""

    db_name: str
    type: str
    timestamp: int

    def row(self) -> bytes:
        """Return it as clients read it."""
        told = {"db_name": self.db_name, "type": self.type, "seq": str(self.timestamp)}
        return encoded(told)


Found: TypeAlias = tuple[list[Update], int]
"""Updates, oldest first, and the timestamp up to which they were looked for."""


async def db_updates(call: Call) -> Response:
    """Answer `GET /_db_updates`: a row for each database, with the last thing that happened."""
    query = call.query.multi_items()
    wanted = feed_request(query, {}, None, call.service.limits.wait_ms)
    if wanted.feed == EVENTSOURCE:
        raise bad_request("Supported `feed` types: normal, continuous, longpoll")
    read, service = call.service.read, call.service
    since = await read(_timestamp, service, wanted.since)
    first = await read(_updates, service, since)  # what fails now is an answer of its own
    pieces = _lines if wanted.feed == CONTINUOUS else _page
    return await Streamed.begun(pieces(service, wanted, since, first), heartbeat=wanted.heartbeat)


async def _page(
    service: Service, wanted: FeedRequest, since: int, first: Found
) -> AsyncGenerator[bytes, None]:
    yield b'{"results":[\n'
    found, last = await _found(service, wanted, since, first, wanted.limit)
    rows = b",\n".join(update.row() for update in found)
    yield rows + b'\n],\n"last_seq":"%d"}\n' % last


async def _lines(
    service: Service, wanted: FeedRequest, since: int, first: Found
) -> AsyncGenerator[bytes, None]:
    told = 0
    yield b""  # the answer begins, and its heartbeats
    looked: Found | None = first
    while wanted.limit is None or told < wanted.limit:
        left = None if wanted.limit is None else wanted.limit - told
        found, since = await _found(service, wanted, since, looked, left)
        if not found:
            break
        told += len(found)
        yield b"".join(update.row() + b"\n" for update in found)
        looked = None
    yield encoded({"last_seq": str(since)}) + b"\n"


async def _found(
    service: Service, wanted: FeedRequest, since: int, looked: Found | None, limit: int | None
) -> Found:
    """Return the updates after a moment, and where to go on; a feed waits for the first.

    `looked` is what a first look found already.
    """
    deadline = None if wanted.heartbeat is not None else monotonic() + wanted.timeout
    if looked is None:
        looked = await service.read(_updates, service, since)
    found, last = looked
    while not found and wanted.feed != NORMAL and not service.hub.stopping:
        if deadline is not None and monotonic() >= deadline:
            break
        await anyio.sleep(POLL_S)
        if await service.read(service.store.resolved) > last:
            found, last = await service.read(_updates, service, last)
    if limit is not None and len(found) > limit:
        while 0 < limit < len(found) and found[limit].timestamp == found[limit - 1].timestamp:
            limit += 1  # who goes on after that moment would miss the rest of it
        found = found[:limit]
        last = found[-1].timestamp if found else since
    return found, last


# --- in threads ---


def _timestamp(service: Service, since: str) -> int:
    return service.store.resolved() if since == "now" else service.store.timestamp_of(since)


def _updates(service: Service, since: int) -> Found:
    """Return the updates after a timestamp, oldest first, and the timestamp of now."""
    now = service.store.resolved()
    at = partial(databases, service.store)
    names, before = at(as_of=now), set(at(as_of=since) if since else ())
    found = [Update(name, "deleted", now) for name in before.difference(names)]
    for name in names:
        try:
            timestamp = _newest(service, name, since)
        except DatabaseNotFoundError:
            continue  # it was deleted just now: the next question finds that
        if name not in before:
            found.append(Update(name, "created", timestamp or now))
        elif timestamp:
            found.append(Update(name, "updated", timestamp))
    found.sort(key=lambda update: (update.timestamp, update.db_name))
    return found, now


def _newest(service: Service, name: str, since: int) -> int:
    """Return the timestamp of a database's newest row, 0 if that is no newer than `since`."""
    state = service.database(name).state()
    after = state.database.sequence_at(since)
    return state.newest().timestamp if state.count_rows(after, state.end) else 0
