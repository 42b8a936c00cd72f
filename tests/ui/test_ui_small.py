"""Pages on a phone: nothing scrolls sideways, and the head takes few lines."""

import pytest

import snapkv

from .browsing import Person
from .served import Served

pytestmark = pytest.mark.slow

WIDTH = 375


@pytest.fixture
def served(tmp_path):
    with snapkv.open(f"lmdb:{tmp_path / 'store'}", name="a-store-with-a-long-name") as store:
        for n in range(3):
            store.commit(puts={f"folder/{n}": b"1", f"key{n}": b"1"}, note=f"note {n}")
        with Served(store, writable=True) as served:
            yield served


def test_no_page_scrolls_sideways_on_a_phone(browser, served, axe):
    person = Person(browser, served.url, axe, viewport={"width": WIDTH, "height": 700})
    for path in (
        *("/", "/changes", "/changes?view=tree", "/keys", "/key?key=key1", "/live", "/health"),
        *("/restore?at=rev:3", "/search?q=key", "/?tz=local"),
    ):
        page = person.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH, path
        assert page.locator(".top").bounding_box()["height"] < 130, path
        tops = {each.bounding_box()["y"] for each in page.locator(".top nav a").all()}
        assert len(tops) == 1, path
    person.open("/restore?at=rev:3")
    person.accessible()
    person.close()


def test_links_in_a_tree_of_changes_are_seen_without_colour(browser, served, axe):
    person = Person(browser, served.url, axe)
    person.open("/changes?view=tree")
    assert len(person.texts("ul.tree a")) == 4
    person.accessible()
    person.close()
