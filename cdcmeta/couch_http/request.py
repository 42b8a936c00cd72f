"""One request: what its path, query, headers and body say."""

from __future__ import annotations

import gc
import json
import sys
import threading
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import URL, QueryParams
from starlette.requests import Request

from cdcmeta.changes import ChangesDB
from cdcmeta.couch_http import bodies
from cdcmeta.couch_http.errors import NO_DATABASE, HTTPError, bad_request, not_found
from cdcmeta.couch_http.service import Service
from cdcmeta.errors import InvalidNameError

NAME_RULE = (
    "Name: '{}'. Only lowercase characters (a-z), digits (0-9), and any of the characters "
    "_, $, (, ), +, -, and / are allowed. Must begin with a letter."
)
PARSED_AT_ONCE_BYTES = 64 << 10
"""A larger body is parsed in a thread."""
VALUE_BYTES = 64
"""About the memory that a value within a list or an object takes, besides its text."""
INVALID_JSON = "invalid UTF-8 JSON"
_NO_QUERY = QueryParams()


class NumberTooLongError(ValueError):
    """An integer has more digits than Python takes."""

    def __str__(self) -> str:
        return f"an integer has more than {sys.get_int_max_str_digits()} digits"


class Call:
    """A request to a service."""

    def __init__(self, service: Service, request: Request) -> None:
        self.service, self.request = service, request
        self.query = request.query_params if request.scope.get("query_string") else _NO_QUERY
        self._body_bytes = self._parsed_bytes = 0

    @property
    def user(self) -> tuple[str | None, str | None]:
        """Who asks, and how that is known: `default` or `cookie`; None where it is not known."""
        found: tuple[str | None, str | None] = self.request.scope.get("cdcmeta.user", (None, None))
        return found

    @property
    def base_url(self) -> str:
        """The server's URL as the client wrote it, with a slash behind."""
        scope, host = self.request.scope, self.request.headers.get("host")
        server = tuple(scope.get("server") or ())
        return _base_url(scope.get("scheme", "http"), server, scope.get("root_path", ""), host)

    # --- path ---

    def part(self, name: str) -> str:
        """Return a part of the path, decoded: `%2F` stands for a slash in it."""
        try:
            return unquote(self.request.path_params[name], errors="strict")
        except UnicodeDecodeError:
            raise bad_request("the path is no UTF-8") from None

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
        """The database that the path names; nobody was asked for it yet.

        Raises `HTTPError`: 400 if one that is made cannot have this name, otherwise 404.
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
        """Return whether a parameter is true; anything else is false, as in CouchDB."""
        return self.query.get(name) == "true"

    def number(self, name: str) -> int | None:
        """Return a parameter that is a number, not negative."""
        return whole(name, self.query[name]) if name in self.query else None

    def json_of(self, name: str) -> Any:
        """Return a parameter that is JSON."""
        return decoded(self.query[name].encode(errors="surrogatepass"))

    @property
    def as_of(self) -> str | None:
        """The time that is asked about; None for now."""
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
        """Return whether the header If-None-Match says that the client has this answer already.

        Proxies that pack answers make the tags weak (`W/"..."`).
        """
        tags = ",".join(self.request.headers.getlist("if-none-match")).split(",")
        return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in tags)

    # --- body ---

    def check_json(self) -> None:
        """Raise `HTTPError` (415) unless the body is said to be JSON.

        Pages of other sites can make a browser post anything but that.
        """
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPError(415, "bad_content_type", "Content-Type must be application/json")

    def check_no_multipart(self) -> None:
        """Raise `HTTPError` (415) for a document that comes with attachments beside it."""
        if self.request.headers.get("content-type", "").strip().lower().startswith("multipart/"):
            raise HTTPError(415, "bad_content_type", "attachments are not stored: send JSON")

    async def body(self, bytes_max: int | None = None) -> bytes:
        """Return the body; `bytes_max` is `Limits.body_bytes` by default.

        Raises `HTTPError` as `bodies.read`, and when there are too many at once (503).
        """
        room, limits = self.service.room, self.service.limits
        small_max = min(limits.body_bytes, room.size)
        large_max = max(small_max, room.size_of_large)
        bytes_max = small_max if bytes_max is None else min(bytes_max, large_max)
        found = bytearray()

        def take(piece: bytes) -> None:
            room.take(len(piece), large=len(found) + len(piece) > small_max)
            self._body_bytes += len(piece)
            found.extend(piece)

        await bodies.read(self.request, limits, bytes_max, take)
        return bytes(found)

    def take_for_values(self, size: int) -> None:
        """Take room for values that are parsed. Raises `HTTPError` (503) when there is none."""
        self.service.parsed_room.take(size)
        self._parsed_bytes += size

    async def object(self) -> dict[str, Any]:
        """Return the JSON object of the body."""
        return checked_object(await self._parsed(await self.body()))

    async def value(self) -> Any:
        """Return the JSON value of the body."""
        return await self._parsed(await self.body())

    async def posted(self) -> dict[str, Any]:
        """Return the JSON object that goes with a POST; it may be left out."""
        if self.request.method != "POST":
            return {}
        self.check_json()
        raw = await self.body()
        return checked_object(await self._parsed(raw)) if raw else {}

    async def _parsed(self, raw: bytes) -> Any:
        """Return a body's value; while a large one is parsed, others are served."""
        self.take_for_values(parsed_size(raw, 0, len(raw)))
        if len(raw) <= PARSED_AT_ONCE_BYTES:
            return decoded(raw)
        return await self.service.call(decoded, raw, pausing=True)

    def close(self) -> None:
        """Give back the room of the body: nobody needs it once the answer begins."""
        self.service.room.give_back(self._body_bytes)
        self.service.parsed_room.give_back(self._parsed_bytes)
        self._body_bytes = self._parsed_bytes = 0


