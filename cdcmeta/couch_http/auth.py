"""Access in CouchDB's terms: the login and `_session`, checks of requests, origins of pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qs

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from cdcmeta.couch_http.http_errors import HTTPError, bad_request, own_errors
from cdcmeta.couch_http.http_request import ServiceCall, checked_object, decoded
from cdcmeta.couch_http.service import COOKIE
from cdcmeta.couch_http.streaming import answer, error_answer
from cdcmeta.errors import InvalidArgumentError
from snapkv import web
from snapkv.web import ELSEWHERE, WRONG, HostCheck, LoginCheck, removed

# --- the login, and `_session`: logging in and out with a cookie ---

FORM_BYTES_MAX = 16 << 10
ADMIN = "_admin"


class Login(web.Login):
    """The one user of a server. Raises `InvalidArgumentError` without a user or a password."""

    __slots__ = ()

    def __post_init__(self) -> None:
        with own_errors():
            super().__post_init__()


async def session(call: ServiceCall) -> Response:
    """Answer `GET /_session`: the user, and how the request proved the login."""
    user, how = call.user
    context = {"name": user, "roles": [ADMIN] if user or call.service.cookies is None else []}
    info: dict[str, Any] = {"authentication_handlers": ["cookie", "default"]}
    if how is not None:
        info["authenticated"] = "cookie" if how == "cookie" else "default"
    return answer({"ok": True, "userCtx": context, "info": info})


async def log_in(call: ServiceCall) -> Response:
    """Answer `POST /_session`: return a cookie for a name and a password (a form or JSON)."""
    name, password = await _credentials(call)
    cookies = call.service.cookies
    if cookies is None or not cookies.login.matches(name, password):
        raise HTTPError(401, "unauthorized", WRONG)
    facts = {"ok": True, "name": cookies.login.user, "roles": [ADMIN]}
    return answer(facts, headers={"Set-Cookie": cookies.made()})


async def log_out(call: ServiceCall) -> Response:
    """Answer `DELETE /_session`: remove the client's cookie."""
    return answer({"ok": True}, headers={"Set-Cookie": removed(COOKIE)})


async def _credentials(call: ServiceCall) -> tuple[str, str]:
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    raw = await call.body(FORM_BYTES_MAX)
    if kind == "application/json":
        fields = checked_object(decoded(raw))
    else:
        try:
            fields = {name: values[-1] for name, values in parse_qs(raw.decode()).items()}
        except ValueError:
            raise bad_request("the form is not valid UTF-8") from None
    found = fields.get("name", fields.get("username")), fields.get("password")
    if not all(isinstance(each, str) for each in found):
        raise bad_request("a login has a name and a password")
    return str(found[0]), str(found[1])


# --- the checks of requests ---

OPEN = frozenset({"/_up", "/_session"})
"""The paths that need no login."""
_WORDS = {401: "unauthorized", 403: "forbidden"}


def with_login(app: ASGIApp, cookies: web.Cookies, origins: tuple[str, ...]) -> ASGIApp:
    """Return an application behind the login of `cookies`."""
    return LoginCheck(
        app,
        cookies,
        _rejection,
        realm="cdcmeta",
        open_paths=OPEN,
        origins=origins,
        elsewhere=f"{ELSEWHERE.removesuffix('.')} (see --cors-origin).",
    )


def with_hosts(app: ASGIApp, hosts: Iterable[str]) -> ASGIApp:
    """Return an application that only these hosts' names and this machine's names reach."""
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
