"""One request: its path, query, headers and body, checked and decoded.

A body that a handler leaves unread is read to its end, so that the client gets its answer.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import URL, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdcmeta.changes import ChangesDB
from cdcmeta.couch_http.http_errors import NO_DATABASE, HTTPError, bad_request, not_found
from cdcmeta.couch_http.service import Limits, Service
from cdcmeta.errors import InvalidNameError
from snapkv.web import USER

NAME_RULE = (
    "Name: '{}'. Only lowercase characters (a-z), digits (0-9), and any of the characters "
    "_, $, (, ), +, -, and / are allowed. Must begin with a letter."
)
_NO_QUERY = QueryParams()


class ServiceCall:
    """One request to a service."""

    def __init__(self, service: Service, request: Request) -> None:
        self.service, self.request = service, request
        self.query = request.query_params if request.scope.get("query_string") else _NO_QUERY
        self._body_bytes = self._parsed_bytes = 0

    @property
    def user(self) -> tuple[str | None, str | None]:
        """The user, and how the request proved it: `basic` or `cookie`; None if it did not."""
        found: tuple[str | None, str | None] = self.request.scope.get(USER, (None, None))
        return found

    @property
    def base_url(self) -> str:
        """The server's URL as the client wrote it, with a slash at its end."""
        scope, host = self.request.scope, self.request.headers.get("host")
        server = tuple(scope.get("server") or ())
        return _base_url(scope.get("scheme", "http"), server, scope.get("root_path", ""), host)

    # --- path ---

    def part(self, name: str) -> str:
        """Return a part of the path, percent-decoded: `%2F` becomes a slash."""
        try:
            return unquote(self.request.path_params[name], errors="strict")
        except UnicodeDecodeError:
            raise bad_request("the path is not valid UTF-8") from None

    @property
    def id(self) -> str:
        """The document that the path names; `_design/x` and `_local/x` may have a plain slash."""
        if "design" in self.request.path_params:
            return f"_design/{self.part('design')}"
        if "local" in self.request.path_params:
            return f"_local/{self.part('local')}"
        return self.part("id")

    @property
    def db(self) -> ChangesDB:
        """The database that the path names; it may not exist.

        Raises `HTTPError` for an invalid name: 400 to create a database, otherwise 404.
        """
        name = self.part("db")
        try:
            return self.service.database(name)
        except InvalidNameError:
            if self.request.method == "PUT" and len(self.request.path_params) == 1:
                reason = NAME_RULE.format(name)
                raise HTTPError(400, "illegal_database_name", reason) from None
            raise not_found(NO_DATABASE) from None

    # --- query and headers ---

    def flag(self, name: str) -> bool:
        """Return whether a parameter is `true`; any other value is false, as in CouchDB."""
        return self.query.get(name) == "true"

    def number(self, name: str) -> int | None:
        """Return a parameter that is a number, and not negative."""
        return natural_number(name, self.query[name]) if name in self.query else None

    def json_of(self, name: str) -> Any:
        """Return a parameter that is JSON."""
        return decoded(self.query[name].encode(errors="surrogatepass"))

    @property
    def as_of(self) -> str | None:
        """The time that the query asks about; None for now."""
        return self.query.get("as_of")

    @property
    def rev(self) -> str | None:
        """The revision that the query or the header If-Match names."""
        match = self.request.headers.get("if-match")
        rev: str | None = self.query.get("rev")
        if match is None:
            return rev
        match = match.strip('"')
        if rev not in (None, match):
            raise bad_request("Document rev and etag have different values")
        return match

    def has(self, etag: str) -> bool:
        """Return whether the header If-None-Match names this answer: the client has it already.

        Proxies that compress answers make the tags weak (`W/"..."`).
        """
        tags = ",".join(self.request.headers.getlist("if-none-match")).split(",")
        return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in tags)

    # --- body ---

    def check_json(self) -> None:
        """Raise `HTTPError` (415) unless the Content-Type is JSON.

        Pages of other sites can make a browser post any other type.
        """
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPError(415, "bad_content_type", "Content-Type must be application/json")

    async def body(self, bytes_max: int | None = None) -> bytes:
        """Return the body; `bytes_max` is `Limits.body_bytes` by default.

        Raises `HTTPError` as `http_request.read`, and 503 when all bodies together are too large.
        """
        budget, limits = self.service.body_budget, self.service.limits
        small_max = min(limits.body_bytes, budget.size)
        large_max = max(small_max, budget.size_for_large)
        bytes_max = small_max if bytes_max is None else min(bytes_max, large_max)
        found = bytearray()

        def take(piece: bytes) -> None:
            budget.take(len(piece), large=len(found) + len(piece) > small_max)
            self._body_bytes += len(piece)
            found.extend(piece)

        await read_body(self.request, limits, bytes_max, take)
        return bytes(found)

    def take_for_values(self, size: int) -> None:
        """Take bytes from the budget of parsed values. Raises `HTTPError` (503)."""
        self.service.parsed_budget.take(size)
        self._parsed_bytes += size

    async def object(self) -> dict[str, Any]:
        """Return the JSON object of the body."""
        return checked_object(await self._parsed(await self.body()))

    async def value(self) -> Any:
        """Return the JSON value of the body."""
        return await self._parsed(await self.body())

    async def posted(self) -> dict[str, Any]:
        """Return the JSON object of a POST; an empty one without a body."""
        if self.request.method != "POST":
            return {}
        self.check_json()
        raw = await self.body()
        return checked_object(await self._parsed(raw)) if raw else {}

    async def _parsed(self, raw: bytes) -> Any:
        """Return a body's value; a large body is parsed in a thread, while other requests run."""
        self.take_for_values(parsed_size(raw, 0, len(raw)))
        if len(raw) <= PARSED_AT_ONCE_BYTES:
            return decoded(raw)
        return await self.service.call(decoded, raw, pausing=True)

    def close(self) -> None:
        """Return the body's bytes to the budgets, once the answer begins."""
        self.service.body_budget.give_back(self._body_bytes)
        self.service.parsed_budget.give_back(self._parsed_bytes)
        self._body_bytes = self._parsed_bytes = 0


