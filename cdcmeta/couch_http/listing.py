"""Listings by id: `_all_docs`, `_design_docs`, `_local_docs`."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from starlette.responses import Response

from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database import PREFIX
from cdcmeta.changes.database_layout import ChangeRow
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.changes.documents import ID_BYTES_MAX, checked_id, is_id, quoted
from cdcmeta.changes.feed import Form, shaped
from cdcmeta.couch_http.http_errors import bad_request
from cdcmeta.couch_http.http_request import ServiceCall, natural_number
from cdcmeta.couch_http.service import Limits
from cdcmeta.couch_http.streaming import BatchSize, Streamed, encoded, pieces_of
from cdcmeta.errors import InvalidIdError

L = TypeVar("L")
Encoded: TypeAlias = tuple[list[bytes], int]
"""Rows as JSON, and the bytes of documents that were read for them."""
DESIGN, DESIGN_END = "_design/", "_design0"
"""All ids of design documents are between these."""
QUERIES_MAX = 1_000
PLAIN_ROWS = 512
"""The rows without documents that are read at once: about 50 kB of an answer."""
KEYS = 128
"""The keys that are looked up at once, in one round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The options of a listing: which documents, in which order, and what of each."""

    keys: list[str] | None
    start: str | None
    end: str | None
    inclusive_end: bool
    descending: bool
    skip: int
    limit: int | None
    update_seq: bool
    form: Form


async def all_docs(call: ServiceCall) -> Response:
    """Answer `_all_docs`."""
    return await _answer(call, _pieces, listing_of(call, await call.posted()))


async def design_docs(call: ServiceCall) -> Response:
    """Answer `_design_docs`."""
    return await _answer(call, _pieces, _of_design_docs(listing_of(call, await call.posted())))


async def queries(call: ServiceCall) -> Response:
    """Answer `_all_docs/queries`: several listings of one moment."""
    asked = (await call.posted()).get("queries")
    if not isinstance(asked, list) or not all(isinstance(query, dict) for query in asked):
        raise bad_request("`queries` must be a list of objects")
    if len(asked) > QUERIES_MAX:
        raise bad_request(f"`queries` has more than {QUERIES_MAX} queries")
    return await _answer(call, _results, [listing_of(call, query) for query in asked])


async def _answer(
    call: ServiceCall, pieces: Callable[[DatabaseState, L, Limits], Iterator[bytes]], listing: L
) -> Response:
    state = await call.service.read(call.db.state, call.as_of)
    return await Streamed.started(call.service.stepped(pieces(state, listing, call.service.limits)))


def _results(state: DatabaseState, listings: list[Listing], limits: Limits) -> Iterator[bytes]:
    between = b'{"results":[\n'
    for listing in listings:
        yield between
        yield from _pieces(state, listing, limits)
        between = b",\n"
    yield (b"" if listings else between) + b"\n]}\n"


def _of_design_docs(listing: Listing) -> Listing:
    """Return a listing of design documents only; a range without them becomes empty."""
    low, high = (listing.end, listing.start) if listing.descending else (listing.start, listing.end)
    low, high = max(low or "", DESIGN), min(high or DESIGN_END, DESIGN_END)
    start, end = (high, low) if listing.descending else (low, high)
    return replace(listing, start=start, end=end)


def listing_of(call: ServiceCall, body: dict[str, Any], id_bytes: int = ID_BYTES_MAX) -> Listing:
    """Return the options of a request; options in the body override the query.

    No id is longer than `id_bytes` bytes.
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
        return None if found is None else natural_number(name, str(found))

    def flag(name: str, default: bool = False) -> bool:
        found = body.get(name, call.query.get(name, default))
        return found in (True, "true")

    keys, key = value("keys"), value("key")
    texts = [key, value("startkey", "start_key"), value("endkey", "end_key")]
    if not all(text is None or _is_text(text) for text in texts):
        raise bad_request("keys of _all_docs must be strings of valid UTF-8")
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
            include_docs=include_docs, conflicts=include_docs and flag("conflicts"), as_json=True
        ),
    )


