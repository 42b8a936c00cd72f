"""One request: what its path, query, headers and body say."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import anyio
from starlette.requests import ClientDisconnect, Request

from cdcmeta.changes import ChangesDB
from cdcmeta.errors import InvalidNameError
from cdcmeta.http.errors import HTTPError, bad_request
from cdcmeta.http.service import Service

NAME_RULE = (
    "Name: '{}'. Only lowercase characters (a-z), digits (0-9), and any of the characters "
    "_, $, (, ), +, -, and / are allowed. Must begin with a letter."
)
PARSED_AT_ONCE_BYTES = 64 << 10
"""A larger body is parsed in a thread."""


class Call:
    """A request to a service."""

    def __init__(self, service: Service, request: Request) -> None:
        self.service, self.request = service, request
        self.query = request.query_params
        self._taken = 0

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
        """The database that the path names; nobody was asked for it yet."""
        name = self.part("db")
        try:
            return self.service.database(name)
        except InvalidNameError:
            raise HTTPError(400, "illegal_database_name", NAME_RULE.format(name)) from None

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

    # --- body ---

    def check_json(self) -> None:
        """Raise `HTTPError` (415) unless the body is said to be JSON.

        Pages of other sites can make a browser post anything but that.
        """
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPError(415, "bad_content_type", "Content-Type must be application/json")

    async def body(self) -> bytes:
        """Return the body.

        Raises `HTTPError` when it is too large (413) or too slow (408), or when there are too
        many at once (503).
        """
        limits = self.service.limits
        too_large = HTTPError(413, "too_large", "the request entity is too large")
        length = self.request.headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > limits.body_bytes:
            raise too_large
        found = bytearray()
        try:
            with anyio.fail_after(limits.body_s):
                async for chunk in self.request.stream():
                    if len(found) + len(chunk) > limits.body_bytes:
                        raise too_large
                    self.service.room.take(len(chunk))
                    self._taken += len(chunk)
                    found += chunk
        except TimeoutError:
            raise HTTPError(408, "request_timeout", "the body did not come in time") from None
        except ClientDisconnect:
            raise bad_request("the body ended early") from None
        return bytes(found)

    async def object(self) -> dict[str, Any]:
        """Return the JSON object of the body."""
        return checked_object(await self._parsed(await self.body()))

    async def posted(self) -> dict[str, Any]:
        """Return the JSON object that goes with a POST; it may be left out."""
        if self.request.method != "POST":
            return {}
        self.check_json()
        raw = await self.body()
        return checked_object(await self._parsed(raw)) if raw else {}

    async def _parsed(self, raw: bytes) -> Any:
        """Return a body's value; while a large one is parsed, others are served."""
        if len(raw) <= PARSED_AT_ONCE_BYTES:
            return decoded(raw)
        return await self.service.call(decoded, raw, pausing=True)

    def close(self) -> None:
        """Give back the room of the body: nobody needs it once the answer begins."""
        self.service.room.give_back(self._taken)
        self._taken = 0


def checked_object(value: Any) -> dict[str, Any]:
    """Return a value when it is a JSON object."""
    if not isinstance(value, dict):
        raise bad_request("Request body must be a JSON object")
    return value


def decoded(raw: bytes, *, pausing: bool = False) -> Any:
    """Return the value of JSON that comes from a client.

    The parser keeps the interpreter to itself; with `pausing` other threads get it between two
    objects, though not within an array of anything else.
    """
    try:
        return json.loads(raw, parse_constant=_no_number, object_hook=_kept if pausing else None)
    except (ValueError, RecursionError):
        raise bad_request("invalid UTF-8 JSON") from None


def _kept(value: dict[str, Any]) -> dict[str, Any]:
    return value  # that this is Python is what it is for


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def encoded(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


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
