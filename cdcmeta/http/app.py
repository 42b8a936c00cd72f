"""The application: which path and method is answered by what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cdcmeta.errors import CDCMetaError
from cdcmeta.http import bulk, databases, documents, feed, listing
from cdcmeta.http.answers import refusal
from cdcmeta.http.auth import Guarded, Login
from cdcmeta.http.call import Call
from cdcmeta.http.errors import (
    HTTPError,
    answer_of,
    method_not_allowed,
    not_found,
    not_implemented,
)
from cdcmeta.http.hosts import Addressed
from cdcmeta.http.service import Service
from snapkv import SnapKVError

Handler: TypeAlias = Callable[[Call], Awaitable[Response]]


async def _absent(call: Call) -> Response:
    raise not_implemented(call.request.scope["path"].rpartition("/")[2])


async def _deeper(call: Call) -> Response:
    raise not_implemented("what is below a document (attachments, views)")


async def _nothing(call: Call) -> Response:
    raise not_found()


_ABSENT = (
    *("_compact", "_design_docs", "_explain", "_find", "_index", "_local_docs", "_missing_revs"),
    *("_partition", "_purge", "_revs_limit", "_security", "_shards", "_view_cleanup"),
)
"""What CouchDB has, and a client could take for the id of a document."""
_NOT_SERVED = (
    *("_active_tasks", "_cluster_setup", "_membership", "_replicate", "_replicator", "_scheduler"),
    *("_session", "_users", "_utils", "_uuids"),
)
"""What clients ask CouchDB's servers for, and take a 404 for an answer."""
_EVERY = ("GET", "POST", "PUT", "DELETE", "COPY")
_DOCUMENT: Mapping[str, Handler] = {
    "GET": documents.get,
    "PUT": documents.put,
    "DELETE": documents.delete,
}
ROUTES: Mapping[str, Mapping[str, Handler]] = {
    "/": {"GET": databases.welcome},
    "/_up": {"GET": databases.up},
    "/_all_dbs": {"GET": databases.names},
    **{f"/{name}": dict.fromkeys(_EVERY, _nothing) for name in _NOT_SERVED},
    "/{db}": {
        "GET": databases.facts,
        "PUT": databases.create,
        "DELETE": databases.delete,
        "POST": documents.post,
    },
    "/{db}/_changes": {"GET": feed.changes, "POST": feed.changes},
    "/{db}/_all_docs": {"GET": listing.all_docs, "POST": listing.all_docs},
    "/{db}/_bulk_docs": {"POST": bulk.bulk_docs},
    "/{db}/_bulk_get": {"POST": bulk.bulk_get},
    "/{db}/_revs_diff": {"POST": bulk.revs_diff},
    "/{db}/_ensure_full_commit": {"POST": databases.full_commit},
    **{f"/{{db}}/{name}": dict.fromkeys(_EVERY, _absent) for name in _ABSENT},
    "/{db}/{id}": _DOCUMENT,
    "/{db}/_design/{design}": _DOCUMENT,
    "/{db}/_local/{local}": _DOCUMENT,
    "/{db}/{id}/{rest:path}": dict.fromkeys(_EVERY, _deeper),
}
"""The paths as clients write them, still encoded; the first that fits counts."""


def application(
    service: Service, login: Login | None = None, hosts: Iterable[str] | None = None
) -> ASGIApp:
    """Return the application that serves a store.

    With `hosts` it is asked by these names and by this machine's own only.
    """
    routes = [Route(path, _Endpoint(service, handlers)) for path, handlers in ROUTES.items()]
    app: ASGIApp = Starlette(
        routes=routes,
        exception_handlers={
            CDCMetaError: _refused,
            SnapKVError: _refused,
            HTTPException: _unrouted,
            Exception: _mistake,
        },
    )
    if login is not None:
        app = Guarded(app, login)
    if hosts is not None:
        app = Addressed(app, hosts)
    return _Encoded(app)


class _Endpoint:
    """Answers the methods of one path; others are refused, whatever other path would fit."""

    def __init__(self, service: Service, handlers: Mapping[str, Handler]) -> None:
        self._service, self._handlers = service, handlers
        self._allowed = ",".join(sorted({*handlers, *(["HEAD"] if "GET" in handlers else [])}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        handler = self._handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise method_not_allowed(self._allowed)
        with closing(Call(self._service, request)) as call:
            answer = await handler(call)
        await answer(scope, receive, send)


class _Encoded:
    """Routes by the path as it was sent: a `%2F` in an id is no slash of the path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("latin-1")
        scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


# --- what goes wrong ---


async def _refused(request: Request, error: Exception) -> Response:
    answer = answer_of(error)
    assert answer is not None
    return refusal(answer)


async def _unrouted(request: Request, error: Exception) -> Response:
    return refusal(not_found())


async def _mistake(request: Request, error: Exception) -> Response:
    """Answer what nobody foresaw; it is raised on, and logged."""
    close = {"Connection": "close"}  # as uvicorn will
    return refusal(HTTPError(500, "unknown_error", type(error).__name__, close))
