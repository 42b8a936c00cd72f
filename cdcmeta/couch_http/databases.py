"""The server and its databases."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from cdcmeta.changes.database import ChangesDB, databases
from cdcmeta.couch_http.answers import answer
from cdcmeta.couch_http.errors import bad_request
from cdcmeta.couch_http.request import Call, encoded
from cdcmeta.couch_http.service import Service
from cdcmeta.couch_http.streaming import Streamed
from cdcmeta.errors import DatabaseNotFoundError, InvalidNameError
from snapkv import __version__

UUIDS_MAX = 1_000
INFOS_MAX = 100
REV_OF_A_DATABASE = (
    "You tried to DELETE a database with a ?=rev parameter. Did you mean to DELETE a document "
    "instead?"
)


async def welcome(call: Call) -> Response:
    """Answer `GET /`; the uuid is the store's, which replicators tell servers apart by."""
    vendor = {"name": "cdcmeta", "version": __version__}
    facts = {"couchdb": "Welcome", "version": __version__, "uuid": call.service.id}
    return answer(facts | {"features": [], "vendor": vendor})


async def up(call: Call) -> Response:
    """Answer `GET /_up`: the store answers, too."""
    await call.service.call(call.service.store.resolved)
    return answer({"status": "ok", "seeds": {}})


async def names(call: Call) -> Response:
    """Answer `GET /_all_dbs`."""
    return answer(
        _asked(call, await call.service.read(databases, call.service.store, as_of=call.as_of))
    )


def _asked(call: Call, names: list[str]) -> list[str]:
    """Return the names that a query asks for, of sorted ones."""
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


def _key(call: Call, *names: str) -> str | None:
    key = next((call.json_of(name) for name in names if name in call.query), None)
    if key is None or isinstance(key, str):
        return key
    raise bad_request(f"`{names[0]}` is a text in JSON")


async def facts(call: Call) -> Response:
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


async def many_facts(call: Call) -> Response:
    """Answer `_dbs_info`: of the databases that `keys` names, or of all that a GET asks for."""
    if call.request.method == "POST":
        names = (await call.posted()).get("keys")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise bad_request("`keys` member must exist.")
        if len(names) > INFOS_MAX:
            raise bad_request(f"`keys` has more than {INFOS_MAX} names")
    else:
        names = _asked(call, await call.service.read(databases, call.service.store))
    pieces = (piece for piece in _many_facts(call.service, names))
    return await Streamed.begun(call.service.stepped(pieces))


def _many_facts(service: Service, names: list[str]) -> Iterator[bytes]:
    between = b"["
    for name in names:
        try:
            told: dict[str, Any] = {"key": name, "info": _facts_of(service.database(name), None)}
        except (InvalidNameError, DatabaseNotFoundError):
            told = {"key": name, "error": "not_found"}
        yield between + encoded(told)
        between = b","
    yield (b"" if names else between) + b"]\n"


async def uuids(call: Call) -> Response:
    """Answer `GET /_uuids`: new ids."""
    count = call.number("count")
    count = 1 if count is None else count
    if count > UUIDS_MAX:
        raise bad_request(f"count parameter too large: {UUIDS_MAX} at most")
    headers = {"Cache-Control": "must-revalidate, no-cache", "Pragma": "no-cache"}
    return answer({"uuids": [uuid.uuid4().hex for _ in range(count)]}, headers=headers)


async def security(call: Call) -> Response:
    """Answer `GET /{db}/_security`: there is one login, and it may do everything."""
    await call.service.call(call.db.state)
    return answer({"admins": {"roles": ["_admin"]}, "members": {"roles": ["_admin"]}})


async def revs_limit(call: Call) -> Response:
    """Answer `GET /{db}/_revs_limit`."""
    state = await call.service.call(call.db.state)
    return answer(state.database.revs_limit)


async def set_revs_limit(call: Call) -> Response:
    """Answer `PUT /{db}/_revs_limit`."""
    limit = await call.value()
    if type(limit) is not int:
        raise bad_request("`_revs_limit` must be a positive integer")
    await call.service.call(call.db.set_revs_limit, limit)
    return answer({"ok": True})


async def create(call: Call) -> Response:
    """Answer `PUT /{db}`."""
    db = call.db
    await call.service.call(db.create)
    where = f"{call.base_url}{quote(db.name, safe='')}"
    return answer({"ok": True}, 201, {"Location": where})


async def delete(call: Call) -> Response:
    """Answer `DELETE /{db}`."""
    if "rev" in call.query:  # somebody's id was empty by mistake
        raise bad_request(REV_OF_A_DATABASE)
    await call.service.call(call.db.delete)
    return answer({"ok": True})


async def full_commit(call: Call) -> Response:
    """Answer `POST /{db}/_ensure_full_commit`: what was acknowledged is committed."""
    call.check_json()
    await call.service.call(call.db.state)
    return answer({"ok": True, "instance_start_time": "0"}, 201)
