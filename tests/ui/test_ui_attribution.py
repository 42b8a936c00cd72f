"""Who, when and why on the pages: of changes, keys, versions, commits and filtered bars."""

import re

import pytest

import snapkv
from snapkv.times import format_time, physical_ms
from snapkv.ui.page_source import Source
from snapkv.ui.time_bar import bar

from .browsing import Person
from .served import Served

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path):
    clock = snapkv.ManualClock(1_790_000_000_000)  # 2026-09-21T14:13:20Z
    with snapkv.open(f"lmdb:{tmp_path / 'shop'}", clock=clock, writer="ann@laptop") as store:
        limits = "\n".join(["cpu: 1", "memory: 2", *(f"limit{n}: {n}" for n in range(9))])
        store.commit(puts={"web/config": b'{"image": "web:1.25"}', "web/limits": limits.encode()})
        store.commit(puts={"web/old": b"1", "mail/host": b"mail.example"})
        clock.advance(24 * HOUR_MS)
        store.commit(
            puts={"web/config": b'{"image": "web:1.26"}', "web/limits": b"9" + limits.encode()},
            deletes=["web/old"],
            note="deploy 1.26",
            writer="ci@build",
        )
        clock.advance(HOUR_MS)
        store.save("mail/host", b"mail2.example", writer="bob@desk")
        clock.advance(2 * HOUR_MS)
        yield store


@pytest.fixture
def served(store):
    with Served(store, words=("--store", "lmdb:./shop")) as served:
        yield served


def test_changes_say_who_when_and_why_for_each_key(browser, served, axe):
    person = Person(browser, served.url, axe)
    page = person.open("/changes?from=2026-09-22T00:00:00Z")
    last = dict(zip(person.texts("summary .key"), person.texts("summary .last"), strict=True))
    assert last == {
        "mail/host": "2 h ago, bob@desk",
        "web/config": "3 h ago, ci@build deploy 1.26",
        "web/limits": "3 h ago, ci@build deploy 1.26",
        "web/old": "3 h ago, ci@build deploy 1.26",  # which removed it
    }
    title = page.locator("summary time").first.get_attribute("title")
    assert title.startswith("2026-09-22T15:13:20.000Z")
    person.accessible()
    page.get_by_label("Keys with").fill("CONF")
    page.get_by_label("Keys with").press("Enter")
    page.wait_for_url("**name=CONF**")
    assert person.texts("summary .key") == ["web/config"]
    assert "1 key between" in page.inner_text(".head")
    person.follow(page.get_by_role("link", name="Commit", exact=True))
    assert page.inner_text("h1") == "deploy 1.26"
    person.close()


def test_the_history_of_a_key_shows_what_each_version_changed(browser, served, axe):
    person = Person(browser, served.url, axe)
    page = person.open("/key?key=web/config")
    newest, oldest = person.texts(".versions .changed")
    assert newest == "~ image: web:1.25 -> web:1.26"
    assert "web:1.25" in oldest
    assert "3 h ago" in page.locator(".versions .when").first.inner_text()
    person.open("/key?key=web/limits")
    assert person.texts(".versions .changed")[0] == "- cpu: 1, + 9cpu: 1"
    person.open("/key?key=mail/host")
    assert person.texts(".versions .changed")[0] == '"mail.example" -> "mail2.example"'
    person.accessible()
    person.close()


def test_a_removed_key_says_when_by_which_writer_and_why(served):
    for tab in ("history", "value", "blame"):
        text = served.page(f"/key?key=web/old&tab={tab}").text
        said = r"does not exist now: it was removed 3 h ago ?, ci@build \(deploy 1\.26\)\."
        assert re.search(said, text), text


def test_the_list_of_keys_says_when_and_by_which_writer(served):
    rows = {node["path"]: node for node in served.json("/keys.json?prefix=web/")["nodes"]}
    assert rows["web/config"]["writer"] == "ci@build"
    page = served.page("/keys?prefix=mail/")
    assert "2 h ago, bob@desk" in page.text
    assert "rev " not in page.text


def test_a_commit_without_a_note_has_its_first_change_as_title(browser, served, axe):
    person = Person(browser, served.url, axe)
    page = person.open("/")
    assert person.texts("ol.list .title")[0] == "Change mail/host"
    assert person.texts("ol.list .title")[2] == "Add mail/host and 1 more"
    person.follow(page.locator("ol.list .title").first)
    assert page.inner_text("h1") == "Change mail/host"
    assert "(2 h ago)" in page.inner_text(".facts")
    person.close()


FILTERS = {
    "/key?key=web/config": 2,
    "/key?key=web/old": 2,
    "/?writer=BOB": 1,
    "/?note=deploy": 1,
    "/keys?prefix=mail/": 2,
    "/changes?prefix=web/": 3,
    "/changes?from=rev:3": 4,
}


@pytest.mark.parametrize("path", FILTERS)
def test_the_bar_counts_what_the_page_is_filtered_to(browser, served, axe, path):
    person = Person(browser, served.url, axe)
    page = person.open(path)
    assert f"commits ({FILTERS[path]})" in page.inner_text(".legend")
    labels = [each.get_attribute("aria-label") for each in page.locator("a.bucket").all()]
    assert sum(int(re.search(r": (\d+) commits", each)[1]) for each in labels) == FILTERS[path]
    person.close()


