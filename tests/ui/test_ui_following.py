"""Pages that follow, in a real browser: what a person does stays, and lost answers are noticed."""

import pytest

import snapkv

from .browsing import Person
from .served import Served

pytestmark = pytest.mark.slow


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
    page.locator("details.row .key", has_text="c").wait_for()
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


@pytest.mark.long
def test_a_page_says_that_the_engine_does_not_answer(browser, axe, etcd):
    with snapkv.open(f"etcd://{etcd.endpoint}") as store:
        store.save("a", b"1")
        with Served(store) as served:
            live, list_ = Person(browser, served.url, axe), Person(browser, served.url, axe)
            live.open("/live").get_by_text("following", exact=True).wait_for()
            list_.open("/?follow=1&span=15m")
            etcd.kill()
            for person in (live, list_):
                person.page.get_by_text("no commits come now: ").wait_for()
            etcd.start()
            live.page.get_by_text("following", exact=True).wait_for()
            list_.page.locator("#follow-state:empty").wait_for(state="attached")
            store.save("b", b"2")
            live.page.locator("#live").get_by_text("b", exact=True).wait_for()
            live.close()
            list_.close()


@pytest.mark.long
def test_a_page_that_the_server_did_not_take_asks_again(person, store, served, monkeypatch):
    monkeypatch.setattr("snapkv.ui.live_commits.FOLLOWERS_MAX", 0)
    page = person.open("/live")
    page.get_by_text("the server does not take this page now").wait_for()
    store.commit(puts={"c": b"1"}, note="meanwhile")
    monkeypatch.setattr("snapkv.ui.live_commits.FOLLOWERS_MAX", 1)
    page.get_by_text("following", exact=True).wait_for()
    page.get_by_text("meanwhile").wait_for()
    assert all("503" in each for each in person.complaints)
    person.complaints.clear()


def test_a_pause_that_was_too_long_is_a_gap(person, store):
    page = person.open("/live")
    page.get_by_text("following", exact=True).wait_for()
    page.get_by_role("button", name="Pause").click()
    for n in range(205):
        store.commit(puts={"a": b"%d" % n}, note=f"note {n}")
    page.get_by_role("button", name="Resume (205)").click()
    assert page.locator("#live li").count() == 200
    assert page.locator("#live .title").first.inner_text() == "note 204"
    assert page.locator("#live .title").last.inner_text() == "note 6"
    assert "Gap: 6 commits are left out" in page.locator("#live li").last.inner_text()
