"""Access to a server: its login, the host names of its requests, and the origins of pages.

A check is an application around another: it passes a request on, or answers it with an error. The
server's own function makes that answer, in the format of its clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import ip_address
from typing import TypeAlias

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from snapkv.web.login import Cookies

ErrorAnswer: TypeAlias = Callable[[int, str, Mapping[str, str]], ASGIApp]
"""Makes the answer for a status, a reason, and headers."""
USER = "snapkv.user"
"""The name in a scope of the user and how the request proves the login: `basic`, `cookie` or
None."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""The methods that change nothing."""
REQUIRED = "Authentication required."
WRONG = "Name or password is incorrect."
ELSEWHERE = "A page of another origin may not use the login of this browser."
UNKNOWN_HOST = "This server is not known by that host name (see --allow-host)."


class LoginCheck:
    """An application behind a login.

    A request proves the login by basic authentication or by a cookie. A cookie in use is renewed.
    With `cookie_for_basic`, basic authentication returns a cookie, too: browsers repeat the
    password only for paths below the first one, and a script gets no challenge.

    A browser adds the cookie to requests of every page of this host, including pages from another
    port. So a request that changes data with a cookie must come from this server's own origin or
    from one of `origins`; with None another check does that. `open_paths` need no login.
    """

    def __init__(
        self,
        app: ASGIApp,
        cookies: Cookies,
        answer: ErrorAnswer,
        *,
        realm: str = "snapkv",
        open_paths: Collection[str] = (),
        origins: Collection[str] | None = (),
        elsewhere: str = ELSEWHERE,
        cookie_for_basic: bool = False,
    ) -> None:
        self._app, self._cookies, self._answer = app, cookies, answer
        self._challenge = {"WWW-Authenticate": f'Basic realm="{realm}"'}
        self._open_paths, self._origins, self._elsewhere = frozenset(open_paths), origins, elsewhere
        self._renewed_for = {"cookie", "basic"} if cookie_for_basic else {"cookie"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401 or 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        how, left_s = self._login_of(connection)
        refused = self._rejection(scope, connection.headers, how)
        if refused is not None:
            await refused(scope, receive, send)
            return
        scope[USER] = (self._cookies.login.user if how else None, how)
        renewed = how in self._renewed_for and left_s < 0.9 * self._cookies.valid_s
        await self._app(scope, receive, self._renewing(send) if renewed else send)

    def _login_of(self, connection: HTTPConnection) -> tuple[str | None, int]:
        """Return how the request proves the login, and for how long its cookie is still valid."""
        left_s = self._cookies.left_s(connection.cookies.get(self._cookies.name, ""))
        header = connection.headers.get("authorization")
        if header is not None:
            return ("basic" if self._cookies.login.admits(header) else None), left_s
        return ("cookie" if left_s else None), left_s

    def _rejection(self, scope: Scope, headers: Headers, how: str | None) -> ASGIApp | None:
        if scope["path"] in self._open_paths:
            return None
        if how is None:
            reason = WRONG if "authorization" in headers else REQUIRED
            return self._answer(401, reason, {} if _is_script(headers) else self._challenge)
        changes = how == "cookie" and scope["method"] not in SAFE
        if changes and self._origins is not None and not is_near(headers, self._origins):
            return self._answer(403, self._elsewhere, {})
        return None

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


def is_near(headers: Headers, origins: Collection[str] = ()) -> bool:
    """Return whether a request comes from no page, or from one of this server or of `origins`."""
    origin = headers.get("origin")
    if origin is None or origin in origins:
        return True
    return origin.partition("://")[2] == headers.get("host")


# --- host names ---
#
# Another site can resolve its own name to 127.0.0.1 (DNS rebinding). Its pages can then send
# requests to this server as if it were that site. The Host header of such a request still has the
# site's name.

_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?")


class HostCheck:
    """Rejects requests whose Host header is neither this machine's nor an allowed name."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str], answer: ErrorAnswer) -> None:
        self._app, self._answer = app, answer
        self._allowed = {"localhost", *(name.lower() for name in allowed)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] != "http" or self._is_ours(dict(scope["headers"]).get(b"host", b"")):
            await self._app(scope, receive, send)
        else:
            await self._answer(403, UNKNOWN_HOST, {})(scope, receive, send)

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