def test_a_bar_without_time_to_count_says_so(store):
    for n in range(200):
        store.save("many", b"%d" % n)
    with Served(store) as served:
        served.site.budget_s = 0.0
        page = served.page("/key?key=many")
        assert "counted from" in page.text
        assert any("look=longer" in link for link in page.links)
        found = served.json("/bar.json")
        assert found["known_ms"] is None  # without a filter nothing is read


@pytest.mark.parametrize("hours", [0.001, 0.1, 1, 5, 24, 100, 24 * 40, 24 * 365, 24 * 3_000])
def test_the_labels_of_the_axis_are_round(store, hours):
    start = 1_790_000_123_456
    found = bar(Source(store), start, start + int(hours * HOUR_MS))
    times = [time for _, time, _ in found.ticks]
    assert 1 <= len(times) <= 6
    shares = [share for share, _, _ in found.ticks]
    assert shares == sorted(shares)
    endings = {0.001: "0Z", 0.1: "0.000Z", 1: ":00.000Z", 5: ":00:00.000Z", 24: ":00:00.000Z"}
    assert all(
        each.endswith(endings.get(hours, "T00:00:00.000Z")) for each in times if hours != 100
    )
    assert all(each.endswith(":00:00.000Z") for each in times if hours == 100)


@pytest.mark.parametrize("tz", ["utc", "local"])
def test_the_labels_of_a_short_span_differ(browser, served, store, axe, tz):
    end = store.reader.clock.now_ms()
    person = Person(browser, served.url, axe, timezone_id="Asia/Kolkata")
    page = person.open(f"/?span={end - 900}..{end}&tz={tz}")
    labels = list(filter(None, page.locator("svg.axis text").all_text_contents()))
    assert len(labels) >= 3
    assert len(set(labels)) == len(labels)
    person.close()


def test_how_long_ago_it_was_goes_on_in_an_open_page(browser, served, axe):
    person = Person(browser, served.url, axe)
    person.page.clock.install()  # of the browser, whose time has nothing to do with the server's
    page = person.open("/keys?prefix=mail/")
    by = page.locator(".by").first
    assert by.inner_text() == "2 h ago, bob@desk"
    page.clock.run_for(2 * HOUR_MS)
    assert by.inner_text() == "4 h ago, bob@desk"
    page.clock.run_for(100 * 24 * HOUR_MS)
    assert by.inner_text() == "3 months ago, bob@desk"
    person.close()


def test_the_axis_is_round_in_local_time_too(browser, served, axe):
    person = Person(browser, served.url, axe, timezone_id="Asia/Kolkata")
    for tz in ("utc", "local"):
        page = person.open(f"/?span=24h&tz={tz}")
        labels = list(filter(None, page.locator("svg.axis text").all_text_contents()))
        assert len(labels) >= 3
        assert all(label.endswith(":00") for label in labels), labels
    person.close()


def test_a_range_has_fields(browser, served, store, axe):
    person = Person(browser, served.url, axe)
    page = person.open("/changes?prefix=web/")
    page.get_by_label("from", exact=True).fill("2026-09-22 00:00")
    page.get_by_label("moment").fill("2026-09-22 18:00")
    page.get_by_role("button", name="Go").click()
    page.wait_for_url("**from=**")
    assert person.fields() == {
        "from": "2026-09-22 00:00",
        "at": "2026-09-22 18:00",
        "prefix": "web/",
    }
    assert len(person.texts("summary .key")) == 3
    assert page.get_by_label("from", exact=True).input_value() == "2026-09-22 00:00"
    person.accessible()
    person.close()


def test_health_is_in_words(served, store):
    page = served.page("/health")
    newest = format_time(store.resolved())
    assert physical_ms(store.resolved()) < store.reader.clock.now_ms()
    assert f"was made 2 h ago by bob@desk, at {newest[:10]} {newest[11:19]}" in page.text
    assert "newest commits are by bob@desk (1), ci@build (1), ann@laptop (2)." in page.text
    assert "No sessions are live." in page.text
    assert "snapkv status --store lmdb:./shop" in page.text
    with store.election("compactor", ttl=60).campaign(b"v", timeout=30):
        page = served.page("/health")
        assert "1 session is live. ann@laptop leads compactor." in page.text
        facts = served.http.get("/health.json").json()["data"]
        assert (facts["sessions"], facts["leaders"]) == (1, {"compactor": "ann@laptop"})
    assert "No sessions are live." in served.page("/health").text
    assert "The whole history can be read." in page.text


def test_the_page_of_an_error_keeps_the_search_and_the_name(browser, served, axe):
    person = Person(browser, served.url, axe)
    answer = person.page.goto(f"{served.url}/key?key=nothing")
    assert answer.status == 404
    assert "default" in person.page.inner_text(".brand")
    person.accessible()
    person.page.get_by_role("searchbox").fill("mail2")
    person.page.keyboard.press("Enter")
    person.page.wait_for_url("**/search?**")
    assert person.texts(".hits a") == ["mail/host"]
    assert all("404" in each for each in person.complaints)
    person.complaints.clear()
    person.close()
