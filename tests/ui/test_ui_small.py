"""Pages on a phone: nothing is wider than it, and the controls take a third of it."""

import json

import pytest

import snapkv

from .browsing import Person
from .served import Served

pytestmark = pytest.mark.slow

WIDTH = 390
CONFIG = {"image": "web:1.25", "replicas": 2, "env": {"A": "a" * 20, "B": "long text " * 8}}
NOTE = "deploy 1.25 of the web service"
WRITER = "a very long name of a service account of the build@cluster-eu-west-1"
LONG_KEY = "web/service-of-orders/environment/production/europe/DATABASE_URL"


@pytest.fixture
def served(tmp_path):
    with snapkv.open(f"lmdb:{tmp_path / 'store'}", name="a-store-with-a-long-name") as store:
        for n in range(6):
            value = json.dumps(CONFIG | {"replicas": n}, indent=1).encode()
            store.commit(puts={"web/config": value}, note=NOTE, writer="ci@build")
        for n in range(3):
            store.commit(puts={f"folder/{n}": b"1", f"key{n}": b"1"}, note=f"note {n}")
        puts = dict.fromkeys(("web/limits", "web/replicas", "web/routes"), b"cpu: 1")
        store.commit(puts=puts, note=NOTE, writer=WRITER)
        store.commit(deletes=["web/limits"], writer=WRITER)
        with Served(store, writable=True) as served:
            yield served


def test_no_page_scrolls_sideways_on_a_phone(browser, served, axe):
    person = Person(browser, served.url, axe, viewport={"width": WIDTH, "height": 844})
    for path in (
        *("/", "/changes", "/changes?view=tree", "/keys", "/key?key=key1", "/live", "/health"),
        *("/restore?at=rev:3", "/search?q=key", "/?tz=local", "/commit", "/keys?prefix=web/"),
        *("/key?key=web/config", "/key?key=web/config&tab=value"),
        *("/?writer=ci", "/changes?from=rev:3&show=side-by-side", "/key?key=web/limits"),
    ):
        page = person.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH, path
        person.fits()
        assert page.locator(".top").bounding_box()["height"] < 130, path
        tops = {each.bounding_box()["y"] for each in page.locator(".top nav a").all()}
        assert len(tops) == 1, path
    person.open("/restore?at=rev:3")
    person.accessible()
    person.close()


def test_blame_and_history_are_read_on_a_phone(browser, served, axe):
    person = Person(browser, served.url, axe, viewport={"width": WIDTH, "height": 844})
    page = person.open("/key?key=web/config&tab=blame")
    person.fits()
    assert page.locator(".blame").bounding_box()["height"] < 300  # of four paths
    lines = page.locator(".blame tbody tr")
    assert "ci@build" in lines.first.inner_text()
    assert lines.first.locator("code").bounding_box()["width"] > WIDTH / 4
    person.accessible()
    page = person.open("/key?key=web/config")
    row = page.locator(".versions tbody tr").first
    assert "replicas: 4 -> 5" in row.inner_text()
    label = row.locator("td").nth(2).evaluate("cell => getComputedStyle(cell, '::before').content")
    assert label == '"When"'
    assert row.bounding_box()["height"] < 250
    person.accessible()
    person.close()


def test_each_cell_of_a_version_has_its_own_line(browser, served, axe):
    person = Person(browser, served.url, axe, viewport={"width": WIDTH, "height": 844})
    page = person.open("/key?key=web/limits")
    assert "removed" in page.locator(".versions tbody tr").first.inner_text()
    cells = page.locator(".versions td:visible").all()
    assert len(cells) > 8
    assert all(each.bounding_box()["height"] > 12 for each in cells)
    person.close()


def test_long_notes_and_writers_leave_room_for_keys(browser, served, axe):
    person = Person(browser, served.url, axe, viewport={"width": 1280, "height": 800})
    served.source.store.commit(puts={LONG_KEY: b"1"}, note=f"{NOTE}, " * 5, writer=WRITER)
    for path in ("/changes?from=rev:3", f"/key?key={LONG_KEY}", "/keys?prefix=web/", "/"):
        person.open(path)
        person.fits()
    person.close()


def test_links_in_a_tree_of_changes_are_seen_without_colour(browser, served, axe):
    person = Person(browser, served.url, axe)
    person.open("/changes?view=tree")
    assert len(person.texts("ul.tree a")) == 5
    person.accessible()
    person.close()
