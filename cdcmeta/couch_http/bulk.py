"""Many documents at once: `_bulk_docs`, `_bulk_get`, `_revs_diff`."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.responses import Response

from cdcmeta.argument_checks import bounded_batches
from cdcmeta.changes.database import ChangesDB
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.changes.documents import TOO_DEEP, Edited, checked_id, is_id
from cdcmeta.changes.revisions import Revision, is_revision
from cdcmeta.couch_http.document_routes import leaf_of
from cdcmeta.couch_http.http_errors import HTTPError, answer_of, bad_request
from cdcmeta.couch_http.http_request import (
    INVALID_JSON,
    NumberTooLongError,
    ServiceCall,
    parsed,
    parsed_size,
)
from cdcmeta.couch_http.service import Limits, run_edit
from cdcmeta.couch_http.streaming import JSON, Streamed, answer, encoded
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


async def bulk_docs(call: ServiceCall) -> Response:
    """Answer `POST /{db}/_bulk_docs`; of replicated documents only errors are reported.

    A document that can never be stored is reported as `forbidden`: replicators continue only after
    that error. The log names the document.
    """
    call.check_json()
    limits, run = call.service.limits, call.service.call
    raw = await call.body(limits.bulk_bytes)
    members, body = await run(split, raw, limits.bulk_docs_max)
    if "docs" not in members:
        raise bad_request("POST body must include `docs` parameter.")
    if body is None:
        raise bad_request("`docs` parameter must be an array.")
    new_edits = members.get("new_edits", True)
    if not isinstance(new_edits, bool):
        raise bad_request("`new_edits` parameter must be a boolean.")
    call.take_for_values(await run(lambda: body.parsed_size))
    await run(body.check, limits.body_bytes)
    db = call.db
    await run(db.state)
    storing = _Storing(db, body, new_edits)
    try:
        for numbers in _commits(body.ranges, limits):
            await run(storing.store, numbers)
    except (CDCMetaError, SnapKVError) as e:
        if not (new_edits and storing.stored):
            raise
        await run(storing.fail, e)
    return Response(b"[" + b",".join(storing.rows) + b"]\n", 201, media_type=JSON)


def _commits(ranges: Sequence[ByteRange], limits: Limits) -> Iterator[range]:
    """Yield the numbers of the documents of each commit."""
    first, sizes = 0, (end - start for start, end in ranges)
    for batch in bounded_batches(sizes, int, limits.bulk_docs, limits.commit_bytes):
        yield range(first, first + len(batch))
        first += len(batch)


class _Storing:
    """Stores the documents of a request, in order; `rows` are the rows of the answer.

    When a commit of edits fails, every document has a row: a revision if it was stored, else an
    error. When a commit of replicated documents fails, the request fails: CouchDB's replicator
    ignores an error in a row and never sends that document again. After a failed request it sends
    all documents again; storing one twice changes nothing.
    """

    def __init__(self, db: ChangesDB, body: BulkBody, new_edits: bool) -> None:
        self._db, self._body, self._new_edits = db, body, new_edits
        self._write = db.bulk if new_edits else db.replicate
        self._trying = range(0)
        self.rows: list[bytes] = []
        self.stored = False

    def store(self, numbers: range) -> None:
        """Store documents in one commit, or in several if they do not fit into one."""
        self._trying = numbers
        found = {n: self._body.refused[n] for n in numbers if n in self._body.refused}
        kept = [number for number in numbers if number not in found]
        try:
            edited = run_edit(self._db, lambda: self._write(self._body.documents(kept)))
        except CommitTooLargeError as e:
            if len(numbers) > 1:
                middle = len(numbers) // 2
                self.store(numbers[:middle])
                self.store(numbers[middle:])
                return
            id = self._body.id(numbers[0])
            edited = [Edited(id, error=InvalidDocumentError(str(e)))]
        found.update(zip(kept, edited, strict=True))
        for number in numbers:
            self._add_row(found[number])

    def fail(self, error: Exception) -> None:
        """Add an error row for each document without a row: its commit failed, or was not tried."""
        failed = answer_of(error)
        assert failed is not None
        for number in range(len(self.rows), len(self._body.ranges)):
            id = self._body.id(number)
            why = failed if number in self._trying else EditNotMadeError(id)
            self._add_row(self._body.refused.get(number) or Edited(id, error=why))

    def _add_row(self, edited: Edited) -> None:
        self.stored = self.stored or edited.ok
        if self._new_edits:
            self.rows.append(encoded(_row_of(self._db, edited)))
        elif isinstance(edited.error, EditNotMadeError):
            raise edited.error
        elif edited.error is not None:
            self.rows.append(encoded(_row_of(self._db, edited)))


def _row_of(db: ChangesDB, edited: Edited) -> dict[str, Any]:
    error = edited.error
    if error is None:
        return {"ok": True, "id": edited.id, "rev": edited.rev}
    if isinstance(error, InvalidDocumentError | InvalidRevisionError):
        log.warning("%s: document %.300r cannot be stored: %s", db.name, edited.id, error)
        return {"id": edited.id, "error": "forbidden", "reason": str(error)}
    refused = answer_of(error)
    assert refused is not None
    return {"id": edited.id, **refused.body}


async def revs_diff(call: ServiceCall) -> Response:
    """Answer `POST /{db}/_revs_diff`.

    A document that can never be stored is reported as missing, so that `_bulk_docs` reports why.
    """
    return answer(await _asked_missing(call))


async def missing_revs(call: ServiceCall) -> Response:
    """Answer `POST /{db}/_missing_revs`, the same without ancestors."""
    found = await _asked_missing(call)
    return answer({"missing_revs": {id: each["missing"] for id, each in found.items()}})


async def _asked_missing(call: ServiceCall) -> dict[str, dict[str, Any]]:
    call.check_json()
    body = await call.object()
    for revs in body.values():
        if not isinstance(revs, list) or not all(isinstance(rev, str) for rev in revs):
            raise bad_request("the revisions of each document are a list of texts")
    return await call.service.call(_missing, call.db, body)


def _missing(db: ChangesDB, asked: Mapping[str, list[str]]) -> dict[str, dict[str, Any]]:
    usable = {id: [*filter(is_revision, revs)] for id, revs in asked.items() if is_id(id)}
    found = db.missing_revs(usable)
    rows: dict[str, dict[str, Any]] = {}
    for id, revs in asked.items():
        known = set(usable.get(id, ()))
        missing = [rev for rev in dict.fromkeys(revs) if rev not in known]
        if id in found:
            missing += found[id].missing
        if missing:
            rows[id] = {"missing": missing}
        if id in found and found[id].possible_ancestors:
            rows[id]["possible_ancestors"] = found[id].possible_ancestors
    return rows


async def bulk_get(call: ServiceCall) -> Response:
    """Answer `POST /{db}/_bulk_get`; a document is read when the previous one was sent."""
    call.check_json()
    docs = (await call.object()).get("docs")
    if not isinstance(docs, list) or not all(isinstance(doc, dict) for doc in docs):
        raise bad_request("Missing JSON list of 'docs'.")
    state = await call.service.call(call.db.state)
    pieces = _bulk_get_pieces(state, docs, latest=call.flag("latest"), revisions=call.flag("revs"))
    return await Streamed.started(call.service.stepped(pieces))


def _bulk_get_pieces(
    state: DatabaseState, docs: Docs, *, latest: bool, revisions: bool
) -> Iterator[bytes]:
    between = b'{"results":[\n'
    for wanted in docs:
        yield between + encoded(
            {"id": wanted.get("id"), "docs": _leaves(state, wanted, latest, revisions)}
        )
        between = b",\n"
    yield (b"" if docs else between) + b"\n]}\n"


def _leaves(state: DatabaseState, wanted: dict[str, Any], latest: bool, revisions: bool) -> Docs:
    """Return the wanted revisions of one document, or errors in their place."""
    id, rev = wanted.get("id"), wanted.get("rev")

    def error(rev: object, word: str, reason: str) -> dict[str, Any]:
        return {"error": {"id": id, "rev": rev, "error": word, "reason": reason}}

    if id is None:
        return [error(None, "bad_request", "document id missed")]
    try:
        revs = None if rev is None else [Revision.parse(rev)]
        found = state.open_revs(checked_id(id), revs, latest)
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


# --- splitting the body of `_bulk_docs` into the JSON of its documents ---
#
# A body may be large, and its parsed values take many times its size. So the documents are found
# by patterns, and parsed one at a time. A document that cannot be parsed fails alone.

ByteRange: TypeAlias = tuple[int, int]
"""Where a value begins and ends in the body."""
SMALL_BYTES = 16 << 10
"""The value of a document of up to this size takes at most a megabyte."""
MEMBERS_BYTES_MAX = 256_000_000
"""The most memory for the members of a body or document, without nested values."""
DEPTH_MAX = 20_000
"""The depth of the deepest document; a deeper one fails the whole request, not only itself."""
DIGITS_MAX = 18
"""The most digits of an integer that are read when only a document's id is needed."""
LEVELS = 4
"""The levels of nesting that one match of a pattern skips; a loop skips deeper ones."""
BLANK_MAX = 16
_OPENING = b"[{"
_TEXT = rb'"(?:[^"\\]++|\\.)*+"'


