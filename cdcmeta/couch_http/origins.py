"""Origins: pages of which other sites may use a server from a browser (CORS)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from cdcmeta.errors import InvalidArgumentError

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
        raise InvalidArgumentError("* stands for every origin: give it alone")
    return found


def shared(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Return an application that browsers let pages of these origins use.

    Named origins may use the browser's login there; every page (`*`) may not.
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