@lru_cache(maxsize=64)
def _base_url(scheme: str, server: tuple[Any, ...], root_path: str, host: str | None) -> str:
    headers = [] if host is None else [(b"host", host.encode("latin-1"))]
    path = root_path.rstrip("/") + "/"
    scope = {"scheme": scheme, "server": server or None, "path": path, "headers": headers}
    return str(URL(scope=scope))


def checked_object(value: Any) -> dict[str, Any]:
    """Return a value when it is a JSON object."""
    if not isinstance(value, dict):
        raise bad_request("Request body must be a JSON object")
    return value


def decoded(raw: bytes, *, pausing: bool = False) -> Any:
    """Return the value of JSON that comes from a client. Raises `HTTPError` (400)."""
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

    Raises `RecursionError` if it is too deep, otherwise `ValueError`: `NumberTooLongError` if it is
    valid up to a long integer.

    The parser keeps the interpreter to itself; with `pausing` other threads get it between two
    objects, though not within an array of anything else.
    """
    text = raw.decode(json.detect_encoding(raw), "surrogatepass")
    try:
        if not pausing or len(raw) <= PARSED_AT_ONCE_BYTES:
            return _DECODER.decode(text)
        with _uncollected:
            return _PAUSING.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python's, about the digits of an integer
        raise NumberTooLongError from None


def parsed_size(raw: bytes, start: int, end: int) -> int:
    """Return about how much memory the value of some JSON takes."""
    values = raw.count(b",", start, end) + raw.count(b"[", start, end) + raw.count(b"{", start, end)
    return end - start + VALUE_BYTES * values


class _Uncollected:
    """Puts Python's garbage collector off while one thread or more are inside.

    It would look through all that was parsed so far, again and again, and let nobody else run:
    millions of empty arrays took five times as long. Nothing that JSON gives is garbage.
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


_uncollected = _Uncollected()


def _kept(value: dict[str, Any]) -> dict[str, Any]:
    return value  # that this is Python is what it is for


def _no_number(text: str) -> None:
    raise json.JSONDecodeError(f"{text} is no JSON", text, 0)


_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_no_number)
_PAUSING = json.JSONDecoder(parse_constant=_no_number, object_hook=_kept)


def encoded(value: Any) -> bytes:
    """Return a value as JSON."""
    return _ENCODER.encode(value).encode()


def integer(text: str) -> int | None:
    """Return the number that a text is; None when it is none, or longer than any of ours."""
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and text.isascii() and len(text) <= 18 else None


def whole(name: str, text: str) -> int:
    """Return a parameter's number. Raises `HTTPError` unless it is one that is not negative."""
    number = integer(text)
    if number is None:
        raise bad_request(f"The {name} parameter should be an integer")
    if number < 0:
        raise bad_request(f"The {name} value should be a non-negative integer")
    return number