@lru_cache(maxsize=64)
def _base_url(scheme: str, server: tuple[Any, ...], root_path: str, host: str | None) -> str:
    headers = [] if host is None else [(b"host", host.encode("latin-1"))]
    path = root_path.rstrip("/") + "/"
    scope = {"scheme": scheme, "server": server or None, "path": path, "headers": headers}
    return str(URL(scope=scope))


def integer(text: str) -> int | None:
    """Return the integer in a text; None for other texts, or more than 18 characters."""
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and text.isascii() and len(text) <= 18 else None


def natural_number(name: str, text: str) -> int:
    """Return a parameter's number. Raises `HTTPError` unless it is a non-negative integer."""
    number = integer(text)
    if number is None:
        raise bad_request(f"The {name} parameter should be an integer")
    if number < 0:
        raise bad_request(f"The {name} value should be a non-negative integer")
    return number


# --- bodies: read, unpacked and parsed as JSON within limits ---

PIECE_BYTES = 256 << 10
"""The size of a piece that is unpacked at once."""
RATIO_MAX = 200
RATIO_FREE_BYTES = 16 << 20
"""The largest ratio of an unpacked body to the packed one, and the bytes up to which none
applies."""
READ_FIRST_BYTES = 1 << 20
"""The size of the largest unread body that is read before the answer; a larger one is read after
it."""
UNREAD_BYTES_MAX = 1 << 30
"""The most bytes of a larger one that are read after the answer: clients read only after sending it
all."""
CLOSE = (b"connection", b"close")
_GZIP = 16 + zlib.MAX_WBITS


async def read_body(
    request: Request, limits: Limits, bytes_max: int, take: Callable[[bytes], None]
) -> None:
    """Read the body of a request; call `take` with each piece as it arrives, unpacked.

    Raises `HTTPError`: 413 if it is too large, 408 if it is too slow, 415 if it has an encoding
    other than gzip, 400 if it ends early.
    """
    too_large = HTTPError(413, "too_large", "the request entity is too large")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > bytes_max:
        raise too_large
    unpack = _unpacker(request.headers.getlist("content-encoding"))
    size = 0
    try:
        async with asyncio.timeout(limits.body_s) as bound:
            async for chunk in request.stream():
                _prolong(bound, len(chunk), limits)
                for piece in unpack.pieces(chunk) if unpack else (chunk,):
                    size += len(piece)
                    if size > bytes_max:
                        raise too_large
                    take(piece)
                    if unpack:
                        await asyncio.sleep(0)  # unpacking is slow: let other requests run
    except TimeoutError:
        reason = "the body did not arrive in time"
        raise HTTPError(408, "request_timeout", reason, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise bad_request("the body ended early") from None
    if unpack:
        unpack.check_end()


def _prolong(bound: asyncio.Timeout, size: int, limits: Limits) -> None:
    """Extend the deadline for the bytes received, at most to `body_s` from now."""
    now, before = asyncio.get_running_loop().time(), bound.when()
    if size and before is not None:
        bound.reschedule(min(before + size / limits.body_bytes_per_s, now + limits.body_s))


def _unpacker(encodings: list[str]) -> _Unpacker | None:
    named = [each.strip().lower() for header in encodings for each in header.split(",")]
    named = [each for each in named if each not in ("", "identity")]
    if not named:
        return None
    if named not in (["gzip"], ["x-gzip"]):
        reason = f"Content-Encoding {', '.join(named):.80} is not supported: send gzip, or none"
        raise HTTPError(415, "bad_content_encoding", reason, {"Accept-Encoding": "gzip"})
    return _Unpacker()


class _Unpacker:
    """Unpacks gzip in pieces of a bounded size."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)
        self._packed = self._unpacked = 0

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the unpacked pieces of a chunk. Raises `HTTPError` (400, 413)."""
        self._packed += len(chunk)
        while chunk:
            if self._stream.eof:
                self._stream = zlib.decompressobj(_GZIP)  # gzip allows several members in a row
            try:
                piece = self._stream.decompress(chunk, PIECE_BYTES)
            except zlib.error as e:
                raise bad_request(f"the body is not valid gzip: {e}") from None
            chunk = self._stream.unconsumed_tail or self._stream.unused_data
            self._unpacked += len(piece)
            if self._unpacked > max(RATIO_FREE_BYTES, RATIO_MAX * self._packed):
                reason = f"the body unpacks to more than {RATIO_MAX} times its size"
                raise HTTPError(413, "too_large", reason)
            yield piece

    def check_end(self) -> None:
        """Raise `HTTPError` (400) unless the gzip stream is complete."""
        if not self._stream.eof:
            raise bad_request("the gzip body ended early")


class BodyDrain:
    """An application whose answers reach clients that are still sending the body.

    Closing a connection while the client sends resets it, and the client never sees the answer.
    So the rest of the body is read, within limits.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and read the part of its body that the application did not."""
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        if headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._limits)
        rest_follows = False

        async def sent(message: Message) -> None:
            nonlocal rest_follows
            if message["type"] == "http.response.start" and body.more:
                size = headers.get(b"content-length", b"")
                if size.isdigit() and int(size[:20]) <= READ_FIRST_BYTES:
                    await body.read()
                rest_follows = body.more and CLOSE not in message["headers"]
                if body.more:
                    message = {**message, "headers": [*message["headers"], CLOSE]}
            elif rest_follows and not message.get("more_body"):
                await send({**message, "more_body": True})
                await body.read()
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, body.receive, sent)


