"""The server of a store: its paths and methods, with the function that answers each."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from typing import Generic, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from cdcmeta.couch_http import auth, bulk, database_routes, document_routes, listing
from cdcmeta.couch_http import changes_feed as feed
from cdcmeta.couch_http.auth import checked_origins, with_cors, with_hosts, with_login
from cdcmeta.couch_http.http_errors import (
    HTTPError,
    answer_of,
    method_not_allowed,
    not_found,
    not_implemented,
    own_errors,
)
from cdcmeta.couch_http.http_request import BodyDrain, ServiceCall
from cdcmeta.couch_http.service import Limits, Service
from cdcmeta.couch_http.streaming import error_answer
from snapkv import SnapshotKV, web
from snapkv.web import HOST, Listener, Login

Handler: TypeAlias = Callable[[ServiceCall], Awaitable[Response]]


async def _absent(call: ServiceCall) -> Response:
    raise not_implemented(call.request.scope["path"].rpartition("/")[2])


async def _deeper(call: ServiceCall) -> Response:
    raise not_implemented("everything below a document (attachments, views)")


async def _nothing(call: ServiceCall) -> Response:
    raise not_found()


_ABSENT = (
    *("_compact", "_explain", "_find", "_index", "_partition", "_purge", "_shards"),
    "_view_cleanup",
)
"""The paths of CouchDB below a database that this server lacks; without a route they would be
ids."""
_NOT_SERVED = (
    *("_active_tasks", "_cluster_setup", "_membership", "_replicate", "_replicator", "_scheduler"),
    *("_users", "_utils"),
)
"""The paths of CouchDB that clients ask for, and whose absence (404) they accept."""
_EVERY = ("GET", "POST", "PUT", "DELETE", "COPY")
_DOCUMENT: Mapping[str, Handler] = {
    "GET": document_routes.get,
    "PUT": document_routes.put,
    "DELETE": document_routes.delete,
}
_COPIED = {**_DOCUMENT, "COPY": document_routes.copy}
ROUTES: Mapping[str, Mapping[str, Handler]] = {
    "/": {"GET": database_routes.welcome},
    "/_up": {"GET": database_routes.up},
    "/_all_dbs": {"GET": database_routes.names},
    "/_dbs_info": {"GET": database_routes.many_facts, "POST": database_routes.many_facts},
    "/_db_updates": {"GET": database_routes.db_updates},
    "/_uuids": {"GET": database_routes.uuids},
    "/_session": {"GET": auth.session, "POST": auth.log_in, "DELETE": auth.log_out},
    **{f"/{name}": dict.fromkeys(_EVERY, _nothing) for name in _NOT_SERVED},
    "/{db}": {
        "GET": database_routes.facts,
        "PUT": database_routes.create,
        "DELETE": database_routes.delete,
        "POST": document_routes.post,
    },
    "/{db}/_changes": {"GET": feed.changes, "POST": feed.changes},
    "/{db}/_all_docs": {"GET": listing.all_docs, "POST": listing.all_docs},
    "/{db}/_all_docs/queries": {"POST": listing.queries},
    "/{db}/_design_docs": {"GET": listing.design_docs, "POST": listing.design_docs},
    "/{db}/_local_docs": {"GET": listing.local_docs, "POST": listing.local_docs},
    "/{db}/_bulk_docs": {"POST": bulk.bulk_docs},
    "/{db}/_bulk_get": {"POST": bulk.bulk_get},
    "/{db}/_revs_diff": {"POST": bulk.revs_diff},
    "/{db}/_missing_revs": {"POST": bulk.missing_revs},
    "/{db}/_revs_limit": {"GET": database_routes.revs_limit, "PUT": database_routes.set_revs_limit},
    "/{db}/_security": {"GET": database_routes.security, "PUT": _absent},
    "/{db}/_ensure_full_commit": {"POST": database_routes.full_commit},
    **{f"/{{db}}/{name}": dict.fromkeys(_EVERY, _absent) for name in _ABSENT},
    "/{db}/{id}": _COPIED,
    "/{db}/_design/{design}": _COPIED,
    "/{db}/_local/{local}": _DOCUMENT,
    "/{db}/{id}/{rest:path}": dict.fromkeys(_EVERY, _deeper),
}
"""Each path as clients send it, still percent-encoded, with a handler for each method.

