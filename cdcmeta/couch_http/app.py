"""The application: the table of paths and methods, and the function that answers each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from typing import Generic, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cdcmeta.couch_http import auth, bulk, databases, documents, listing
from cdcmeta.couch_http import changes as feed
from cdcmeta.couch_http.auth import with_cors, with_hosts, with_login
from cdcmeta.couch_http.bodies import BodyDrain
from cdcmeta.couch_http.errors import (
    HTTPError,
    answer_of,
    method_not_allowed,
    not_found,
    not_implemented,
)
from cdcmeta.couch_http.http_request import Call
from cdcmeta.couch_http.service import Service
from cdcmeta.couch_http.streaming import error_answer

Handler: TypeAlias = Callable[[Call], Awaitable[Response]]


async def _absent(call: Call) -> Response:
    raise not_implemented(call.request.scope["path"].rpartition("/")[2])


async def _deeper(call: Call) -> Response:
    raise not_implemented("everything below a document (attachments, views)")


async def _nothing(call: Call) -> Response:
    raise not_found()


_ABSENT = (
    *("_compact", "_explain", "_find", "_index", "_partition", "_purge", "_shards"),
    "_view_cleanup",
)
"""CouchDB's paths below a database that this server lacks; without a route they would be ids."""
_NOT_SERVED = (
    *("_active_tasks", "_cluster_setup", "_membership", "_replicate", "_replicator", "_scheduler"),
    *("_users", "_utils"),
)
"""CouchDB's paths that clients ask for, and whose absence (404) they accept."""
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
    "/_db_updates": {"GET": databases.db_updates},
    "/_uuids": {"GET": databases.uuids},
    "/_session": {"GET": auth.session, "POST": auth.log_in, "DELETE": auth.log_out},
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
    "/{db}/_local_docs": {"GET": listing.local_docs, "POST": listing.local_docs},
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
"""Each path as clients send it, still percent-encoded, with a handler for each method."""


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
                await _unexpected(e)(scope, receive, send)
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
        with closing(Call(self._service, request)) as call:
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


def _unexpected(error: Exception) -> Response:
    close = {"Connection": "close"}  # as uvicorn will
    return error_answer(HTTPError(500, "unknown_error", type(error).__name__, close))


# --- routes: one dictionary lookup for each part of a path ---

T = TypeVar("T")
_REST = ":path}"


class Routes(Generic[T]):
    """Answers by path: `/{db}/_changes`, `/{db}/{id}`; `{rest:path}` takes all remaining parts.

    >>> routes = Routes({"/{db}/_changes": 1, "/{db}/{id}": 2, "/{db}/{id}/{rest:path}": 3})
    >>> routes.find("/a/_changes"), routes.find("/a/b")
    ((1, {'db': 'a'}), (2, {'db': 'a', 'id': 'b'}))
    >>> routes.find("/a/_changes/c/d")
    (3, {'db': 'a', 'id': '_changes', 'rest': 'c/d'})

    A literal part takes precedence over a parameter, and a parameter over the rest. Only the rest
    may be empty.
    """

    def __init__(self, routes: Mapping[str, T]) -> None:
        self._root: _Node[T] = _Node()
        for path, answer in routes.items():
            node, names = self._root, []
            for part in path[1:].split("/"):
                if part.startswith("{"):
                    names.append(part.removesuffix(_REST).strip("{}"))
                if part.endswith(_REST):
                    node.rest = answer, names
                    break
                node = node.at(None if part.startswith("{") else part)
            else:
                node.answer = answer, names

    def find(self, path: str) -> tuple[T, dict[str, str]] | None:
        """Return the answer and the parameters of a path; None without a route."""
        values: list[str] = []
        found = self._root.find(path[1:].split("/"), 0, values)
        return found and (found[0], dict(zip(found[1], values, strict=True)))


class _Node(Generic[T]):
    """The routes that share their first parts; each answer comes with its parameters' names."""

    def __init__(self) -> None:
        self.texts: dict[str | None, _Node[T]] = {}
        self.answer: tuple[T, list[str]] | None = None
        self.rest: tuple[T, list[str]] | None = None

    def at(self, part: str | None) -> _Node[T]:
        """Return the node below a part, a new one if needed; None means a parameter."""
        return self.texts.setdefault(part, _Node())

    def find(self, parts: list[str], at: int, values: list[str]) -> tuple[T, list[str]] | None:
        """Return the answer for `parts[at:]`; append the values of its parameters to `values`."""
        if at == len(parts):
            return self.answer
        part, size = parts[at], len(values)
        if part in self.texts and (found := self.texts[part].find(parts, at + 1, values)):
            return found
        if part and None in self.texts:
            values.append(part)
            if found := self.texts[None].find(parts, at + 1, values):
                return found
        del values[size:]
        if self.rest is not None:
            values.append("/".join(parts[at:]))
        return self.rest
