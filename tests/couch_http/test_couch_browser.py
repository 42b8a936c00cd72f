"""Pages of other origins in a real browser: what CORS lets them do, and what it does not."""

import base64
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import sync_playwright

from cdcmeta.couch_http import Login

pytestmark = pytest.mark.slow

LOGIN = Login("ann", "pass wörd")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ANSWER_MS = 30_000
ASK = """async ([url, options]) => {
  try {
    const answer = await fetch(url, { credentials: "include", ...options });
    return [answer.status, await answer.json()];
  } catch (error) {
    return ["refused by the browser", String(error)];
  }
}"""
REFUSED = "refused by the browser"


class Page(BaseHTTPRequestHandler):
    """An empty page, at whatever path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>app</title>")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def pages():
    """Return two ports of which each serves a page."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Page) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_address[1] for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert path, "a browser is needed: install Debian's package chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def at(browser):
    """Open pages of one person: `at(url)` returns how it asks."""
    context = browser.new_context()
    context.set_default_timeout(ANSWER_MS)

    def opened(url: str):
        page = context.new_page()
        page.goto(url)

        def ask(url: str, method: str = "GET", json: str | None = None, **headers: str):
            options: dict[str, object] = {"method": method, "headers": headers}
            if json is not None:
                options["body"] = json
                headers.setdefault("Content-Type", "application/json")
            return page.evaluate(ASK, [url, options])

        return ask

    yield opened
    context.close()


def test_pages_of_a_named_origin_and_of_others(own, pages, at):
    named, other = (f"http://127.0.0.1:{port}" for port in pages)
    db = own(login=LOGIN, cors_origins=(named,)).database()
    server, url = db.served.server.url, f"{db.served.server.url}{db.lib.name}"
    ours, theirs = at(named), at(other)

    status, error = ours(url)
    assert (status, error["error"]) == (401, "unauthorized")  # which the page may read
    assert theirs(url)[0] == REFUSED
    status, told = ours(f"{server}_session", "POST", '{"name":"ann","password":"pass wörd"}')
    assert (status, told["ok"]) == (200, True)
    assert ours(f"{server}_session")[1]["userCtx"]["name"] == "ann"
    assert ours(f"{url}/d", "PUT", '{"n":1}')[0] == 201
    assert ours(f"{url}/_bulk_docs", "POST", '{"docs":[{"_id":"e"}]}')[0] == 201
    status, doc = ours(f"{url}/d")
    assert (status, doc["n"]) == (200, 1)
    assert ours(f"{url}/d", "DELETE", **{"If-Match": doc["_rev"]})[0] == 200
    assert ours(f"{url}/e", "COPY", Destination="f")[0] == 201

    # The browser adds the cookie to what the other page asks: it is of the same host.
    assert theirs(url)[0] == REFUSED
    for method, path, json, headers in (
        ("PUT", "x", "{}", {}),
        ("DELETE", "", None, {}),
        ("COPY", "e", None, {"Destination": "x"}),
        ("POST", "_bulk_docs", '{"docs":[{"_id":"x"}]}', {}),
        ("POST", "_bulk_docs", '{"docs":[{"_id":"x"}]}', {"Content-Type": "text/plain"}),
        ("POST", "", '{"_id":"x"}', {"Content-Type": "text/plain"}),
    ):
        assert theirs(f"{url}/{path}", method, json, **headers)[0] == REFUSED
    assert theirs(f"{server}_session", "DELETE")[0] == REFUSED
    assert ours(f"{url}/x")[0] == 404

    assert ours(f"{server}_session", "DELETE")[0] == 200
    assert ours(url)[0] == 401


def test_a_page_of_another_site_shows_the_login_itself(own, pages, at):
    """The cookie is not sent from there, basic authentication is."""
    named = f"http://localhost:{pages[0]}"
    db = own(login=LOGIN, cors_origins=(named,)).database()
    url = f"{db.served.server.url}{db.lib.name}"
    ask = at(named)
    assert ask(f"{db.served.server.url}_session", "POST", '{"name":"ann","password":"pass wörd"}')
    assert ask(url)[0] == 401
    basic = {"Authorization": "Basic " + base64.b64encode("ann:pass wörd".encode()).decode()}
    assert ask(f"{url}/d", "PUT", "{}", **basic)[0] == 201


def test_without_the_option_no_page_reads_anything(own, pages, at):
    db = own().database()
    ask = at(f"http://127.0.0.1:{pages[0]}")
    url = f"{db.served.server.url}{db.lib.name}"
    assert ask(url)[0] == REFUSED
    assert ask(f"{url}/d", "PUT", "{}")[0] == REFUSED
    assert db.lib.info().doc_count == 0


def test_a_page_follows_a_feed_of_another_origin(own, pages, at):
    named = f"http://127.0.0.1:{pages[0]}"
    db = own(cors_origins=(named,)).database()
    db.lib.put({"_id": "a"})
    ask = at(named)
    status, page = ask(f"{db.served.server.url}{db.lib.name}/_changes?feed=longpoll")
    assert (status, [row["id"] for row in page["results"]]) == (200, ["a"])
