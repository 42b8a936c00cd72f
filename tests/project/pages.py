"""The pages of the documentation, their blocks of code, and what runs each block.

A block runs, or the line above it says why not: `<!-- not run: it needs a cluster -->`. The tests
of `RUN_BY` run blocks of their pages; `test_pages.py` runs all others.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"<!-- not run: (.+?) -->\s*", re.DOTALL)

RUN_BY: dict[str, dict[str, list[str]]] = {
    "tests/cli/test_cli_docs.py::test_every_session_gives_what_it_shows_on_lmdb": {
        "console": ["docs/cli.md"],
    },
    "tests/cli/test_cli_docs.py::test_every_session_on_etcd_gives_what_it_shows": {
        "console": ["docs/etcd.md", "docs/howto/etcd.md", "docs/howto/kubernetes.md"],
    },
    "tests/couch_http/test_couch_docs.py::test_every_session_over_http_gives_what_it_shows": {
        "console": ["docs/couch.md", "docs/howto/couch.md"],
    },
    "tests/scheduler/runtime/test_capture_docs.py::test_three_captures_in_two_minutes": {
        "console": ["docs/scheduler.md"],
    },
    "tests/spark/test_spark_docs.py::test_every_session_with_spark_gives_what_it_shows": {
        "session": [
            "docs/spark.md",
            "docs/couch_spark.md",
            "docs/spark_sql.md",
            "docs/from_delta.md",
        ],
    },
    "tests/project/test_service_page.py::test_the_service_keeps_what_the_page_promises": {
        "program": ["docs/howto/fastapi.md"],
    },
}
"""Test -> kind of block -> pages. These tests take their lists of pages from here."""


@dataclass(frozen=True)
class Block:
    """A block of code: where it begins, what it is, and why it does not run, if it does not.

    `part` is the text of the heading of second level above it.
    """

    page: str
    line: int
    language: str
    code: str
    reason: str
    part: str = ""

    @property
    def kind(self) -> str:
        """What runs it: a session of Python or of the shell, a program, data to parse, or text."""
        if self.language in ("python", "pycon"):
            return "session" if re.search(r"^>>> ", self.code, re.MULTILINE) else "program"
        return {"console": "console", "json": "data", "toml": "data", "text": "text"}.get(
            self.language, "other"
        )

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def page_files() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted([*found, *ROOT.glob("*/DESIGN.md"), *ROOT.glob("*/README.md")])


PAGES = [str(path.relative_to(ROOT)) for path in page_files()]


@cache
def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page, from top to bottom."""
    return blocks_in((ROOT / page).read_text(), page)


def blocks_in(text: str, page: str = "") -> list[Block]:
    """Return the blocks of a text, also those of lists and indented ones."""
    found, reason, part, before = [], "", "", ""
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            first = token.map[0] + 1 if token.map else 0
            found.append(Block(page, first, token.info, token.content, reason, part))
        if token.type == "inline" and before == "h2":
            part = token.content
        before = token.tag if token.type == "heading_open" else ""
        mark = MARK.fullmatch(token.content) if token.type == "html_block" else None
        reason = mark[1] if mark else ""
    return found


def pages_run_by(test: str) -> list[str]:
    """Return the pages of which a test, named by the end of its name, runs blocks."""
    (kinds,) = (kinds for name, kinds in RUN_BY.items() if name.endswith(test))
    return [page for pages in kinds.values() for page in pages]


def is_run_elsewhere(block: Block) -> bool:
    return any(block.page in kinds.get(block.kind, ()) for kinds in RUN_BY.values())
