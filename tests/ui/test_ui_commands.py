"""The command below a page shows in a terminal what the page shows."""

import json
import shlex
import subprocess
import sys

import pytest

from .served import Served

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", ["lmdb"], indirect=True)]


@pytest.fixture
def served(store, clock, place):
    for number in range(6):
        clock.advance(1_000)
        store.commit(
            puts={f"svc/{number % 2}": b'"%d"' % number, "other": b"%d" % number},
            writer="Alice" if number % 2 else "bob",
            note=f"Init {number}",
        )
    clock.advance(1_000)
    store.tick()
    with Served(store, words=("--store", place.url)) as served:
        yield served


def printed(served, url):
    """Return what the command of a page prints, a document for each line."""
    path, _, query = url.partition("?")
    path = "/commits" if path == "/" else path
    answer = served.http.get(f"{path}.json?{query}").json()
    words = shlex.split(answer["command"])
    assert words[0] == "snapkv"
    done = subprocess.run(
        [sys.executable, "-m", *words, "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return answer["data"], [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long_after(2)
@pytest.mark.parametrize(
    "query",
    ["prefix=svc/1&writer=ALICE&note=init", "at=rev:5", "from=rev:3&at=rev:6", "ticks=1", "note=4"],
)
def test_the_log_has_the_commits_of_the_page(served, query):
    data, lines = printed(served, f"/?{query}")
    assert data["steps"]
    assert [each["revision"] for each in lines] == [each["revision"] for each in data["steps"]]


def test_the_history_has_the_versions_of_the_page(served):
    data, lines = printed(served, "/key?key=svc/1&at=rev:5")
    assert {each["revision"] for each in lines} == {each["revision"] for each in data["versions"]}


def test_two_versions_are_compared_by_diff(served):
    data, lines = printed(served, "/key?key=svc/1&a=rev:5&b=rev:7")
    assert [(each["key"], each["kind"]) for each in [data["compared"]]] == [("svc/1", "~")]
    assert [each["key"] for each in lines] == ["svc/1"]
