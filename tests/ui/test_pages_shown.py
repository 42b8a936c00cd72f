"""The pages over HTTP: they show what the data says, of any moment, and nothing becomes markup."""

import json
import shlex
from urllib.parse import quote

import pytest
from store.engines import SHARED

import snapkv
from cdcmeta.cli.app import main
from cdcmeta.ui import views
from cdcmeta.ui.changefeed_pages import feed_at
from cdcmeta.ui.database_pages import list_databases, list_documents
from cdcmeta.ui.generation_logs import list_logs, ring_at
from snapkv import format_time, observe
from snapkv.ui import Redaction
from snapkv.ui.page_text import as_json

from .filling import EVIL, SCRIPT, Filled
from .served import Served, crawled
from .test_ui_attacks import assert_harmless

pytestmark = pytest.mark.slow

LABELS = ("Databases", "Generations", "Changefeeds")


@pytest.fixture
def filled(store, clock):
    return Filled(store, clock)


@pytest.fixture
def served(filled):
    with Served(filled.store, extra_views=[views]) as served:
        yield served


def linked(page):
    return [label for label in LABELS if f">{label}</a>" in page.html]


@pytest.mark.long_on("etcd")
def test_links_are_where_the_store_holds_something(store, clock):
    store.save("a", b"1")
    with Served(store, extra_views=[views]) as served:
        assert linked(served.page("/")) == []
        for path in ("/databases", "/generations", "/changefeeds"):
            assert "at this moment" in served.page(path).text
    filled = Filled(store, clock)
    with Served(store, extra_views=[views]) as served:
        assert linked(served.page("/")) == list(LABELS)
    store.space("changes").commit(delete_prefixes=[b""])
    with Served(store, extra_views=[views]) as served:
        assert linked(served.page("/")) == ["Generations", "Changefeeds"]
        assert linked(served.page(f"/?at={filled.before}")) == list(LABELS)


def test_plain_data_is_what_the_queries_say(served, filled):
    store, now = filled.store, served.source.timestamp(None)
    copy = "cluster=default&feed=copy"
    expected = {
        "/databases.json": list_databases(store),
        f"/databases.json?at={filled.empty}": list_databases(store, filled.empty),
        "/database.json?db=shop": list_documents(store, "shop"),
        f"/database.json?db=shop&at={filled.before}&limit=3": list_documents(
            store, "shop", filled.before, limit=3
        ),
        "/generations.json": list_logs(store, time=now),
        f"/generation.json?log=default&time={filled.made[0].time}&key=users": ring_at(
            store, "default", filled.made[0].time, time=now, key="users"
        ),
    }
    for url, found in expected.items():
        assert served.json(url) == as_json(found), url
    data = served.json(f"/changefeed.json?{copy}&at={filled.placed}")
    assert data["at"] == as_json(
        feed_at(store, "default", "copy", filled.placed, time=filled.placed)
    )
    assert [row["table"] for row in data["moves"]] == filled.tables


def test_which_capture_replicated_what_at_a_moment(served, filled):
    url = "/changefeed?cluster=default&feed=copy"
    then = served.page(f"{url}&at={filled.placed}")
    assert "c1 12 tables" in then.text
    assert "c2-60" not in then.text
    now = served.page(url)
    assert "c2 1 table" in now.text
    assert f"c1-5f is gone {SCRIPT}" in now.text
    moves = served.json("/table.json?cluster=default&feed=copy&table=orders/")["moves"]
    shown = [(row["capture"], int(row["since"]), row["until"]) for row in moves["rows"]]
    assert shown == [
        ("c2-60", filled.moved, None),
        ("c1-5f", filled.placed, str(filled.moved)),
    ]
    page = served.page("/table?cluster=default&feed=copy&table=orders/")
    bars = [attrs for tag, attrs in page.tags if tag == "rect" and "height" in attrs]
    assert any(each["class"] == "k0" for each in bars)
    assert f"{format_time(filled.moved)[11:19]}" in page.text


def test_a_document_of_any_moment_and_what_changed(served, filled):
    page = served.page(f"/document?db=shop&id=users&at={filled.before}")
    assert '"price": 1' in page.text
    assert filled.revs[0] in page.text
    page = served.page(f"/document?db=shop&id=users&from={filled.before}&rev={filled.revs[-1]}")
    assert '"price": 3' in page.text
    page = served.page(f"/document?db=shop&id=users&from={filled.before}")
    assert "price" in page.text.partition("Since")[2].partition("Body")[0]
    edits = served.json("/document.json?db=shop&id=users")["edits"]["rows"]
    assert [each["rev"] for each in edits][1:] == filled.revs[::-1]
    assert edits[-1]["timestamp"] == str(filled.before)
    circles = [attrs["class"] for tag, attrs in page.tags if tag == "circle"]
    assert sorted(circles) == ["node conflict", "node inner", "node inner", "node wins"]


