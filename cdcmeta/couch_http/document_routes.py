"""One document: get, put, copy, delete; and local documents."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from starlette.responses import Response

from cdcmeta.changes.database import PREFIX as LOCAL
from cdcmeta.changes.database import ChangesDB
from cdcmeta.changes.database_state import StoredLeaf
from cdcmeta.changes.documents import Doc, Edited, checked_id
from cdcmeta.changes.revisions import Revision
from cdcmeta.couch_http.http_errors import HTTPError, bad_request
from cdcmeta.couch_http.http_request import ServiceCall
from cdcmeta.couch_http.service import run_edit
from cdcmeta.couch_http.streaming import JSON, answer, encoded
from cdcmeta.errors import DocumentConflictError, DocumentNotFoundError, InvalidDocumentError

T = TypeVar("T")
NO_LOCAL_REV = "0-0"
"""The revision of a local document that was deleted."""
META = ("conflicts", "deleted_conflicts", "revs_info")
"""The members that `meta` adds: about other branches, and which revisions are stored."""
TWO_REVS = "Document rev from request body and query string have different values"


async def get(call: ServiceCall) -> Response:
    """Answer `GET /{db}/{id}`."""
    id = call.id
    if id.startswith(LOCAL):
        name = id.removeprefix(LOCAL)
        db = call.db
        return answer(await call.service.call(_locally, db, lambda: db.local.get(name)))
    if "open_revs" in call.query:
        return await _open_revs(call, id)
    found = await call.service.call(_found, call.db, id, call.query.get("rev"), call.as_of)
    headers = {"Cache-Control": "must-revalidate"}
    meta = {name: call.flag("meta") or call.flag(name) for name in META}
    if not any(meta.values()):  # these change while the revision remains
        headers["ETag"] = f'"{found.leaf.revision}"'
        if call.has(headers["ETag"]):
            return Response(status_code=304, headers=headers)
    doc = found.as_json(**meta, revisions=call.flag("revs"))
    return Response(doc + b"\n", headers=headers, media_type=JSON)


async def _open_revs(call: ServiceCall, id: str) -> Response:
    revs = None if call.query["open_revs"] == "all" else call.json_of("open_revs")
    if revs is not None and not isinstance(revs, list):
        raise bad_request("`open_revs` is `all` or a list of revisions")
    latest = call.flag("latest")
    found = await call.service.call(call.db.open_revs, id, revs, latest=latest, as_of=call.as_of)
    revisions = call.flag("revs")
    leaves = [
        {"missing": leaf} if isinstance(leaf, str) else {"ok": leaf_of(leaf, revisions)}
        for leaf in found
    ]
    wants_parts = MIXED in call.request.headers.get("accept", "")
    return multipart_answer(leaves) if wants_parts else answer(leaves)


def leaf_of(doc: Doc, revisions: bool) -> Doc:
    """Return a leaf, without `_revisions` unless they are wanted."""
    if not revisions:
        del doc["_revisions"]
    return doc


async def put(call: ServiceCall) -> Response:
    """Answer `PUT /{db}/{id}`."""
    id, rev = call.id, call.rev
    if call.request.headers.get("content-type", "").strip().lower().startswith("multipart/"):
        raise HTTPError(415, "bad_content_type", "attachments are not stored: send JSON")
    doc = await call.object()
    if rev is not None:
        if doc.get("_rev", rev) != rev:
            raise bad_request(TWO_REVS)
        doc["_rev"] = rev
    if id.startswith(LOCAL):
        name = id.removeprefix(LOCAL)
        db = call.db
        made = await call.service.call(_edit_local, db, id, lambda: _put_local(db, name, doc))
        return answer({"ok": True, "id": id, "rev": made.rev or NO_LOCAL_REV}, 201)
    new_edits = call.query.get("new_edits") != "false"
    return await _edited(call, doc | {"_id": id}, new_edits=new_edits)


async def post(call: ServiceCall) -> Response:
    """Answer `POST /{db}`: store a document, with a new id unless it has one."""
    call.check_json()
    return await _edited(call, await call.object())


async def _edited(call: ServiceCall, doc: dict[str, Any], *, new_edits: bool = True) -> Response:
    db = call.db
    edited = await call.service.call(_edit, db, doc, new_edits)
    where = f"{call.base_url}{quote(db.name, safe='')}/{quote(edited.id, safe='')}"
    headers = {"Location": where, "ETag": f'"{edited.rev}"'}
    return answer({"ok": True, "id": edited.id, "rev": edited.rev}, 201, headers)


async def copy(call: ServiceCall) -> Response:
    """Answer `COPY /{db}/{id}`; Destination has the copy's id, and the `rev` that it replaces."""
    id, rev = _destination(call)
    doc = (await call.service.call(_found, call.db, call.id, call.rev, None)).shown()
    del doc["_rev"]
    return await _edited(call, doc | {"_id": id} | ({} if rev is None else {"_rev": rev}))


