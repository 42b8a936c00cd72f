"""Protection of pages in a browser: headers that limit a page, and forms of this server only.

A page of another site can make a browser send a form to this server, with the browser's login. Such
a request has no token, because only a page of this server contains the token, and the other site
cannot read that page.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from snapkv.web.access import SAFE, ErrorAnswer, HostCheck, LoginCheck, is_near
from snapkv.web.http_server import Listener
from snapkv.web.login import Cookies

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""The policy of a page: files of this server only, no inline scripts and styles, no other site, no
frame."""
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # not `no-referrer`: with it, browsers send forms with the origin `null`
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",  # pages show values, which may be secrets
}
VALID_S = 12 * 3_600
"""The time for which the cookie of a page is valid, in seconds: a page that stays open has no use
that renews it."""
TOKEN = "snapkv.token"  # noqa: S105
"""The name in a scope of the token, for the forms of a page."""
FORM = "snapkv.form"
"""The name in the scope of a POST of the fields of its form, one value each."""
TOKEN_FIELD, TOKEN_HEADER = "token", "X-Snapkv-Token"
FORM_BYTES_MAX = 64 << 10
FIELDS_MAX = 1_000
FORM_S = 20.0
"""The longest that a client may take to send a form, in seconds."""
FORM_TYPE = "application/x-www-form-urlencoded"
FOREIGN = "A page of another origin may not send this."
STALE = "This form is not from a page of the running server: reload the page, and send it again."


def protected(
    app: ASGIApp, listener: Listener, *, salt: str, allow_hosts: Iterable[str] = ()
) -> ASGIApp:
    """Return an application of pages that only its users reach, and only its own pages change.

    The checks of a request are, in this order, of its Host header, of the listener's login, and of
    its form. All answers have `SECURITY_HEADERS`. `salt` identifies what is served, for cookies.

    >>> listener = Listener("127.0.0.1", 0)
    >>> app = protected(PlainTextResponse("hello"), listener, salt="a store")
    >>> type(app).__name__
    'SecurityHeaders'
    >>> listener.socket.close()
    """
    app = FormCheck(app, plain_answer)
    if listener.login is not None:
        # a browser sends a cookie to every port of a host: other servers need another name
        name = f"snapkv-{listener.port}"
        cookies = Cookies(listener.login, salt, name=name, valid_s=VALID_S)
        app = LoginCheck(app, cookies, plain_answer, origins=None, cookie_for_basic=True)
    hosts = listener.host_names(allow_hosts)
    if hosts is not None:
        app = HostCheck(app, hosts, plain_answer)
    return SecurityHeaders(app)


def plain_answer(status: int, reason: str, headers: Mapping[str, str]) -> ASGIApp:
    """Return an error as plain text."""
    return PlainTextResponse(f"{reason}\n", status, headers)


class SecurityHeaders:
    """An application whose answers have `SECURITY_HEADERS`, unless they set one themselves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add to the answer."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sent)


class FormCheck:
    """An application that only its own pages can make change anything.

    A request with a method other than GET, HEAD and OPTIONS must not come from a page of another
    origin, and its body has up to `FORM_BYTES_MAX`. It must have the token: in the header
    `TOKEN_HEADER`, or in the field `TOKEN_FIELD` of a form. Each process has a new token. A scope
    has it as `TOKEN`, and the scope of a form has the fields as `FORM`.
    """

    def __init__(self, app: ASGIApp, answer: ErrorAnswer) -> None:
        self._app, self._answer = app, answer
        self._token = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 400, 403, 408 or 413."""
        if scope["type"] == "http":
            scope = {**scope, TOKEN: self._token}
            if scope["method"] not in SAFE:
                try:
                    receive = await self._checked(scope, receive)
                except HTTPException as e:
                    await self._answer(e.status_code, e.detail, {})(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Check a request, and return what receives its body again; raises `HTTPException`."""
        headers = Headers(scope=scope)
        if not _is_own(headers):
            raise HTTPException(403, FOREIGN)
        body = await _body(receive)
        scope[FORM] = _fields(headers, body)
        given = headers.get(TOKEN_HEADER) or scope[FORM].get(TOKEN_FIELD, "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise HTTPException(403, STALE)
        again = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def received() -> Message:
            return next(again, None) or await receive()

        return received


def _is_own(headers: Headers) -> bool:
    """Return whether no page of another origin sent a request; not all browsers say which did."""
    site = headers.get("sec-fetch-site")
    return is_near(headers) if site is None else site in ("same-origin", "none")


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    try:
        async with asyncio.timeout(FORM_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HTTPException(400, "The request ended early.")
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > FORM_BYTES_MAX:
                    raise HTTPException(413, f"A form has up to {FORM_BYTES_MAX:,} bytes.")
    except TimeoutError:
        raise HTTPException(408, "The form did not arrive in time.") from None
    return body


def _fields(headers: Headers, body: bytes) -> dict[str, str]:
    """Return the fields of a form, each once; none of a body of another type."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        return {}
    try:
        text = body.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        raise HTTPException(400, "The form is not valid.") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise HTTPException(400, "The form has a field twice: send each once.")
    return fields
