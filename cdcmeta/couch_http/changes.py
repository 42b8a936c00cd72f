"""`_changes`: one page of the feed, or a feed that waits for changes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
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
from cdcmeta.couch_http.bodies import encoded
from cdcmeta.couch_http.changes_query import (
    CONTINUOUS,
    EVENTSOURCE,
    LONGPOLL,
    NORMAL,
    FeedRequest,
    Function,
    feed_request,
    malformed_since,
    projected,
)
from cdcmeta.couch_http.errors import not_found, not_implemented
from cdcmeta.couch_http.http_request import Call
from cdcmeta.couch_http.streaming import JSON, BatchSize, Streamed, pieces_of
from cdcmeta.couch_http.wakeup import Wakeup, WalkStart
from cdcmeta.errors import DatabaseNotFoundError, DocumentNotFoundError, InvalidSequenceError
from snapkv.base.waiting import monotonic
from snapkv.errors import another

STEPS = 4


async def changes(call: Call) -> Response:
    """Answer a request to `_changes`."""
    body = await call.posted()
    query, event = call.query.multi_items(), call.request.headers.get("last-event-id")
    request = partial(feed_request, query, body, event, call.service.limits.wait_ms)
    wanted = await call.service.call(request) if body else request()  # compiling a selector is slow
    db = call.db
    headers = {"Cache-Control": "must-revalidate"}
    state = None
    if not (wanted.waits and call.service.wakeups.follows(db.name)):
        state = await call.service.read(db.state, wanted.as_of)
    if wanted.function is not None:
        await call.service.read(_reject_function, db, wanted.function)
    relative = str(wanted.since).startswith(("-", "+"))  # it means another place the next time
    if wanted.feed == NORMAL and state is not None and not body and not relative:
        headers["ETag"] = _etag(call, state)
        if call.has(headers["ETag"]):
            return Response(status_code=304, headers=headers)
    format = format_of(wanted.feed)
    feed = Feed(call, db, wanted, format)
    return await Streamed.started(
        feed.pieces(state),
        is_last=feed.is_last,
        heartbeat=wanted.heartbeat,
        beat=format.beat,
        media_type=format.media_type,
        headers=headers,
    )


class Feed:
    """A feed for one client: how many changes were sent, and where to continue."""

    def __init__(self, call: Call, db: ChangesDB, wanted: FeedRequest, format: Format) -> None:
        self._service, self._db = call.service, db
        self._wanted, self._format = wanted, format
        self._since: Sequence | str = "0" if wanted.descending else wanted.since
        self._sent = 0
        self._batch_size = BatchSize(self._service.limits)
        self._rows = deque([format.begin])
        self._walk: Walk | None = None
        self._end: tuple[Sequence, int] | None = None
        self._ended = False

    async def pieces(self, state: State | None) -> AsyncIterator[bytes]:
        """Yield the feed; one that does not wait ends with the changes in `state`."""
        read = self._service.read
        if state is not None and not self._wanted.waits:
            self._take(await read(self._started, state))
            async for piece in self._walked():
                yield piece
                del piece  # here and below: it may be large, and the next one may take long
        else:
            async with self._service.wakeups.wakeup(self._db.name) as wakeup:
                over, last_row = False, monotonic()
                while not over:
                    version, before = wakeup.version, self._sent
                    try:
                        question = (self._since, self._left, self._wanted.form)
                        self._take(await wakeup.started(question, self._started, read))
                    except DatabaseNotFoundError:
                        if self._walk is None:
                            raise
                        break  # it was deleted
                    async for piece in self._walked():
                        yield piece
                        del piece
                    last_row = monotonic() if self._sent > before else last_row
                    over = self._over() or not await self._waited(wakeup, version, last_row)
        if not self._ended:
            assert self._walk is not None
            if self._end is None:
                self._end = await read(_end_of, self._walk)
            yield self._format.end(*self._end)

    def is_last(self) -> bool:
        """Return whether the piece yielded last is known to be the end."""
        return self._ended and not self._rows

    def _over(self) -> bool:
        wanted = self._wanted
        return self._sent == wanted.limit or (wanted.feed == LONGPOLL and self._sent > 0)

    async def _waited(self, wakeup: Wakeup, version: int, last_row: float) -> bool:
        """Wait for the next version; return False when the feed ends instead.

        It ends when no row was sent for `timeout` seconds, when the database was deleted (perhaps
        before the wakeup followed it), or when the server stops. Any other error of the wakeup is
        raised.
        """
        wanted = self._wanted
        bound = None if wanted.heartbeat is not None else last_row + wanted.timeout - monotonic()
        with anyio.move_on_after(bound):
            await wakeup.wait(version)
            if wakeup.error is not None and not isinstance(wakeup.error, DatabaseNotFoundError):
                raise another(wakeup.error)
            return not wakeup.ended
        return False

    def _take(self, started: WalkStart) -> None:
        """Continue with a walk; add the rows of the changes that it has read."""
        self._walk, self._end = started.walk, started.end
        self._since = started.walk.place
        self._rows += self._rows_of(started.changes)
        if self._end is not None and (self._over() or not self._wanted.waits):
            self._rows.append(self._format.end(*self._end))  # one piece is sent sooner than two
            self._ended = True

    async def _walked(self) -> AsyncIterator[bytes]:
        """Yield the rows of the walk in pieces of a bounded size; rows already sent are freed."""
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
        return None if self._wanted.limit is None else self._wanted.limit - self._sent

    # --- in threads ---

    def _started(self, state: State) -> WalkStart:
        """Return a walk over the changes still to send in `state`, and its first step."""
        wanted = self._wanted
        try:
            # a time may be in the future
            after = min(self._db.place(self._since, state), state.end)
        except InvalidSequenceError as e:
            raise malformed_since(str(self._since)) from e
        walk = Walk(state, wanted.form, after, state.end, self._left, wanted.descending)
        changes = [] if walk.ended else self._changes(walk)
        return WalkStart(walk, changes, _end_of(walk) if walk.ended and changes else None)

    def _step(self, walk: Walk) -> None:
        """Read more changes, in several steps if they are small: each call switches threads."""
        size = 0
        for _ in range(STEPS):
            rows = list(self._rows_of(self._changes(walk)))
            self._since = walk.place
            self._rows += rows
            size += sum(map(len, rows))
            if walk.ended or size >= self._service.limits.piece_bytes:
                return

    def _changes(self, walk: Walk) -> list[Change]:
        """Read the next changes: `Limits.rows` rows, or a batch of documents."""
        if not self._wanted.form.needs_docs:
            return walk.step(self._service.limits.rows)
        before = walk.bodies_bytes
        changes = walk.step(self._batch_size.docs)
        if not walk.ended:  # the last step may read fewer
            self._batch_size.after(walk.bodies_bytes - before)
        return changes

    def _rows_of(self, changes: list[Change]) -> Iterator[bytes]:
        for change in changes:
            self._sent += 1
            yield self._format.row(self._row_of(change), change.seq)

    def _row_of(self, change: Change) -> bytes:
        """Return a row as JSON; its document is JSON already, unless `fields` selects some."""
        has_seq = self._sent % self._wanted.seq_interval == 0
        seq = f'"{change.seq}"' if has_seq else "null"
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


def _reject_function(db: ChangesDB, function: Function) -> None:
    """Raise `HTTPError`: 501 for a function of a design document, 404 if it does not exist."""
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
    """Return the tag of an answer: the same for the same question to the same state."""
    question = [state.database.uuid.hex(), str(state.end), call.request.url.query]
    return f'"{hashlib.sha256(encoded(question)).hexdigest()[:32]}"'


# --- the formats of a feed: one JSON object, a line for each row, or events ---


class Format(ABC):
    """How rows are written; each answer has its own."""

    media_type = JSON
    begin = b""
    beat = b"\n"

    @abstractmethod
    def row(self, row: bytes, seq: Sequence) -> bytes:
        """Return a row, which is JSON."""

    @abstractmethod
    def end(self, last_seq: Sequence, pending: int) -> bytes:
        """Return the end, after the last row."""


class Page(Format):
    """One JSON object, for the feeds `normal` and `longpoll`."""

    begin = b'{"results":[\n'

    def __init__(self) -> None:
        self._between = b""

    def row(self, row: bytes, seq: Sequence) -> bytes:
        """Return a row, after a comma unless it is the first."""
        found = self._between + row
        self._between = b",\n"
        return found

    def end(self, last_seq: Sequence, pending: int) -> bytes:
        """Return the end of the object."""
        return b'\n],\n"last_seq":"%s","pending":%d}\n' % (str(last_seq).encode(), pending)


class Lines(Format):
    """A line for each row, and one at the end, for the feed `continuous`."""

    def row(self, row: bytes, seq: Sequence) -> bytes:
        """Return the line of a row."""
        return row + b"\n"

    def end(self, last_seq: Sequence, pending: int) -> bytes:
        """Return the last line."""
        return encoded({"last_seq": str(last_seq), "pending": pending}) + b"\n"


class Events(Format):
    """Events for browsers, for the feed `eventsource`."""

    media_type = "text/event-stream"
    beat = b"event: heartbeat\ndata: \n\n"

    def row(self, row: bytes, seq: Sequence) -> bytes:
        """Return an event; a client continues from its id."""
        return b'data: %s\nid: "%s"\n\n' % (row, str(seq).encode())

    def end(self, last_seq: Sequence, pending: int) -> bytes:
        """Return nothing: the answer's end is enough, and a client would take more for an event."""
        return b""


def format_of(feed: str) -> Format:
    """Return the format of a feed."""
    return Lines() if feed == CONTINUOUS else Events() if feed == EVENTSOURCE else Page()
