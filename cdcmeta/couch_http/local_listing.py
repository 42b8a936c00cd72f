"""`_local_docs`: local documents by their ids."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias

from starlette.responses import Response

from cdcmeta.changes import layout
from cdcmeta.changes.documents import ID_BYTES_MAX, checked_id
from cdcmeta.changes.local import PREFIX
from cdcmeta.changes.state import State
from cdcmeta.couch_http.batch_size import Pace, pieces_of
from cdcmeta.couch_http.limits import Limits
from cdcmeta.couch_http.listing import Listing, listing_of
from cdcmeta.couch_http.request import Call, encoded
from cdcmeta.couch_http.streaming import Streamed
from cdcmeta.errors import InvalidIdError

Wanted: TypeAlias = tuple[str, bytes | None]
"""An id, and the key where it is stored; None for an id that no local document can have."""


async def local_docs(call: Call) -> Response:
    """Answer `_local_docs`; it takes what `_all_docs` takes."""
    listing = listing_of(call, await call.posted(), len(PREFIX) + ID_BYTES_MAX)
    state = await call.service.read(call.db.state, call.as_of)
    pieces = _pieces(state, listing, call.service.limits)
    return await Streamed.begun(call.service.stepped(pieces))


def _pieces(state: State, listing: Listing, limits: Limits) -> Iterator[bytes]:
    yield b'{"total_rows":null,"offset":null,"rows":['
    between, pace = b"\n", Pace(limits)
    until = None if listing.limit is None else listing.skip + listing.limit
    wanted = islice(_wanted(state, listing), listing.skip, until)
    while some := list(islice(wanted, pace.docs)):
        rows, size = _rows(state, some, listing.form.include_docs)
        found = deque([between + b",\n".join(rows)])
        between = b",\n"
        pace.after(size)
        yield from pieces_of(found, limits.piece_bytes)
    yield b"\n]}\n"


def _wanted(state: State, listing: Listing) -> Iterator[Wanted]:
    """Yield what is wanted, in order. It reads keys only."""
    if listing.keys is not None:
        ids = reversed(listing.keys) if listing.descending else iter(listing.keys)
        return ((id, _key(id)) for id in ids)
    low, high = (listing.end, listing.start) if listing.descending else (listing.start, listing.end)
    without_low = listing.descending and not listing.inclusive_end
    without_high = not listing.descending and not listing.inclusive_end
    start = None if low is None else _place(low) + b"\x00" * without_low
    end = None if high is None else _place(high) + b"\x00" * (not without_high)
    keys: Iterator[bytes] = state.snapshot.keys(layout.LOCAL_PREFIX, start=start, end=end)
    if listing.descending:
        keys = reversed(list(keys))
    return ((PREFIX + layout.local_id(key), key) for key in keys)


def _place(id: str) -> bytes:
    """Return where a text stands among the keys of local documents."""
    if id.startswith(PREFIX):
        return layout.local_key(id.removeprefix(PREFIX))
    return layout.LOCAL_PREFIX + (b"" if id < PREFIX else b"\xff")


def _key(id: str) -> bytes | None:
    if not id.startswith(PREFIX):
        return None
    try:
        return layout.local_key(checked_id(id.removeprefix(PREFIX), local=True))
    except InvalidIdError:
        return None


def _rows(state: State, some: list[Wanted], include_docs: bool) -> tuple[list[bytes], int]:
    """Return rows as JSON, and how many bytes were read for them."""
    keys = dict.fromkeys(key for _, key in some if key is not None)
    entries = dict(zip(keys, state.snapshot.entries_of(keys), strict=True))
    rows, size = [], 0
    for id, key in some:
        entry = None if key is None else entries[key]
        if entry is None:
            rows.append(encoded({"key": id, "error": "not_found"}))
            continue
        size += len(entry.value)
        count, body = layout.local_of(entry.value)
        rev = f"0-{count}"
        row: dict[str, Any] = {"id": id, "key": id, "value": {"rev": rev}}
        if include_docs:
            row["doc"] = {"_id": id, "_rev": rev} | json.loads(body)
        rows.append(encoded(row))
    return rows, size
