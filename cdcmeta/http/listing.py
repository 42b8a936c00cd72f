"""`_all_docs`: documents by their ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from starlette.responses import Response

from cdcmeta.changes.documents import checked_id
from cdcmeta.changes.feed import Change, Form, shaped
from cdcmeta.changes.layout import Row
from cdcmeta.changes.reading import rows_by_id
from cdcmeta.changes.state import State
from cdcmeta.errors import InvalidIdError
from cdcmeta.http.call import Call, checked_object, decoded, encoded, whole
from cdcmeta.http.errors import bad_request
from cdcmeta.http.streaming import Streamed

DOCS = 8
"""Documents that are read at once."""


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
    body: dict[str, Any] = {}
    if call.request.method == "POST":
        call.check_json()
        raw = await call.body()
        body = checked_object(decoded(raw)) if raw else {}
    listing = _listing(call, body)
    state = await call.service.read(call.db.state, call.as_of)
    rows = call.service.limits.rows
    return await Streamed.begun(call.service.stepped(_pieces(state, listing, rows)))


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
    if any(text is not None and not isinstance(text, str) for text in texts):
        raise bad_request("keys of _all_docs are texts")
    if keys is not None and not (
        isinstance(keys, list) and all(isinstance(each, str) for each in keys)
    ):
        raise bad_request("`keys` parameter must be an array of strings")
    include_docs = flag("include_docs")
    return Listing(
        keys=keys,
        start=texts[1] if key is None else key,
        end=texts[2] if key is None else key,
        inclusive_end=flag("inclusive_end", True) or key is not None,
        descending=flag("descending"),
        skip=number("skip") or 0,
        limit=number("limit"),
        form=Form.of(include_docs=include_docs, conflicts=include_docs and flag("conflicts")),
    )


def _pieces(state: State, listing: Listing, rows_max: int) -> Iterator[bytes]:
    total, _ = state.counts()
    offset = listing.skip if listing.start is None and listing.keys is None else None
    begin = {"total_rows": total, "offset": offset}
    yield encoded(begin)[:-1] + b',"rows":[\n'
    between = b""
    size = DOCS if listing.form.include_docs else rows_max
    rows = iter(_wanted(state, listing))
    while some := list(islice(rows, size)):
        told = [encoded(each) for each in _told(state, listing, some)]
        yield between + b",\n".join(told)
        between = b",\n"
    yield b"\n]}\n"


def _wanted(state: State, listing: Listing) -> Iterable[Row | str]:
    """Return the rows that are wanted, and the keys for which there is none.

    Stores list forwards only: `descending` passes over all that comes before.
    """
    if listing.keys is not None:
        found: Iterable[Row | str] = _looked_up(state, listing.keys)
        found = reversed(list(found)) if listing.descending else found
    elif listing.descending:
        found = _backwards(state, listing)
    else:
        found = _between(state, listing, listing.start, listing.end)
    until = None if listing.limit is None else listing.skip + listing.limit
    return islice(found, listing.skip, until)


def _between(state: State, listing: Listing, low: str | None, high: str | None) -> Iterator[Row]:
    rows = rows_by_id(state, low)
    if high is None:
        return rows
    if listing.inclusive_end or listing.descending:
        return takewhile(lambda row: row.id <= high, rows)
    return takewhile(lambda row: row.id < high, rows)


def _backwards(state: State, listing: Listing) -> Iterator[Row]:
    rows = _between(state, listing, listing.end, listing.start)
    if listing.end is not None and not listing.inclusive_end:
        rows = (row for row in rows if row.id != listing.end)
    most = None if listing.limit is None else listing.skip + listing.limit
    return reversed(deque(rows, most))


def _looked_up(state: State, keys: list[str]) -> Iterator[Row | str]:
    ids = [key for key in dict.fromkeys(keys) if _is_id(key)]
    winners = dict(zip(ids, state.winners(ids), strict=True))
    for key in keys:
        winner = winners.get(key)
        yield key if winner is None else winner.row(key)


def _is_id(key: str) -> bool:
    try:
        return bool(checked_id(key))
    except InvalidIdError:
        return False


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
