"""`_changes`: one page of the feed, or a feed that waits for changes, and their options."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import anyio
from starlette.responses import Response

from cdcmeta.changes.database import ChangesDB
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.changes.documents import quoted
from cdcmeta.changes.feed import ALL_DOCS, MAIN_ONLY, Change, FeedWalk, Form
from cdcmeta.changes.selector import Selector
from cdcmeta.changes.sequence import Sequence
from cdcmeta.couch_http.http_errors import HTTPError, bad_request, not_found, not_implemented
from cdcmeta.couch_http.http_request import ServiceCall, decoded, integer, natural_number
from cdcmeta.couch_http.streaming import JSON, BatchSize, Streamed, encoded, pieces_of
from cdcmeta.couch_http.wakeup import Wakeup, WalkStart
from cdcmeta.errors import DatabaseNotFoundError, DocumentNotFoundError, InvalidSequenceError
from snapkv.base.waiting import monotonic
from snapkv.errors import another
from snapkv.times import pack

NORMAL, LONGPOLL, CONTINUOUS, EVENTSOURCE = "normal", "longpoll", "continuous", "eventsource"
STEPS = 4


async def changes(call: ServiceCall) -> Response:
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
    format = FORMATS[wanted.feed]
    feed = ClientFeed(call, db, wanted, format)
    return await Streamed.started(
        feed.pieces(state),
        is_last=feed.is_last,
        heartbeat=wanted.heartbeat,
        beat=format.beat,
        media_type=format.media_type,
        headers=headers,
    )


class ClientFeed:
    """A feed for one client: how many changes were sent, and where to continue."""

    def __init__(
        self, call: ServiceCall, db: ChangesDB, wanted: FeedRequest, format: Format
    ) -> None:
        self._service, self._db = call.service, db
        self._wanted, self._format = wanted, format
        self._since: Sequence | str = "0" if wanted.descending else wanted.since
        self._sent = 0
        self._batch_size = BatchSize(self._service.limits)
        self._rows = deque([format.begin])
        self._walk: FeedWalk | None = None
        self._end: tuple[Sequence, int] | None = None
        self._ended = False

    async def pieces(self, state: DatabaseState | None) -> AsyncIterator[bytes]:
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

    def _started(self, state: DatabaseState) -> WalkStart:
        """Return a walk over the changes still to send in `state`, and its first step."""
        wanted = self._wanted
        try:
            # a time may be in the future
            after = min(self._db.place(self._since, state), state.end)
        except InvalidSequenceError as e:
            raise malformed_since(str(self._since)) from e
        walk = FeedWalk(state, wanted.form, after, state.end, self._left, wanted.descending)
        changes = [] if walk.ended else self._changes(walk)
        return WalkStart(walk, changes, _end_of(walk) if walk.ended and changes else None)

    def _step(self, walk: FeedWalk) -> None:
        """Read more changes, in several steps if they are small: each call switches threads."""
        size = 0
        for _ in range(STEPS):
            rows = list(self._rows_of(self._changes(walk)))
            self._since = walk.place
            self._rows += rows
            size += sum(map(len, rows))
            if walk.ended or size >= self._service.limits.piece_bytes:
                return

    def _changes(self, walk: FeedWalk) -> list[Change]:
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
            row = self._format.row(self._row_of(change), change.seq)
            yield self._format.between + row if self._sent > 1 else row

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


def _end_of(walk: FeedWalk) -> tuple[Sequence, int]:
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


def _etag(call: ServiceCall, state: DatabaseState) -> str:
    """Return the tag of an answer: the same for the same question to the same state."""
    question = [state.database.uuid.hex(), str(state.end), call.request.url.query]
    return f'"{hashlib.sha256(encoded(question)).hexdigest()[:32]}"'


# --- the formats of a feed: one JSON object, a line for each row, or events ---


class Format(NamedTuple):
    """How a feed is written: a row is JSON; `between` precedes all rows but the first."""

    row: Callable[[bytes, Sequence], bytes]
    end: Callable[[Sequence, int], bytes]
    begin: bytes = b""
    between: bytes = b""
    media_type: str = JSON
    beat: bytes = b"\n"


_OBJECT = Format(
    lambda row, seq: row,
    lambda seq, pending: b'\n],\n"last_seq":"%s","pending":%d}\n' % (str(seq).encode(), pending),
    begin=b'{"results":[\n',
    between=b",\n",
)
FORMATS = {
    NORMAL: _OBJECT,
    LONGPOLL: _OBJECT,
    CONTINUOUS: Format(
        lambda row, seq: row + b"\n",
        lambda seq, pending: encoded({"last_seq": str(seq), "pending": pending}) + b"\n",
    ),
    # a client continues from an event's id; it would take an end for an event
    EVENTSOURCE: Format(
        lambda row, seq: b'data: %s\nid: "%s"\n\n' % (row, str(seq).encode()),
        lambda seq, pending: b"",
        media_type="text/event-stream",
        beat=b"event: heartbeat\ndata: \n\n",
    ),
}


# --- the query, headers and body of a request ---

FEEDS = (NORMAL, LONGPOLL, CONTINUOUS, EVENTSOURCE)
FEED_RULE = "Supported `feed` types: normal, continuous, live, longpoll, eventsource"
BEAT_INVALID = "Invalid heartbeat value. Expecting a positive integer value (in milliseconds)."
BEAT_NEGATIVE = "The heartbeat value should be a positive integer (in milliseconds)."
DOC_IDS_RULE = "`doc_ids` filter parameter is not a list of doc ids."
_DIGITS = re.compile(r"\d{1,19}", re.ASCII)
_OLDEST, _NEWEST = (pack(ms) for ms in (946_684_800_000, 4_102_444_800_000))
"""Digits mean a time of the years 2000 to 2099; a truncated sequence is never in that range."""
_TIME = re.compile(r"\d{4}-\d\d?-\d\d?(?:[T ].*)?")


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a design document, as a filter; `kind` is `filters` or `views`."""

    ddoc: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """The options of a feed; `timeout` and `heartbeat` are in seconds."""

    feed: str
    since: str
    descending: bool
    limit: int | None
    timeout: float
    heartbeat: float | None
    seq_interval: int
    as_of: str | None
    form: Form
    fields: tuple[tuple[str, ...], ...] | None
    function: Function | None

    @property
    def waits(self) -> bool:
        """Whether the feed waits for changes after the existing ones."""
        return self.feed != NORMAL and not self.descending and self.limit != 0


