"""The page as a server: its application, with paths, threads, files and events."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from snapkv.base.arguments import whole_number
from snapkv.errors import ConflictError, InvalidOptionError, SnapKVError
from snapkv.reading.deadline import within
from snapkv.ui import key_listings, page_answers
from snapkv.ui.fleet.fleet_views import FLEET_VIEWS
from snapkv.ui.fleet.site import FleetContext, FleetSite
from snapkv.ui.live_commits import EventStreams
from snapkv.ui.page_text import form_text_of
from snapkv.ui.request_context import Context, Site
from snapkv.ui.restore_preview import Wanted, unticked_of
from snapkv.ui.store_views import Page, restore, stepped, view_of
from snapkv.ui.url_state import State
from snapkv.web import FORM, HOST, TOKEN, USER, Listener, Login, Server, protected

THREADS_MAX = 8
READ_S = 20.0
"""The longest that the reads of one page may take together, in seconds."""
FIRST, FLEET_FIRST = "/commits", "/members"
"""Other names of the first view, of a store and of a fleet, for its JSON."""
OF_STORES = ("/step", "/live/events", "/export")
"""The paths beside the paths of views."""
BAR_STATUSES = (400, 404, 410)
"""The statuses of error pages with the time bar: their engine answers."""
BAR_FIELDS = ("prefix", "span", "tz", "member", "members")
ASSETS = {
    "style.css": "text/css; charset=utf-8",
    "bar.js": "text/javascript; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
LOGGER = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Shown = TypeVar("Shown", Context, FleetContext)


class Application:
    """Answers the requests of one site, or of one fleet; safe for one event loop.

    Reads run in at most `THREADS_MAX` threads; further requests wait for one.
    """

    def __init__(self, site: Site | FleetSite) -> None:
        self._site, self.streams = site, EventStreams()
        self._first = (FIRST, FLEET_FIRST) if isinstance(site, FleetSite) else (FIRST,)
        self._threads: anyio.CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except Exception as e:
            answer = await self._failed(request, e)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path, method = request.url.path, request.method
        if path.startswith("/assets/"):
            return self._asset(path.removeprefix("/assets/"))
        if method == "POST" and path == "/restore":
            return await self._restored(request)
        if method not in ("GET", "HEAD"):
            return page_answers.error_answer(
                405, "this page takes GET", headers={"Allow": "GET, HEAD"}
            )
        as_json = path.endswith(".json")
        plain = path.removesuffix(".json")
        state = State.of("/" if plain in self._first else plain, request.scope["query_string"])
        view = view_of(self._site.extra_views, state.path)
        if state.moved and view is not None:
            return RedirectResponse(state.url(), 303)
        beside = path in OF_STORES and not (path == "/live/events" and method == "HEAD")
        if view is None and not beside:
            return await self._error(request, 404, f"no page has the path {path[:200]}")
        if isinstance(self._site, FleetSite) and not state["member"]:
            return await self._of_fleet(self._site, state, as_json)
        site = await self._site_of(state["member"])
        context = Context(site, state, _user(request), request.scope.get(TOKEN, ""))
        if path == "/step":
            return RedirectResponse(await self._in_thread(partial(stepped, context)), 303)
        if path == "/live/events":
            return await self._events(request, context)
        if path == "/export":
            return await self._exported(context)
        assert view is not None
        return await self._page(view, context, as_json)

    async def _page(self, view: Callable[[Shown], Page], c: Shown, as_json: bool) -> Response:
        """Return the page of a view, or its data."""

        def made(share: int) -> Response:
            part = replace(c, state=replace(c.state, share=share))
            page = view(part)
            return page_answers.page_json(page) if as_json else page_answers.page_html(part, page)

        return await self._in_thread(lambda: page_answers.fitting(made, as_json=as_json))

    # --- fleets ---

    async def _site_of(self, member: str) -> Site:
        """Return the site that is served, or that of a member of the fleet."""
        if isinstance(self._site, Site):
            return self._site
        return await self._in_thread(partial(self._site.site_of, member))

    async def _of_fleet(self, site: FleetSite, state: State, as_json: bool) -> Response:
        view = FLEET_VIEWS.get(state.path)
        if view is None:
            raise InvalidOptionError(
                f"{state.path} is of one member of the fleet: choose one, member=NAME in the URL"
            )
        return await self._page(view, FleetContext(site, state), as_json)

    async def _in_thread(self, call: Callable[[], Answer]) -> Answer:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(THREADS_MAX)

        def bounded() -> Answer:
            with within(READ_S):
                return call()

        return await anyio.to_thread.run_sync(bounded, limiter=self._threads)

    # --- export ---

    async def _exported(self, context: Context) -> Response:
        kind = context.state.choice("format", *key_listings.KINDS)
        keys = context.source, context.at, context.state["prefix"]
        parts = await self._in_thread(partial(key_listings.exported, *keys, kind))
        media, ending = key_listings.KINDS[kind]
        of = context.site.membership
        named = context.source.reader.layout.name if of is None else of.member
        name = f"snapkv-{named.replace('/', '-')}.{ending}"
        disposition = f'attachment; filename="{re.sub("[^a-zA-Z0-9._-]", "", name)}"'
        return StreamingResponse(
            self._streamed(parts), media_type=media, headers={"Content-Disposition": disposition}
        )

    async def _streamed(self, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
        while part := await self._in_thread(lambda: next(parts, b"")):
            yield part

    # --- live ---

    async def _events(self, request: Request, context: Context) -> Response:
        last = request.headers.get("last-event-id") or context.state["since"]
        since = whole_number(last) if last else None
        if last and since is None:
            raise InvalidOptionError(f"Last-Event-ID {last[:40]!r} is not a timestamp")
        if self.streams.full:
            return page_answers.error_answer(503, "too many pages follow this server")
        events = self.streams.events(context.site.hub, since, context.state["prefix"])
        return StreamingResponse(events, media_type="text/event-stream")

    # --- restoring ---

    async def _restored(self, request: Request) -> Response:
        form = request.scope.get(FORM, {})
        member = form_text_of(form.get("member", ""))
        site = await self._site_of(member)
        restores, user = site.restores, _user(request)
        if restores is None:
            return page_answers.error_answer(
                403, "restoring from this page is off: see --allow-restore"
            )
        timestamp, head = (_number(form.get(name, ""), name) for name in ("timestamp", "head"))
        fields = {name: form_text_of(form.get(name, "")) for name in ("prefix", "key", "conflicts")}
        revert = form.get("revert", "")
        reverts = tuple(_number(each, "revert") for each in revert.split(",") if each)
        wanted = Wanted(timestamp, reverts=reverts, **fields)
        fields |= {"revert": revert} if reverts else {"at": str(timestamp)}
        fields["member"] = member

        def made() -> Response:
            try:
                writer = site.writer if user is None else user
                commit = restores.carry_out(wanted, form, head, writer)
            except SnapKVError as e:
                status = page_answers.status_of(e)
                if status not in (400, 409):
                    raise
                state = State("/restore", {n: text for n, text in fields.items() if text})
                more = {"note": form.get("note"), "unticked": unticked_of(form), "reason": str(e)}
                if more["unticked"] and isinstance(e, ConflictError):  # rows may be other keys now
                    more |= {"unticked": set(), "reason": f"{e}; every key has its tick again"}
                token = request.scope.get(TOKEN, "")

                def again(share: int) -> Response:
                    context = Context(site, replace(state, share=share), user, token)
                    page = restore(context)
                    return page_answers.page_html(
                        context, replace(page, more={**page.more, **more}), status
                    )

                return page_answers.fitting(again)
            url = State("/commit").url(at=commit.ts, member=member)
            return RedirectResponse(url, 303)

        return await self._in_thread(made)

    # --- files, routes and errors ---

    def route_of(self, path: str) -> str:
        """Return the path of a page as metrics name it, one of a fixed number."""
        plain = "/assets" if path.startswith("/assets/") else path.removesuffix(".json")
        known = plain in ("/assets", *self._first, *OF_STORES)
        return plain if known or view_of(self._site.extra_views, plain) else "other"

    def _asset(self, path: str) -> Response:
        """Return a file of this package, or `NAME/FILE` of another one."""
        owner, _, name = path.rpartition("/")
        found: list[tuple[str, Mapping[str, str]]] = [("snapkv.ui", ASSETS)] if not owner else []
        extra = self._site.extra_views or ()
        found += [(each.package, each.assets) for each in extra if each.name == owner]
        for package, assets in found:
            if name in assets:
                body = files(package).joinpath("assets", name).read_bytes()
                headers = {"Cache-Control": "max-age=300"}
                return Response(body, media_type=assets[name], headers=headers)
        return page_answers.error_answer(404, "no file has this name")

    async def _failed(self, request: Request, error: Exception) -> Response:
        status = page_answers.status_of(error, self._site.extra_views or ())
        if status is None:
            LOGGER.error("a page failed: %s", request.url.path, exc_info=error)
            return page_answers.error_answer(500, "this page has a bug; the server's log says more")
        member = getattr(error, "member", None)  # of a fleet, which it is about
        return await self._error(
            request, status, str(error) if member is None else f"{member}: {error}"
        )

    async def _error(self, request: Request, status: int, reason: str) -> Response:
        """Return an error page with the name, the search and the state of the request."""
        if request.url.path.endswith(".json"):
            return page_answers.error_answer(status, reason, as_json=True)
        fleet = self._site if isinstance(self._site, FleetSite) else None
        name = "" if isinstance(self._site, FleetSite) else self._site.source.name
        path = request.url.path
        if path not in OF_STORES and view_of(self._site.extra_views, path) is None:
            path = "/"
        try:
            failed = State.of(path, request.scope["query_string"])
        except InvalidOptionError:
            return page_answers.error_answer(status, reason, fleet=fleet)
        has_bar = fleet is None or failed["member"] in fleet.names
        if status in BAR_STATUSES and has_bar and view_of(self._site.extra_views, failed.path):
            fields = {name: failed[name] for name in BAR_FIELDS if failed.has(name)}
            with suppress(Exception):  # the error is shown without the bar
                site = await self._site_of(failed["member"])

                def made(share: int) -> Response:
                    c = Context(site, State(failed.path, fields, share=share))
                    return page_answers.error_answer(
                        status, reason, c=c, failed=failed, fleet=fleet, name=name
                    )

                return await self._in_thread(lambda: page_answers.fitting(made))
        return page_answers.error_answer(status, reason, failed=failed, fleet=fleet, name=name)


def _user(request: Request) -> str | None:
    found = request.scope.get(USER)
    return found[0] if found else None


def _number(text: str, name: str) -> int:
    number = whole_number(text)
    if number is None:
        raise InvalidOptionError(f"the form has no valid {name}: open the preview again")
    return number


# --- the server ---

PORT = 7411


def ui_server(
    site: Site | FleetSite,
    *,
    host: str = HOST,
    port: int = PORT,
    login: Login | None = None,
    allow_hosts: Iterable[str] = (),
    insecure: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> Server:
    """Return a server of a site, which listens already; `run()` serves until `stop()`.

    Port 0 takes any free port. The caller closes the store, or the site of a fleet and then the
    fleet. Raises `InvalidOptionError` if other machines could reach it without a login and without
    `insecure`, `OSError` if it cannot listen.
    """
    listener = Listener(host, port, login, insecure=insecure)
    inner = Application(site)
    app = protected(inner, listener, salt=site.salt, allow_hosts=allow_hosts)
    return Server(app, listener, ready=ready, stopping=inner.streams.close, route_of=inner.route_of)
