"""Each incident of docs/incidents is undone on the page, in a browser, and proven by its commands.

The commands of an incident's page fill the store, up to its part `Undo`. Then a person finds the
commit, sees its writer and time, and undoes it. After that the part `Prove` shows what it shows.
"""

import re

import pytest

import snapkv
from tests.cli.cli_runner import Cli
from tests.project.page_runner import PageRunner
from tests.project.pages import PAGES, blocks_of

from .browsing import Person
from .served import Served

pytestmark = pytest.mark.slow

WRITER = "ann@laptop"
ON_A_PHONE = ("removed_prefix", "wrong_restore", "bad_import")
CONFLICT = "[aria-label=Conflicts] li"


class Incident:
    """The commands of an incident's page, and the browser of the person who walks it."""

    def __init__(self, name: str, runner: PageRunner) -> None:
        self._runner, self._blocks = runner, blocks_of(f"docs/incidents/{name}.md")
        self.person: Person

    @property
    def page(self):
        return self.person.page

    def run(self, *parts: str, first: int = 0) -> None:
        """Run the blocks of some parts of the incident's page, from one of them on."""
        for block in [each for each in self._blocks if each.part in parts][first:]:
            self._runner.run(block)

    def follow(self, name: str) -> None:
        """Follow the first link of a name."""
        self.person.follow(self.page.get_by_role("link", name=name, exact=True).first)

    def commits(self, **fields: str) -> list[str]:
        """Filter the list of commits; return each title with its writer."""
        self.person.open("/")
        for label, text in fields.items():
            self.page.get_by_label(label).fill(text)
        self.person.follow(self.page.get_by_role("button", name="Filter"))
        found = zip(self.person.texts(".title"), self.person.texts("ol.list .who"), strict=True)
        return [" by ".join(each) for each in found]

    def is_commit_of(self, writer: str, *texts: str) -> None:
        """Assert that the page is a commit's, with its writer and time, and has these texts."""
        facts = dict(zip(self.person.texts("dt"), self.person.texts("dd"), strict=True))
        assert facts["Who"] == writer
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", facts["When"])
        shown = " ".join(self.page.inner_text("main").split())
        for text in texts:
            assert text in shown

    def versions(self) -> list[str]:
        """Return who wrote the versions of the key that is shown, newest first."""
        return self.person.texts("table.versions td[data-label=Who]")

    def previewed(self) -> list[str]:
        """Return the keys that the preview shows, with their signs."""
        signs, keys = self.person.texts(".row .sign"), self.person.texts(".row code.key")
        return [f"{sign[0]} {key}" for sign, key in zip(signs, keys, strict=True)]

    def confirm(self, note: str = "") -> None:
        """Carry out what the preview shows, for its reason or another; see the new commit."""
        wide = self.page.evaluate("document.documentElement.scrollWidth > innerWidth + 1")
        assert not wide, self.page.url
        if note:
            self.page.get_by_label("Why").fill(note)
        phrase = self.page.locator("form.confirm code").inner_text()
        self.page.get_by_label("to confirm").fill(phrase)
        self.person.follow(self.page.locator("form.confirm button"))
        assert self.person.path() == "/commit", self.page.inner_text("main")
        self.is_commit_of(WRITER)


@pytest.fixture
def incident(request, tmp_path, monkeypatch, browser, axe):
    name = request.node.originalname.removeprefix("test_")
    found = Incident(name, PageRunner(Cli(tmp_path, monkeypatch, "lmdb:")))
    found.run("", "Find", "Understand")
    width = 390 if name in ON_A_PHONE else 1280
    place = "lmdb:./jobs" if name == "lost_leader" else "lmdb:./shop"
    with (
        snapkv.open(place, create=False, writer=WRITER) as store,
        Served(store, words=("--store", place), writable=True) as served,
    ):
        found.person = Person(browser, served.url, axe, viewport={"width": width, "height": 800})
        yield found
        found.person.close()


def test_bad_commit(incident):
    person, page = incident.person, incident.page
    person.open("/")
    page.get_by_role("searchbox").fill("web:1.62")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?**")
    assert "web/config" in person.texts(".hits a")
    assert incident.commits(Note="deploy") == ["deploy 1.26 by ci@build"]
    incident.follow("deploy 1.26")
    incident.is_commit_of("ci@build", "web:1.25", "web:1.62")
    incident.follow("Revert this commit…")
    assert incident.previewed() == ["~ web/config", "\N{MINUS SIGN} web/flags"]
    person.accessible()
    incident.confirm()
    incident.run("Prove")


def test_several_commits(incident):
    """A revert takes one commit on the page; below a prefix, a restore takes all of them."""
    assert incident.commits(Writer="autoscale") == [
        "Change limits/jobs by autoscale@batch",
        "Change limits/mail and 1 more by autoscale@batch",
        "Change limits/web by autoscale@batch",
    ]
    incident.follow("Change limits/web")
    incident.is_commit_of("autoscale@batch", "OPS-7")
    incident.follow("Restore the moment before it…")
    assert "~ owner" in incident.previewed()
    incident.page.get_by_label("Only keys with the prefix").fill("limits/")
    incident.person.follow(incident.page.get_by_role("button", name="Preview"))
    assert incident.previewed() == ["~ limits/jobs", "~ limits/mail", "~ limits/web"]
    incident.confirm("autoscale ran wild, OPS-7")
    incident.run("Prove")


