"""A person undoes a bad commit on the page: all of it, some keys, one version; and conflicts."""

import httpx
import pytest

import snapkv

from .browsing import Person
from .served import Served

pytestmark = pytest.mark.slow

BEFORE = {"web/config": b"image: 1.25", "web/limits": b"cpu: 1", "mail/host": b"mail.example"}
MINUTE_MS = 60_000


class Shop:
    """A store in which the deploy was wrong, and Bob changed something else since."""

    def __init__(self, store, clock):
        self.store = store
        self.first = store.commit(puts=BEFORE, writer="ann@laptop").ts
        clock.advance(5 * MINUTE_MS)
        self.deploy = store.commit(
            puts={"web/config": b"image: 1.26", "web/flags": b"beta"},
            deletes=["web/limits"],
            note="deploy 1.26",
            writer="ci@build",
        ).ts
        clock.advance(MINUTE_MS)
        store.save("mail/host", b"mail2.example", writer="bob@desk")
        clock.advance(MINUTE_MS)

    def state(self):
        return dict(self.store.at().items())

    def newest(self):
        return next(self.store.commits(newest_first=True, limit=1))


@pytest.fixture
def clock():
    return snapkv.ManualClock(1_790_000_000_000)


@pytest.fixture
def shop(tmp_path, clock):
    with snapkv.open(f"lmdb:{tmp_path / 'shop'}", clock=clock, writer="page@host") as store:
        yield Shop(store, clock)


@pytest.fixture
def served(shop):
    with Served(shop.store, writable=True, words=("--store", "lmdb:./shop")) as served:
        yield served


@pytest.fixture
def person(browser, served, axe):
    person = Person(browser, served.url, axe)
    yield person
    person.close()


def confirm(page, note=None):
    """Fill in the form as a person does, and send it."""
    if note is not None:
        page.get_by_label("Why").fill(note)
    page.get_by_label("to confirm").fill(page.inner_text("#phrase"))
    page.locator("form.confirm button").click()
    page.wait_for_url("**/commit?at=**")


def test_a_commit_is_reverted_and_nothing_else(person, shop):
    page = person.open(f"/commit?at={shop.deploy}")
    assert page.get_by_role("link", name="Restore this moment…").count() == 0
    person.follow(page.get_by_role("link", name="Revert this commit…"))
    assert page.inner_text("h1") == "Revert"
    assert sorted(person.texts("summary .key")) == ["web/config", "web/flags", "web/limits"]
    assert page.inner_text("#phrase") == "revert 3 keys"
    assert "deploy 1.26" in page.get_by_label("Why").input_value()
    assert f"snapkv revert {shop.deploy}" in page.inner_text("#command")
    person.accessible()
    confirm(page)
    assert shop.state() == BEFORE | {"mail/host": b"mail2.example"}
    assert "deploy 1.26" in shop.newest().note
    person.follow(page.get_by_role("link", name="Revert this commit…"))  # of the revert
    confirm(page, "deploy again")
    assert shop.state()["web/config"] == b"image: 1.26"


def test_several_commits_of_the_list_are_reverted_together(person, shop, clock):
    hotfix = shop.store.save("web/config", b"image: 1.27", writer="eve@desk", note="hotfix")
    clock.advance(MINUTE_MS)
    page = person.open("/")
    page.get_by_label("Choose deploy 1.26").check()
    page.get_by_label("Choose hotfix").check()
    person.accessible()
    person.follow(page.get_by_role("button", name="Revert the chosen…"))
    assert page.inner_text("h1") == "Revert"
    assert "2 commits of" in page.inner_text("main")
    assert page.get_by_label("Conflicts").count() == 0  # the deploy's key is of the hotfix, too
    assert f"snapkv revert {hotfix} {shop.deploy}" in page.inner_text("#command")
    assert sorted(person.texts("summary .key")) == ["web/config", "web/flags", "web/limits"]
    page.get_by_label("to confirm").fill("yes")
    page.locator("form.confirm button").click()
    page.get_by_role("alert").wait_for()
    assert "2 commits of" in page.inner_text("main")  # the preview after a mistake
    confirm(page)
    assert shop.state() == BEFORE | {"mail/host": b"mail2.example"}
    assert shop.newest().note.startswith("revert 20")
    person.complaints.clear()


