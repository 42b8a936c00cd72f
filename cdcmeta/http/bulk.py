"""Many documents at once: `_bulk_docs`, `_bulk_get`, `_revs_diff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from cdcmeta.changes import reading
from cdcmeta.changes.database import ChangesDB
from cdcmeta.changes.documents import Edited, checked_id
from cdcmeta.changes.revisions import Revision
from cdcmeta.changes.state import State
from cdcmeta.errors import CDCMetaError, InvalidIdError
from cdcmeta.http.answers import answer
from cdcmeta.http.call import Call, encoded
from cdcmeta.http.documents import leaf_of
from cdcmeta.http.errors import HTTPError, answer_of, bad_request
from cdcmeta.http.service import settled
from cdcmeta.http.streaming import Streamed
from snapkv import CommitTooLargeError

Docs = list[Any]


async def bulk_docs(call: Call) -> Response:
    """Answer `POST /{db}/_bulk_docs`; of replicated documents only errors are told."""
    call.check_json()
    body = await call.object()
    if "docs" not in body:
        raise bad_request("POST body must include `docs` parameter.")
    docs, new_edits = body["docs"], body.get("new_edits", True)
    if not isinstance(docs, list):
        raise bad_request("`docs` parameter must be an array.")
    if not isinstance(new_edits, bool):
        raise bad_request("`new_edits` parameter must be a boolean.")
    db, size = call.db, call.service.limits.bulk_docs
    await call.service.call(db.state)
    told: Docs = []
    for at in range(0, len(docs), size):
        edited = await call.service.call(_edited, db, docs[at : at + size], new_edits)
        told += [_told(each) for each in edited if new_edits or not each.ok]
    return answer(told, 201)


def _edited(db: ChangesDB, docs: Docs, new_edits: bool) -> list[Edited]:
    """Store documents in one commit, or in several where one cannot hold them."""
    write = db.bulk if new_edits else db.replicate
    try:
        return settled(db, lambda: write(docs))
    except CommitTooLargeError as e:
        if len(docs) == 1:
            id = docs[0].get("_id", "")
            return [Edited(id, error=HTTPError(413, "too_large", str(e)))]
        half = len(docs) // 2
        return _edited(db, docs[:half], new_edits) + _edited(db, docs[half:], new_edits)


def _told(edited: Edited) -> dict[str, Any]:
    if edited.error is None:
        return {"ok": True, "id": edited.id, "rev": edited.rev}
    refused = answer_of(edited.error)
    assert refused is not None
    return {"id": edited.id, **refused.body}


async def revs_diff(call: Call) -> Response:
    """Answer `POST /{db}/_revs_diff`."""
    call.check_json()
    body = await call.object()
    for revs in body.values():
        if not isinstance(revs, list):
            raise bad_request("the revisions of each document are a list")
    missing = await call.service.call(call.db.missing_revs, body)
    told = {}
    for id, each in missing.items():
        told[id] = {"missing": each.missing}
        if each.possible_ancestors:
            told[id]["possible_ancestors"] = each.possible_ancestors
    return answer(told)


async def bulk_get(call: Call) -> Response:
    """Answer `POST /{db}/_bulk_get`: each document is read when the one before it was taken."""
    call.check_json()
    docs = (await call.object()).get("docs")
    if not isinstance(docs, list) or not all(isinstance(doc, dict) for doc in docs):
        raise bad_request("Missing JSON list of 'docs'.")
    state = await call.service.call(call.db.state)
    pieces = _gotten(state, docs, latest=call.flag("latest"), revisions=call.flag("revs"))
    return await Streamed.begun(call.service.stepped(pieces))


def _gotten(state: State, docs: Docs, *, latest: bool, revisions: bool) -> Iterator[bytes]:
    between = b'{"results":[\n'
    for wanted in docs:
        yield between + encoded(
            {"id": wanted.get("id"), "docs": _leaves(state, wanted, latest, revisions)}
        )
        between = b",\n"
    yield (b"" if docs else between) + b"\n]}\n"


def _leaves(state: State, wanted: dict[str, Any], latest: bool, revisions: bool) -> Docs:
    """Return what was asked for of one document; errors are told in its place."""
    id, rev = wanted.get("id"), wanted.get("rev")

    def error(rev: object, word: str, reason: str) -> dict[str, Any]:
        return {"error": {"id": id, "rev": rev, "error": word, "reason": reason}}

    if id is None:
        return [error(None, "bad_request", "document id missed")]
    try:
        revs = None if rev is None else [Revision.parse(rev)]
        found = reading.open_revs(state, checked_id(id), revs, latest)
    except InvalidIdError as e:
        return [error(rev, "illegal_docid", str(e))]
    except CDCMetaError:
        return [error(rev, "bad_request", "Invalid rev format")]
    return [
        error(leaf, "not_found", "missing")
        if isinstance(leaf, str)
        else {"ok": leaf_of(leaf, revisions)}
        for leaf in found
    ] or [error("undefined", "not_found", "missing")]
