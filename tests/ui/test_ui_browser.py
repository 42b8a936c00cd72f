"""Each view in a real browser, on a store made from a git history, compared with git's answers."""

import json
import re

import pytest
from sampling import SOAK, first_of

import snapkv

from .browsing import Person, picture
from .served import WAIT_S, Served

pytestmark = pytest.mark.slow

CART = "deployments/shop/cart.json"
NOW = "2026-09-28T12:00:00Z"


@pytest.fixture(scope="module")
def served(made):
    with (
        snapkv.open(made[0], create=False) as store,
        Served(store, words=("--store", "lmdb:./shop"), writable=True) as served,
    ):
        yield served


@pytest.fixture(scope="module")
def one_person(browser, served, axe):
    person = Person(browser, served.url, axe)
    yield person
    person.close()


@pytest.fixture
def person(one_person):
    yield one_person
    one_person.leave()


# --- 1: the time bar ---


def test_the_bar_counts_the_commits_of_git(person, git):
    page = person.open("/")
    days = re.findall(r"\d{4}-\d\d-\d\d", git.git("log", "--format=%ad", "--date=short"))
    assert f"commits ({len(days)})" in page.inner_text(".legend")
    labels = [each.get_attribute("aria-label") for each in page.locator("a.bucket").all()]
    counted = {}
    for label in labels:
        day, count = label[:10], int(re.search(r": (\d+) commits", label)[1])
        counted[day] = counted.get(day, 0) + count
    assert counted == {day: days.count(day) for day in days}
    person.accessible()
    picture(person, "ui-commits")


def test_a_drag_is_a_range_and_a_click_a_moment(person):
    page = person.open("/changes")
    box = page.locator("svg.bar").bounding_box()
    y = box["y"] + 10
    with page.expect_navigation():
        page.mouse.move(box["x"] + box["width"] * 0.25, y)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
        page.mouse.up()
    fields = person.fields()
    assert fields["from"] < fields["at"]
    assert person.path() == "/changes"
    person.accessible()
    with page.expect_navigation():
        page.mouse.click(
            box["x"] + box["width"] * 0.45, page.locator("svg.bar").bounding_box()["y"] + 3
        )
    assert fields["from"] < person.fields()["at"] < fields["at"]
    assert person.fields()["from"] == fields["from"]


def test_the_bar_works_by_keys(person, git, made):
    page = person.open("/")
    for ts in reversed(made[1][-3:]):
        with page.expect_navigation():
            page.keyboard.press("j")
        assert person.fields()["at"] == str(ts)
    with page.expect_navigation():
        page.keyboard.press("k")
    assert person.fields()["at"] == str(made[1][-2])
    assert person.texts(".title")[0] == git.git("log", "-1", "--format=%s", "HEAD~1").strip()
    day = git.git("log", "-1", "--format=%ad", "--date=format:%Y-%m-%d", "HEAD~2").strip()
    person.open(f"/?at={day}T23:59:59Z")  # after that day's last commit, not at it
    with page.expect_navigation():
        page.keyboard.press("j")
    assert person.fields()["at"] == str(made[1][-3])
    last = page.locator("a.bucket").last
    last.focus()
    page.keyboard.press("ArrowLeft")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == page.locator("a.bucket").nth(-2).get_attribute("aria-label")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert person.fields()["at"].startswith(focused[:10])


def test_times_are_utc_or_local(browser, served, axe):
    person = Person(browser, served.url, axe, timezone_id="Asia/Kolkata")
    page = person.open("/")
    assert person.texts("ol.list time")[0] == "2026-09-28 08:40:00"
    page.get_by_role("link", name="local", exact=True).click()
    page.wait_for_url("**tz=local**")
    assert person.texts("ol.list time")[0] == "2026-09-28 14:10:00"
    assert page.inner_text("#zone") == "Asia/Calcutta, now +05:30"
    assert (
        page.locator("ol.list time")
        .first.get_attribute("title")
        .startswith("2026-09-28 14:10:00 +05:30, 2026-09-28T08:40:00.000Z")
    )
    assert "+05:30: " in page.locator("a.bucket").last.get_attribute("aria-label")
    person.accessible()
    person.close()


TYPED_IN_INDIA = {
    "2026-09-28 14:09": "2026-09-28T08:39:00.000Z",
    "2026-09-28T14:09:59": "2026-09-28T08:39:59.000Z",
    "2026-09-28": "2026-09-27T18:30:00.000Z",
    "2026-09-28T14:09Z": "2026-09-28T14:09Z",
    "2026-09-28T14:09+02:00": "2026-09-28T14:09+02:00",
    "rev:4": "rev:4",
}


