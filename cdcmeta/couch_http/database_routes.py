"""The server's own paths, its databases, and the feed of their updates."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote

import anyio
from starlette.responses import Response

from cdcmeta.changes.database import ChangesDB, databases
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.couch_http.changes_feed import (
    CONTINUOUS,
    EVENTSOURCE,
    NORMAL,
    FeedRequest,
    feed_request,
)
from cdcmeta.couch_http.http_errors import bad_request
from cdcmeta.couch_http.http_request import ServiceCall
from cdcmeta.couch_http.service import Service
from cdcmeta.couch_http.streaming import Streamed, answer, encoded
from cdcmeta.errors import DatabaseNotFoundError, InvalidNameError
from snapkv import CompactedError, __version__
from snapkv.base.waiting import monotonic

UUIDS_MAX = 1_000
INFOS_MAX = 100
REV_OF_A_DATABASE = (
    "You tried to DELETE a database with a ?=rev parameter. Did you mean to DELETE a document "
    "instead?"
)


async def welcome(call: ServiceCall) -> Response:
    """Answer `GET /`; replicators identify a server by its uuid, which is the store's."""
    vendor = {"name": "cdcmeta", "version": __version__}
    facts = {"couchdb": "Welcome", "version": __version__, "uuid": call.service.id}
    return answer(facts | {"features": [], "vendor": vendor})


async def up(call: ServiceCall) -> Response:
    """Answer `GET /_up`, after the store answered a read."""
    await call.service.call(call.service.store.resolved)
    return answer({"status": "ok", "seeds": {}})


async def names(call: ServiceCall) -> Response:
    """Answer `GET /_all_dbs`."""
    return answer(
        _selected(call, await call.service.read(databases, call.service.store, as_of=call.as_of))
    )


def _selected(call: ServiceCall, names: list[str]) -> list[str]:
    """Return the names that the query selects; `names` are sorted."""
    start, end = _key(call, "startkey", "start_key"), _key(call, "endkey", "end_key")
    descending = call.flag("descending")
    low, high = (end, start) if descending else (start, end)
    found = [name for name in names if (low or "") <= name and (high is None or name <= high)]
    if call.query.get("inclusive_end") == "false":
        found = [name for name in found if name != end]
    if descending:
        found.reverse()
    skip, limit = call.number("skip") or 0, call.number("limit")
    return found[skip:][:limit]


def _key(call: ServiceCall, *names: str) -> str | None:
    key = next((call.json_of(name) for name in names if name in call.query), None)
    if key is None or isinstance(key, str):
        return key
    raise bad_request(f"`{names[0]}` must be a JSON string")


async def facts(call: ServiceCall) -> Response:
    """Answer `GET /{db}`."""
    return answer(await call.service.read(_facts_of, call.db, call.as_of))


def _facts_of(db: ChangesDB, as_of: str | None) -> dict[str, Any]:
    info = db.info(as_of=as_of)
    return {
        "db_name": info.name,
        "doc_count": info.doc_count,
        "doc_del_count": info.deleted_count,
        "update_seq": str(info.update_seq),
        "purge_seq": "0",
        "compact_running": False,
        "instance_start_time": "0",
        "uuid": info.uuid,
        "incarnation": info.incarnation,
    }


async def many_facts(call: ServiceCall) -> Response:
    """Answer `_dbs_info`: a POST names the databases in `keys`, a GET selects among all."""
    if call.request.method == "POST":
        names = (await call.posted()).get("keys")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise bad_request("`keys` member must exist.")
        if len(names) > INFOS_MAX:
            raise bad_request(f"`keys` has more than {INFOS_MAX} names")
    else:
        names = _selected(call, await call.service.read(databases, call.service.store))
    pieces = (piece for piece in _many_facts(call.service, names))
    return await Streamed.started(call.service.stepped(pieces))


def _many_facts(service: Service, names: list[str]) -> Iterator[bytes]:
    between = b"["
    for name in names:
        try:
            row: dict[str, Any] = {"key": name, "info": _facts_of(service.database(name), None)}
        except (InvalidNameError, DatabaseNotFoundError):
            row = {"key": name, "error": "not_found"}
        yield between + encoded(row)
        between = b","
    yield (b"" if names else between) + b"]\n"


async def uuids(call: ServiceCall) -> Response:
    """Answer `GET /_uuids`: new ids."""
    count = call.number("count")
    count = 1 if count is None else count
    if count > UUIDS_MAX:
        raise bad_request(f"count parameter too large: {UUIDS_MAX} at most")
    headers = {"Cache-Control": "must-revalidate, no-cache", "Pragma": "no-cache"}
    return answer({"uuids": [uuid.uuid4().hex for _ in range(count)]}, headers=headers)


async def security(call: ServiceCall) -> Response:
    """Answer `GET /{db}/_security`: the one login may do everything."""
    await call.service.call(call.db.state)
    return answer({"admins": {"roles": ["_admin"]}, "members": {"roles": ["_admin"]}})


async def revs_limit(call: ServiceCall) -> Response:
    """Answer `GET /{db}/_revs_limit`."""
    state = await call.service.call(call.db.state)
    return answer(state.database.revs_limit)


async def set_revs_limit(call: ServiceCall) -> Response:
    """Answer `PUT /{db}/_revs_limit`."""
    limit = await call.value()
    if type(limit) is not int:
        raise bad_request("`_revs_limit` must be a positive integer")
    await call.service.call(call.db.set_revs_limit, limit)
    return answer({"ok": True})


