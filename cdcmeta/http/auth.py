"""Basic authentication: one user, or none at all."""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from cdcmeta.http.answers import refusal
from cdcmeta.http.errors import HTTPError

OPEN = frozenset({"/_up"})
"""Paths that tell nothing, and answer everyone."""
CHALLENGE = {"WWW-Authenticate": 'Basic realm="cdcmeta"'}


@dataclass(frozen=True, slots=True)
class Login:
    """Who may come in."""

    user: str
    password: str = field(repr=False)

    def admits(self, header: str) -> bool:
        """Return whether a header `Authorization` is theirs; how long it takes tells nothing."""
        scheme, _, credentials = header.partition(" ")
        try:
            given = b64decode(credentials.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        ours = f"{self.user}:{self.password}".encode()
        return scheme.lower() == "basic" and hmac.compare_digest(given, ours)


class Guarded:
    """An application behind a login."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app, self._login = app, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        reason = self._refused(scope) if scope["type"] == "http" else None
        if reason is None:
            await self._app(scope, receive, send)
        else:
            answer = refusal(HTTPError(401, "unauthorized", reason, CHALLENGE))
            await answer(scope, receive, send)

    def _refused(self, scope: Scope) -> str | None:
        given = dict(scope["headers"]).get(b"authorization")
        if scope["path"] in OPEN:
            return None
        if given is None:
            return "Authentication required."
        if self._login.admits(given.decode("latin-1")):
            return None
        return "Name or password is incorrect."