def test_ticks_change_nothing_so_they_are_not_chosen(person, shop):
    shop.store.tick()
    page = person.open("/?ticks=1")
    assert len(person.texts("ol.list .title")) == 4
    assert page.locator("ol.list input[name=revert]").count() == 3


def test_the_moment_before_a_commit_is_restored(person, shop):
    page = person.open(f"/commit?at={shop.deploy}")
    person.follow(page.get_by_role("link", name="Restore the moment before it…"))
    assert page.inner_text("#phrase") == "restore 4 keys"  # what Bob changed, too
    page.get_by_label("Only keys with the prefix").fill("web/")
    person.follow(page.get_by_role("button", name="Preview"))
    assert page.inner_text("#phrase") == "restore 3 keys"
    confirm(page, "as it was")
    assert shop.state() == BEFORE | {"mail/host": b"mail2.example"}


def test_a_key_without_a_tick_stays_as_it_is(person, shop):
    page = person.open(f"/restore?revert={shop.deploy}")
    page.get_by_label("Revert web/flags").uncheck()
    assert page.inner_text("#phrase") == "revert 2 keys"
    page.get_by_label("to confirm").fill("yes")
    page.locator("form.confirm button").click()
    page.get_by_role("alert").wait_for()
    assert "revert 2 keys" in page.get_by_role("alert").inner_text()
    assert not page.get_by_label("Revert web/flags").is_checked()  # as the person left it
    confirm(page)
    assert shop.state() == BEFORE | {"web/flags": b"beta", "mail/host": b"mail2.example"}
    assert all("400" in each for each in person.complaints)
    person.complaints.clear()


@pytest.mark.parametrize(
    ("choice", "config"),
    [("Keep their later values", b"image: 1.27"), ("Put them back, too", b"image: 1.25")],
)
def test_conflicts_are_shown_and_decided(person, shop, clock, choice, config):
    shop.store.save("web/config", b"image: 1.27", writer="eve@desk", note="hotfix")
    clock.advance(3 * MINUTE_MS)
    page = person.open(f"/restore?revert={shop.deploy}")
    conflicts = page.get_by_label("Conflicts")
    assert "1 key changed again later" in conflicts.inner_text()
    assert "web/config 3 min ago, eve@desk hotfix" in " ".join(conflicts.inner_text().split())
    assert page.locator("form.confirm").count() == 0
    person.accessible()
    person.follow(page.get_by_role("link", name=choice))
    confirm(page)
    wanted = BEFORE | {"mail/host": b"mail2.example", "web/config": config}
    assert shop.state() == wanted


def test_a_conflict_that_comes_meanwhile_reverts_nothing(person, shop):
    page = person.open(f"/restore?revert={shop.deploy}")
    shop.store.save("web/config", b"image: 1.27", writer="eve@desk")
    before = shop.state()
    page.get_by_label("to confirm").fill(page.inner_text("#phrase"))
    page.locator("form.confirm button").click()
    page.get_by_role("alert").wait_for()
    assert "another commit was made since the preview" in page.get_by_role("alert").inner_text()
    assert "eve@desk" in page.get_by_label("Conflicts").inner_text()
    assert shop.state() == before
    assert all("409" in each for each in person.complaints)
    person.complaints.clear()


