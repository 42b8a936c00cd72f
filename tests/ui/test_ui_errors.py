"""The field of the time bar, and pages of errors, which keep what the URL names."""

import pytest

import snapkv
from snapkv.times import format_time
from snapkv.ui.page_source import Source

from .browsing import Person
from .served import Served

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("14:05", "2026-09-28T14:05:00.000Z"),
        ("yesterday", "2026-09-27T00:00:00.000Z"),
        ("yesterday 9:30", "2026-09-27T09:30:00.000Z"),
        ("1h ago", "2026-09-28T19:00:00.000Z"),
        ("15m", "2026-09-28T19:45:00.000Z"),
        ("20260927", "2026-09-27T00:00:00.000Z"),
    ],
)
def test_the_field_takes_what_the_command_line_takes_in_utc(typed, meant):
    clock = snapkv.ManualClock(1_790_625_600_000)  # 2026-09-28T20:00:00Z
    with snapkv.open("memory:", clock=clock) as store:
        source = Source(store)
        assert format_time(source.timestamp(source.when(typed))) == meant


def test_an_unknown_path_keeps_the_search_and_the_name(store):
    with Served(store) as served:
        page = served.page("/nothing?prefix=a/", 404)
        assert "no page has the path /nothing" in page.text
        assert "q" in page.fields
        assert "snapkv / default" in page.text
        assert "/keys?prefix=a/" in page.links
        assert served.http.get("/nothing.json").json() == {
            "error": "no page has the path /nothing.json"
        }


def test_an_error_page_keeps_what_the_url_names(store):
    store.save("a/x", b"1")
    with Served(store) as served:
        page = served.page("/changes?at=sometime&from=rev:1&prefix=a/&tz=local", 400)
        assert "'sometime' is not a valid time" in page.text
        assert page.fields["at"] == "sometime"
        assert page.fields["_"] == "prefix=a/&tz=local"
        assert page.fields["from"] == "rev:1"
        assert "q" in page.fields  # the search
        assert "snapkv / default" in page.text
        assert "/keys?at=sometime&from=rev:1&prefix=a/&tz=local" in page.links
        assert "/changes?from=rev:1&prefix=a/&tz=local" in page.links  # the same now
        assert "commits (1)" in page.text  # the bar
        page = served.page("/keys?span=never&prefix=a/", 400)
        assert "/keys?prefix=a/" in page.links
        assert page.fields["at"] == ""


def test_a_person_goes_on_from_an_error(browser, axe, tmp_path):
    with snapkv.open(f"lmdb:{tmp_path / 'store'}") as store:
        store.save("a/x", b"1")
        with Served(store) as served:
            person = Person(browser, served.url, axe)
            page = person.open("/keys?prefix=a/&tz=local")
            page.fill("#at", "rev:99")
            page.press("#at", "Enter")
            page.get_by_role("alert").wait_for()
            assert page.inner_text(".moment code") == "rev:99"
            assert page.locator("a.bucket").count() == 1
            person.accessible()
            page.get_by_role("link", name="The same now").click()
            page.get_by_role("link", name="x", exact=True).wait_for()
            assert person.fields() == {"prefix": "a/", "tz": "local"}
            assert all("404" in each for each in person.complaints)
            person.complaints.clear()
            person.close()