async def create(call: ServiceCall) -> Response:
    """Answer `PUT /{db}`."""
    db = call.db
    await call.service.call(db.create)
    where = f"{call.base_url}{quote(db.name, safe='')}"
    return answer({"ok": True}, 201, {"Location": where})


async def delete(call: ServiceCall) -> Response:
    """Answer `DELETE /{db}`."""
    if "rev" in call.query:  # the request meant a document, but its id was empty
        raise bad_request(REV_OF_A_DATABASE)
    await call.service.call(call.db.delete)
    return answer({"ok": True})


async def full_commit(call: ServiceCall) -> Response:
    """Answer `POST /{db}/_ensure_full_commit`: acknowledged edits are committed already."""
    call.check_json()
    await call.service.call(call.db.state)
    return answer({"ok": True, "instance_start_time": "0"}, 201)


# --- `_db_updates`: the databases that were created, updated or deleted since a time ---
#
# The store has no index of that: each request asks every database, and a feed asks again after
# any commit.

POLL_S = 0.5
"""The pause between two checks of a feed for new commits, in seconds."""


@dataclass(frozen=True, slots=True)
class DatabaseUpdate:
    """The last event of a database (`type`), and its timestamp."""

    db_name: str
    type: str
    timestamp: int

    def row(self) -> bytes:
        """Return its JSON."""
        return encoded({"db_name": self.db_name, "type": self.type, "seq": str(self.timestamp)})


Found: TypeAlias = tuple[list[DatabaseUpdate], int]
"""Updates, oldest first, and the timestamp up to which they are complete."""


async def db_updates(call: ServiceCall) -> Response:
    """Answer `GET /_db_updates`: a row for each database, with its last event."""
    query = call.query.multi_items()
    wanted = feed_request(query, {}, None, call.service.limits.wait_ms)
    if wanted.feed == EVENTSOURCE:
        raise bad_request("Supported `feed` types: normal, continuous, longpoll")
    read, service = call.service.read, call.service
    since = await read(_timestamp, service, wanted.since)
    first = await read(_updates, service, since)  # an error now is still an answer of its own
    pieces = _lines if wanted.feed == CONTINUOUS else _page
    return await Streamed.started(pieces(service, wanted, since, first), heartbeat=wanted.heartbeat)


async def _page(
    service: Service, wanted: FeedRequest, since: int, first: Found
) -> AsyncGenerator[bytes, None]:
    yield b'{"results":[\n'
    found, last = await _found_updates(service, wanted, since, first, wanted.limit)
    rows = b",\n".join(update.row() for update in found)
    yield rows + b'\n],\n"last_seq":"%d"}\n' % last


async def _lines(
    service: Service, wanted: FeedRequest, since: int, first: Found
) -> AsyncGenerator[bytes, None]:
    sent = 0
    yield b""  # the answer and its heartbeats begin
    read: Found | None = first
    while wanted.limit is None or sent < wanted.limit:
        left = None if wanted.limit is None else wanted.limit - sent
        found, since = await _found_updates(service, wanted, since, read, left)
        if not found:
            break
        sent += len(found)
        yield b"".join(update.row() + b"\n" for update in found)
        read = None
    yield encoded({"last_seq": str(since)}) + b"\n"


async def _found_updates(
    service: Service, wanted: FeedRequest, since: int, read: Found | None, limit: int | None
) -> Found:
    """Return the updates after `since` (`read`, if known), and where to continue; a feed waits."""
    deadline = None if wanted.heartbeat is not None else monotonic() + wanted.timeout
    if read is None:
        read = await service.read(_updates, service, since)
    found, last = read
    while not found and wanted.feed != NORMAL and not service.wakeups.stopping:
        if deadline is not None and monotonic() >= deadline:
            break
        await anyio.sleep(POLL_S)
        if await service.read(service.store.resolved) > last:
            found, last = await service.read(_updates, service, last)
    if limit is not None and len(found) > limit:
        while 0 < limit < len(found) and found[limit].timestamp == found[limit - 1].timestamp:
            limit += 1  # a client that continues there must not miss rows of that time
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
    start = service.store.at(since).revision if since else 0
    found = [DatabaseUpdate(name, "deleted", now) for name in before.difference(names)]
    for name in names:
        try:
            state = service.database(name).state(now)
        except DatabaseNotFoundError:
            continue  # it is moved here: a request after the move reports that
        if name not in before or state.created > start:
            timestamp = max(_newest(state, since), _time_of(service, state.created))
            found.append(DatabaseUpdate(name, "created", timestamp))
        elif timestamp := _newest(state, since):
            found.append(DatabaseUpdate(name, "updated", timestamp))
    found.sort(key=lambda update: (update.timestamp, update.db_name))
    return found, now


def _newest(state: DatabaseState, since: int) -> int:
    """Return the timestamp of a database's newest row, 0 if `since` is not older."""
    after = state.database.sequence_at(since)
    return state.newest().timestamp if state.count_rows(after, state.end) else 0


def _time_of(service: Service, revision: int) -> int:
    """Return the timestamp of a revision, or the oldest one left if that was compacted."""
    while True:
        try:
            return service.store.timestamp_of(f"rev:{revision}")
        except CompactedError as e:
            if e.unit != "revision" or e.earliest is None or e.earliest <= revision:
                raise
            revision = e.earliest
