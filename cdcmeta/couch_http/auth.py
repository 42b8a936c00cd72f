"""CouchDB's terms for access to a server: its cookie, its open paths, its errors, and CORS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from cdcmeta.couch_http.errors import HTTPError, own_errors
from cdcmeta.couch_http.streaming import error_answer
from cdcmeta.errors import InvalidArgumentError
from snapkv import web
from snapkv.web import ELSEWHERE, HostCheck, LoginCheck

OPEN = frozenset({"/_up", "/_session"})
"""Paths that need no login."""
_WORDS = {401: "unauthorized", 403: "forbidden"}


class Login(web.Login):
    """The one user of a server. Raises `InvalidArgumentError` without a user or a password."""

    __slots__ = ()

    def __post_init__(self) -> None:
        with own_errors():
            super().__post_init__()


def with_login(
    app: ASGIApp, login: web.Login, cookies: web.Cookies, origins: tuple[str, ...]
) -> ASGIApp:
    """Return an application behind a login."""
    return LoginCheck(
        app,
        login,
        cookies,
        _rejection,
        realm="cdcmeta",
        open_paths=OPEN,
        origins=origins,
        elsewhere=f"{ELSEWHERE.removesuffix('.')} (see --cors-origin).",
    )


def with_hosts(app: ASGIApp, hosts: Iterable[str]) -> ASGIApp:
    """Return an application that only these hosts' names reach, and those of this machine."""
    return HostCheck(app, hosts, _rejection)


def _rejection(status: int, reason: str, headers: Mapping[str, str]) -> Response:
    return error_answer(HTTPError(status, _WORDS[status], reason, headers))


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