def test_a_ring_has_an_arc_for_each_range(served, filled):
    page = served.page(f"/generation?log=default&time={filled.made[1].time}")
    arcs = [attrs for tag, attrs in page.tags if tag == "path" and "arc" in attrs["class"].split()]
    assert len(arcs) == filled.made[1].ranges == 12
    large = served.page(f"/generation?log={quote(SCRIPT)}&time={filled.made[2].time}")
    arcs = [attrs for tag, attrs in large.tags if tag == "path" and "arc" in attrs["class"].split()]
    assert len(arcs) == 128
    assert "300 ranges" in large.text


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("first", ["/databases", "/generations", "/changefeeds"])
@pytest.mark.parametrize("pages_max", [50, pytest.param(120, marks=pytest.mark.long)])
def test_every_page_that_a_link_leads_to_is_harmless(served, filled, first, pages_max):
    paths = set()
    for page in crawled(served, first, pages_max):
        assert_harmless(page)
        paths.add(page.url.partition("?")[0])
    assert first in paths
    assert len(paths) > 3


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("id", EVIL, ids=ascii)
def test_names_that_attack_have_pages_of_their_own(served, filled, id):
    name = quote(id, safe="")
    for url in (f"/document?db=shop&id={name}", f"/table?cluster=default&feed=copy&table={name}"):
        assert_harmless(served.page(url))
    assert served.json(f"/document.json?db=shop&id={name}")["document"]["id"] == id
    log = f"/generation?log=default&time={filled.made[0].time}&key={name}"
    assert_harmless(served.page(log))
    assert_harmless(served.page(f"/database?db=shop&by=id&start={name}"))


def test_what_is_not_there_and_what_is_not_valid(served, filled):
    copy = "cluster=default&feed=copy"
    statuses = {
        "/database?db=none": 404,
        f"/database?db=shop&at={filled.empty}": 404,
        "/database": 400,
        "/database?db=UPPER": 400,
        "/database?db=shop&start=zz": 400,
        "/database?db=shop&by=size": 400,
        "/document?db=shop&id=none": 404,
        "/document?db=shop&id=_x": 400,
        "/document?db=shop&id=users&rev=7": 400,
        "/document?db=shop&id=users&rev=9-" + "a" * 32: 404,
        "/generations?log=none": 404,
        "/generation?log=default&time=5": 404,
        "/generation?log=default&time=x": 400,
        "/generation?log=default": 404,
        "/changefeed?cluster=default&feed=none": 404,
        "/changefeed?cluster=default": 400,
        "/changefeed?cluster=..&feed=copy": 400,
        f"/changefeed?{copy}&at={filled.empty}": 404,
        f"/table?{copy}&table=none": 400,
        f"/table?{copy}&table=orders/&older=x": 400,
    }
    for url, status in statuses.items():
        page = served.page(url, status)
        assert_harmless(page)
        answer = served.http.get(json_url(url))
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), url


@pytest.mark.long_on("etcd")
def test_bodies_are_redacted_as_keys_are(filled):
    with Served(filled.store, extra_views=[views], redaction=Redaction(["shop/users"])) as served:
        for url in ("/document", "/document.json"):
            for more in ("", f"&from={filled.before}", f"&rev={filled.revs[-1]}"):
                text = served.http.get(f"{url}?db=shop&id=users{more}").text
                assert "price" not in text
        assert "redacted" in served.page("/document?db=shop&id=users").text
        other = quote(EVIL[2])
        assert EVIL[2] in json.dumps(served.json(f"/document.json?db=shop&id={other}"))


def test_pages_are_of_stores_only(place, filled, clock):
    keys = observe(place.url, prefix="k", clock=clock, **place.kind.options)
    with keys, Served(keys, extra_views=[views]) as served:
        assert linked(served.page("/")) == []
        assert "open it without --observe" in served.page("/databases", 400).text


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_an_archive_alone_shows_the_same(filled, place, clock, tmp_path):
    """But for what only a live store knows: which captures are registered, and which one leads."""
    urls = [json_url(url) for url in filled.pages() if not url.startswith("/changefeeds")]
    with Served(filled.store, extra_views=[views]) as served:
        live = {url: served.json(f"{url}&at={filled.now}") for url in urls if "?" in url}
        captures = served.json("/changefeeds.json")["rows"][0]["captures"]
        assert {row["registered"] for row in captures} == {False}
    filled.store.close()
    folder = f"archive:{tmp_path / 'archive'}"
    snapkv.record(place.url, into=folder, clock=clock).catch_up()
    with (
        snapkv.open(folder) as archive,
        Served(archive, extra_views=[views], words=("--store", folder)) as served,
    ):
        assert linked(served.page("/")) == list(LABELS)
        for url, data in live.items():
            assert served.json(f"{url}&at={filled.now}") == data, url
        captures = served.json("/changefeeds.json")["rows"][0]["captures"]
        assert {row["registered"] for row in captures} == {None}
        assert "registrations and leadership are not kept" in served.page("/changefeeds").text


@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_the_commands_that_pages_name_show_the_same(filled, place, capsys):
    with Served(filled.store, extra_views=[views], words=("--store", place.url)) as served:
        found = [served.http.get(json_url(url)).json()["command"] for url in filled.pages()]
    filled.store.close()
    commands = set(filter(None, found))
    assert {tuple(each.split()[1:3]) for each in commands} == {
        ("generations", "list"),
        ("generations", "show"),
        ("streams", "at"),
        ("changefeed", "list"),
        ("changefeed", "status"),
        ("changefeed", "history"),
    }
    for command in commands:
        program, *line = shlex.split(command)
        assert program == "cdcmeta"
        assert main(line) == 0, (command, capsys.readouterr().err)
        assert capsys.readouterr().out


def json_url(url):
    path, mark, query = url.partition("?")
    return f"{path}.json{mark}{query}"
