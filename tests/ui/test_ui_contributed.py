"""Views that other packages add: found by their entry point, linked where the store has them."""

import importlib
import logging
import sys

import pytest

import snapkv
from snapkv.ui import ExtraViews
from snapkv.ui.extra_views import installed

from .served import Served

MODULE = """
from snapkv.ui import ExtraViews, Link, Page

class OrderNotFoundError(Exception):
    pass

def orders(c):
    at = c.source.store.at(c.at)
    if c.state["order"] and c.state["order"] not in at:
        raise OrderNotFoundError("no order " + c.state["order"])
    return Page("orders/list.html", "Orders", {"orders": list(at)}, command="orders list")

def broken(c):
    raise ZeroDivisionError("a secret")

views = ExtraViews(
    "orders",
    "orders_ui",
    {"/orders": orders, "/broken": broken, "/keys": broken},
    [
        Link("/orders", "Orders", lambda store, when: bool(store.at(when))),
        Link("/broken", "Broken", lambda store, when: 1 // 0),
    ],
    {"orders.css": "text/css; charset=utf-8"},
    {OrderNotFoundError: 404},
)
nothing = "not views"
"""
TEMPLATE = """{% extends "base.html" %}
{% block head %}<link rel="stylesheet" href="/assets/orders/orders.css">{% endblock %}
{% block main %}<h1>Orders</h1>
<ul>{% for order in d.orders %}<li>{{ order|visible }}</li>{% endfor %}</ul>
<a href="{{ state.url(order='x') }}">x</a>{% endblock %}"""


@pytest.fixture
def extra(tmp_path, monkeypatch):
    """Install a package with views, one without, and one that cannot be imported."""
    package = tmp_path / "orders_ui"
    for path, text in (("__init__.py", MODULE), ("templates/list.html", TEMPLATE)):
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)
    (package / "assets").mkdir()
    (package / "assets" / "orders.css").write_text("h1 {}")
    (package / "secret.txt").write_text("secret")
    info = tmp_path / "orders_ui-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: orders-ui\nVersion: 1\n")
    names = ("a_broken = orders_ui.none:views", "b_nothing = orders_ui:nothing")
    points = ["[snapkv.ui.views]", *names, "orders = orders_ui:views", ""]
    (info / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    found = installed()
    yield [each for each in found if each.name == "orders"]
    sys.modules.pop("orders_ui", None)


@pytest.fixture
def store(clock):
    with snapkv.open("memory:", clock=clock) as store:
        yield store


def labels(page):
    return [
        label for label in ("Commits", "Keys", "Orders", "Broken") if f">{label}</a>" in page.html
    ]


def test_views_are_found_and_what_is_not_is_left_out(extra, caplog):
    assert [(type(each), each.package) for each in extra] == [(ExtraViews, "orders_ui")]
    with caplog.at_level(logging.WARNING):
        installed()
    said = [each.getMessage() for each in caplog.records]
    assert any("a_broken (orders_ui.none:views) are left out: No module" in each for each in said)
    assert any("b_nothing (orders_ui:nothing) are not ExtraViews" in each for each in said)


def test_a_view_is_a_page_and_plain_data(extra, store):
    ts = store.save("<script>", b"1")
    store.remove("<script>")
    with Served(store, extra_views=extra) as served:
        page = served.page(f"/orders?at={ts}&tz=local")
        assert "&lt;script&gt;" in page.html
        assert "orders list" in page.text
        assert f"/orders?at={ts}&tz=local&order=x" in page.links
        assert served.json(f"/orders.json?at={ts}") == {"orders": ["<script>"]}
        assert served.json("/orders.json") == {"orders": []}
        style = served.http.get("/assets/orders/orders.css")
        assert (style.text, style.headers["content-type"]) == ("h1 {}", "text/css; charset=utf-8")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        step = served.http.get(f"/step?to=before&of=/orders&at={ts}")
        assert step.headers["location"].startswith("/orders")
        for path in (
            "orders/secret.txt",
            "orders/../secret.txt",
            "orders/",
            "orders",
            "none/x.css",
        ):
            assert served.http.get(f"/assets/{path}").status_code == 404


@pytest.mark.slow
def test_a_link_is_where_the_store_has_something_to_show(extra, store):
    with Served(store, extra_views=extra) as served:
        assert labels(served.page("/")) == ["Commits", "Keys"]
    ts = store.save("a", b"1")
    with Served(store, extra_views=extra) as served:
        assert labels(served.page("/keys")) == ["Commits", "Keys", "Orders"]  # not the added /keys
    store.remove("a")
    with Served(store, extra_views=extra) as served:
        assert labels(served.page("/")) == ["Commits", "Keys"]
        assert labels(served.page(f"/?at={ts}")) == ["Commits", "Keys", "Orders"]


def test_errors_of_a_view_have_its_statuses(extra, store, caplog):
    with Served(store, extra_views=extra) as served:
        assert "no order &lt;b&gt;" in served.page("/orders?order=<b>", 404).html
        answer = served.http.get("/orders.json?order=a")
        assert (answer.status_code, answer.json()) == (404, {"error": "no order a"})
        assert "a secret" not in served.page("/broken", 500).html
        assert served.page("/orders?at=never", 400)
    assert any(each.exc_info and "a secret" in str(each.exc_info[1]) for each in caplog.records)


def test_without_added_views_nothing_changes(store):
    with Served(store) as served:
        served.page("/orders", 404)
