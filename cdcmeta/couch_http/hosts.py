"""Host names: who asks this machine under a name that is not its own was led here.

A page of another site can have its own name resolved to 127.0.0.1 (DNS rebinding), and then ask
what listens there as if it were that site. The header Host still tells its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from cdcmeta.couch_http.answers import refusal
from cdcmeta.couch_http.errors import HTTPError

_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?")


class Addressed:
    """An application for who asks this machine by a name of its own, or one that is allowed."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = {"localhost", *(name.lower() for name in allowed)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] != "http" or self._is_ours(dict(scope["headers"]).get(b"host", b"")):
            await self._app(scope, receive, send)
        else:
            reason = "This server is not known by that host name (see --allow-host)."
            await refusal(HTTPError(403, "forbidden", reason))(scope, receive, send)

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
