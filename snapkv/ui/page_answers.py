"""The answers of views: templates, JSON, errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined, Template
from starlette.responses import Response

from snapkv import errors
from snapkv.base.version import __version__
from snapkv.times import format_time, physical_ms
from snapkv.ui import page_text, rendered_values
from snapkv.ui.extra_views import ExtraViews
from snapkv.ui.fleet.site import FleetContext, FleetSite
from snapkv.ui.request_context import Context
from snapkv.ui.store_views import Page
from snapkv.ui.time_bar import PRESETS
from snapkv.ui.url_state import State

PAGE_BYTES_MAX = 2 << 20
"""The most bytes of a page, or of its JSON; of all answers but downloads and events."""
SHARES = tuple(4**n for n in range(7))
"""The divisors of a page's limits, one after the other, until the page is small enough."""
STATUS_OF: tuple[tuple[type[Exception], int], ...] = (
    (errors.KeyNotFoundError, 404),
    (errors.CompactedError, 410),
    (errors.NotObservedError, 404),
    (errors.FutureRevisionError, 404),
    (errors.ConflictError, 409),
    (errors.AccessDeniedError, 403),
    (errors.ReadOnlyError, 403),
    (errors.ReadTimeoutError, 503),
    (errors.EngineUnavailableError, 503),
    (errors.EngineBusyError, 503),
    (errors.StoreRestoredError, 503),
    (errors.StoreRecreatedError, 503),
    (errors.StoreNotFoundError, 503),
    (errors.MembersBehindError, 503),
    (errors.CommitTooLargeError, 413),
    (errors.InvalidOptionError, 400),
    (errors.InvalidTimeError, 400),
    (errors.InvalidTypeError, 400),
    (errors.InvalidKeyError, 400),
)


def status_of(error: Exception, extra: Sequence[ExtraViews] = ()) -> int | None:
    """Return the HTTP status of an error, None for a bug."""
    named = filter(None, (each.status_of(error) for each in extra))
    known = (status for kind, status in STATUS_OF if isinstance(error, kind))
    return next(named, None) or next(known, 500 if isinstance(error, errors.SnapKVError) else None)


@cache
def templates(*extra: ExtraViews) -> Environment:
    """Return the templates, of other packages by prefix; every text in them is escaped."""
    theirs = {each.name: PackageLoader(each.package) for each in extra}
    made = Environment(
        loader=ChoiceLoader([PackageLoader("snapkv.ui"), PrefixLoader(theirs)]),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "visible": page_text.visible,
        "time": page_text.time_html,
        "size": page_text.size_text,
        "duration": page_text.duration_text,
        "iso_ms": page_text.iso_ms,
        "form_text": page_text.form_text,
        "line": page_text.line,
    }
    made.globals |= {
        "version": __version__,
        "fragment": rendered_values.fragment,
        "presets": PRESETS,
        "format_time": format_time,
        "physical_ms": physical_ms,
    }
    return made


def page_html(c: Context | FleetContext, page: Page, status: int = 200) -> Response:
    """Return a page; raises `PageTooLargeError`."""
    template = templates(*c.site.extra_views or ()).get_template(page.template)
    given = {"c": c, "state": c.state, "page": page, "d": page.data, "health": c.health}
    return _answer(_bounded(template, links=c.links(), **given, **page.more), status)


def page_json(page: Page) -> Response:
    """Return the plain data of a page; raises `PageTooLargeError`."""
    room = page_text.LongTexts(PAGE_BYTES_MAX // 2)
    answer = json_answer({"command": page.command, "data": page_text.as_json(page.data, room)}, 200)
    _check_size(len(answer.body))
    return answer


class PageTooLargeError(Exception):
    """A page has more than `PAGE_BYTES_MAX`: at least `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size:,} bytes")
        self.size = size


def fitting(make: Callable[[int], Response], *, as_json: bool = False) -> Response:
    """Return a page with as large a share of its limits as `PAGE_BYTES_MAX` allows.

    `make` makes it with limits divided by a share, and raises `PageTooLargeError`. All views have
    this one bound: they show less, and lead to the rest.
    """
    enough = 1.0
    for share in SHARES:
        if share >= enough:
            try:
                return make(share)
            except PageTooLargeError as e:
                enough = share * e.size / PAGE_BYTES_MAX
    reason = f"this page has more than {PAGE_BYTES_MAX:,} bytes: use the command line"
    return error_answer(413, reason, as_json=as_json)


def _bounded(template: Template, **given: Any) -> str:
    """Return what a template makes; raise `PageTooLargeError` as soon as that is too much."""
    parts, size = [], 0
    for part in template.generate(**given):
        parts.append(part)
        size += len(part)
        _check_size(size)
    return "".join(parts)


def _check_size(size: int) -> None:
    if size > PAGE_BYTES_MAX:
        raise PageTooLargeError(size)


def json_answer(found: Mapping[str, Any], status: int) -> Response:
    """Return a document of JSON."""
    body = json.dumps(found, separators=(",", ":"))
    return Response(body.encode(), status, media_type="application/json")


def error_answer(
    status: int,
    reason: str,
    *,
    as_json: bool = False,
    headers: Mapping[str, str] | None = None,
    c: Context | None = None,
    failed: State | None = None,
    fleet: FleetSite | None = None,
    name: str = "",
) -> Response:
    """Return an error, as a small page or as JSON.

    The page keeps the state of the request that `failed` in its links and its field, and has the
    time bar of a context `c`, the `name` of the store, and the members of a `fleet`.
    """
    if as_json:
        found = json_answer({"error": reason}, status)
    else:
        html = (
            templates()
            .get_template("error.html")
            .render(status=status, reason=reason, c=c, state=failed, fleet=fleet, name=name)
        )
        found = _answer(html, status)
    found.headers.update(headers or {})
    return found


def _answer(html: str, status: int) -> Response:
    body = html.encode(errors="backslashreplace")
    _check_size(len(body))
    return Response(body, status, media_type="text/html; charset=utf-8")
