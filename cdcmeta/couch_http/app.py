"""The application: which path and method is answered by what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cdcmeta.couch_http import bulk, databases, documents, listing, local_listing, session, updates
from cdcmeta.couch_http import changes as feed
from cdcmeta.couch_http.answers import refusal
from cdcmeta.couch_http.auth import Guarded
from cdcmeta.couch_http.bodies import Drained
from cdcmeta.couch_http.errors import (
    HTTPError,
    answer_of,
    method_not_allowed,
    not_found,
    not_implemented,
)
from cdcmeta.couch_http.hosts import Addressed
from cdcmeta.couch_http.origins import shared
from cdcmeta.couch_http.request import Call
from cdcmeta.couch_http.routing import Routes
from cdcmeta.couch_http.service import Service

Handler: TypeAlias = Callable[[Call], Awaitable[Response]]


async def _absent(call: Call) -> Response:
    raise not_implemented(call.request.scope["path"].rpartition("/")[2])


async def _deeper(call: Call) -> Response:
    raise not_implemented("what is below a document (attachments, views)")


async def _nothing(call: Call) -> Response:
    raise not_found()


_ABSENT = (
    *("_compact", "_explain", "_find", "_index", "_partition", "_purge", "_shards"),
    "_view_cleanup",
)
"""What CouchDB has, and a client could take for the id of a document."""
_NOT_SERVED = (
    *("_active_tasks", "_cluster_setup", "_membership", "_replicate", "_replicator", "_scheduler"),
    *("_users", "_utils"),
)
"""What clients ask CouchDB's servers for, and take a 404 for an answer."""
_EVERY = ("GET", "POST", "PUT", "DELETE", "COPY")
_DOCUMENT: Mapping[str, Handler] = {
    "GET": documents.get,
    "PUT": documents.put,
    "DELETE": documents.delete,
}
_COPIED = {**_DOCUMENT, "COPY": documents.copy}
ROUTES: Mapping[str, Mapping[str, Handler]] = {
    "/": {"GET": databases.welcome},
    "/_up": {"GET": databases.up},
    "/_all_dbs": {"GET": databases.names},
    "/_dbs_info": {"GET": databases.many_facts, "POST": databases.many_facts},
    "/_db_updates": {"GET": updates.db_updates},
    "/_uuids": {"GET": databases.uuids},
    "/_session": {"GET": session.get, "POST": session.post, "DELETE": session.delete},
    **{f"/{name}": dict.fromkeys(_EVERY, _nothing) for name in _NOT_SERVED},
    "/{db}": {
        "GET": databases.facts,
        "PUT": databases.create,
        "DELETE": databases.delete,
        "POST": documents.post,
    },
    "/{db}/_changes": {"GET": feed.changes, "POST": feed.changes},
    "/{db}/_all_docs": {"GET": listing.all_docs, "POST": listing.all_docs},
    "/{db}/_all_docs/queries": {"POST": listing.queries},
    "/{db}/_design_docs": {"GET": listing.design_docs, "POST": listing.design_docs},
    "/{db}/_local_docs": {"GET": local_listing.local_docs, "POST": local_listing.local_docs},
    "/{db}/_bulk_docs": {"POST": bulk.bulk_docs},
    "/{db}/_bulk_get": {"POST": bulk.bulk_get},
    "/{db}/_revs_diff": {"POST": bulk.revs_diff},
    "/{db}/_missing_revs": {"POST": bulk.missing_revs},
    "/{db}/_revs_limit": {"GET": databases.revs_limit, "PUT": databases.set_revs_limit},
    "/{db}/_security": {"GET": databases.security, "PUT": _absent},
    "/{db}/_ensure_full_commit": {"POST": databases.full_commit},
    **{f"/{{db}}/{name}": dict.fromkeys(_EVERY, _absent) for name in _ABSENT},
    "/{db}/{id}": _COPIED,
    "/{db}/_design/{design}": _COPIED,
    "/{db}/_local/{local}": _DOCUMENT,
    "/{db}/{id}/{rest:path}": dict.fromkeys(_EVERY, _deeper),
}
"""The paths as clients write them, still encoded."""


def application(
    service: Service, hosts: Iterable[str] | None = None, origins: tuple[str, ...] = ()
) -> ASGIApp:
    """Return the application that serves a store.

    With `hosts` it is asked by these names and by this machine's own only. Pages of `origins` may
    use it from browsers.
    """
    app: ASGIApp = _Routed(service)
    if service.login is not None and service.cookies is not None:
        app = Guarded(app, service.login, service.cookies, origins)
    if hosts is not None:
        app = Addressed(app, hosts)
    app = _Encoded(app)
    if origins:
        app = shared(app, origins)
    return Drained(app, service.limits)


class _Routed:
    """Answers each path and method by its handler, and what goes wrong in CouchDB's words."""

    def __init__(self, service: Service) -> None:
        self._service, self._routes = service, Routes(ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; a mistake of our own is raised on behind its answer, and logged."""
        try:
            answer = await self._answer(scope, receive)
        except Exception as e:
            told = answer_of(e)
            if told is None:
                await _mistake(e)(scope, receive, send)
                raise
            answer = refusal(told)
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        found = self._routes.find(scope["path"])
        if found is None:
            raise not_found()
        handlers, scope["path_params"] = found
        request = Request(scope, receive)
        handler = handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            head = ["HEAD"] if "GET" in handlers else []
            raise method_not_allowed(",".join(sorted({*handlers, *head})))
        with closing(Call(self._service, request)) as call:
            return await handler(call)


class _Encoded:
    """Routes by the path as it was sent: a `%2F` in an id is no slash of the path.

    A client that takes the server for its proxy sends a whole URL.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("latin-1")
        if path.lower().startswith(("http://", "https://")):
            path = "/" + path.partition("://")[2].partition("/")[2]
        scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


def _mistake(error: Exception) -> Response:
    close = {"Connection": "close"}  # as uvicorn will
    return refusal(HTTPError(500, "unknown_error", type(error).__name__, close))
