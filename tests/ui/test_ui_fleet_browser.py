"""A fleet in a real browser: its members, a switch, what changed on all of them, one key."""

import random

import pytest

from snapkv.ui import FleetSite

from .browsing import Person, picture
from .fleets import made_shop
from .served import FleetServed

pytestmark = pytest.mark.slow

SEED = random.randrange(1 << 32)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    print(f"seed {SEED}")
    return made_shop(tmp_path_factory.mktemp("shop"), SEED)


@pytest.fixture(scope="module")
def served(shop):
    with (
        shop.open() as fleet,
        FleetServed(FleetSite(fleet, "shop", ("--fleet", "shop.toml"), extra_views=())) as served,
    ):
        yield served


@pytest.mark.long
def test_from_the_fleet_to_a_member_and_back(browser, served, shop, axe):
    fleet, at = served.fleet_site.fleet, shop.stamps[len(shop.stamps) // 2] - 1
    person = Person(browser, served.url, axe)
    page = person.open(f"/?at={at}")
    states = {name: seen.state for name, seen in fleet.at(at, behind="stale").members.items()}
    rows = [each.locator("th, td").all_inner_texts() for each in page.locator("tbody tr").all()]
    assert {row[0]: row[2].split()[0] for row in rows} == states
    assert "127.0.0.1:1" in page.locator("tr", has_text="away").inner_text()
    person.accessible()
    picture(person, "ui-fleet")

    page.get_by_role("link", name="us", exact=True).click()
    page.wait_for_url(f"**/?at={at}&member=us")
    page.get_by_role("link", name="Keys", exact=True).click()
    assert "only/" in person.texts(".nodes .name")
    page.get_by_label("Member").select_option("eu")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(f"**/keys?at={at}&member=eu")
    page.get_by_role("link", name="only/").click()
    assert person.texts(".nodes .name") == ["eu"]
    person.accessible()

    page.get_by_role("link", name="Live", exact=True).click()
    page.get_by_text("following", exact=True).wait_for()
    with shop.store("eu") as store:
        store.commit(puts={"only/new": b"1"}, note="while following")
    page.get_by_text("while following").click()
    page.wait_for_url("**/commit?**")
    assert person.fields()["member"] == "eu"
    assert person.texts("details.row .key") == ["only/new"]
    page.get_by_role("link", name="shop", exact=True).click()
    page.wait_for_url(lambda url: "member=" not in url)
    assert page.locator("h1").inner_text() == "Members"
    person.close()


def test_what_changed_anywhere_and_one_key_everywhere(browser, served, shop, axe):
    fleet, a, b = served.fleet_site.fleet, shop.begun, shop.stamps[-1]
    person = Person(browser, served.url, axe)
    page = person.open(f"/changes?from={a}&at={b}")
    found = fleet.diff(a, b, behind="stale")
    wanted = [each.key for each in found]
    shown = [
        (section.get_attribute("aria-label"), " ".join(key.inner_text().split()))
        for section in page.locator("section.of-member").all()
        for key in section.locator("details.row .key").all()
    ]
    assert [name for name, _ in shown] == [name for name, _ in wanted], SEED
    assert ("eu", "image") in shown
    for name in (*found.joined, *found.left, *found.unknown):
        assert name in " ".join(person.texts(".apart"))
    person.accessible()

    page.get_by_role("link", name="eu", exact=True).click()
    page.wait_for_url(f"**/changes?from={a}&at={b}&member=eu")
    assert "image" in person.texts("details.row .key")

    page.keyboard.press("/")
    page.go_back()
    page.keyboard.press("/")
    page.keyboard.type("image")
    page.keyboard.press("Enter")
    page.wait_for_url("**/key?**key=image")
    assert person.texts(".of-member .member") == ["kept", "later", "old", "eu", "us"]
    assert "replicas: 3 -> 4" in page.inner_text("main")
    assert 'tag: "1.0" -> "1.1"' in page.inner_text("main")
    person.accessible()
    person.close()


@pytest.mark.long
def test_a_fleet_is_readable_in_the_dark_and_on_a_phone(browser, served, shop, axe):
    person = Person(
        browser, served.url, axe, color_scheme="dark", viewport={"width": 390, "height": 800}
    )
    a, b = shop.begun, shop.stamps[-1]
    for path in (
        *(f"/?at={b}&tz=local", f"/changes?from={a}&at={b}&show=words", "/?member=kept"),
        *("/key", f"/key?key=image&at={b}&show=side-by-side"),
    ):
        page = person.open(path)
        person.accessible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.goto(f"{served.url}/keys?member=away")
    assert "127.0.0.1:1" in page.get_by_role("alert").inner_text()
    person.accessible()
    assert all("503" in each for each in person.complaints)
    person.complaints.clear()
    person.close()


@pytest.mark.long
def test_a_fleet_works_without_javascript(browser, served, shop, axe):
    person = Person(browser, served.url, axe, java_script_enabled=False)
    page = person.open("/")
    page.get_by_label("Moment").fill(str(shop.stamps[-1]))
    person.follow(page.get_by_role("button", name="Go"))
    person.follow(page.get_by_role("link", name="Changes", exact=True))
    page.get_by_label("From").fill(str(shop.begun))
    person.follow(page.get_by_role("button", name="Go"))
    assert "eu" in person.texts(".of-member h2 a")
    page.get_by_role("textbox", name="Members").fill("us,away")
    person.follow(page.get_by_role("button", name="Filter"))
    assert "eu" not in person.texts(".of-member h2 a")
    page.get_by_label("Member", exact=True).select_option("us")
    person.follow(page.get_by_role("button", name="Show"))
    assert person.path() == "/changes"
    assert person.fields()["at"] == str(shop.stamps[-1])
    person.follow(page.get_by_role("link", name="Keys", exact=True))
    person.follow(page.get_by_role("link", name="image"))
    page.get_by_label("Member", exact=True).select_option("all members")
    person.follow(page.get_by_role("button", name="Show"))
    assert person.path() == "/key"
    assert person.fields()["members"] == "us,away"
    assert person.texts(".of-member .member") == ["us"]
    person.close()
