"""`_all_docs`: documents by their ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from starlette.responses import Response

from cdcmeta.changes.documents import ID_BYTES_MAX, checked_id, quoted
from cdcmeta.changes.feed import Form, shaped
from cdcmeta.changes.layout import Row
from cdcmeta.changes.reading import rows_by_id
from cdcmeta.changes.state import State
from cdcmeta.couch_http.batch_size import Pace, pieces_of
from cdcmeta.couch_http.errors import bad_request
from cdcmeta.couch_http.limits import Limits
from cdcmeta.couch_http.request import Call, encoded, whole
from cdcmeta.couch_http.reverse_listing import rows_backwards
from cdcmeta.couch_http.streaming import Streamed
from cdcmeta.errors import InvalidIdError

DESIGN, DESIGN_END = "_design/", "_design0"
"""All ids of design documents are between these."""
QUERIES_MAX = 1_000
PLAIN_ROWS = 512
"""Rows without documents that are read at once: some 50 kB of answer."""
KEYS = 128
"""Keys that are looked up at once: a round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which documents, in which order, and what of them."""

    keys: list[str] | None
    start: str | None
    end: str | None
    inclusive_end: bool
    descending: bool
    skip: int
    limit: int | None
    update_seq: bool
    form: Form


async def all_docs(call: Call) -> Response:
    """Answer `_all_docs`."""
    listing = listing_of(call, await call.posted())
    state = await call.service.read(call.db.state, call.as_of)
    pieces = _pieces(state, listing, call.service.limits)
    return await Streamed.begun(call.service.stepped(pieces))


async def design_docs(call: Call) -> Response:
    """Answer `_design_docs`."""
    listing = _of_design_docs(listing_of(call, await call.posted()))
    state = await call.service.read(call.db.state, call.as_of)
    pieces = _pieces(state, listing, call.service.limits)
    return await Streamed.begun(call.service.stepped(pieces))


async def queries(call: Call) -> Response:
    """Answer `_all_docs/queries`: several listings of one moment, one after the other."""
    asked = (await call.posted()).get("queries")
    if not isinstance(asked, list) or not all(isinstance(query, dict) for query in asked):
        raise bad_request("`queries` is a list of objects")
    if len(asked) > QUERIES_MAX:
        raise bad_request(f"`queries` has more than {QUERIES_MAX} of them")
    listings = [listing_of(call, query) for query in asked]
    state = await call.service.read(call.db.state, call.as_of)
    pieces = _results(state, listings, call.service.limits)
    return await Streamed.begun(call.service.stepped(pieces))


def _results(state: State, listings: list[Listing], limits: Limits) -> Iterator[bytes]:
    between = b'{"results":[\n'
    for listing in listings:
        yield between
        yield from _pieces(state, listing, limits)
        between = b",\n"
    yield (b"" if listings else between) + b"\n]}\n"


def _of_design_docs(listing: Listing) -> Listing:
    """Return a listing of no other documents; a range without them becomes empty."""
    low, high = (listing.end, listing.start) if listing.descending else (listing.start, listing.end)
    low, high = max(low or "", DESIGN), min(high or DESIGN_END, DESIGN_END)
    start, end = (high, low) if listing.descending else (low, high)
    return replace(listing, start=start, end=end)


def listing_of(call: Call, body: dict[str, Any], id_bytes: int = ID_BYTES_MAX) -> Listing:
    """Return what a request asks for; what is in the body goes before the query.

    No id has more than `id_bytes` bytes.
    """

    def value(*names: str) -> Any:
        for name in names:
            if name in body:
                return body[name]
            if name in call.query:
                return call.json_of(name)
        return None

    def number(name: str) -> int | None:
        found = body.get(name, call.query.get(name))
        return None if found is None else whole(name, str(found))

    def flag(name: str, default: bool = False) -> bool:
        found = body.get(name, call.query.get(name, default))
        return found in (True, "true")

    keys, key = value("keys"), value("key")
    texts = [key, value("startkey", "start_key"), value("endkey", "end_key")]
    if not all(text is None or _is_text(text) for text in texts):
        raise bad_request("keys of _all_docs are texts in UTF-8")
    if keys is not None and not (isinstance(keys, list) and all(map(_is_text, keys))):
        raise bad_request("`keys` parameter must be an array of strings in UTF-8")
    key, start, end = (None if text is None else _shortened(text, id_bytes) for text in texts)
    include_docs = flag("include_docs")
    return Listing(
        keys=keys,
        start=start if key is None else key,
        end=end if key is None else key,
        inclusive_end=flag("inclusive_end", True) or key is not None,
        descending=flag("descending"),
        skip=number("skip") or 0,
        limit=number("limit"),
        update_seq=flag("update_seq"),
        form=Form(
            include_docs=include_docs,
            conflicts=include_docs and flag("conflicts"),
            as_json=True,
        ),
    )


def _is_text(value: object) -> bool:
    """Return whether a value is a text that an id could be, but for its length."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shortened(text: str, id_bytes: int) -> str:
    """Return the beginning of a text that is too long for an id, where it has the same place.

    No id is as long as what is left of it, so all stand before or behind both.
    """
    size = 0
    for at, character in enumerate(text[: id_bytes + 1], 1):
        size += len(character.encode()) + (character == "\0")
        if size > id_bytes:
            return text[:at]
    return text


