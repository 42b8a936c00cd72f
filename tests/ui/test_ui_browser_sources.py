"""The views of an archive, and of keys that another program writes to etcd, in a real browser."""

import pytest
from archive.histories import recorder
from store.engines import write_raw

import snapkv
from snapkv.engine.contract import Delete, Put
from snapkv.layout import Layout
from snapkv.store.location import open_engine

from .browsing import Person
from .served import Served

pytestmark = pytest.mark.long

PREFIX = "/git/"
HOME = Layout("default").ts
CART = "deployments/shop/cart.json"


@pytest.fixture
def archived(git, tmp_path):
    """Return a server of an archive alone, of all commits of git, and the commits' timestamps."""
    url = f"lmdb:{tmp_path / 'shop'}"
    made = git.import_into(url)
    with snapkv.open(url) as store:
        recorder(store, tmp_path / "archive").catch_up()
    with snapkv.open(f"archive:{tmp_path / 'archive'}") as store, Served(store) as served:
        yield served, [str(ts) for ts in made], ""


@pytest.fixture
def observed(git, etcd):
    """Return a server of keys that another program wrote, a tick after each commit of git."""
    url, made = f"etcd://{etcd.endpoint}", []
    with snapkv.open(url) as ticker:
        engine = open_engine(url, create=False, options={}, home=HOME)
        for commit in git.hashes():
            ops = []
            for line in git.changed(commit):
                status, name = line.split("\t")
                key = f"{PREFIX}{name}".encode()
                text = b"" if status == "D" else git.git("show", f"{commit}:{name}").encode()
                ops.append(Delete(key) if status == "D" else Put(key, text))
            write_raw(engine, *ops)
            made.append(str(ticker.tick().ts))
        engine.close()
        with snapkv.observe(url, prefix=PREFIX) as keys, Served(keys) as served:
            yield served, made, PREFIX


@pytest.mark.parametrize("kind", ["archived", "observed"])
def test_every_view_has_what_git_says(kind, request, browser, axe, git):
    served, made, prefix = request.getfixturevalue(kind)
    person, hashes = Person(browser, served.url, axe), git.hashes()

    page = person.open("/")  # 1: the bar, and the list
    assert len(person.texts("ol.list > li")) == len(hashes)
    counts = [int(each.rpartition(": ")[2].split()[0]) for each in _labels(page)]
    assert sum(counts) == len(hashes)
    if kind == "archived":
        assert "from the archive" in page.inner_text(".legend")
        assert person.texts(".title") == git.git("log", "--format=%s").splitlines()
    person.accessible()

    page = person.open(f"/changes?from={made[13]}&at={made[24]}")  # 2
    out = git.git("diff", "--name-only", hashes[13], hashes[24]).split()
    assert person.texts("details.row .key") == sorted(prefix + name for name in out)
    assert "shop-cart:2.0.1 -> shop-cart:2.0.2" in page.inner_text("main")
    person.accessible()

    page = person.open(f"/key?key={prefix}{CART}")  # 3
    log = git.git("log", "--format=%s", "--", CART).splitlines()
    assert page.locator(".versions tbody tr").count() == len(log)
    person.open(f"/key?key={prefix}hosts&tab=blame")
    lines = git.git("show", "HEAD:hosts").splitlines()
    assert [each.rstrip() for each in person.texts(".blame td:last-child")] == [
        " ".join(line.split()) for line in lines
    ]
    person.accessible()

    for at in (0, 12, 25):  # 4
        person.open(f"/keys?at={made[at]}&prefix={prefix}services/")
        tree = git.git("ls-tree", "--name-only", f"{hashes[at]}:services").split()
        assert person.texts(".nodes .name") == tree
    person.accessible()

    page.locator(".nodes .last a").first.click()  # 5
    page.wait_for_url("**/commit?**")
    assert f"{prefix}services/" in page.inner_text("main")
    with page.expect_navigation():
        page.get_by_role("link", name="The commit before").click()
    assert person.path() == "/commit"
    person.accessible()

    page = person.open("/search?q=shop-")  # 8
    grep = git.git("grep", "--name-only", "shop-", "HEAD").split()
    assert person.texts(".hits a") == sorted(prefix + each.removeprefix("HEAD:") for each in grep)
    page = person.open("/health")  # 9
    assert "etcd" in page.inner_text("main") or kind == "archived"
    assert page.get_by_role("link", name="Restore").count() == 0  # 7
    person.close()


def _labels(page):
    return [each.get_attribute("aria-label") for each in page.locator("a.bucket").all()]


def test_live_shows_writes_of_other_programs_at_their_tick(observed, browser, axe, etcd):
    served, _, _ = observed
    person, url = Person(browser, served.url, axe), f"etcd://{etcd.endpoint}"
    page = person.open("/live")
    page.get_by_text("following", exact=True).wait_for()
    engine = open_engine(url, create=False, options={}, home=HOME)
    revision = write_raw(engine, Put(f"{PREFIX}new".encode(), b"1"))
    engine.close()
    with snapkv.open(url) as ticker:
        ticker.tick()
    page.get_by_text(f"{PREFIX}new").wait_for()
    page.locator("#live .title").first.click()
    page.wait_for_url("**/commit?**")
    assert person.fields()["at"] == f"rev:{revision}"
    assert person.texts("details.row .key") == [f"{PREFIX}new"]
    person.close()


def test_live_leads_to_each_write_of_a_tick(observed, browser, axe, etcd):
    served, _, _ = observed
    person, url = Person(browser, served.url, axe), f"etcd://{etcd.endpoint}"
    page = person.open(f"/live?prefix={PREFIX}l")
    page.get_by_text("following", exact=True).wait_for()
    engine = open_engine(url, create=False, options={}, home=HOME)
    keys = [f"{PREFIX}l{n}" for n in range(3)]
    made = [write_raw(engine, Put(key.encode(), b"1")) for key in keys]
    write_raw(engine, Put(f"{PREFIX}other".encode(), b"1"))
    engine.close()
    with snapkv.open(url) as ticker:
        ticker.tick()
    page.get_by_text(f"Revisions {made[0]} to {made[2]}").click()
    page.wait_for_url("**/changes?**")
    assert person.texts("details.row .key") == keys
    page.go_back()
    page.get_by_text("following", exact=True).wait_for()
    engine = open_engine(url, create=False, options={}, home=HOME)
    made = [write_raw(engine, Put(key.encode(), b"2")) for key in keys]
    engine.close()
    with snapkv.open(url) as ticker:
        ticker.tick()
    page.locator("#live").get_by_role("link", name=keys[0]).click()
    page.wait_for_url("**/commit?**")
    assert person.fields()["at"] == f"rev:{made[0]}"
    assert person.texts("details.row .key") == [keys[0]]
    person.close()