def feed_request(
    query: Iterable[tuple[str, str]],
    body: Mapping[str, Any],
    last_event_id: str | None,
    wait_ms_max: int,
) -> FeedRequest:
    """Return the options of a request. Raises `HTTPError`, `InvalidArgumentError`."""
    params = {name.lower(): value for name, value in query}
    feed = params.get("feed", NORMAL)
    feed = CONTINUOUS if feed == "live" else feed
    if feed not in FEEDS:
        raise bad_request(FEED_RULE)
    if params.get("as_of") is not None and feed != NORMAL:
        raise bad_request("`as_of` goes with the feed `normal`: the past does not change")
    since = params.get("last-event-id", params.get("since", "0"))
    if feed == EVENTSOURCE and last_event_id is not None:
        since = last_event_id
    form, function = _form(params, body)
    fields = _fields(params, body)
    return FeedRequest(
        feed=feed,
        since=_checked_since(since.strip('"')),
        descending=params.get("descending") == "true",
        limit=natural_number("limit", params["limit"]) if "limit" in params else None,
        timeout=min(wait_ms_max, natural_number("timeout", params.get("timeout", str(wait_ms_max))))
        / 1_000,
        heartbeat=_heartbeat(params.get("heartbeat"), wait_ms_max),
        seq_interval=_seq_interval(params.get("seq_interval", "1")),
        as_of=params.get("as_of"),
        form=replace(form, as_json=fields is None),
        fields=fields,
        function=function,
    )


