"""`_local_docs`: local documents by their ids."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from starlette.responses import Response

from cdcmeta.changes import layout
from cdcmeta.changes.local import PREFIX
from cdcmeta.changes.state import State
from cdcmeta.http.call import Call, encoded
from cdcmeta.http.limits import Limits
from cdcmeta.http.listing import Listing, listing_of
from cdcmeta.http.pacing import Pace, pieces_of
from cdcmeta.http.streaming import Streamed


async def local_docs(call: Call) -> Response:
    """Answer `_local_docs`; it takes what `_all_docs` takes."""
    listing = listing_of(call, await call.posted())
    state = await call.service.read(call.db.state, call.as_of)
    pieces = _pieces(state, listing, call.service.limits)
    return await Streamed.begun(call.service.stepped(pieces))


def _pieces(state: State, listing: Listing, limits: Limits) -> Iterator[bytes]:
    yield b'{"total_rows":null,"offset":null,"rows":['
    between, pace = b"\n", Pace(limits)
    rows = _rows(state, listing)
    while some := list(islice(rows, pace.docs)):
        found = deque([between + b",\n".join(map(encoded, some))])
        between = b",\n"
        pace.after(sum(map(len, found)))
        yield from pieces_of(found, limits.piece_bytes)
    yield b"\n]}\n"


def _rows(state: State, listing: Listing) -> Iterator[dict[str, Any]]:
    items = state.snapshot.items(layout.LOCAL_PREFIX)
    found = (_row(PREFIX + layout.local_id(key), value, listing) for key, value in items)
    wanted: Iterator[dict[str, Any]] = (row for row in found if _is_in(listing, row["id"]))
    if listing.descending:
        wanted = reversed(list(wanted))
    until = None if listing.limit is None else listing.skip + listing.limit
    return islice(wanted, listing.skip, until)


def _is_in(listing: Listing, id: str) -> bool:
    if listing.keys is not None:
        return id in listing.keys
    low, high = (listing.end, listing.start) if listing.descending else (listing.start, listing.end)
    at_end = listing.end == id and not listing.inclusive_end
    return (low is None or id >= low) and (high is None or id <= high) and not at_end


def _row(id: str, value: bytes, listing: Listing) -> dict[str, Any]:
    count, body = layout.local_of(value)
    rev = f"0-{count}"
    row: dict[str, Any] = {"id": id, "key": id, "value": {"rev": rev}}
    if listing.form.include_docs:
        row["doc"] = {"_id": id, "_rev": rev} | json.loads(body)
    return row
