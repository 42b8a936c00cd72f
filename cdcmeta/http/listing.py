"""`_all_docs`: documents by their ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from starlette.responses import Response

from cdcmeta.changes.documents import ID_BYTES_MAX, checked_id
from cdcmeta.changes.feed import Change, Form, shaped
from cdcmeta.changes.layout import Row
from cdcmeta.changes.reading import rows_by_id
from cdcmeta.changes.state import State
from cdcmeta.errors import InvalidIdError
from cdcmeta.http.backwards import rows_backwards
from cdcmeta.http.call import Call, encoded, whole
from cdcmeta.http.errors import bad_request
from cdcmeta.http.limits import Limits
from cdcmeta.http.pacing import Pace, pieces_of
from cdcmeta.http.streaming import Streamed

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
    form: Form


async def all_docs(call: Call) -> Response:
    """Answer `_all_docs`."""
    listing = _listing(call, await call.posted())
    state = await call.service.read(call.db.state, call.as_of)
    pieces = _pieces(state, listing, call.service.limits)
    return await Streamed.begun(call.service.stepped(pieces))


def _listing(call: Call, body: dict[str, Any]) -> Listing:
    """Return what a request asks for; what is in the body goes before the query."""

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
    key, start, end = (None if text is None else _shortened(text) for text in texts)
    include_docs = flag("include_docs")
    return Listing(
        keys=keys,
        start=start if key is None else key,
        end=end if key is None else key,
        inclusive_end=flag("inclusive_end", True) or key is not None,
        descending=flag("descending"),
        skip=number("skip") or 0,
        limit=number("limit"),
        form=Form.of(include_docs=include_docs, conflicts=include_docs and flag("conflicts")),
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


def _shortened(text: str) -> str:
    """Return the beginning of a text that is too long for an id, where it has the same place.

    No id is as long as what is left of it, so all stand before or behind both.
    """
    size = 0
    for at, character in enumerate(text[: ID_BYTES_MAX + 1], 1):
        size += len(character.encode()) + (character == "\0")
        if size > ID_BYTES_MAX:
            return text[:at]
    return text


def _pieces(state: State, listing: Listing, limits: Limits) -> Iterator[bytes]:
    total, _ = state.counts()
    offset = listing.skip if listing.start is None and listing.keys is None else None
    begin = {"total_rows": total, "offset": offset}
    yield encoded(begin)[:-1] + b',"rows":[\n'
    between, pace, docs = b"", Pace(limits), listing.form.include_docs
    rows = _wanted(state, listing)
    while some := list(islice(rows, pace.docs if docs else limits.rows)):
        before = state.bodies_bytes
        told = _encoded(state, listing, some, between)
        between = b",\n"
        pace.after(state.bodies_bytes - before)
        yield from pieces_of(told, limits.piece_bytes)
    yield b"\n]}\n"


def _wanted(state: State, listing: Listing) -> Iterator[Row | str]:
    """Return the rows that are wanted, and the keys for which there is none."""
    if listing.keys is not None:
        keys = reversed(listing.keys) if listing.descending else iter(listing.keys)
        found: Iterator[Row | str] = _looked_up(state, keys)
    elif listing.descending:
        found = _downwards(state, listing)
    else:
        found = _upwards(state, listing)
    until = None if listing.limit is None else listing.skip + listing.limit
    return islice(found, listing.skip, until)


def _upwards(state: State, listing: Listing) -> Iterator[Row]:
    rows, end = rows_by_id(state, listing.start), listing.end
    if end is None:
        return rows
    if listing.inclusive_end:
        return takewhile(lambda row: row.id <= end, rows)
    return takewhile(lambda row: row.id < end, rows)


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


def _encoded(state: State, listing: Listing, some: list[Row | str], between: bytes) -> deque[bytes]:
    """Return rows as JSON, the first behind `between`."""
    found = deque[bytes]()
    for told in _told(state, listing, some):
        found.append(between + encoded(told))
        between = b",\n"
    return found


def _told(state: State, listing: Listing, some: list[Row | str]) -> Iterator[dict[str, Any]]:
    rows = [row for row in some if not isinstance(row, str)]
    changes = {row.id: change for row, change in shaped(state, listing.form, rows)}
    for row in some:
        if isinstance(row, str):
            yield {"key": row, "error": "not_found"}
        else:
            yield _row_of(changes[row.id], listing.form)


def _row_of(change: Change | None, form: Form) -> dict[str, Any]:
    assert change is not None  # nothing is filtered
    value: dict[str, Any] = {"rev": change.rev}
    if change.deleted:
        value["deleted"] = True
    row: dict[str, Any] = {"id": change.id, "key": change.id, "value": value}
    if form.include_docs:
        row["doc"] = None if change.deleted else change.doc
    return row
