"""A person's browser: a headless Chromium, whose pages must be quiet and of one origin."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, Locator, Page

PICTURES = os.environ.get("SNAPKV_PICTURES")
"""A folder for the screenshots of docs/ui.md; without it they are made, but not kept."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ANSWER_MS = 20_000
AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def executable() -> str:
    """Return the browser that is installed."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert path, "a browser is needed: install Debian's package chromium"
    return path


def picture(person: Person, name: str) -> None:
    """Make a screenshot; keep it if that is wanted."""
    person.page.add_init_script("")
    shot = person.page.screenshot()
    assert shot.startswith(b"\x89PNG")
    if PICTURES:
        (Path(PICTURES) / f"{name}.png").write_bytes(shot)


MISFITS = """() => {
  const found = [];
  for (const each of document.querySelectorAll("body *")) {
    if (each.closest("svg, pre.sides, .hidden, thead")) continue;
    const wide = each.getBoundingClientRect().width;
    if (wide > innerWidth + 1) found.push(`${each.tagName}.${each.className} is ${wide} wide`);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (!text.parentElement.closest("td, th, dd, dt, summary, h1, .head, .controls")) continue;
    if (text.parentElement.closest("svg, thead, .hidden")) continue;
    for (const word of text.data.matchAll(/(?<![A-Za-z0-9])[A-Za-z0-9]{2,16}(?![A-Za-z0-9])/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (tops.size > 1) found.push(`${word[0]} is broken in ${text.parentElement.outerHTML}`);
    }
  }
  return found;
}"""
"""What does not fit: elements wider than the screen, words that their cell breaks."""


class Person:
    """A page of a browser at a server; `leave()` and `close()` assert what each page must keep."""

    def __init__(self, browser: Browser, url: str, axe: Path, **options: Any) -> None:
        self.url = url
        self._axe = (axe / "node_modules/axe-core/axe.min.js").read_text()
        options = {"viewport": {"width": 1280, "height": 800}} | options
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(ANSWER_MS)
        self.page: Page = self.context.new_page()
        self.strangers: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", self._asked)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.strangers.append(request.url)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, path: str) -> Page:
        """Open a view; return its page."""
        answer = self.page.goto(self.url + path)
        assert answer is not None
        assert answer.status == 200, f"{path}: {answer.status} {self.page.inner_text('body')}"
        return self.page

    def follow(self, link_or_button: Locator) -> None:
        """Click what leads to another page, and wait for that."""
        with self.page.expect_navigation():
            link_or_button.click()

    def fields(self) -> dict[str, str]:
        """Return the fields of the URL."""
        return {name: each[0] for name, each in parse_qs(urlsplit(self.page.url).query).items()}

    def path(self) -> str:
        """Return the path of the URL."""
        return urlsplit(self.page.url).path

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that a selector finds."""
        return [" ".join(text.split()) for text in self.page.locator(selector).all_inner_texts()]

    def accessible(self) -> None:
        """Assert that axe-core finds nothing: contrast, labels, focus, landmarks."""
        found = self.page.evaluate(
            f"async () => {{ {self._axe}; return (await axe.run(document, "
            f"{{ runOnly: {AXE_RULES} }})).violations; }}"
        )
        problems = [
            f"{each['id']}: {each['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for each in found
            for node in each["nodes"]
        ]
        assert not problems, f"{self.page.url}:\n" + "\n".join(problems[:10])

    def fits(self) -> None:
        """Assert that nothing is wider than the screen, and that each cell has room for a word."""
        misfits = self.page.evaluate(MISFITS)
        assert not misfits, f"{self.page.url}:\n" + "\n".join(each[:300] for each in misfits[:10])
        size = self.page.viewport_size or {}
        top = self.page.locator("main").bounding_box()
        assert top is not None
        assert top["y"] <= size["height"] / 3, self.page.url

    def leave(self) -> None:
        """Leave the page for the next test: a new one would take half a second of the CPU."""
        self.page.goto("about:blank")
        self.context.clear_cookies()
        self._check()

    def close(self) -> None:
        """Close it; assert that it asked no other origin, and that its console is empty."""
        self.context.close()
        self._check()

    def _check(self) -> None:
        strangers, complaints = self.strangers, self.complaints
        self.strangers, self.complaints = [], []
        assert not strangers
        assert not complaints
