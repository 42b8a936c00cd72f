"""The server and its databases."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from cdcmeta.changes.database import ChangesDB, databases
from cdcmeta.http.answers import answer
from cdcmeta.http.call import Call
from cdcmeta.http.errors import bad_request
from snapkv import __version__

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
    found = await call.service.read(databases, call.service.store, as_of=call.as_of)
    skip, limit = call.number("skip") or 0, call.number("limit")
    return answer(found[skip:][:limit])


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


async def create(call: Call) -> Response:
    """Answer `PUT /{db}`."""
    db = call.db
    await call.service.call(db.create)
    where = f"{call.request.base_url}{quote(db.name, safe='')}"
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