class _Body:
    """The unread rest of a body; `more` is whether any is left."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self.more = True

    async def receive(self) -> Message:
        message = await self._receive()
        self.more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def read(self) -> None:
        """Read it to its end, or as far as the limits allow."""
        left = UNREAD_BYTES_MAX
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.body_s) as bound:
                while self.more and left > 0:
                    size = len((await self.receive()).get("body", b""))
                    _prolong(bound, size, self._limits)
                    left -= size


PARSED_AT_ONCE_BYTES = 64 << 10
"""The size of the largest body that is parsed in the loop; a larger one is parsed in a thread."""
VALUE_BYTES = 64
"""The estimated memory of a value within a list or an object, besides its text."""
INVALID_JSON = "invalid UTF-8 JSON"


class NumberTooLongError(ValueError):
    """An integer has more digits than Python parses."""

    def __str__(self) -> str:
        return f"an integer has more than {sys.get_int_max_str_digits()} digits"


def checked_object(value: Any) -> dict[str, Any]:
    """Return a value that is a JSON object. Raises `HTTPError` (400) otherwise."""
    if not isinstance(value, dict):
        raise bad_request("Request body must be a JSON object")
    return value


def decoded(raw: bytes, *, pausing: bool = False) -> Any:
    """Return the value of JSON from a client. Raises `HTTPError` (400)."""
    try:
        return parsed(raw, pausing=pausing)
    except NumberTooLongError as e:
        raise bad_request(str(e)) from None
    except RecursionError:
        raise bad_request("the JSON is nested too deep") from None
    except ValueError:
        raise bad_request(INVALID_JSON) from None


def parsed(raw: bytes, *, pausing: bool = False) -> Any:
    """Return the value of JSON.

    Raises `RecursionError` if it is nested too deep, otherwise `ValueError`: `NumberTooLongError`
    if it is valid except for a long integer.

    The parser holds the interpreter lock. With `pausing`, other threads run between two objects,
    but not within an array of other values.
    """
    text = raw.decode(json.detect_encoding(raw), "surrogatepass")
    try:
        if not pausing or len(raw) <= PARSED_AT_ONCE_BYTES:
            return _DECODER.decode(text)
        with _collector_paused:
            return _PAUSING.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python's, about the digits of an integer
        raise NumberTooLongError from None


def parsed_size(raw: bytes, start: int, end: int) -> int:
    """Return the estimated memory of the value of `raw[start:end]`."""
    values = raw.count(b",", start, end) + raw.count(b"[", start, end) + raw.count(b"{", start, end)
    return end - start + VALUE_BYTES * values


class _CollectorPause:
    """Disables Python's garbage collector while at least one thread is inside.

    The collector would scan all values parsed so far, again and again, and block other threads:
    millions of empty arrays took five times as long. Parsing JSON creates no cyclic garbage.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._was_enabled = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._was_enabled:
                gc.enable()


_collector_paused = _CollectorPause()


def _kept(value: dict[str, Any]) -> dict[str, Any]:
    return value  # a call into Python lets other threads run


def _no_number(text: str) -> None:
    raise json.JSONDecodeError(f"{text} is not valid JSON", text, 0)


_DECODER = json.JSONDecoder(parse_constant=_no_number)
_PAUSING = json.JSONDecoder(parse_constant=_no_number, object_hook=_kept)