def _checked_since(since: str) -> str:
    digits = since.strip()
    if digits != "0" and _DIGITS.fullmatch(digits) and not _OLDEST <= int(digits) < _NEWEST:
        raise malformed_since(since)
    return since


def malformed_since(since: str) -> HTTPError:
    """Return the answer to an invalid `since`."""
    if _TIME.fullmatch(since):
        return bad_request("invalid_time_format")
    return bad_request("Malformed sequence supplied in 'since' parameter.")


def _heartbeat(text: str | None, ms_max: int) -> float | None:
    if text is None:
        return None
    if text == "true":
        return ms_max / 1_000
    if (ms := integer(text)) is None:
        raise bad_request(BEAT_INVALID)
    if ms <= 0:
        raise bad_request(BEAT_NEGATIVE)
    return min(ms_max, ms) / 1_000


def _seq_interval(text: str) -> int:
    rows = integer(text)
    if rows is None or rows <= 0:
        raise bad_request("invalid_seq_interval")
    return rows


def _form(params: Mapping[str, str], body: Mapping[str, Any]) -> tuple[Form, Function | None]:
    style = params.get("style", MAIN_ONLY)
    if style not in (MAIN_ONLY, ALL_DOCS):
        raise bad_request("Supported `style` values: main_only, all_docs")
    options: dict[str, Any] = {
        "style": style,
        "include_docs": params.get("include_docs") == "true",
        "conflicts": params.get("conflicts") == "true",
    }
    name = params.get("filter", "")
    if name == "_doc_ids":
        options["doc_ids"] = _doc_ids(params, body)
    elif name == "_selector":
        options["selector"] = _selector(body)
    elif name == "_design":
        options["prefix"] = "_design/"
    elif name == "_view":
        return Form(**options), _function("views", "view", params.get("view"))
    elif name.startswith("_"):
        raise bad_request("unknown builtin filter name")
    elif name:
        return Form(**options), _function("filters", "filter", name)
    return Form(**options), None


def _doc_ids(params: Mapping[str, str], body: Mapping[str, Any]) -> list[str]:
    ids = body.get("doc_ids")
    if ids is None and "doc_ids" in params:
        ids = decoded(params["doc_ids"].encode(errors="surrogatepass"))
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise bad_request(DOC_IDS_RULE)
    return ids


def _selector(body: Mapping[str, Any]) -> Selector:
    if "selector" not in body:
        raise bad_request("Selector must be specified in POST payload")
    return Selector(body["selector"], regex=False)


def _fields(
    params: Mapping[str, str], body: Mapping[str, Any]
) -> tuple[tuple[str, ...], ...] | None:
    fields = body.get("fields") if params.get("filter") == "_selector" else None
    if fields is None:
        return None
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        raise bad_request("Selector error: fields must be JSON array")
    return tuple(tuple(field.split(".")) for field in fields) or None


def _function(kind: str, parameter: str, text: str | None) -> Function:
    if text is None:
        raise bad_request(f"`{parameter}` filter parameter is not provided.")
    ddoc, slash, name = text.partition("/")
    if not (ddoc and slash and name) or "/" in name:
        raise bad_request(f"`{parameter}` must be of the form `designname/{parameter}name`")
    return Function(f"_design/{ddoc}", kind, name)


def projected(doc: Mapping[str, Any], fields: tuple[tuple[str, ...], ...]) -> Mapping[str, Any]:
    """Return a document with the wanted fields only.

    >>> projected({"a": {"b": 1, "c": 2}, "d": 3}, (("a", "b"), ("d",), ("e",)))
    {'a': {'b': 1}, 'd': 3}
    """
    found: dict[str, Any] = {}
    for path in fields:
        value: Any = doc
        for name in path:
            value = value.get(name, _NONE) if isinstance(value, Mapping) else _NONE
        if value is not _NONE:
            into = found
            for name in path[:-1]:
                into = into.setdefault(name, {})
            into[path[-1]] = value
    return found


_NONE = object()