def test_a_typed_time_is_in_the_zone_that_is_shown(browser, served, axe):
    person = Person(browser, served.url, axe, timezone_id="Asia/Kolkata")
    for tz in ("local", "utc"):
        page = person.open(f"/?tz={tz}")
        for typed, meant in TYPED_IN_INDIA.items():
            page.fill("#at", typed)
            with page.expect_navigation():
                page.press("#at", "Enter")
            assert person.fields()["at"] == (meant if tz == "local" else typed), (tz, typed)
    person.close()


@pytest.mark.long
def test_a_typed_time_of_day_is_of_today_in_the_zone_that_is_shown(browser, served, axe):
    person = Person(browser, served.url, axe, timezone_id="Asia/Kolkata")
    page = person.open("/?tz=local")
    page.clock.set_fixed_time("2026-09-28T20:00:00Z")  # there it is the 29th
    for typed, meant in [
        ("9:05", "2026-09-29T03:35:00.000Z"),
        ("today", "2026-09-28T18:30:00.000Z"),
        ("yesterday 14:05", "2026-09-28T08:35:00.000Z"),
    ]:
        page.fill("#at", typed)
        with page.expect_navigation():
            page.press("#at", "Enter")
        assert person.fields()["at"] == meant
    person.close()


def test_presets_bound_the_span(person, git):
    since = git.git(
        "log", "--since=2026-09-26T09:15:00Z", "--until=2026-09-26T10:15:00Z", "--format=%s"
    )
    wanted = since.splitlines()
    assert len(wanted) == 5
    page = person.open("/?at=2026-09-26T10:15:00Z")
    page.get_by_role("link", name="1h", exact=True).click()
    page.wait_for_url("**span=1h**")
    assert re.search(r"commits \((\d+)\)", page.inner_text(".legend"))[1] == "5"
    assert person.texts(".title") == wanted


# --- 2: the differences of a range ---


def signs(git, low, high):
    """Return what git says of each file between two commits, in our signs."""
    out = git.git("diff", "--name-status", "--no-renames", low, high)
    kinds = {"A": "+ added", "M": "~ changed", "D": "\N{MINUS SIGN} removed"}
    return {name: kinds[kind] for kind, name in (line.split("\t") for line in out.splitlines())}


@pytest.mark.long_after(1)
@pytest.mark.parametrize(("low", "high"), first_of([(13, 24), (5, 5), (0, 25), (23, 24)], one_in=2))
def test_the_changes_of_a_range_are_those_of_git(person, git, made, low, high):
    hashes, stamps = git.hashes(), made[1]
    wanted = signs(git, hashes[low], hashes[high])
    page = person.open(f"/changes?from={stamps[low]}&at={stamps[high]}")
    rows = page.locator("details.row")
    found = {}
    for row in rows.all():
        found[row.locator(".key").inner_text()] = " ".join(
            row.locator(".sign").inner_text().split()
        )
    assert found == wanted
    page.get_by_role("link", name="Tree", exact=True).click()
    page.wait_for_url("**view=tree**")
    assert len(person.texts("ul.tree > li")) == len({name.partition("/")[0] for name in wanted})
    person.accessible()


@pytest.mark.long
def test_a_difference_is_shown_in_each_way(person, git, made):
    hashes, stamps = git.hashes(), made[1]
    page = person.open(f"/changes?from={stamps[13]}&at={stamps[22]}")
    row = page.locator("details.row", has_text=CART)
    assert "spec.replicas: 2 -> 10" in row.inner_text()
    picture(person, "ui-changes")
    for name, view in (("Unified", "unified"), ("Words", "words"), ("Full", "full")):
        page.get_by_role("link", name=name, exact=True).click()
        page.wait_for_url(f"**show={view}**")
        person.accessible()
    plain = {line[2:] for line in row.locator(".line").all_inner_texts() if line[:1] in "+-"}
    diff = git.git("diff", hashes[13], hashes[22], "--", CART).splitlines()[4:]
    assert {line[1:] for line in diff if line[:1] in "+-"} <= plain | {""}
    page.get_by_role("link", name="Side by side", exact=True).click()
    page.wait_for_url("**show=side-by-side**")
    assert re.search(r'"replicas": 2,.*"replicas": 10,', row.inner_text())
    person.accessible()


