"""Many documents at once: `_bulk_docs`, `_bulk_get`, `_revs_diff`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from cdcmeta.changes import reading
from cdcmeta.changes.database import ChangesDB
from cdcmeta.changes.documents import Edited, checked_id, is_id
from cdcmeta.changes.revisions import Revision, is_revision
from cdcmeta.changes.state import State
from cdcmeta.couch_http.answers import answer
from cdcmeta.couch_http.documents import leaf_of
from cdcmeta.couch_http.errors import answer_of, bad_request
from cdcmeta.couch_http.limits import Limits
from cdcmeta.couch_http.request import Call, encoded
from cdcmeta.couch_http.service import settled
from cdcmeta.couch_http.splitting import Posted, Span, split
from cdcmeta.couch_http.streaming import JSON, Streamed
from cdcmeta.errors import (
    CDCMetaError,
    EditNotMadeError,
    InvalidDocumentError,
    InvalidIdError,
    InvalidRevisionError,
)
from snapkv import CommitTooLargeError, SnapKVError

Docs = list[Any]
log = logging.getLogger(__name__)


async def bulk_docs(call: Call) -> Response:
    """Answer `POST /{db}/_bulk_docs`; of replicated documents only errors are reported.

    A document that can never be stored is `forbidden`, because replicators go on after that word
    only; the log names it.
    """
    call.check_json()
    limits, run = call.service.limits, call.service.call
    raw = await call.body(limits.bulk_bytes)
    members, posted = await run(split, raw, limits.bulk_docs_max)
    if "docs" not in members:
        raise bad_request("POST body must include `docs` parameter.")
    if posted is None:
        raise bad_request("`docs` parameter must be an array.")
    new_edits = members.get("new_edits", True)
    if not isinstance(new_edits, bool):
        raise bad_request("`new_edits` parameter must be a boolean.")
    call.take_for_values(await run(lambda: posted.parsed_size))
    await run(posted.check, limits.body_bytes)
    db = call.db
    await run(db.state)
    storing = _Storing(db, posted, new_edits)
    try:
        for numbers in _commits(posted.spans, limits):
            await run(storing.store, numbers)
    except (CDCMetaError, SnapKVError) as e:
        if not (new_edits and storing.stored):
            raise
        await run(storing.fail, e)
    return Response(b"[" + b",".join(storing.rows) + b"]\n", 201, media_type=JSON)


def _commits(spans: Sequence[Span], limits: Limits) -> Iterator[range]:
    """Yield the numbers of the documents that are stored together."""
    first = size = 0
    for number, (start, end) in enumerate(spans):
        size += end - start
        if number > first and (size > limits.commit_bytes or number - first == limits.bulk_docs):
            yield range(first, number)
            first, size = number, end - start
    if spans:
        yield range(first, len(spans))


class _Storing:
    """Stores the documents of a request, in order; `rows` are those of the answer.

    When a commit fails, edits have rows: those that are stored have their revisions. Replicated
    documents have none, and the request fails: CouchDB's replicator passes over an error in a row
    and never sends that document again. When the request fails it sends all of them again, which
    changes nothing for those that are stored.
    """

    def __init__(self, db: ChangesDB, posted: Posted, new_edits: bool) -> None:
        self._db, self._posted, self._new_edits = db, posted, new_edits
        self._write = db.bulk if new_edits else db.replicate
        self._trying = range(0)
        self.rows: list[bytes] = []
        self.stored = False

    def store(self, numbers: range) -> None:
        """Store documents in one commit, or in several where one cannot hold them."""
        self._trying = numbers
        found = {n: self._posted.refused[n] for n in numbers if n in self._posted.refused}
        kept = [number for number in numbers if number not in found]
        try:
            edited = settled(self._db, lambda: self._write(self._posted.documents(kept)))
        except CommitTooLargeError as e:
            if len(numbers) > 1:
                middle = len(numbers) // 2
                self.store(numbers[:middle])
                self.store(numbers[middle:])
                return
            id = self._posted.id(numbers[0])
            edited = [Edited(id, error=InvalidDocumentError(str(e)))]
        found.update(zip(kept, edited, strict=True))
        for number in numbers:
            self._tell(found[number])

    def fail(self, error: Exception) -> None:
        """Give the documents that have no row yet the error of their commit, or of none."""
        failed = answer_of(error)
        assert failed is not None
        for number in range(len(self.rows), len(self._posted.spans)):
            id = self._posted.id(number)
            told = failed if number in self._trying else EditNotMadeError(id)
            self._tell(self._posted.refused.get(number) or Edited(id, error=told))

    def _tell(self, edited: Edited) -> None:
        self.stored = self.stored or edited.ok
        if self._new_edits:
            self.rows.append(encoded(_told(self._db, edited)))
        elif isinstance(edited.error, EditNotMadeError):
            raise edited.error
        elif edited.error is not None:
            self.rows.append(encoded(_told(self._db, edited)))


def _told(db: ChangesDB, edited: Edited) -> dict[str, Any]:
    error = edited.error
    if error is None:
        return {"ok": True, "id": edited.id, "rev": edited.rev}
    if isinstance(error, InvalidDocumentError | InvalidRevisionError):
        log.warning("%s: document %.300r is refused: %s", db.name, edited.id, error)
        return {"id": edited.id, "error": "forbidden", "reason": str(error)}
    refused = answer_of(error)
    assert refused is not None
    return {"id": edited.id, **refused.body}


async def revs_diff(call: Call) -> Response:
    """Answer `POST /{db}/_revs_diff`.

    What can never be stored here is missing: `_bulk_docs` then says why, document by document.
    """
    return answer(await _asked_missing(call))


async def missing_revs(call: Call) -> Response:
    """Answer `POST /{db}/_missing_revs`, the same without ancestors."""
    found = await _asked_missing(call)
    return answer({"missing_revs": {id: each["missing"] for id, each in found.items()}})


async def _asked_missing(call: Call) -> dict[str, dict[str, Any]]:
    call.check_json()
    body = await call.object()
    for revs in body.values():
        if not isinstance(revs, list) or not all(isinstance(rev, str) for rev in revs):
            raise bad_request("the revisions of each document are a list of texts")
    return await call.service.call(_missing, call.db, body)


def _missing(db: ChangesDB, asked: Mapping[str, list[str]]) -> dict[str, dict[str, Any]]:
    usable = {id: [*filter(is_revision, revs)] for id, revs in asked.items() if is_id(id)}
    found = db.missing_revs(usable)
    told: dict[str, dict[str, Any]] = {}
    for id, revs in asked.items():
        known = set(usable.get(id, ()))
        missing = [rev for rev in dict.fromkeys(revs) if rev not in known]
        if id in found:
            missing += found[id].missing
        if missing:
            told[id] = {"missing": missing}
        if id in found and found[id].possible_ancestors:
            told[id]["possible_ancestors"] = found[id].possible_ancestors
    return told


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
