"""One request: its path, query, headers and body, checked and decoded."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import URL, QueryParams
from starlette.requests import Request

from cdcmeta.changes import ChangesDB
from cdcmeta.couch_http import bodies
from cdcmeta.couch_http.bodies import (
    PARSED_AT_ONCE_BYTES,
    checked_object,
    decoded,
    parsed_size,
)
from cdcmeta.couch_http.errors import NO_DATABASE, HTTPError, bad_request, not_found
from cdcmeta.couch_http.service import Service
from cdcmeta.errors import InvalidNameError
from snapkv.web import USER

NAME_RULE = (
    "Name: '{}'. Only lowercase characters (a-z), digits (0-9), and any of the characters "
    "_, $, (, ), +, -, and / are allowed. Must begin with a letter."
)
_NO_QUERY = QueryParams()


class Call:
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
        return whole(name, self.query[name]) if name in self.query else None

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

    def check_no_multipart(self) -> None:
        """Raise `HTTPError` (415) for a document with attachments."""
        if self.request.headers.get("content-type", "").strip().lower().startswith("multipart/"):
            raise HTTPError(415, "bad_content_type", "attachments are not stored: send JSON")

    async def body(self, bytes_max: int | None = None) -> bytes:
        """Return the body; `bytes_max` is `Limits.body_bytes` by default.

        Raises `HTTPError` as `bodies.read`, and 503 when all bodies together are too large.
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

        await bodies.read(self.request, limits, bytes_max, take)
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


def whole(name: str, text: str) -> int:
    """Return a parameter's number. Raises `HTTPError` unless it is a non-negative integer."""
    number = integer(text)
    if number is None:
        raise bad_request(f"The {name} parameter should be an integer")
    if number < 0:
        raise bad_request(f"The {name} value should be a non-negative integer")
    return number
