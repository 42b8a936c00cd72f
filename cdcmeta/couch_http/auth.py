"""Access to a server: the login, its cookies, host names, and origins of pages.

A request proves the login by basic authentication or by a cookie.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdcmeta.couch_http.errors import HTTPError
from cdcmeta.couch_http.streaming import error_answer
from cdcmeta.errors import InvalidArgumentError
from snapkv.clock import Clock, SystemClock

# --- the login: one user, and its cookies ---
#
# A cookie is signed and expires. Checking it needs no stored state: its key is derived from the
# password and the store's id. So servers of one store accept each other's cookies, a restart keeps
# them valid, and a new password invalidates them. The key is expensive to derive, so a cookie is of
# little use for guessing the password.

COOKIE = "AuthSession"
VALID_S = 600
"""How long a cookie is valid. Use renews it."""
_MAC_BYTES = 32


@dataclass(frozen=True, slots=True)
class Login:
    """The one user of a server. Raises `InvalidArgumentError` without a user or a password."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        both = (self.user, self.password)
        if not all(isinstance(text, str) and text for text in both) or ":" in self.user:
            raise InvalidArgumentError(
                "a login needs a user without a colon and a password; neither may be empty"
            )
        try:
            "".join(both).encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError("the user or the password is not valid UTF-8") from None

    def admits(self, header: str) -> bool:
        """Return whether an `Authorization` header has this login, in constant time."""
        scheme, _, credentials = header.partition(" ")
        try:
            given = b64decode(credentials.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        ours = f"{self.user}:{self.password}".encode()
        return scheme.lower() == "basic" and hmac.compare_digest(given, ours)

    def matches(self, user: str, password: str) -> bool:
        """Return whether a name and a password are this login's, in constant time."""
        given = f"{user}:{password}".encode(errors="surrogatepass")
        ours = f"{self.user}:{self.password}".encode()
        return ":" not in user and hmac.compare_digest(given, ours)


class Cookies:
    """Makes and checks the cookies of a login."""

    def __init__(self, login: Login, salt: str, clock: Clock | None = None) -> None:
        self._user = login.user.encode()
        self._key = hashlib.scrypt(
            login.password.encode(), salt=f"{COOKIE} {salt}".encode(), n=2**14, r=8, p=1
        )
        self._clock = clock or SystemClock()

    def made(self) -> str:
        """Return the header Set-Cookie with a new cookie."""
        until = self._now_s() + VALID_S
        value = urlsafe_b64encode(self._signed(until)).decode().rstrip("=")
        return _header(value, VALID_S, until)

    def left_s(self, value: str) -> int:
        """Return for how many seconds a cookie's value is still valid, 0 if it is not.

        Takes constant time.
        """
        try:
            raw = urlsafe_b64decode(value + "=" * (-len(value) % 4))
            until = int(raw[: -_MAC_BYTES - 1], 16)
        except (ValueError, binascii.Error):
            return 0
        if not hmac.compare_digest(raw, self._signed(until)):
            return 0
        return max(0, min(VALID_S, until - self._now_s()))

    def _signed(self, until: int) -> bytes:
        mac = hmac.digest(self._key, b"%x:%b" % (until, self._user), hashlib.sha256)
        return b"%x:%b" % (until, mac)

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1_000


def removed() -> str:
    """Return the header Set-Cookie that makes a client forget its cookie."""
    return _header("", 0, 0)


def _header(value: str, seconds: int, until: int) -> str:
    """Return a cookie that scripts cannot read, and that pages of other sites do not send.

    It has both attributes for its end, because the client nano reads only the older one.
    """
    end = f"Expires={formatdate(until, usegmt=True)}; Max-Age={seconds}"
    return f"{COOKIE}={value}; Version=1; {end}; Path=/; HttpOnly; SameSite=Strict"


OPEN = frozenset({"/_up", "/_session"})
"""Paths that need no login."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CHALLENGE = {"WWW-Authenticate": 'Basic realm="cdcmeta"'}
REQUIRED = "Authentication required."
WRONG = "Name or password is incorrect."
ELSEWHERE = "A page of another origin may not use the login of this browser (see --cors-origin)."


class LoginCheck:
    """An application behind a login.

    A browser adds the cookie to requests of every page of this host, including pages from another
    port. So a request that changes data with a cookie must come from this server's own origin or
    from one of `origins`.
    """

    def __init__(
        self, app: ASGIApp, login: Login, cookies: Cookies, origins: Collection[str] = ()
    ) -> None:
        self._app, self._login, self._cookies = app, login, cookies
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401 or 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        headers = connection.headers
        how, left_s = self._login_of(connection)
        refused = self._rejection(scope, headers, how)
        if refused is not None:
            await error_answer(refused)(scope, receive, send)
            return
        scope["cdcmeta.user"] = (self._login.user if how else None, how)
        sent = self._renewing(send) if how == "cookie" and left_s < 0.9 * VALID_S else send
        await self._app(scope, receive, sent)

    def _login_of(self, connection: HTTPConnection) -> tuple[str | None, int]:
        """Return how the request proves the login, and for how long its cookie is still valid."""
        header = connection.headers.get("authorization")
        if header is not None:
            return ("default" if self._login.admits(header) else None), 0
        left_s = self._cookies.left_s(connection.cookies.get(COOKIE, ""))
        return ("cookie" if left_s else None), left_s

    def _rejection(self, scope: Scope, headers: Headers, how: str | None) -> HTTPError | None:
        if scope["path"] in OPEN:
            return None
        if how is None:
            reason = WRONG if "authorization" in headers else REQUIRED
            return HTTPError(401, "unauthorized", reason, {} if _is_script(headers) else CHALLENGE)
        if how == "cookie" and scope["method"] not in SAFE and not self._is_near(headers):
            return HTTPError(403, "forbidden", ELSEWHERE)
        return None

    def _is_near(self, headers: Headers) -> bool:
        """Return whether a request comes from no page, or from one of an allowed origin."""
        origin = headers.get("origin")
        if origin is None or origin in self._origins:
            return True
        return origin.partition("://")[2] == headers.get("host")

    def _renewing(self, send: Send) -> Send:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "set-cookie" not in headers:  # a login or logout sets its own
                    headers["set-cookie"] = self._cookies.made()
            await send(message)

        return sent


def _is_script(headers: Headers) -> bool:
    """Return whether a script of a page sent this; a challenge would block it with a dialog."""
    return "origin" in headers or headers.get("sec-fetch-mode", "navigate") != "navigate"


# --- host names ---
#
# Another site can resolve its own name to 127.0.0.1 (DNS rebinding). Its pages can then send
# requests to this server as if it were that site. The Host header of such a request still has the
# site's name.

_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?")


class HostCheck:
    """Rejects requests whose Host header is neither this machine's nor an allowed name."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = {"localhost", *(name.lower() for name in allowed)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] != "http" or self._is_ours(dict(scope["headers"]).get(b"host", b"")):
            await self._app(scope, receive, send)
        else:
            reason = "This server is not known by that host name (see --allow-host)."
            await error_answer(HTTPError(403, "forbidden", reason))(scope, receive, send)

    def _is_ours(self, header: bytes) -> bool:
        found = _HOST.fullmatch(header.decode("latin-1").lower())
        if found is None:
            return False
        name = found[1] or found[2]
        return name in self._allowed or _is_loopback(name)


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


# --- origins: the other sites whose pages may use a server from a browser (CORS) ---

ANY = "*"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "COPY")
HEADERS = (
    *("Accept", "Authorization", "Content-Encoding", "Content-Type", "Destination", "If-Match"),
    *("If-None-Match", "Last-Event-ID", "Origin", "X-Requested-With"),
)
EXPOSED = ("Cache-Control", "Content-Type", "ETag", "Location")
AGE_S = 600
_ORIGIN = re.compile(r"https?://[^\s/?#@,*\"<>]+", re.ASCII)


def checked_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """Return origins as browsers send them. Raises `InvalidArgumentError`."""
    found = tuple(dict.fromkeys(origins))
    for origin in found:
        if origin != ANY and (not _ORIGIN.fullmatch(origin) or origin != origin.lower()):
            raise InvalidArgumentError(
                f"{origin!r} is not an origin: give SCHEME://HOST[:PORT] in lower case, without a "
                "path, or * for every page"
            )
    if ANY in found and len(found) > 1:
        raise InvalidArgumentError("* means every origin: give it alone")
    return found


def with_cors(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Return an application that answers pages of these origins with CORS headers.

    Pages of named origins may use the browser's login; with `*` no page may.
    """
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_credentials=ANY not in origins,
        allow_methods=METHODS,
        allow_headers=HEADERS,
        expose_headers=EXPOSED,
        max_age=AGE_S,
    )
