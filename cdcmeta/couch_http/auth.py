"""The guard: requests show the login by basic authentication or by a cookie."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdcmeta.couch_http.answers import refusal
from cdcmeta.couch_http.errors import HTTPError
from cdcmeta.couch_http.login import COOKIE, VALID_S, Cookies, Login

OPEN = frozenset({"/_up", "/_session"})
"""Paths that answer everyone."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CHALLENGE = {"WWW-Authenticate": 'Basic realm="cdcmeta"'}
REQUIRED = "Authentication required."
WRONG = "Name or password is incorrect."
ELSEWHERE = "A page of another origin may not use the login of this browser (see --cors-origin)."


class Guarded:
    """An application behind a login.

    A browser adds its cookie to requests of every page of this host, also of pages that were
    served at another port. So a request that changes something with a cookie must come from this
    server's own origin, or from one of `origins`.
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
        how, left_s = self._shown(connection)
        refused = self._refused(scope, headers, how)
        if refused is not None:
            await refusal(refused)(scope, receive, send)
            return
        scope["cdcmeta.user"] = (self._login.user if how else None, how)
        sent = self._renewing(send) if how == "cookie" and left_s < 0.9 * VALID_S else send
        await self._app(scope, receive, sent)

    def _shown(self, connection: HTTPConnection) -> tuple[str | None, int]:
        """Return how the login is shown, and for how long a cookie is still valid."""
        given = connection.headers.get("authorization")
        if given is not None:
            return ("default" if self._login.admits(given) else None), 0
        left_s = self._cookies.left_s(connection.cookies.get(COOKIE, ""))
        return ("cookie" if left_s else None), left_s

    def _refused(self, scope: Scope, headers: Headers, how: str | None) -> HTTPError | None:
        if scope["path"] in OPEN:
            return None
        if how is None:
            reason = WRONG if "authorization" in headers else REQUIRED
            return HTTPError(401, "unauthorized", reason, {} if _is_script(headers) else CHALLENGE)
        if how == "cookie" and scope["method"] not in SAFE and not self._is_near(headers):
            return HTTPError(403, "forbidden", ELSEWHERE)
        return None

    def _is_near(self, headers: Headers) -> bool:
        """Return whether a request does not come from a page of a foreign origin."""
        origin = headers.get("origin")
        if origin is None or origin in self._origins:
            return True
        return origin.partition("://")[2] == headers.get("host")

    def _renewing(self, send: Send) -> Send:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "set-cookie" not in headers:  # else it logs in or out
                    headers["set-cookie"] = self._cookies.made()
            await send(message)

        return sent


def _is_script(headers: Headers) -> bool:
    """Return whether a page's script asks: a challenge would stop it and open a dialog."""
    return "origin" in headers or headers.get("sec-fetch-mode", "navigate") != "navigate"