A path with a literal part is before one that has a parameter there."""


def application(
    service: Service, hosts: Iterable[str] | None = None, origins: tuple[str, ...] = ()
) -> ASGIApp:
    """Return the application that serves a store.

    With `hosts` it rejects requests whose Host header is neither in `hosts` nor a name of this
    machine. Pages of `origins` may use it from browsers.
    """
    app: ASGIApp = _Router(service)
    if service.cookies is not None:
        app = with_login(app, service.cookies, origins)
    if hosts is not None:
        app = with_hosts(app, hosts)
    app = _RawPath(app)
    if origins:
        app = with_cors(app, origins)
    return BodyDrain(app, service.limits)


class _Router:
    """Calls the handler of each path and method; answers errors in CouchDB's format."""

    def __init__(self, service: Service) -> None:
        self._service, self._routes = service, Routes(ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. An unexpected exception is answered (500), then raised to be logged."""
        try:
            answer = await self._answer(scope, receive)
        except Exception as e:
            error = answer_of(e)
            if error is None:
                close = {"Connection": "close"}  # as uvicorn will
                error = HTTPError(500, "unknown_error", type(e).__name__, close)
                await error_answer(error)(scope, receive, send)
                raise
            answer = error_answer(error)
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
        with closing(ServiceCall(self._service, request)) as call:
            return await handler(call)


class _RawPath:
    """Routes by the path as the client sent it, so that a `%2F` in an id does not split the path.

    A client that uses the server as a proxy sends a whole URL; its path is used.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("latin-1")
        if path.lower().startswith(("http://", "https://")):
            path = "/" + path.partition("://")[2].partition("/")[2]
        scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


# --- routes ---

T = TypeVar("T")


class Routes(Generic[T]):
    """Answers by path: `/{db}/_changes`, `/{db}/{id}`; `{rest:path}` takes all remaining parts.

    >>> routes = Routes({"/{db}/_changes": 1, "/{db}/{id}": 2, "/{db}/{id}/{rest:path}": 3})
    >>> routes.find("/a/_changes"), routes.find("/a/b")
    ((1, {'db': 'a'}), (2, {'db': 'a', 'id': 'b'}))
    >>> routes.find("/a/_changes/c/d")
    (3, {'db': 'a', 'id': '_changes', 'rest': 'c/d'})

    The first path that fits takes precedence. Only the rest may be empty.
    """

    def __init__(self, routes: Mapping[str, T]) -> None:
        self._patterns = [(compile_path(path)[0], answer) for path, answer in routes.items()]

    def find(self, path: str) -> tuple[T, dict[str, str]] | None:
        """Return the answer and the parameters of a path; None without a route."""
        for pattern, answer in self._patterns:
            if found := pattern.match(path):
                return answer, found.groupdict()
        return None


ROUTE_OF = Routes({path: path for path in ROUTES})

# --- the server ---

PORT = 5984


class Server(web.Server):
    """Serves a store until `stop`, or in the main thread until SIGINT or SIGTERM.

    >>> import snapkv
    >>> server = Server(snapkv.open("memory:"), port=0)
    >>> server.stop(); server.run()

    It listens on `host` only. Port 0 takes any free port, which `port` returns. If only this
    machine can reach it and it has no login, the Host header of each request must be a name of this
    machine, `host`, or one of `allow_hosts`. Pages of `cors_origins` may use it from browsers.

    The caller closes the store. Raises `InvalidArgumentError` when other machines can reach the
    address without a login and without `insecure`, and `OSError` when it cannot listen on the
    address.
    """

    def __init__(
        self,
        store: SnapshotKV,
        *,
        host: str = HOST,
        port: int = PORT,
        login: Login | None = None,
        allow_hosts: Iterable[str] = (),
        insecure: bool = False,
        cors_origins: Iterable[str] = (),
        limits: Limits | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        origins = checked_origins(cors_origins)
        limits = limits or Limits()
        self._service = Service(store, limits, login)
        with own_errors():
            listener = Listener(host, port, login, insecure=insecure)
        super().__init__(
            application(self._service, listener.host_names(allow_hosts), origins),
            listener,
            limits=limits,
            ready=ready,
            stopping=self._service.wakeups.stop,
            route_of=lambda path: (ROUTE_OF.find(path.rstrip("/") or "/") or ("other",))[0],
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`. Then feeds end at once, other requests within `stop_s`."""
        try:
            super().run(sockets)
        finally:
            self._service.close()