def _balanced(plain: bytes, levels: int) -> bytes:
    """Return the pattern of JSON with balanced brackets, up to so many levels deep."""
    deeper = rb"|[\[{]" + _balanced(_PLAIN, levels - 1) + rb"[\]}]" if levels else b""
    return b"(?:" + plain + b"++|" + _TEXT + deeper + b")*+"


_PLAIN = rb'[^"\[\]{}]'
_FLAT = re.compile(_balanced(_PLAIN, 0), re.DOTALL)
_BRACKETS = re.compile(_balanced(_PLAIN, LEVELS) + rb"([\[{]++|[\]}]++)", re.DOTALL)
_ELEMENT = re.compile(_balanced(rb'[^"\[\]{},]', LEVELS), re.DOTALL)


@dataclass(slots=True)
class BulkBody:
    """The documents of a body; `refused` has, by number, the documents that cannot be stored."""

    raw: bytes
    ranges: list[ByteRange]
    refused: dict[int, Edited] = field(default_factory=dict)

    @property
    def parsed_size(self) -> int:
        """The estimated memory of the largest document's value; 0 if all are small."""
        large = (span for span in self.ranges if span[1] - span[0] > SMALL_BYTES)
        return max((parsed_size(self.raw, *span) for span in large), default=0)

    def check(self, bytes_max: int) -> None:
        """Parse every document once. Raises `HTTPError` (400) if one is not valid JSON.

        Documents that are too large or too deep, or have too long a number, are `refused`.
        """
        for number, (start, end) in enumerate(self.ranges):
            if end - start > bytes_max:
                reason = f"the document has {end - start} bytes, more than {bytes_max}"
                self._refuse(number, reason)
                continue
            try:
                parsed(self.raw[start:end], pausing=True)
            except RecursionError:
                self._refuse(number, TOO_DEEP)
            except NumberTooLongError as e:
                self._refuse(number, str(e))
            except ValueError:
                raise bad_request(INVALID_JSON) from None

    def documents(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield the values of some documents, parsing one at a time."""
        for number in numbers:
            start, end = self.ranges[number]
            yield parsed(self.raw[start:end], pausing=True)

    def id(self, number: int) -> str:
        """Return the `_id` of a document without parsing all of it; empty if it has none."""
        value, _ = shallow(self.raw, *self.ranges[number])
        id = value.get("_id") if isinstance(value, dict) else None
        return id if isinstance(id, str) else ""

    def _refuse(self, number: int, reason: str) -> None:
        self.refused[number] = Edited(self.id(number), error=InvalidDocumentError(reason))


def split(raw: bytes, docs_max: int) -> tuple[dict[str, Any], BulkBody | None]:
    """Return the members of a body (see `shallow`), and its documents if `docs` is a list.

    Raises `HTTPError`: 400 if the body is not a JSON object, 413 for too many documents.
    """
    members, ranges = shallow(raw, 0, len(raw))
    if not isinstance(members, dict):
        raise bad_request("Request body must be a JSON object")
    docs = members.get("docs")
    if not isinstance(docs, list):
        return members, None
    found: list[ByteRange] = []
    for span in _elements(raw, *ranges[docs[0]]):
        if len(found) == docs_max:
            raise HTTPError(413, "too_large", f"the request has more than {docs_max} documents")
        found.append(span)
    return members, BulkBody(raw, found)


def shallow(raw: bytes, start: int, end: int) -> tuple[Any, list[ByteRange]]:
    """Return a value with its nested values cut out, and their ranges.

    A nested array becomes `[n]`, where n is the number of its span; a nested object becomes `{}`.
    Raises `HTTPError` (400) if it is not valid JSON.
    """
    own = _skipped(_FLAT, raw, start, end)  # the value's own bracket
    at = min(own + 1, end)
    pieces, ranges = [raw[start:at]], list[ByteRange]()
    while at < end:
        stop = _skipped(_FLAT, raw, at, end)
        if stop == end or raw[stop] not in _OPENING:
            pieces.append(raw[at:end])
            break
        pieces.append(raw[at:stop])
        pieces.append(b"[%d]" % len(ranges) if raw[stop] == _OPENING[0] else b"{}")
        at = _end_of(raw, stop, end)
        ranges.append((stop, at))
    text = b"".join(pieces)
    if parsed_size(text, 0, len(text)) > MEMBERS_BYTES_MAX:
        raise bad_request("the request has too many members")
    try:
        return json.loads(text, parse_int=_shortened), ranges
    except ValueError:
        raise bad_request(INVALID_JSON) from None


def _shortened(digits: str) -> int:
    return int(digits[:DIGITS_MAX])  # the value is not used


def _elements(raw: bytes, start: int, end: int) -> Iterator[ByteRange]:
    """Yield the ranges of an array's elements; in invalid JSON they may be empty."""
    last = end - 1
    if raw[last:end] != b"]":
        raise bad_request(INVALID_JSON)
    at = first = start + 1
    if not raw[first : min(last, first + BLANK_MAX)].strip() and not raw[first:last].strip():
        return
    while True:
        at = _skipped(_ELEMENT, raw, at, last)
        if at < last and raw[at] in _OPENING:
            at = _end_of(raw, at, last)
            continue
        yield first, at
        if at == last:
            return
        first = at = at + 1


def _end_of(raw: bytes, at: int, end: int) -> int:
    """Return the end of the array or object that begins at `at`."""
    depth = 1
    at += 1
    while True:
        run = _BRACKETS.match(raw, at, end)
        if run is None:
            raise bad_request(INVALID_JSON)
        length = run.end() - run.start(1)
        if raw[run.start(1)] in _OPENING:
            depth += length
        elif depth > length:
            depth -= length
        else:
            return run.start(1) + depth
        if depth > DEPTH_MAX:
            raise bad_request(f"the request is nested more than {DEPTH_MAX} deep")
        at = run.end()


def _skipped(pattern: re.Pattern[bytes], raw: bytes, at: int, end: int) -> int:
    found = pattern.match(raw, at, end)
    assert found is not None  # it matches the empty text
    return found.end()