# --- 3: a key's history ---


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    "name", first_of([CART, "services/payment.yaml", "NOTES", "hosts"], one_in=2)
)
def test_the_versions_of_a_key_are_the_log_of_a_file(person, git, name):
    person.open(f"/key?key={name}")
    log = git.git("log", "--format=%s%x09%an", "--", name).splitlines()
    rows = person.page.locator(".versions tbody tr").all()
    cells = [row.locator("td").all_inner_texts() for row in rows]
    assert [f"{each[4]}\t{each[3]}" for each in cells] == log
    person.accessible()


def test_any_two_versions_are_compared(person, git):
    page = person.open("/key?key=hosts")
    page.get_by_label("Old: revision").last.check()
    page.get_by_label("New: revision").first.check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**a=rev**")
    shown = list(page.locator("section pre .line").all_inner_texts())
    first, last = git.git("log", "--format=%H", "--", "hosts").split()[::2][::-1]
    diff = git.git("diff", first, last, "--", "hosts").splitlines()
    wanted = [
        f"{line[0]} {line[1:]}"
        for line in diff
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert [line for line in shown if line[:1] in "+-"] == wanted


def test_blame_names_the_commit_of_each_line(person, git):
    person.open("/key?key=hosts&tab=blame")
    rows = person.page.locator(".blame tbody tr").all()
    found, who = [], ""
    for row in rows:
        cells = row.locator("td").all_inner_texts()
        who = cells[2] or who
        found.append((who, cells[3].rstrip()))
    blamed = git.git("blame", "--line-porcelain", "hosts")
    subjects = re.findall(r"^summary (.*)$", blamed, re.MULTILINE)
    lines = [line.rstrip() for line in re.findall(r"^\t(.*)$", blamed, re.MULTILINE)]
    assert found == list(zip(subjects, lines, strict=True))
    person.accessible()
    picture(person, "ui-blame")


# --- 4: the tree of keys ---


def test_the_tree_is_that_of_git_at_each_moment(person, git, made):
    for number in (0, 12, 22, 25) if SOAK else (12, 25):
        for prefix in ("", "deployments/", "deployments/shop/", "services/"):
            person.open(f"/keys?at={made[1][number]}&prefix={prefix}")
            tree = git.git(
                "ls-tree", git.hashes()[number], prefix or ".", "--format=%(path)%(objecttype)"
            )
            wanted = [
                line.removesuffix("blob")
                if line.endswith("blob")
                else line.removesuffix("tree") + "/"
                for line in tree.splitlines()
            ]
            assert sorted(person.texts(".nodes .name")) == sorted(
                each.removeprefix(prefix) for each in wanted
            )
    person.accessible()


def test_the_tree_shows_what_changed_and_strikes_out_what_is_gone(person, made):
    page = person.open(f"/keys?from={made[1][23]}&at={made[1][25]}")
    rows = {" ".join(row.split()) for row in page.locator(".nodes tr").all_inner_texts()}
    assert any(row.startswith("NOTES") and "\N{MINUS SIGN}1" in row for row in rows)
    assert page.locator("del", has_text="NOTES").count() == 1
    assert any(row.startswith("services/") and "~1" in row for row in rows)
    assert not any(row.startswith("README") and "~" in row for row in rows)
    person.accessible()


# --- 5: a commit ---


def test_each_commit_has_what_git_shows(person, git, made):
    for commit, ts in list(zip(git.hashes(), made[1], strict=True))[::5]:
        page = person.open(f"/commit?at={ts}")
        subject, author = git.git("log", "-1", "--format=%s%n%an", commit).splitlines()
        assert page.locator("h1").inner_text() == subject
        assert author in page.locator(".facts").inner_text()
        names = git.git("show", "--format=", "--name-only", commit).split()
        assert sorted(person.texts("details.row .key")) == sorted(names)
    person.accessible()
    assert "snapkv show rev:" in page.locator("#command").inner_text()
    with page.expect_navigation():
        page.get_by_role("link", name="The commit after").click()
    assert person.path() == "/commit"
    permanent = page.get_by_role("link", name="permanent link").get_attribute("href")
    assert permanent == f"/commit?at={person.fields()['at']}"


# --- 6: live ---


def test_live_shows_commits_as_they_happen(person, served, made):
    page = person.open("/live")
    page.get_by_text("following", exact=True).wait_for()
    with snapkv.open(made[0], writer="<b>eve</b>") as store:
        store.commit(puts={"live/\u202ekey": b"1"}, note="<script>alert(1)</script>")
        page.get_by_text("<script>alert(1)</script>").wait_for()
        item = page.locator("#live li").first.inner_text()
        assert "<b>eve</b>" in item
        assert "live/\\u{202e}key" in item
        page.get_by_role("button", name="Pause").click()
        store.save("live/2", b"1")
        page.get_by_role("button", name="Resume (1)").click()
        page.get_by_text("live/2").wait_for()
        person.accessible()
        person.open("/?follow=1&span=15m")
        store.commit(puts={"live/3": b"3"}, note="while following")
        person.page.get_by_text("while following").first.wait_for()


# --- 7: restore ---


def test_a_person_restores_a_moment(person, served, made):
    person.open(f"/commit?at={made[1][24]}")
    person.page.get_by_role("link", name="The commit after").click()
    person.page.wait_for_url(f"**at={made[1][25]}**")
    person.page.get_by_role("link", name="Restore the moment before it…").click()
    page = person.page
    page.wait_for_url("**/restore**")
    person.accessible()
    phrase = page.locator("form.confirm code").inner_text()
    assert re.fullmatch(r"restore \d+ keys", phrase)
    page.get_by_label("Why").fill("as it was")
    page.get_by_label("to confirm").fill(phrase)
    page.get_by_role("button", name="Restore").click()
    page.wait_for_url("**/commit?at=**")
    assert page.locator("h1").inner_text() == "as it was"
    store = served.source.store
    assert dict(store.at().items()) == dict(store.at(made[1][24]).items())


# --- 8: search, and 9: health ---


def test_a_search_finds_what_git_grep_finds(person, git, made):
    page = person.open(f"/?at={made[1][25]}")
    page.get_by_role("searchbox").fill("shop-")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?**")
    assert person.fields()["at"] == str(made[1][25])
    grep = git.git("grep", "--name-only", "shop-", "HEAD").split()
    assert person.texts(".hits a") == sorted(each.removeprefix("HEAD:") for each in grep)
    assert set(person.texts(".hits mark")) == {"shop-"}
    person.accessible()
    page = person.open("/?writer=bob")
    log = git.git("log", "--author=bob", "--format=%s").splitlines()
    assert len(log) > 2
    assert person.texts(".title") == log


def test_the_health_strip_has_the_newest_commit(person, served):
    page = person.open("/keys")
    newest = snapkv.format_time(served.source.store.resolved())
    strip = page.locator("footer .health")
    assert strip.locator("time").first.get_attribute("datetime") == newest
    for label in ("Newest commit", "Resolved", "Readable from", "Size", "Commits"):
        assert label in strip.inner_text()
    page.get_by_role("link", name="Health", exact=True).click()
    page.wait_for_url("**/health**")
    assert "used bytes" in page.inner_text("main")
    person.accessible()
    found = json.loads(served.http.get("/health.json").text)["data"]
    assert found["newest_time"] == newest


# --- all of them ---


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"color_scheme": "dark"},
        pytest.param({"viewport": {"width": 390, "height": 800}}, marks=pytest.mark.soak),
    ],
    ids=["in the dark", "on a small screen"],  # which test_ui_small has, too
)
def test_pages_are_readable(browser, served, axe, made, options):
    person = Person(browser, served.url, axe, **options)
    for path in (
        *("/", f"/changes?from={made[1][13]}&at={made[1][24]}&show=words", "/live", "/health"),
        *(f"/keys?from={made[1][20]}&prefix=services/", f"/key?key={CART}&show=side-by-side"),
        *(f"/key?key={CART}&tab=value", f"/commit?at={made[1][24]}", "/search?q=web"),
    ):
        person.open(path)
        person.accessible()
        wide = person.page.evaluate("document.documentElement.scrollWidth > innerWidth + 1")
        assert not wide, path
    if "color_scheme" in options:
        person.open(f"/commit?at={made[1][24]}")
        picture(person, "ui-dark")
    person.close()


def test_pages_work_without_javascript(browser, served, axe, made):
    person = Person(browser, served.url, axe, java_script_enabled=False)
    page = person.open("/")
    page.locator("a.bucket").nth(-2).click(force=True)
    page.wait_for_url("**at=**")
    person.follow(page.get_by_role("link", name="Keys", exact=True))
    person.follow(page.get_by_role("link", name="services/"))
    person.follow(page.get_by_role("link", name="web.yaml"))
    person.follow(page.get_by_role("link", name="Blame"))
    assert "timeout" in page.locator(".blame").inner_text()
    page.get_by_label("Moment").fill("rev:5")
    person.follow(page.get_by_role("button", name="Go"))
    assert person.fields()["at"] == "rev:5"
    assert person.fields()["key"] == "services/web.yaml"
    person.follow(page.locator("a[rel=prev]").first)
    assert person.fields()["at"] != "rev:5"
    person.close()
    assert WAIT_S