def test_removed_prefix(incident):
    incident.person.open("/key?key=website/title")
    assert "does not exist" in incident.page.inner_text("main")
    assert incident.versions() == ["bob@desk", WRITER]
    incident.follow("rev 4")
    incident.is_commit_of("bob@desk", "remove the old web", "web/old")
    incident.follow("Revert this commit…")
    assert len(incident.previewed()) == 4
    incident.page.get_by_label("Only keys with the prefix").fill("website/")
    incident.person.follow(incident.page.get_by_role("button", name="Preview"))
    assert incident.previewed() == ["+ website/theme", "+ website/title"]
    incident.confirm()
    incident.run("Prove")


def test_wrong_type(incident):
    """The page shows the conflict; the correction of one field is a command."""
    person, page = incident.person, incident.page
    person.open("/keys")
    for name in ("web/", "config", "Blame"):
        incident.follow(name)
    row = page.locator(".blame tr", has_text="replicas")
    assert "form@admin" in row.inner_text()
    person.follow(row.get_by_role("link"))
    incident.is_commit_of("form@admin", "3 replicas", '"3"')
    incident.follow("Revert this commit…")
    (conflict,) = person.texts(CONFLICT)
    assert all(text in conflict for text in ("web/config", "ci@build", "deploy 1.26"))
    assert not page.locator("form.confirm").count()
    person.accessible()
    incident.run("Undo", "Prove")
    person.open("/key?key=web/config&tab=blame")
    assert WRITER in page.locator(".blame tr", has_text="replicas").inner_text()


def test_flapping_key(incident):
    incident.person.open("/key?key=web/replicas")
    assert incident.versions() == [*["scaler@k8s", "saver@cron"] * 2, WRITER]
    row = incident.page.locator("table.versions tr", has_text="before the sale")
    incident.person.follow(row.get_by_role("link", name="Restore"))
    assert incident.previewed() == ["~ web/replicas"]
    incident.confirm("saver@cron is off")
    incident.run("Prove")


def test_two_writers(incident):
    """No version is right, so the page shows what was lost, and a command writes both routes."""
    incident.person.open("/key?key=routes")
    assert incident.versions() == ["bob@desk", WRITER, WRITER]
    incident.follow("rev 5")
    incident.is_commit_of("bob@desk", "route of the mail", "/cart")
    incident.run("Undo", "Prove")
    incident.person.open("/key?key=routes&tab=value")
    assert all(f'"{name}"' in incident.page.inner_text("main") for name in ("cart", "mail"))


def test_wrong_restore(incident):
    assert incident.commits(Writer="bob") == ["replicas back by bob@desk"]
    incident.follow("replicas back")
    incident.is_commit_of("bob@desk", "mail/host", "web/image")
    incident.follow("Revert this commit…")
    assert incident.previewed() == ["+ mail/host", "~ web/image"]
    incident.confirm()
    incident.run("Prove")


def test_lost_leader(incident):
    incident.person.open("/key?key=plan")
    assert incident.versions() == ["worker-a", "worker-b", "worker-a"]
    incident.follow("rev 10")
    incident.is_commit_of("worker-a", "plan of worker-a")
    incident.follow("Revert this commit…")
    assert incident.previewed() == ["~ plan"]
    incident.confirm()
    incident.run("Prove")


def test_renamed_keys(incident):
    person = incident.person
    assert incident.commits(Prefix="web/")[0] == "rename web to frontend by migrate@ci"
    person.open("/")
    incident.follow("rename web to frontend")
    incident.is_commit_of("migrate@ci", "frontend/image", "web/image")
    incident.follow("Revert this commit…")
    (conflict,) = person.texts(CONFLICT)
    assert all(text in conflict for text in ("frontend/replicas", "bob@desk", "more load"))
    incident.follow("Keep their later values")
    assert incident.previewed() == [
        "\N{MINUS SIGN} frontend/image", "+ web/image", "+ web/replicas",
    ]  # fmt: skip
    incident.confirm()
    incident.run("Undo", first=1)  # Bob's value, at the old name
    incident.run("Prove")


def test_bad_import(incident):
    assert incident.commits(Writer="rates@cron")[0] == "rates of Saturday by rates@cron"
    incident.follow("rates of Saturday")
    incident.is_commit_of("rates@cron", "rates/gbp", "rates/jpy")
    incident.follow("Revert this commit…")
    (conflict,) = incident.person.texts(CONFLICT)
    assert all(text in conflict for text in ("rates/jpy", "bob@desk", "a cut rate"))
    incident.follow("Keep their later values")
    assert incident.previewed() == ["+ rates/gbp"]
    incident.confirm()
    incident.run("Prove")


def test_every_incident_is_walked():
    names = {page.rpartition("/")[2][:-3] for page in PAGES if page.startswith("docs/incidents/")}
    assert {f"test_{name}" for name in names - {"index"}} <= globals().keys()
