"""docs/couch.md is what happens: its sessions run, its tables are the code's."""

import argparse
import re
import shlex
from pathlib import Path

import httpx
import pytest
import typer.main

from cdcmeta.cli.app import app
from cdcmeta.couch_http.app import ROUTES
from cdcmeta.couch_http.errors import _ANSWERS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "couch.md").read_text()
SESSIONS = re.findall(r"^```console\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
STEPS = [
    step.split("\n", 1) for each in SESSIONS for step in re.split(r"^\$ ", each, flags=re.M)[1:]
]
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


@pytest.mark.parametrize("served", ["memory"], indirect=True)
def test_every_session_gives_what_it_shows(served):
    assert len(STEPS) > 8
    try:
        for command, expected in STEPS:
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
