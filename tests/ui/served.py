"""A real server of the page on a free port, and clients of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from snapkv.store.open import Keys
from snapkv.ui import FleetSite, Rendering, Site, Source, ui_server
from snapkv.web import Login

WAIT_S = 20.0
"""Longer than anything takes that goes well."""


class Served:
    """A source behind a server in this process."""

    def __init__(
        self,
        keys: Keys,
        *,
        rendering: Rendering | None = None,
        extra_views: Any = (),
        **options: Any,
    ) -> None:
        names = {"words", "writable", "redaction"} & options.keys()
        self.source = Source(keys, **{name: options.pop(name) for name in names})
        self.site = Site(self.source, rendering or Rendering(), extra_views=extra_views)
        self._serve(self.site, options)

    def _serve(self, site: Site | FleetSite, options: dict[str, Any]) -> None:
        self._started = threading.Event()
        self.server = ui_server(site, port=0, ready=self._started.set, **options)
        self.url = self.server.url.rstrip("/")
        self.login: Login | None = options.get("login")

    def __enter__(self) -> Served:
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()
        assert self._started.wait(WAIT_S)
        self.http = httpx.Client(base_url=self.url, timeout=WAIT_S)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.server.stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def page(self, url: str, status: int = 200) -> Page:
        """Return a page."""
        answer = self.http.get(url)
        assert answer.status_code == status, f"{url}: {answer.status_code} {answer.text[:2_000]}"
        return Page(answer, url)

    def json(self, url: str) -> Any:
        """Return the plain data of a view."""
        answer = self.http.get(url)
        assert answer.status_code == 200, f"{url}: {answer.text}"
        return answer.json()["data"]


class FleetServed(Served):
    """A fleet behind a server in this process."""

    def __init__(self, site: FleetSite, **options: Any) -> None:
        self.fleet_site = site
        self._serve(site, options)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.fleet_site.close()


class Page(HTMLParser):
    """A page: its text, links and forms, as a browser would read them."""

    def __init__(self, answer: httpx.Response, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html, self.url, self.headers = answer.text, url, answer.headers
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.fields: dict[str, str] = {}
        self._texts: list[str] = []
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "a" and found.get("href"):
            self.links.append(urljoin(self.url, found["href"] or ""))
        if tag == "input" and found.get("name"):
            self.fields[str(found["name"])] = found.get("value") or ""

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    @property
    def text(self) -> str:
        """What a person reads, on one line."""
        return " ".join("".join(self._texts).split())


def crawled(served: Served, first: str, pages_max: int) -> Iterator[Page]:
    """Yield pages that links lead to, each URL once, breadth first; downloads are left out."""
    waiting, seen = [first], {first}
    while waiting and pages_max:
        url = waiting.pop(0)
        answer = served.http.get(url, follow_redirects=True)
        kind = answer.headers["content-type"]
        pages_max -= 1
        assert answer.status_code in (200, 404, 410), f"{url}: {answer.text[:2_000]}"
        if not kind.startswith("text/html"):
            continue
        page = Page(answer, url)
        yield page
        for link in page.links:
            assert urlsplit(link).netloc == "", f"{url} leads to {link}"
            if link not in seen and not link.startswith("/export"):
                seen.add(link)
                waiting.append(link)
