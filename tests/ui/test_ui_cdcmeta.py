"""The views that cdcmeta adds: databases, generations as rings, changefeeds with captures."""

import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cdcmeta import ChangesDB
from cdcmeta.generations import GenerationLog, Sharding
from cdcmeta.scheduler.runtime import Changefeeds, records
from cdcmeta.ui import views
from snapkv.ui.contributed import GROUP, Part, Ring, spaces
from snapkv.ui.source import Source

from .served import Served, crawled

RING = {100: Sharding(2), 1 << 62: Sharding(2)}


@pytest.fixture
def filled(store, clock):
    """A store with databases, two generations, and a changefeed; return their moments."""
    store.save("a", b"1")
    clock.advance(60_000)
    before = store.resolved()
    clock.advance(60_000)
    db = ChangesDB(store, "shop").create()
    first = db.put({"_id": "<b>apple</b>", "price": 1})
    ChangesDB(store, "empty").create()
    clock.advance(60_000)
    GenerationLog(store).make(RING)
    clock.advance(60_000)
    middle = store.resolved()
    clock.advance(60_000)
    db.put({"_id": "<b>apple</b>", "price": 2}, rev=first.rev)
    Changefeeds(store).create("copy", "lmdb:./meta", "jsonl:./changes", ["orders/"], start=5)
    space = store.space(records.space_of("default"))
    place = records.place_key("copy", "orders/")
    space.commit(puts={place: json.dumps({"capture": "c1-7", "why": "the only one"}).encode()})
    return before, middle


@pytest.fixture
def served(store, filled):
    with Served(store, extra_views=views()) as served:
        yield served


def test_the_entry_point_names_these_views():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (name, value), *_ = project["entry-points"][GROUP].items()
    assert EntryPoint(name, value, GROUP).load() is views


def test_the_spaces_of_a_moment(store, filled):
    source = Source(store)
    assert spaces(source, filled[0]) == []
    middle, now = spaces(source, filled[1]), spaces(source, None)
    assert {"changes/shop", "generations/default"} <= set(middle)
    assert set(now) - set(middle) == {"scheduler/default"}


def test_views_are_listed_where_the_store_holds_what_they_show(served, filled):
    def listed(url):
        return {link.partition("?")[0] for link in served.page(url).links if "/views/" in link}

    assert listed(f"/?at={filled[0]}") == set()
    assert listed(f"/?at={filled[1]}") == {"/views/databases", "/views/generations"}
    assert listed("/") == {"/views/databases", "/views/generations", "/views/changefeeds"}
    assert served.http.get("/views/nothing").status_code == 404


def test_databases_have_their_changes_at_the_moment(served, store, filled):
    page = served.page("/views/databases?db=shop")
    change = ChangesDB(store, "shop").changes().rows[0]
    assert change.rev in page.text
    assert "<b>apple</b>" in page.text
    assert "<b>" not in page.html
    then = ChangesDB(store, "shop").changes(as_of=filled[1]).rows[0]
    page = served.page(f"/views/databases?db=shop&at={filled[1]}")
    assert then.rev in page.text
    assert change.rev not in page.text


def test_generations_are_rings(served, store):
    log = GenerationLog(store)
    page = served.page("/views/generations")
    (generation,) = log.generations()
    assert generation.id.hex() in page.text
    paths = [attrs for tag, attrs in page.tags if tag == "path"]
    assert len(paths) == generation.ranges == 2


def test_changefeeds_have_the_captures_of_the_moment(served):
    page = served.page("/views/changefeeds?feed=copy")
    assert "copy" in page.text
    assert "orders/" in page.text
    assert "Placements of copy over time" in page.text


def test_their_links_lead_to_pages(served):
    assert len(list(crawled(served, "/views/databases", 60))) > 20


def test_a_ring_is_drawn_as_arcs():
    ring = Ring("all", [Part(0.0, 1.0, "one"), Part(0.75, 1.25, "two")])
    (whole, _), (half, _) = ring.arcs(radius=50, width=10)
    assert whole.startswith("M60.00 10.00 A50 50 0 1 1")
    assert half.startswith("M10.00 60.00 A50 50 0 0 1 110.00 60.00")
