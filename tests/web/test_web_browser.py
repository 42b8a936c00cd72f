"""Protected pages in a real browser: one login, their own forms, and pages of another origin."""

import shutil

import pytest
from playwright.sync_api import Error, sync_playwright
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from snapkv.web import FORM, TOKEN, TOKEN_FIELD, protected
from snapkv.web.page_protection import FOREIGN

from .conftest import LOGIN

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ANSWER_MS = 30_000
PAGE = """<!doctype html><title>served</title><link rel="stylesheet" href="/look.css">
<script>document.title = "inline"</script>
<form method="post" action="/change"><input type="hidden" name="{field}" value="{token}">
<input name="note"><button>Send</button></form>"""
FOREIGN_PAGE = """<!doctype html><form method="post" action="{url}change">
<input type="hidden" name="{field}" value="{token}"><button>Send</button></form>
<iframe src="{url}deep/page"></iframe>"""


def page(request: Request) -> Response:
    return HTMLResponse(PAGE.format(field=TOKEN_FIELD, token=request.scope[TOKEN]))


def look(request: Request) -> Response:
    return PlainTextResponse("body { color: rgb(1, 2, 3) }", media_type="text/css")


def change(request: Request) -> Response:
    return PlainTextResponse(f"changed: {request.scope[FORM]['note']}")


ROUTES = [Route("/deep/page", page), Route("/look.css", look)]
ROUTES.append(Route("/change", change, methods=["POST"]))


@pytest.fixture
def served(serve):
    app = Starlette(routes=ROUTES)
    return serve(lambda listener: protected(app, listener, salt="a store"), LOGIN)


@pytest.fixture
def opened(served):
    """Return a tab that shows the page, in a browser that knows the password."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert path, "a browser is needed: install Debian's package chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        credentials = {"username": LOGIN.user, "password": LOGIN.password}
        context = browser.new_context(http_credentials=credentials)
        context.set_default_timeout(ANSWER_MS)
        tab = context.new_page()
        tab.goto(f"{served.server.url}deep/page")
        yield tab
        browser.close()


def test_a_page_its_style_and_its_form(opened):
    """The style is not below the page's path: the browser sends it the cookie, no password."""
    assert opened.evaluate("getComputedStyle(document.body).color") == "rgb(1, 2, 3)"
    assert opened.title() == "served"  # inline scripts do not run
    opened.fill("[name=note]", "why")
    opened.click("button")
    opened.wait_for_url("**/change")
    assert opened.inner_text("body") == "changed: why"


def test_a_page_of_another_origin(serve, served, opened):
    """Of the same host, so that the browser sends it the cookie; it even has the token."""
    token = opened.get_attribute(f"[name={TOKEN_FIELD}]", "value")
    html = FOREIGN_PAGE.format(url=served.server.url, field=TOKEN_FIELD, token=token)
    other = serve(lambda _: HTMLResponse(html))
    opened.goto(other.server.url)
    assert opened.frames[1].url.startswith("chrome-error:")  # no page in a frame
    with pytest.raises(Error, match="Failed to fetch"):
        opened.evaluate(f"fetch('{served.server.url}look.css', {{mode: 'no-cors'}})")
    opened.click("button")
    opened.wait_for_url("**/change")
    assert opened.inner_text("body").strip() == FOREIGN