def _is_text(value: object) -> bool:
    """Return whether a value is a text that could be an id of any length."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shortened(text: str, id_bytes: int) -> str:
    """Return a text cut to be just longer than any id: every id sorts the same way against both."""
    size = 0
    for at, character in enumerate(text[: id_bytes + 1], 1):
        size += len(character.encode()) + (character == "\0")
        if size > id_bytes:
            return text[:at]
    return text


def _pieces(state: DatabaseState, listing: Listing, limits: Limits) -> Iterator[bytes]:
    total, _ = state.counts()
    offset = listing.skip if listing.start is None and listing.keys is None else None
    begin: dict[str, Any] = {"total_rows": total, "offset": offset}
    if listing.update_seq:
        begin["update_seq"] = str(state.newest())
    yield encoded(begin)[:-1] + b',"rows":[\n'
    form = listing.form
    if not (form.include_docs or listing.descending) and listing.keys is None:
        yield from _plain(state, listing)
        yield b"\n]}\n"
        return

    def encode(some: list[ChangeRow | str]) -> Encoded:
        before = state.bodies_bytes
        docs = _docs(state, form, some) if form.include_docs else {}
        rows = [_missing(row) if isinstance(row, str) else _row_of(row, docs) for row in some]
        return rows, state.bodies_bytes - before

    most = None if form.include_docs else limits.rows
    yield from _rest(_wanted(state, listing), encode, limits, most)


def _rest(
    wanted: Iterator[L], encode: Callable[[list[L]], Encoded], limits: Limits, most: int | None
) -> Iterator[bytes]:
    """Yield the rows of a listing and its end in pieces.

    Reads `most` rows at once; None: as many as the sizes of the ones before allow.
    """
    between, batch_size, held = b"", BatchSize(limits), deque[bytes]()
    while some := list(islice(wanted, most or batch_size.docs)):
        rows, size = encode(some)
        batch_size.after(size)
        for row in rows:
            held.append(between + row)
            between = b",\n"
        del row, rows  # documents may be large, and the client slow
        if sum(map(len, held)) >= limits.piece_bytes:
            yield from pieces_of(held, limits.piece_bytes)
    held.append(b"\n]}\n")
    yield from pieces_of(held, limits.piece_bytes)


def _plain(state: DatabaseState, listing: Listing) -> Iterator[bytes]:
    """Yield the most common listing, ids and revisions in order, by string formatting."""
    found = state.revs(listing.start, listing.end, inclusive=listing.inclusive_end)
    rows, between = islice(found, listing.skip, _until(listing)), ""
    while some := list(islice(rows, PLAIN_ROWS)):
        pairs = [(quoted(id), rev) for id, rev in some]
        texts = [f'{{"id":{id},"key":{id},"value":{{"rev":"{rev}"}}}}' for id, rev in pairs]
        yield (between + ",\n".join(texts)).encode()
        between = ",\n"


def _until(listing: Listing) -> int | None:
    return None if listing.limit is None else listing.skip + listing.limit


def _wanted(state: DatabaseState, listing: Listing) -> Iterator[ChangeRow | str]:
    """Return the rows that are wanted, and the keys for which there is none."""
    if listing.keys is not None:
        keys = reversed(listing.keys) if listing.descending else iter(listing.keys)
        found: Iterator[ChangeRow | str] = _looked_up(state, keys)
    elif listing.descending:
        rows = rows_descending(state, low=listing.end, high=listing.start)
        found = (row for row in rows if listing.inclusive_end or row.id != listing.end)
    else:
        inclusive = listing.inclusive_end
        found = state.documents(listing.start, listing.end, inclusive=inclusive, deleted=False)
    return islice(found, listing.skip, _until(listing))


def _looked_up(state: DatabaseState, keys: Iterator[str]) -> Iterator[ChangeRow | str]:
    while some := list(islice(keys, KEYS)):
        ids = [key for key in dict.fromkeys(some) if is_id(key)]
        winners = dict(zip(ids, state.winners(ids), strict=True))
        for key in some:
            winner = winners.get(key)
            yield key if winner is None else winner.row(key)


def _docs(state: DatabaseState, form: Form, some: list[ChangeRow | str]) -> dict[str, bytes]:
    """Return the documents of rows as JSON by id; `null` for a deleted one."""
    rows = [row for row in some if not isinstance(row, str)]
    found: dict[str, bytes] = {}
    for row, change in shaped(state, form, rows):
        doc: Any = change and change.doc
        found[row.id] = doc if row.not_deleted else b"null"
    return found


def _missing(key: str) -> bytes:
    return encoded({"key": key, "error": "not_found"})


def _row_of(row: ChangeRow, docs: dict[str, bytes]) -> bytes:
    id, deleted = quoted(row.id), "" if row.not_deleted else ',"deleted":true'
    text = f'{{"id":{id},"key":{id},"value":{{"rev":"{row.revision}"{deleted}}}'.encode()
    return b'%b,"doc":%b}' % (text, docs[row.id]) if docs else text + b"}"


# --- `_local_docs`: local documents by id ---

Wanted: TypeAlias = tuple[str, bytes | None]
"""An id, and its key in the store; None for an id that no local document can have."""


async def local_docs(call: ServiceCall) -> Response:
    """Answer `_local_docs`; it has the options of `_all_docs`."""
    listing = listing_of(call, await call.posted(), len(PREFIX) + ID_BYTES_MAX)
    return await _answer(call, _local_pieces, listing)


def _local_pieces(state: DatabaseState, listing: Listing, limits: Limits) -> Iterator[bytes]:
    yield b'{"total_rows":null,"offset":null,"rows":[\n'
    wanted = islice(_local_wanted(state, listing), listing.skip, _until(listing))
    encode = partial(_local_rows, state, listing.form.include_docs)
    yield from _rest(wanted, encode, limits, None)


def _local_wanted(state: DatabaseState, listing: Listing) -> Iterator[Wanted]:
    """Yield what the listing selects, in order. It reads keys only."""
    if listing.keys is not None:
        ids = reversed(listing.keys) if listing.descending else iter(listing.keys)
        return ((id, _local_key(id)) for id in ids)
    low, high = (listing.end, listing.start) if listing.descending else (listing.start, listing.end)
    without_low = listing.descending and not listing.inclusive_end
    without_high = not listing.descending and not listing.inclusive_end
    start = None if low is None else _place_among_local(low) + b"\x00" * without_low
    end = None if high is None else _place_among_local(high) + b"\x00" * (not without_high)
    keys: Iterator[bytes] = state.snapshot.keys(layout.LOCAL_PREFIX, start=start, end=end)
    if listing.descending:
        keys = reversed(list(keys))
    return ((PREFIX + layout.local_id(key), key) for key in keys)


def _place_among_local(id: str) -> bytes:
    """Return the place of a text among the keys of local documents."""
    if id.startswith(PREFIX):
        return layout.local_key(id.removeprefix(PREFIX))
    return layout.LOCAL_PREFIX + (b"" if id < PREFIX else b"\xff")


def _local_key(id: str) -> bytes | None:
    if not id.startswith(PREFIX):
        return None
    try:
        return layout.local_key(checked_id(id.removeprefix(PREFIX), local=True))
    except InvalidIdError:
        return None


def _local_rows(state: DatabaseState, include_docs: bool, some: list[Wanted]) -> Encoded:
    keys = dict.fromkeys(key for _, key in some if key is not None)
    entries = dict(zip(keys, state.snapshot.entries_of(keys), strict=True))
    rows, size = [], 0
    for id, key in some:
        entry = None if key is None else entries[key]
        if entry is None:
            rows.append(_missing(id))
            continue
        size += len(entry.value)
        count, body = layout.local_of(entry.value)
        rev = f"0-{count}"
        row: dict[str, Any] = {"id": id, "key": id, "value": {"rev": rev}}
        if include_docs:
            row["doc"] = {"_id": id, "_rev": rev} | json.loads(body)
        rows.append(encoded(row))
    return rows, size


# --- documents by id in descending order: engines list forwards only ---

HELD_MAX = 1_000
"""The most rows that are held at once."""


def rows_descending(
    state: DatabaseState, low: str | None, high: str | None, held_max: int = HELD_MAX
) -> Iterator[ChangeRow]:
    """Yield the rows of documents by id, from `high` down to `low`, without deleted ones.

    One pass over the keys alone divides them into windows of `held_max`, whose start keys are held;
    then the windows are read, the last one first.

        held_max = 3, keys a b c d e f g h i
        pass over the keys: windows start at d and g
        read [g, end): g h i    yield i h g
        read [d, g): d e f      yield f e d
        read [start, d): a b c  yield c b a
    """
    start = None if low is None else layout.winner_key(low)
    end = None if high is None else layout.winner_key(high) + b"\x00"
    listed = partial(state.snapshot.items, layout.WINNER_PREFIX)
    keys = state.snapshot.keys(layout.WINNER_PREFIX, start=start, end=end)
    starts = [start, *islice(keys, held_max, None, held_max)]
    for first in reversed(starts):
        found = layout.rows_of_winners(listed(start=first, end=end))
        rows = [row for row in found if row.not_deleted]
        while rows:
            yield rows.pop()
        end = first
