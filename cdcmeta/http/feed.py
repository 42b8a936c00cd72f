"""`_changes`: a page of the feed, or the feed itself."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
from starlette.responses import Response

from cdcmeta.changes.database import ChangesDB
from cdcmeta.changes.feed import Change, Walk
from cdcmeta.changes.sequence import Sequence
from cdcmeta.changes.state import State
from cdcmeta.errors import (
    DatabaseDeletedError,
    DatabaseNotFoundError,
    DocumentNotFoundError,
    InvalidSequenceError,
)
from cdcmeta.http.call import Call, checked_object, decoded, encoded
from cdcmeta.http.errors import not_found, not_implemented
from cdcmeta.http.forms import Form, form_of
from cdcmeta.http.params import (
    LONGPOLL,
    NORMAL,
    FeedRequest,
    Function,
    feed_request,
    malformed_since,
    projected,
)
from cdcmeta.http.streaming import Streamed
from cdcmeta.http.waking import Waker
from snapkv.clock import monotonic

START_DOCS = 4
"""Documents that are read at first; from then on as many as make a piece."""


async def changes(call: Call) -> Response:
    """Answer a request to `_changes`."""
    body: dict[str, Any] = {}
    raw = b""
    if call.request.method == "POST":
        call.check_json()
        raw = await call.body()
        body = checked_object(decoded(raw)) if raw else {}
    wanted = feed_request(
        call.query.multi_items(),
        body,
        call.request.headers.get("last-event-id"),
        call.service.limits.wait_ms,
    )
    db = call.db
    headers = {"Cache-Control": "must-revalidate"}
    state = None
    if not (wanted.waits and call.service.hub.follows(db.name)):
        state = await call.service.read(db.state, wanted.as_of)
    if wanted.function is not None:
        await call.service.read(_refuse, db, wanted.function)
    relative = str(wanted.since).startswith(("-", "+"))  # another place the next time
    if wanted.feed == NORMAL and state is not None and not relative:
        headers["ETag"] = _etag(call, state, raw)
        if call.request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
    form = form_of(wanted.feed)
    return await Streamed.begun(
        Feed(call, db, wanted, form).pieces(state),
        heartbeat=wanted.heartbeat,
        beat=form.beat,
        media_type=form.media_type,
        headers=headers,
    )


class Feed:
    """A feed as one client asked for it: what was told so far, and how to go on."""

    def __init__(self, call: Call, db: ChangesDB, wanted: FeedRequest, form: Form) -> None:
        self._service, self._db = call.service, db
        self._wanted, self._form = wanted, form
        self._since: Sequence | str = "0" if wanted.descending else wanted.since
        self._told = 0
        self._rows = self._service.limits.rows if not wanted.form.needs_docs else START_DOCS

    async def pieces(self, state: State | None) -> AsyncIterator[bytes]:
        """Yield it; one that does not wait as it stands in `state`."""
        read = self._service.read
        if not self._wanted.waits:
            walk, rows = await read(self._begun, state)
            async for piece in self._walked(walk, rows, self._form.begin):
                yield piece
        else:
            async with self._service.hub.waker(self._db.name) as waker:
                begin, over = self._form.begin, False
                heard = monotonic()
                while not over:
                    version, told = waker.version, self._told
                    try:
                        state = None if begin else await waker.state(read)
                        walk, rows = await read(self._begun, state)
                    except DatabaseNotFoundError:
                        if begin:
                            raise
                        break  # it was deleted
                    async for piece in self._walked(walk, rows, begin):
                        yield piece
                    begin = b""
                    heard = monotonic() if self._told > told else heard
                    over = self._over() or not await self._waited(waker, version, heard)
        yield self._form.end(*await read(_end_of, walk))

    def _over(self) -> bool:
        wanted = self._wanted
        return self._told == wanted.limit or (wanted.feed == LONGPOLL and self._told > 0)

    async def _waited(self, waker: Waker, version: int, heard: float) -> bool:
        """Wait for the next version; return False when the feed ends instead.

        That is when nothing was told for too long, the database was deleted, or the server stops;
        whatever else keeps it from being followed is raised.
        """
        wanted = self._wanted
        bound = None if wanted.heartbeat is not None else heard + wanted.timeout - monotonic()
        with anyio.move_on_after(bound):
            await waker.wait(version)
            if waker.error is not None and not isinstance(waker.error, DatabaseDeletedError):
                raise waker.error
            return not waker.ended
        return False

    async def _walked(self, walk: Walk, rows: list[bytes], begin: bytes) -> AsyncIterator[bytes]:
        """Yield what a walk tells, `rows` first, in pieces of a bounded size."""
        limits = self._service.limits
        piece = bytearray(begin)
        while True:
            size = sum(map(len, rows))
            for row in rows:
                piece += row
                if len(piece) >= limits.piece_bytes:
                    yield bytes(piece)
                    piece.clear()
            yield bytes(piece)
            piece.clear()
            if walk.ended:
                return
            if self._wanted.form.needs_docs:
                fits = self._rows * limits.piece_bytes // max(size, 1)
                self._rows = max(1, min(fits, 2 * self._rows, limits.rows))
            rows = await self._service.read(self._step, walk)

    # --- in threads ---

    def _begun(self, state: State | None = None) -> tuple[Walk, list[bytes]]:
        """Return the changes that are left as they stand now, and the first rows of them."""
        state = state or self._db.state()
        wanted = self._wanted
        try:
            after = min(self._db.place(self._since, state), state.end)  # a time may be to come
        except InvalidSequenceError as e:
            raise malformed_since(str(self._since)) from e
        self._since = after
        left = None if wanted.limit is None else wanted.limit - self._told
        walk = Walk(state, wanted.form, after, state.end, left, wanted.descending)
        return walk, [] if walk.ended else self._step(walk)

    def _step(self, walk: Walk) -> list[bytes]:
        changes = walk.step(self._rows)
        self._since = walk.place
        return list(self._rows_of(changes))

    def _rows_of(self, changes: list[Change]) -> Iterator[bytes]:
        for change in changes:
            self._told += 1
            yield self._form.row(self._row_of(change), change.seq)

    def _row_of(self, change: Change) -> dict[str, Any]:
        told = self._told % self._wanted.seq_interval == 0
        row: dict[str, Any] = {"seq": str(change.seq) if told else None, "id": change.id}
        row["changes"] = [{"rev": rev} for rev in change.revs]
        if change.deleted:
            row["deleted"] = True
        if change.doc is not None:
            row["doc"] = projected(change.doc, self._wanted.fields)
        return row


def _end_of(walk: Walk) -> tuple[Sequence, int]:
    last_seq = walk.last_seq()
    return last_seq, walk.pending(last_seq)


def _refuse(db: ChangesDB, function: Function) -> None:
    """Tell that functions of design documents do not run here, or that there is none."""
    try:
        ddoc = db.get(function.ddoc)
    except DocumentNotFoundError as e:
        raise not_found(e.reason) from e
    functions = ddoc.get(function.kind)
    if not isinstance(functions, dict):
        raise not_found(f"missing json key: {function.kind}")
    if function.name not in functions:
        raise not_found(f"missing json key: {function.name}")
    raise not_implemented("running functions of design documents")


def _etag(call: Call, state: State, body: bytes) -> str:
    """Return what stands for an answer: the same question to the same state."""
    question = (state.database.uuid, str(state.end), call.request.url.query, body)
    return f'"{hashlib.sha256(encoded([repr(each) for each in question])).hexdigest()[:32]}"'
