"""A client of one CouchDB database: a connection, JSON requests, and errors without the login."""

from __future__ import annotations

import base64
import io
import json
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import socket
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from cdcmeta.errors import InvalidArgumentError, SinkError
from snapkv.base.waiting import monotonic

T = TypeVar("T")
SCHEMES = ("couch+http://", "couch+https://")
USER, PASSWORD = "CDCMETA_SINK_USER", "CDCMETA_SINK_PASSWORD"
ANSWER_BYTES_MAX = 16 << 20
PIECE_BYTES = 64 << 10
REASON_CHARS_MAX = 200
_PATH = re.compile(r"(?:/[A-Za-z0-9%_.~$()+,;=:@!*'&-]+)+")
_HINTS = {
    401: f"set {USER} and {PASSWORD} to a user that may write there",
    403: f"set {USER} and {PASSWORD} to a user that may write there",
    404: "check the URL of the sink, and whether the database was deleted",
    413: "raise the server's limit of a request",
    429: "the server limits requests; they are sent again later",
}


class CouchDatabase:
    """A database that a URL names, and the login from the environment.

    >>> CouchDatabase("couch+http://127.0.0.1:5984/mirror", {})
    CouchDatabase('http://127.0.0.1:5984/mirror')

    Raises `InvalidArgumentError` for a URL that names no database, or that has a login.
    """

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        if "@" in url:
            raise InvalidArgumentError(
                f"the URL of a CouchDB sink has a login: leave it out, set {USER} and {PASSWORD}"
            )
        try:
            parts = urlsplit(url.removeprefix("couch+"))
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        self.path = parts.path.rstrip("/")
        unused = parts.query or parts.fragment
        if not host or unused or not _PATH.fullmatch(self.path) or not url.startswith(SCHEMES):
            raise InvalidArgumentError(
                f"{url!r} is not a URL of a CouchDB database: give couch+http://HOST:PORT/DATABASE "
                "or couch+https://HOST/DATABASE, percent-encoded"
            )
        self.url = f"{parts.scheme}://{parts.netloc}{self.path}"
        """Where the database is, for messages."""
        self._host, self._port = host, port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        user, password = environment.get(USER, ""), environment.get(PASSWORD, "")
        if bool(user) != bool(password) or ":" in user:
            raise InvalidArgumentError(
                f"a login needs both {USER}, without a colon, and {PASSWORD}; or set neither"
            )
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.secrets = (pair, password) if password else ()
        self.headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if password:
            self.headers["Authorization"] = f"Basic {pair}"

    def __repr__(self) -> str:
        return f"CouchDatabase({self.url!r})"

    def connection(self, timeout: float) -> HTTPConnection:
        """Return a connection that is not open yet."""
        if self._tls is not None:
            return HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        return HTTPConnection(self._host, self._port, timeout=timeout)


class CouchAnswer(NamedTuple):
    """The status and the JSON of an answer."""

    status: int
    value: Any


