"""`_changes`: a page of the feed, or the feed itself."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import anyio
from starlette.responses import Response

from cdcmeta.changes.database import ChangesDB
from cdcmeta.changes.documents import quoted
from cdcmeta.changes.feed import Change, Walk
from cdcmeta.changes.sequence import Sequence
from cdcmeta.changes.state import State
from cdcmeta.couch_http.batch_size import Pace, pieces_of
from cdcmeta.couch_http.changes_query import (
    LONGPOLL,
    NORMAL,
    FeedRequest,
    Function,
    feed_request,
    malformed_since,
    projected,
)
from cdcmeta.couch_http.errors import not_found, not_implemented
from cdcmeta.couch_http.formats import Form, form_of
from cdcmeta.couch_http.moments import Begun
from cdcmeta.couch_http.request import Call, encoded
from cdcmeta.couch_http.streaming import Streamed
from cdcmeta.couch_http.wakeup import Waker
from cdcmeta.errors import (
    DatabaseDeletedError,
    DatabaseNotFoundError,
    DocumentNotFoundError,
    InvalidSequenceError,
)
from snapkv.clock import monotonic

STEPS = 4
_GONE = (DatabaseDeletedError, DatabaseNotFoundError)


async def changes(call: Call) -> Response:
    """Answer a request to `_changes`."""
    body = await call.posted()
    query, event = call.query.multi_items(), call.request.headers.get("last-event-id")
    request = partial(feed_request, query, body, event, call.service.limits.wait_ms)
    wanted = await call.service.call(request) if body else request()  # a selector takes its time
    db = call.db
    headers = {"Cache-Control": "must-revalidate"}
    state = None
    if not (wanted.waits and call.service.hub.follows(db.name)):
        state = await call.service.read(db.state, wanted.as_of)
    if wanted.function is not None:
        await call.service.read(_refuse, db, wanted.function)
    relative = str(wanted.since).startswith(("-", "+"))  # another place the next time
    if wanted.feed == NORMAL and state is not None and not body and not relative:
        headers["ETag"] = _etag(call, state)
        if call.has(headers["ETag"]):
            return Response(status_code=304, headers=headers)
    form = form_of(wanted.feed)
    feed = Feed(call, db, wanted, form)
    return await Streamed.begun(
        feed.pieces(state),
        is_last=feed.is_last,
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
        self._pace = Pace(self._service.limits)
        self._rows = deque([form.begin])
        self._walk: Walk | None = None
        self._end: tuple[Sequence, int] | None = None
        self._ended = False

    async def pieces(self, state: State | None) -> AsyncIterator[bytes]:
        """Yield it; one that does not wait as it stands in `state`."""
        read = self._service.read
        if state is not None and not self._wanted.waits:
            self._take(await read(self._begun, state))
            async for piece in self._walked():
                yield piece
                del piece  # here and below: it may be large, and what comes next far off
        else:
            async with self._service.hub.waker(self._db.name) as waker:
                over, heard = False, monotonic()
                while not over:
                    version, told = waker.version, self._told
                    try:
                        question = (self._since, self._left, self._wanted.form)
                        self._take(await waker.begun(question, self._begun, read))
                    except DatabaseNotFoundError:
                        if self._walk is None:
                            raise
                        break  # it was deleted
                    async for piece in self._walked():
                        yield piece
                        del piece
                    heard = monotonic() if self._told > told else heard
                    over = self._over() or not await self._waited(waker, version, heard)
        if not self._ended:
            assert self._walk is not None
            if self._end is None:
                self._end = await read(_end_of, self._walk)
            yield self._form.end(*self._end)

    def is_last(self) -> bool:
        """Return whether the piece that it yielded is known to be the last."""
        return self._ended and not self._rows

    def _over(self) -> bool:
        wanted = self._wanted
        return self._told == wanted.limit or (wanted.feed == LONGPOLL and self._told > 0)

    async def _waited(self, waker: Waker, version: int, heard: float) -> bool:
        """Wait for the next version; return False when the feed ends instead.

        That is when nothing was told for too long, the database was deleted (perhaps before
        anybody followed it), or the server stops; whatever else keeps it from being followed is
        raised.
        """
        wanted = self._wanted
        bound = None if wanted.heartbeat is not None else heard + wanted.timeout - monotonic()
        with anyio.move_on_after(bound):
            await waker.wait(version)
            if waker.error is not None and not isinstance(waker.error, _GONE):
                raise waker.error
            return not waker.ended
        return False

    def _take(self, begun: Begun) -> None:
        """Go on with a walk, and with what it told already."""
        self._walk, self._end = begun.walk, begun.end
        self._since = begun.walk.place
        self._rows += self._rows_of(begun.changes)
        if self._end is not None and (self._over() or not self._wanted.waits):
            self._rows.append(self._form.end(*self._end))  # one piece is sent sooner than two
            self._ended = True

    async def _walked(self) -> AsyncIterator[bytes]:
        """Yield what the walk tells, in pieces of a bounded size; what was sent is let go."""
        assert self._walk is not None
        while True:
            for piece in pieces_of(self._rows, self._service.limits.piece_bytes):
                yield piece
                del piece
            if self._walk.ended:
                return
            await self._service.read(self._step, self._walk)

    @property
    def _left(self) -> int | None:
        return None if self._wanted.limit is None else self._wanted.limit - self._told

    # --- in threads ---

    def _begun(self, state: State) -> Begun:
        """Return the changes that are left as they stand, and the first of them; it tells none."""
        wanted = self._wanted
        try:
            after = min(self._db.place(self._since, state), state.end)  # a time may be to come
        except InvalidSequenceError as e:
            raise malformed_since(str(self._since)) from e
        walk = Walk(state, wanted.form, after, state.end, self._left, wanted.descending)
        changes = [] if walk.ended else self._changes(walk)
        return Begun(walk, changes, _end_of(walk) if walk.ended and changes else None)

    def _step(self, walk: Walk) -> None:
        """Go on, by several steps where they are small, for each costs a change of threads."""
        size = 0
        for _ in range(STEPS):
            rows = list(self._rows_of(self._changes(walk)))
            self._since = walk.place
            self._rows += rows
            size += sum(map(len, rows))
            if walk.ended or size >= self._service.limits.piece_bytes:
                return

    def _changes(self, walk: Walk) -> list[Change]:
        """Take a step: of so many rows, or of documents, as the sizes of the last ones allow."""
        if not self._wanted.form.needs_docs:
            return walk.step(self._service.limits.rows)
        before = walk.bodies_bytes
        changes = walk.step(self._pace.docs)
        if not walk.ended:  # else it found fewer of them
            self._pace.after(walk.bodies_bytes - before)
        return changes

    def _rows_of(self, changes: list[Change]) -> Iterator[bytes]:
        for change in changes:
            self._told += 1
            yield self._form.row(self._row_of(change), change.seq)

    def _row_of(self, change: Change) -> bytes:
        """Return a row as JSON; its document comes as that, unless only some fields are wanted."""
        told = self._told % self._wanted.seq_interval == 0
        seq = f'"{change.seq}"' if told else "null"
        revs = ",".join([f'{{"rev":"{rev}"}}' for rev in change.revs])
        deleted = ',"deleted":true' if change.deleted else ""
        row = f'{{"seq":{seq},"id":{quoted(change.id)},"changes":[{revs}]{deleted}'.encode()
        doc: Any = change.doc
        if doc is None:
            return row + b"}"
        if self._wanted.fields is not None:
            doc = encoded(projected(doc, self._wanted.fields))
        return b'%b,"doc":%b}' % (row, doc)


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


def _etag(call: Call, state: State) -> str:
    """Return what stands for an answer: the same question to the same state."""
    question = [state.database.uuid.hex(), str(state.end), call.request.url.query]
    return f'"{hashlib.sha256(encoded(question)).hexdigest()[:32]}"'