def _pieces(state: State, listing: Listing, limits: Limits) -> Iterator[bytes]:
    total, _ = state.counts()
    offset = listing.skip if listing.start is None and listing.keys is None else None
    begin: dict[str, Any] = {"total_rows": total, "offset": offset}
    if listing.update_seq:
        begin["update_seq"] = str(state.newest())
    yield encoded(begin)[:-1] + b',"rows":[\n'
    docs = listing.form.include_docs
    if not (docs or listing.descending) and listing.keys is None:
        yield from _plain(state, listing)
        yield b"\n]}\n"
        return
    between, pace = b"", Pace(limits)
    rows, held = _wanted(state, listing), deque[bytes]()
    while some := list(islice(rows, pace.docs if docs else limits.rows)):
        before = state.bodies_bytes
        held += _encoded(state, listing, some, between)
        between = b",\n"
        pace.after(state.bodies_bytes - before)
        if sum(map(len, held)) >= limits.piece_bytes:
            yield from pieces_of(held, limits.piece_bytes)
    held.append(b"\n]}\n")
    yield from pieces_of(held, limits.piece_bytes)


def _plain(state: State, listing: Listing) -> Iterator[bytes]:
    """Yield what most ask for: ids and revisions in order, written in one go."""
    found = state.revs(listing.start, listing.end, inclusive=listing.inclusive_end)
    rows, between = islice(found, listing.skip, _until(listing)), ""
    while some := list(islice(rows, PLAIN_ROWS)):
        told = [(quoted(id), rev) for id, rev in some]
        texts = [f'{{"id":{id},"key":{id},"value":{{"rev":"{rev}"}}}}' for id, rev in told]
        yield (between + ",\n".join(texts)).encode()
        between = ",\n"


def _until(listing: Listing) -> int | None:
    return None if listing.limit is None else listing.skip + listing.limit


def _wanted(state: State, listing: Listing) -> Iterator[Row | str]:
    """Return the rows that are wanted, and the keys for which there is none."""
    if listing.keys is not None:
        keys = reversed(listing.keys) if listing.descending else iter(listing.keys)
        found: Iterator[Row | str] = _looked_up(state, keys)
    elif listing.descending:
        found = _downwards(state, listing)
    else:
        found = _upwards(state, listing)
    return islice(found, listing.skip, _until(listing))


def _upwards(state: State, listing: Listing) -> Iterator[Row]:
    return rows_by_id(state, listing.start, listing.end, inclusive=listing.inclusive_end)


def _downwards(state: State, listing: Listing) -> Iterator[Row]:
    rows = rows_backwards(state, low=listing.end, high=listing.start)
    if listing.end is None or listing.inclusive_end:
        return rows
    return (row for row in rows if row.id != listing.end)


def _looked_up(state: State, keys: Iterator[str]) -> Iterator[Row | str]:
    while some := list(islice(keys, KEYS)):
        ids = [key for key in dict.fromkeys(some) if _is_id(key)]
        winners = dict(zip(ids, state.winners(ids), strict=True))
        for key in some:
            winner = winners.get(key)
            yield key if winner is None else winner.row(key)


def _is_id(key: str) -> bool:
    try:
        return bool(checked_id(key))
    except InvalidIdError:
        return False


def _encoded(
    state: State, listing: Listing, some: list[Row | str], between: bytes
) -> Iterator[bytes]:
    """Yield rows as JSON, the first behind `between`."""
    docs = _docs(state, listing.form, some) if listing.form.include_docs else {}
    for row in some:
        yield between + (_missing(row) if isinstance(row, str) else _row_of(row, docs))
        between = b",\n"


def _docs(state: State, form: Form, some: list[Row | str]) -> dict[str, bytes]:
    """Return the documents of rows, as JSON; of one that is deleted there is none to show."""
    rows = [row for row in some if not isinstance(row, str)]
    found: dict[str, bytes] = {}
    for row, change in shaped(state, form, rows):
        doc: Any = change and change.doc
        found[row.id] = doc if row.not_deleted else b"null"
    return found


def _missing(key: str) -> bytes:
    return encoded({"key": key, "error": "not_found"})


def _row_of(row: Row, docs: dict[str, bytes]) -> bytes:
    id, deleted = quoted(row.id), "" if row.not_deleted else ',"deleted":true'
    told = f'{{"id":{id},"key":{id},"value":{{"rev":"{row.revision}"{deleted}}}'.encode()
    return b'%b,"doc":%b}' % (told, docs[row.id]) if docs else told + b"}"
