"""The pages in a real browser: quiet, accessible, of one origin, and drawn as the data says."""

import os
import re
from pathlib import Path

import pytest

import snapkv
from cdcmeta.ui import views
from snapkv import ManualClock

from .browsing import Person
from .filling import MINUTE_MS, PLAIN, Filled
from .served import Served

pytestmark = pytest.mark.slow

PICTURES = os.environ.get("SNAPKV_PICTURES")
"""A folder for the screenshots of docs/ui.md; without it they are made, but not kept."""
START_MS = 1_790_000_000_000
BLACK = "rgb(0, 0, 0)"
GONE, LOAD = "c2-60 is gone", "the load is even"
MOVES = [
    *((5, "carts/", "c2-60", LOAD), (9, "items/", "c2-60", LOAD), (15, "prices/", "c3-61", LOAD)),
    *((30, "carts/", "c1-5f", GONE), (1, "items/", "c3-61", GONE), (1, "orders/", "c3-61", GONE)),
    *((40, "events/", "c2-62", LOAD), (6, "invoices/", "c2-62", "asked by an operator")),
]
"""What is moved for a picture: after so many minutes, a table, to a capture, and why."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    clock = ManualClock(START_MS)
    url = f"lmdb:{tmp_path_factory.mktemp('store') / 'meta'}"
    with snapkv.open(url, clock=clock, writer="ann@ops") as store:
        yield Filled(store, clock)


@pytest.fixture(scope="module")
def served(filled):
    with Served(filled.store, extra_views=[views], words=("--store", "lmdb:./meta")) as served:
        yield served


@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.soak)])
def scheme(request):
    return request.param


@pytest.fixture(scope="module")
def one_person(browser, served, axe):
    person = Person(browser, served.url, axe)
    yield person
    person.close()


@pytest.fixture
def person(one_person, scheme):
    one_person.page.emulate_media(color_scheme=scheme)
    yield one_person
    one_person.leave()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_and_its_pictures_can_be_seen(person, filled):
    for url in filled.pages():
        page = person.open(url)
        person.accessible()
        for each in page.locator("main svg").all():
            box = each.bounding_box()
            assert box["width"] > 50, url
            assert box["height"] >= 18, url
            assert each.get_attribute("aria-label"), url
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= page.viewport_size["width"], url  # wide tables scroll by themselves


def test_pages_fit_a_phone(browser, served, axe, filled):
    person = Person(browser, served.url, axe, viewport={"width": 390, "height": 844})
    for url in filled.pages():
        person.open(url)
        person.fits()
    person.close()


def test_a_changefeed_without_captures_is_not_green(person):
    page = person.open("/changefeeds")
    state = page.locator("tbody tr", has_text="copy").locator(".state")
    assert state.inner_text() == "running"
    colours = {
        state.evaluate("it => getComputedStyle(it).color"),
        page.locator("tbody .del").first.evaluate("it => getComputedStyle(it).color"),
    }
    assert len(colours) == 1  # as its problem
    assert "no capture" in page.inner_text("tbody")
    person.open("/changefeed?cluster=default&feed=copy")
    assert "no capture" in page.inner_text(".head .state")


@pytest.mark.long
def test_a_document_is_found_by_clicks(person, filled):
    page = person.open("/")
    page.get_by_role("link", name="Databases").click()
    page.get_by_role("link", name="shop", exact=True).click()
    assert person.path() == "/database"
    page.get_by_role("textbox", name="Document").fill("users")
    page.get_by_role("button", name="Open").click()
    assert person.path() == "/document"
    assert '"price": 4' in page.inner_text("pre.code")
    page.get_by_role("link", name=filled.revs[-1]).click()
    assert person.fields()["rev"] == filled.revs[-1]
    assert '"price": 3' in page.inner_text("pre.code")
    kinds = [each.get_attribute("class") for each in page.locator("circle").all()]
    assert sorted(kinds) == ["node conflict", "node inner", "node inner", "node wins"]


def test_the_commit_before_shows_where_tables_were(person, filled):
    page = person.open(f"/changefeed?cluster=default&feed=copy&at={filled.moved}")
    row = page.locator("tbody tr", has_text="orders/").first
    assert "c2" in row.locator("td").nth(1).inner_text()
    with page.expect_navigation():
        page.keyboard.press("j")
    assert int(person.fields()["at"]) < filled.moved
    assert person.path() == "/changefeed"
    row = page.locator("tbody tr", has_text="orders/").first
    assert "c1" in row.locator("td").nth(1).inner_text()


def test_lanes_show_the_moves_and_have_colours(person):
    page = person.open("/changefeed?cluster=default&feed=copy")
    lane = page.locator("tbody tr", has_text="orders/").first.locator("svg.lane")
    bars = lane.locator("rect").all()
    assert len(bars) == 2
    boxes = sorted((each.bounding_box() for each in bars), key=lambda box: box["x"])
    assert boxes[0]["x"] + boxes[0]["width"] == pytest.approx(boxes[1]["x"], abs=2)
    fills = {each.evaluate("bar => getComputedStyle(bar).fill") for each in bars}
    assert len(fills) == 2
    assert BLACK not in fills
    swatches = page.locator(".captures .swatch-of").all()
    shown = {each.evaluate("it => getComputedStyle(it).backgroundColor") for each in swatches}
    assert fills <= shown  # the legend has the colours of the bars
    legend = person.texts(".captures > span")
    assert "c2 1 table" in legend
    titles = [re.sub(r" from .*", "", each.inner_html()) for each in lane.locator("title").all()]
    assert {re.sub(r".*>", "", each) for each in titles} == {"c1", "c2"}


def test_a_ring_marks_the_range_of_a_key(person, filled):
    page = person.open(f"/generation?log=default&time={filled.made[1].time}&key=users")
    ring = page.locator("svg.ring")
    assert len(ring.locator("path.arc").all()) == filled.made[1].ranges
    strokes = {
        each.evaluate("arc => getComputedStyle(arc).stroke")
        for each in ring.locator("path.arc").all()
    }
    assert len(strokes) >= 2
    assert "none" not in strokes
    marked = page.locator("tr.found")
    assert marked.count() == 1
    marked.locator("summary").click()
    stream = page.locator("section.note code.stream").inner_text()
    assert stream in marked.locator("ol.streams").inner_text()


@pytest.mark.long
def test_the_pictures_of_the_documents(browser, axe, tmp_path):
    """Two screenshots of a store with plain names; they are kept if that is wanted."""
    clock = ManualClock(START_MS)
    with snapkv.open("memory:", clock=clock, writer="ann@ops") as store:
        filled = Filled(store, clock, PLAIN)
        for minutes, table, capture, why in MOVES:
            filled.wait(minutes)
            filled.placing.place(capture, table, why=why)
        filled.wait(20)
        words = ("--store", "lmdb:./meta")
        with Served(store, extra_views=[views], words=words) as served:
            person = Person(browser, served.url, axe, viewport={"width": 1280, "height": 960})
            end = clock.now_ms() + MINUTE_MS
            span = f"{end - 150 * MINUTE_MS}..{end}"
            ring = f"/generation?log=default&time={filled.made[1].time}&key=users"
            for name, url in (
                ("ui-ring", ring),
                ("ui-changefeed", f"/changefeed?cluster=default&feed=copy&span={span}"),
            ):
                person.open(url)
                shot = person.page.screenshot(path=Path(PICTURES or tmp_path) / f"{name}.png")
                assert shot.startswith(b"\x89PNG")
                assert len(shot) > 20_000
            person.close()
