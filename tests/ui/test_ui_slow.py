"""Pages over an engine far away: each goes on from where the one before ended, and says so."""

from urllib.parse import quote

import pytest
from store.wrapping import Slow, wrap_engines

from snapkv.ui import key_differences

from .served import Served

pytestmark = pytest.mark.slow

FOLDERS = 6


@pytest.fixture
def served(store, clock, place, monkeypatch):
    """A page over a slow engine, which gives each view less time than one round trip takes."""
    for number in range(FOLDERS):
        clock.advance(60_000)
        store.commit(puts={f"f{number:02}/{n}": b"%d" % number for n in range(4)})
    wrap_engines(monkeypatch, Slow)
    with Served(place.open(clock=clock)) as served:
        served.site.budget_s = Slow.delay_s / 50
        yield served


def walked(served, url, path, to="after"):
    """Return the pages from a URL on, each as its JSON and as a person sees it."""
    found, at = [], url
    while at is not None:
        page, data = served.page(at), served.json(at.replace(path, f"{path}.json", 1))
        found.append((data, page))
        assert len(found) < 40
        further = f"after={quote(data[to], safe='/')}" if data[to] is not None else None
        at = None if further is None else next(each for each in page.links if further in each)
    return found


@pytest.mark.long_on("etcd")
def test_each_page_of_the_tree_makes_progress_and_the_last_one_is_the_end(served):
    for url in ("/keys", "/keys?from=rev:3&at=now"):
        pages = walked(served, url, "/keys")
        assert [each["path"] for data, _ in pages for each in data["nodes"]] == [
            f"f{number:02}/" for number in range(FOLDERS)
        ]
        assert len(pages) > 1  # the time was too short for all
        for data, page in pages:
            assert data["cut_short"] == (data["after"] is not None)
            assert data["cut_short"] == ("Looked as far as this" in page.text)
            if data["nodes"] or data["after"] is not None:
                assert "No key" not in page.text


def test_a_filter_that_found_nothing_yet_does_not_say_that_there_is_no_key(served):
    pages = walked(served, "/keys?name=f05", "/keys")
    assert [each["path"] for data, _ in pages for each in data["nodes"]] == ["f05/"]
    assert not pages[0][0]["nodes"]
    assert all("No key" not in page.text for _, page in pages)
    assert "No key has such a name" in served.page("/keys?name=f00&prefix=f00/").text


@pytest.mark.parametrize(("view", "to"), [("list", "after"), ("tree", "looked_to")])
def test_each_page_of_changes_looks_at_keys_and_leads_on(served, monkeypatch, view, to):
    monkeypatch.setattr(key_differences, "LOOKED_MIN", 5)
    url = f"/changes?view={view}&limit=5&from=rev:1&at=now"
    pages = walked(served, url, "/changes", to)
    assert len(pages) == -(-4 * FOLDERS // 5)
    assert [each["key"] for data, _ in pages for each in data["rows"]] == [
        f"f{number:02}/{n}" for number in range(FOLDERS) for n in range(4)
    ]
    assert sum(sum(data["counts"].values()) for data, _ in pages) == 4 * FOLDERS
    for data, page in pages:
        assert data["complete"] == ("Count longer" not in page.text)
        assert data["complete"] == ("Counted as far as" not in page.text)
        assert "No key" not in page.text