def test_a_key_that_comes_meanwhile_does_not_take_the_ticks_of_another(person, shop):
    page = person.open(f"/restore?at={shop.first}")
    page.get_by_role("checkbox", name="web/config").uncheck()
    shop.store.save("a/new", b"1")
    before = shop.state()
    page.get_by_label("Why").fill("back")
    page.get_by_label("to confirm").fill(page.inner_text("#phrase"))
    page.locator("form.confirm button").click()
    page.get_by_role("alert").wait_for()
    assert "every key has its tick again" in page.get_by_role("alert").inner_text()
    assert page.get_by_role("checkbox", checked=True).count() == 5
    assert shop.state() == before
    person.complaints.clear()


def test_now_is_no_commit_to_revert(served):
    text = httpx.get(f"{served.url}/restore?revert=now").text
    assert 'name="revert"' not in text


def test_a_version_a_key_and_a_row_of_changes_lead_to_their_own_restore(person, shop):
    page = person.open("/key?key=web/config")
    person.follow(page.locator(".versions tbody tr").last.get_by_role("link", name="Restore…"))
    assert person.texts("summary .key") == ["web/config"]
    confirm(page, "only the image")
    now = BEFORE | {"web/config": b"image: 1.25", "mail/host": b"mail2.example"}
    del now["web/limits"]
    assert shop.state() == now | {"web/flags": b"beta"}

    person.open(f"/changes?from={shop.first}")
    row = page.locator("details.row", has=page.locator(".key", has_text="web/flags"))
    person.follow(row.get_by_role("link", name="Restore…"))
    confirm(page, "no flags")
    assert shop.state() == now

    page = person.open(f"/key?key=web/limits&at={shop.first}")
    person.follow(page.get_by_role("link", name="Restore this key as of"))
    confirm(page, "limits are back")
    assert shop.state() == BEFORE | {"mail/host": b"mail2.example"}

    page = person.open(f"/commit?at={shop.deploy}")
    row = page.locator("details.row", has=page.locator(".key", has_text="web/flags"))
    person.follow(row.get_by_role("link", name="Revert…"))
    assert "nothing changes" in page.inner_text("main")  # it is gone already


def test_a_page_that_only_reads_offers_none_of_it(shop):
    urls = ["/", f"/commit?at={shop.deploy}", f"/changes?from={shop.first}"]
    with Served(shop.store) as served:
        for url in [*urls, f"/key?key=web/config&at={shop.deploy}"]:
            assert not any(link.startswith("/restore") for link in served.page(url).links), url
        assert served.http.get(f"/restore?revert={shop.deploy}").status_code == 400


def test_the_data_of_a_revert_has_its_conflicts(shop, served):
    later = shop.store.save("web/config", b"image: 1.27", writer="eve@desk")
    data = served.json(f"/restore.json?revert={shop.deploy}")
    assert list(data["conflicts"]) == ["web/config"]
    assert data["conflicts"]["web/config"]["ts"] == str(later)
    assert sorted(row["key"] for row in data["rows"]) == ["web/flags", "web/limits"]
    answer = served.http.get("/restore?revert=2026-01-01")
    assert answer.status_code == 400
    assert "no commit has the time" in answer.text


def test_a_form_cannot_name_what_was_not_shown(shop, served):
    page = served.page(f"/restore?revert={shop.deploy}")
    fields = {**page.fields, "confirm": "revert 3 keys", "note": "undo"}
    origin = {"Origin": served.url}

    def sent(**changes: str) -> httpx.Response:
        return served.http.post("/restore", data=fields | changes, headers=origin)

    before = shop.state()
    assert sent(revert="", confirm="revert 3 keys").status_code == 400
    assert sent(revert=f"{shop.deploy},x").status_code == 400
    assert sent(key="nothing").status_code == 404
    assert shop.state() == before
    shop.store.save("web/config", b"image: 1.27")
    fields |= {"head": str(shop.newest().revision), "confirm": "revert 2 keys"}
    assert sent(conflicts="never").status_code == 400
    assert "web/limits" not in shop.state()
    assert sent(conflicts="theirs", shown="999999999").status_code == 303
    assert shop.state()["web/config"] == b"image: 1.27"
    assert "web/flags" not in shop.state()
