"""Pages that follow, in a real browser: what a person does stays, and lost answers are noticed."""

import pytest

import snapkv

from .browsing import Person
from .served import Served


@pytest.fixture
def store(tmp_path):
    with snapkv.open(f"lmdb:{tmp_path / 'store'}") as store:
        store.commit(puts={"a": b"1", "b": b"1"}, note="first")
        store.commit(puts={"a": b"2", "b": b"2"}, note="second")
        yield store


@pytest.fixture
def served(store):
    with Served(store) as served:
        yield served


@pytest.fixture
def person(browser, served, axe):
    person = Person(browser, served.url, axe)
    yield person
    person.close()


def test_following_keeps_what_a_person_does(person, store):
    page = person.open("/changes?follow=1&span=15m")
    page.locator("details.row").first.evaluate("each => { each.open = false; }")
    page.locator("#at").press_sequentially("2026-01")
    page.locator("#at").evaluate("each => each.setSelectionRange(2, 4)")
    store.save("c", b"1")
    page.locator("details.row", has_text="c").wait_for()
    assert page.input_value("#at") == "2026-01"
    page.keyboard.type("XY")
    assert page.input_value("#at") == "20XY-01"
    assert page.locator("details.row").first.get_attribute("open") is None
    page.fill("#at", "")
    page.locator("details.row summary").nth(1).focus()
    store.save("d", b"1")
    page.locator("details.row .key", has_text="d").wait_for()
    assert page.evaluate("document.activeElement.querySelector('.key').textContent") == "b"


def test_following_asks_again_after_a_failure(person, store):
    page, failures = person.open("/?follow=1&span=15m"), []

    def fail(route):
        failures.append(route.request.url)
        if len(failures) == 1:
            route.abort()
        elif len(failures) == 2:
            route.fulfill(status=503, body="busy")
        else:
            route.continue_()

    page.route(lambda url: "follow=1" in url, fail)
    store.commit(puts={"c": b"1"}, note="third")
    page.get_by_text("third").first.wait_for()
    assert len(failures) == 3
    assert all("ERR_FAILED" in each or "503" in each for each in person.complaints)
    person.complaints.clear()
