"""docs/couch.md is what happens: its sessions run, its tables are the code's."""

import argparse
import re
import shlex

import httpx
import pytest
import typer.main

from cdcmeta.cli.app import app
from cdcmeta.couch_http.couch_server import ROUTES
from cdcmeta.couch_http.http_errors import _ANSWERS
from tests.project.pages import ROOT, blocks_of, pages_run_by

PAGES = pages_run_by("test_every_session_over_http_gives_what_it_shows")
DOCUMENT = (ROOT / PAGES[0]).read_text()
CURL = argparse.ArgumentParser()
CURL.add_argument("-X", default="GET")
CURL.add_argument("-d")
CURL.add_argument("url")


def curl(words: list[str], http: httpx.Client) -> str:
    """Send what curl would; the sessions need no more of it."""
    asked = CURL.parse_args(words)
    path = asked.url.removeprefix("http://localhost:5984")
    assert path != asked.url
    return http.request(asked.X, path, content=asked.d).text


def steps(page):
    """Yield each command of a page that runs, and the output that the page shows."""
    for block in blocks_of(page):
        if block.kind == "console" and not block.reason:
            for step in re.split(r"^\$ ", block.code, flags=re.M)[1:]:
                yield step.split("\n", 1)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("served", ["memory"], indirect=True)
def test_every_session_over_http_gives_what_it_shows(served, page):
    try:
        for command, expected in steps(page):
            program, *words = shlex.split(command)
            assert program == "curl"
            output = curl(words, served.http)
            pattern = ".*?".join(map(re.escape, expected.split("...")))
            assert re.fullmatch(pattern, output, re.DOTALL), f"{command}\n{output}"
    finally:
        served.http.delete("/catalogue")


def test_every_option_is_told():
    command = typer.main.get_command(app).commands["serve"]
    rows = re.findall(r"^\| `(--[a-z-]+)` \| ", DOCUMENT, re.MULTILINE)
    assert rows == [param.opts[0] for param in command.params]


def test_every_path_is_told():
    rows = dict(re.findall(r"^\| `(/\S*)` \| ([A-Z, ]+) \|", DOCUMENT, re.MULTILINE))
    served = {
        path: ", ".join(handlers)
        for path, handlers in ROUTES.items()
        if "POST" not in handlers or "COPY" not in handlers  # those answer that they are not here
    }
    assert {path: sorted(methods.split(", ")) for path, methods in rows.items()} == {
        path: sorted(methods.split(", ")) for path, methods in served.items()
    }


def test_every_error_is_told():
    rows = re.findall(r"^\| (\d{3}) \| (.*?) \|", DOCUMENT, re.MULTILINE)
    told = {(int(status), word) for status, words in rows for word in re.findall(r"\w+", words)}
    assert {(status, word) for _, (status, word, _) in _ANSWERS} <= told
