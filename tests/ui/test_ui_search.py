"""The page's search in the past: commits by a changed text, and by what they say."""

import pytest

import snapkv
from snapkv.rendering import Redaction

from .served import Served


@pytest.fixture
def store(tmp_path):
    with snapkv.open(f"lmdb:{tmp_path / 'store'}", writer="ann") as store:
        store.commit(puts={"web/a": b"v1 beta", "web/b": b"v1"}, note="first")
        store.commit(puts={"web/a": b"v2"}, writer="ci@build", meta={"ticket": "X-7"})
        store.commit(puts={"db/a": b"Beta"}, note="second")
        yield store


def found(served, query):
    return [step["revision"] for step in served.json(f"/search.json?{query}")["steps"]]


def test_a_text_that_values_gained_or_lost_is_found_up_to_the_moment(store):
    with Served(store) as served:
        assert found(served, "q=beta&in=changes") == [5, 4, 3]
        assert found(served, "q=beta&in=changes&at=rev:4") == [4, 3]
        assert found(served, "q=beta&in=changes&prefix=web/") == [4, 3]
        assert found(served, "q=v1&in=changes&limit=1") == [4]
        page = served.http.get("/search?q=v1&in=changes&limit=1").text
        assert "1 commits after which a value has the text more or less often" in page
        assert "back to revision 3" in page, "it says how far it went"
        assert "snapkv log -S v1 -i" in page
        assert [
            each[1] for each in served.json("/search.json?q=v1&in=changes")["steps"][0]["names"]
        ] == ["web/a"]


def test_notes_writers_and_meta_are_found(store):
    with Served(store) as served:
        assert found(served, "q=SECOND&in=commits") == [5]
        assert found(served, "q=ci@&in=commits") == found(served, "q=ticket=x-7&in=commits") == [4]
        assert found(served, "q=ann&in=commits&prefix=db/") == [5]
        assert [each["revision"] for each in served.json("/commits.json?note=x-7")["steps"]] == [4]


def test_hidden_values_are_not_found_by_their_text(store):
    with Served(store, redaction=Redaction(["web/"])) as served:
        assert found(served, "q=beta&in=changes") == [5]
        assert found(served, "q=v1&in=changes") == []