def _destination(call: ServiceCall) -> tuple[str, str | None]:
    path, _, query = call.request.headers.get("destination", "").partition("?")
    if not path or "://" in path:
        raise bad_request("Destination header is mandatory for COPY, and names a document id.")
    try:
        id = unquote_to_bytes(path.lstrip("/").encode("latin-1")).decode()
        return id, dict(parse_qsl(query)).get("rev")
    except ValueError:
        raise bad_request("the header Destination is not valid UTF-8") from None


async def delete(call: ServiceCall) -> Response:
    """Answer `DELETE /{db}/{id}`."""
    id, rev = call.id, call.rev
    if id.startswith(LOCAL):
        name = id.removeprefix(LOCAL)
        db = call.db
        await call.service.call(_edit_local, db, id, lambda: db.local.remove(name, rev or ""))
        return answer({"ok": True, "id": id, "rev": NO_LOCAL_REV})
    edited = await call.service.call(_remove, call.db, id, rev)
    return answer({"ok": True, "id": id, "rev": edited.rev}, headers={"ETag": f'"{edited.rev}"'})


# --- in threads ---


def _found(db: ChangesDB, id: str, rev: str | None, as_of: str | None) -> StoredLeaf:
    wanted = None if rev is None else Revision.parse(rev)
    return db.state(as_of).document(checked_id(id), wanted)


def _edit(db: ChangesDB, doc: dict[str, Any], new_edits: bool) -> Edited:
    write = db.bulk if new_edits else db.replicate
    (found,) = run_edit(db, lambda: write([doc]))
    if found.error is not None:
        raise found.error
    return found


def _edit_local(db: ChangesDB, id: str, do: Callable[[], str | None]) -> Edited:
    (found,) = run_edit(db, lambda: [Edited(id, _locally(db, do))])
    return found


def _put_local(db: ChangesDB, name: str, doc: dict[str, Any]) -> str | None:
    deleted = doc.get("_deleted", False)
    if not isinstance(deleted, bool):
        raise InvalidDocumentError("_deleted is true or false")
    if not deleted:
        return db.local.put(name, doc)
    db.local.remove(name, doc.get("_rev", ""))
    return None


def _locally(db: ChangesDB, do: Callable[[], T]) -> T:
    """Call `do`. Raises `DatabaseNotFoundError` if it fails because the database is gone."""
    try:
        return do()
    except (DocumentNotFoundError, DocumentConflictError):
        db.state()  # another process may have deleted it
        raise


def _remove(db: ChangesDB, id: str, rev: str | None) -> Edited:
    db.get(id)  # a missing or deleted document is 404, whatever the revision
    return _edit(db, {"_id": id, "_rev": rev, "_deleted": True}, True)


# --- multipart answers: replicators before CouchDB 3.3 ask for revisions this way ---

MIXED = "multipart/mixed"


def multipart_answer(leaves: Iterable[dict[str, Any]]) -> Response:
    """Return leaves as parts: a document for each `ok`, an error for each `missing`."""
    boundary = uuid.uuid4().hex
    parts = [
        _part(leaf["ok"]) if "ok" in leaf else _part(leaf, b'; error="true"') for leaf in leaves
    ]
    start = f"--{boundary}".encode()
    body = b"".join(start + part for part in parts) + start + b"--"
    return Response(body, media_type=f'{MIXED}; boundary="{boundary}"')


def _part(value: dict[str, Any], error: bytes = b"") -> bytes:
    return b"\r\nContent-Type: application/json%b\r\n\r\n%b\r\n" % (error, encoded(value))