class CouchClient:
    """Sends requests to a database, over a connection that is opened when it is needed.

    `write_s` bounds all requests after `begin_call` together, in seconds, however slowly an answer
    comes. Every request may be sent twice: a server may close an idle connection at any time.
    """

    def __init__(self, database: CouchDatabase, write_s: float) -> None:
        self.database, self._write_s = database, write_s
        self._connection: HTTPConnection | None = None
        self._deadline = monotonic() + write_s

    def begin_call(self) -> None:
        """Begin to count the time of the requests that follow."""
        self._deadline = monotonic() + self._write_s

    def request(self, method: str, path: str, body: bytes | None = None) -> CouchAnswer:
        """Return the answer; `path` is that below the database, or empty.

        Raises `SinkError` without an answer in time, or for one that is not JSON.
        """
        is_reused = self._connection is not None
        try:
            status, raw = self._sent(method, path, body)
        except (OSError, HTTPException) as e:
            self.close()
            if is_reused and not isinstance(e, TimeoutError):
                return self.request(method, path, body)
            hint = "check the URL of the sink, and that the server runs"
            if isinstance(e, TimeoutError):
                raise self.error(f"did not answer within {self._write_s:g} s", hint=hint) from e
            raise self.error("cannot be reached", str(e) or type(e).__name__, hint) from e
        except BaseException:
            self.close()
            raise
        try:
            return CouchAnswer(status, json.loads(raw))
        except (ValueError, RecursionError):
            text = raw[:REASON_CHARS_MAX].decode(errors="replace")
            if status < 300:
                raise self.error(f"answers {method} with a body that is not JSON", text) from None
            return CouchAnswer(status, {"reason": text})

    def listed(
        self, method: str, path: str, read: Callable[[list[Any]], T], body: bytes | None = None
    ) -> T:
        """Return what `read` returns of the rows of a listing. Raises as `request`."""
        answer = self.request(method, path, body)
        if answer.status != 200:
            raise self.rejected("a list of documents", answer)
        try:
            return read(answer.value["rows"])
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self.error("lists documents in an unknown format") from None

    def rejected(self, what: str, answer: CouchAnswer) -> SinkError:
        """Return the error of a request that the server rejected."""
        value = answer.value if isinstance(answer.value, dict) else {}
        words = [str(value[each]) for each in ("error", "reason") if value.get(each)]
        status, hint = answer.status, _HINTS.get(answer.status)
        if hint is None:
            hint = "look into the log of the server" if status >= 500 else "is it a CouchDB server?"
        return self.error(f"rejects {what} with status {status}", ": ".join(words), hint)

    def error(self, what: str, text: str = "", hint: str = "is it a CouchDB server?") -> SinkError:
        """Return an error that names the database; `text` is the server's."""
        for secret in self.database.secrets:
            text = text.replace(secret, "***")
        shown = f" ({text[:REASON_CHARS_MAX]})" if text else ""
        return SinkError(f"{self.database.url} {what}{shown}: {hint}")

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _sent(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        left, connection = _left(self._deadline), self._connection
        if connection is None:
            connection = self._connection = self.database.connection(left)
            connection.connect()
        deadline = self._deadline

        def response(sock: socket, *rest: Any, **named: Any) -> HTTPResponse:
            return HTTPResponse(cast(socket, _Timed(sock, deadline)), *rest, **named)

        connection.response_class = cast(type[HTTPResponse], response)
        target = f"{self.database.path}/{path}" if path else self.database.path
        headers = {**self.database.headers, "Content-Length": str(len(body or b""))}
        pieces = _pieces(connection.sock, body or b"", deadline)
        is_sent = False
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before
            connection.request(method, target, pieces, headers)
            is_sent = True
        with connection.getresponse() as answer:
            raw = answer.read(ANSWER_BYTES_MAX + 1)
            if len(raw) > ANSWER_BYTES_MAX:
                raise self.error(f"answers {method} with more than {ANSWER_BYTES_MAX} bytes")
            if answer.will_close or not is_sent:
                self.close()
            return answer.status, raw


def _pieces(sock: socket, body: bytes, deadline: float) -> Iterator[bytes]:
    """Yield a body in pieces, each of which has what is left of the time to be sent."""
    sock.settimeout(_left(deadline))
    for at in range(0, len(body), PIECE_BYTES):
        yield body[at : at + PIECE_BYTES]
        sock.settimeout(_left(deadline))


class _Timed:
    """A socket for `HTTPResponse`, whose reads end at a deadline, also if bytes trickle in."""

    def __init__(self, sock: socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a file of the answer; `mode` is "rb"."""
        return io.BufferedReader(_TimedReads(self._sock, self._deadline))


class _TimedReads(io.RawIOBase):
    def __init__(self, sock: socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open until it is closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._deadline))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _left(deadline: float) -> float:
    """Return the seconds left. Raises `TimeoutError` if none are."""
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("no time is left")
    return left
