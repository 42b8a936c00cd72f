"""No page and no JSON is larger than the bound, whatever the store holds; the rest is reachable."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import httpx
import pytest

import snapkv
from snapkv import ManualClock
from snapkv.layout import META_BYTES_MAX, NOTE_BYTES_MAX, WRITER_BYTES_MAX
from snapkv.reading import history
from snapkv.ui import FleetSite, key_versions, rendered_values, store_views
from snapkv.ui.fleet.fleet_views import FLEET_VIEWS
from snapkv.ui.page_answers import PAGE_BYTES_MAX
from snapkv.ui.store_views import VIEWS

from .served import FleetServed, Page, Served, crawled

pytestmark = pytest.mark.slow

MIB = 1 << 20
KEY_CHARS = 450
MANY = 6_000
OFTEN = 700
PATIENCE_S = 120
HOSTILE = {
    "controls": b"\x01" * MIB,
    "lines": b"".join(b"%d\n" % (n % 97) for n in range(300_000)),
    "long lines": (b"&\t\xe2\x80\xae" * 2_000 + b"\n") * 100,
    "small lines": b"<b>\n" * 60_000,
    "tree": b'{"%s": [%s]}' % (b"k" * 1_000, b",".join(b'"%d"' % n for n in range(100_000))),
}


MANY_AT = 3 + 3 * len(HOSTILE)
"""The revision of the commit of many keys."""


def fill(store: snapkv.SnapshotKV, clock: ManualClock) -> None:
    """Make commits that are as large in each way as a store takes them."""
    note, writer = "<\x01" * (NOTE_BYTES_MAX // 2), "&" * WRITER_BYTES_MAX
    meta = {"fact": "\x02" * (META_BYTES_MAX - 100)}
    for number in range(3):
        for name, value in HOSTILE.items():
            clock.advance(1_000)
            puts = {f"big/{name}": value[number:] + b"%d" % number}
            store.commit(puts=puts, note=note, writer=writer, meta=meta)
    names = [f"many/{n:05}/".ljust(KEY_CHARS, "<") for n in range(MANY)]
    clock.advance(1_000)
    store.commit(puts=dict.fromkeys(names, b"\x03" * 400), note=note, writer=writer, meta=meta)
    clock.advance(1_000)
    store.commit(deletes=names[::2], note=note)
    for number in range(OFTEN):
        clock.advance(1_000)
        store.commit(puts={"often": b"%d" % number}, note=note, writer=writer, meta=meta)
    for number in range(40):
        store.commit(puts={"large": b"%d" % number * (MIB // 2)})
    store.save("deep" + "/x" * 220, b"1")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"lmdb:{tmp_path_factory.mktemp('hostile') / 'store'}"
    clock = ManualClock(1_790_625_600_000)
    with snapkv.open(url, durability="none", clock=clock) as store:
        fill(store, clock)
    return url


SIDES, TABS = "side-by-side", ("history", "value", "blame")
ASKED = {
    "/": ["limit=1000", "from=0&limit=1000&ticks=1"],
    "/changes": [
        "from=0&limit=2000&show=full",
        f"from=rev:3&limit=2000&show={SIDES}",
        "from=0&view=tree&prefix=many/",
        f"from=0&prefix=big/&show={SIDES}",
    ],
    "/keys": ["limit=2000&prefix=many/&from=0", "prefix=big/"],
    "/key": [
        *(f"key=big/{name}&tab={tab}" for name, tab in product(HOSTILE, TABS)),
        *(f"key=big/{name}&a=rev:2&show={SIDES}" for name in HOSTILE),
        *(f"key={name}&limit=1000&tab={tab}" for name, tab in product(("often", "large"), TABS)),
    ],
    "/commit": [f"at=rev:{MANY_AT}&limit=5000", f"at=rev:{MANY_AT + 1}&limit=5000", "at=rev:3"],
    "/search": ["q=%3C&limit=1000", "q=%01&in=values&limit=1000"],
    "/live": [""],
    "/health": [""],
    "/bar": [""],
    "/restore": [f"at=rev:{MANY_AT}&prefix=many/", "at=rev:3"],
}
"""Queries of each path of `VIEWS`."""
DEEP = "deep" + "/x" * 220
WIDE = "%F0%9F%98%80" * 1_600
EVERYWHERE = [f"key=often&at=rev:30&prefix={DEEP}", f"key=often&at=rev:30&prefix={WIDE}"]


@contextmanager
def patient(store: snapkv.SnapshotKV, **options: object) -> Iterator[Served]:
    """Serve a store to a client that waits longer than others do."""
    with Served(store, **options) as served:
        served.http.timeout = httpx.Timeout(PATIENCE_S)
        yield served


def urls(paths: dict[str, list[str]], also: list[str]) -> Iterator[str]:
    """Yield the URLs of pages and of their plain data."""
    for path, queries in paths.items():
        for query in [*queries, *also]:
            yield f"{path}?{query}"
        for query in queries:
            yield f"{'/commits' if path == '/' else path}.json?{query}"


def test_every_path_is_asked() -> None:
    assert ASKED.keys() == VIEWS.keys()


@pytest.mark.long
def test_every_answer_is_at_most_the_bound(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, blamed = [0], [0]

    def puts_back(engine, stored, high, limit):
        for each in original(engine, stored, high, limit):
            read[0] += len(each.kv.value)
            yield each

    def blame(found, *more, **options):
        found = list(found)
        blamed[0] += sum(len(each.value or b"") for each in found)
        return original_blame(found, *more, **options)

    original, original_blame = history.puts_back, rendered_values.blame
    monkeypatch.setattr(history, "puts_back", puts_back)
    monkeypatch.setattr(rendered_values, "blame", blame)
    calls = dict.fromkeys(VIEWS, 0)
    for path, view in VIEWS.items():

        def counted(c, path=path, view=view):
            calls[path] += 1
            return view(c)

        monkeypatch.setitem(VIEWS, path, counted)
    with snapkv.open(hostile) as store, patient(store, writable=True) as served:
        for url in urls(ASKED, EVERYWHERE):
            read[0], blamed[0], before = 0, 0, dict(calls)
            answer = served.http.get(url)
            assert answer.status_code in (200, 404), f"{url[:200]}: {answer.text[-2_000:]}"
            assert len(answer.content) <= PAGE_BYTES_MAX, f"{url[:200]}: {len(answer.content):,}"
            made = max(1, sum(calls.values()) - sum(before.values()))
            assert made <= 4, f"{url[:200]} was made {made} times"
            assert read[0] <= made * 3 * key_versions.VERSIONS_BYTES_MAX, url[:200]
            assert blamed[0] <= made * store_views.BLAMED_VERSIONS_BYTES_MAX, url[:200]


@pytest.mark.parametrize("pages_max", [3, pytest.param(12, marks=pytest.mark.long)])
def test_every_page_that_a_link_leads_to_is_bounded(hostile: str, pages_max: int) -> None:
    with snapkv.open(hostile) as store, patient(store, writable=True) as served:
        for page in crawled(served, f"/commit?at=rev:{MANY_AT}", pages_max):
            assert len(page.html.encode()) <= PAGE_BYTES_MAX, page.url[:200]


def pages_of(served: Served, url: str, rows: str, field: str) -> list[object]:
    """Return the rows of all pages of a view, as its data leads from one to the next."""
    found, following = list[object](), ""
    for _ in range(1_000):
        data = served.json(url + following)
        found += data[rows]
        if data[field] is None:
            return found
        following = f"&{field if field != 'following' else 'older'}={data[field]}"
    raise AssertionError(f"{url} has no end")


@pytest.mark.long
def test_what_a_page_leaves_out_is_on_the_next_ones(hostile: str) -> None:
    with snapkv.open(hostile) as store, patient(store) as served:
        many = f"/commit.json?at=rev:{MANY_AT}&limit=2000"
        keys = [row["key"] for row in pages_of(served, many, "rows", "after")]
        assert len(keys) == len(set(keys)) == MANY
        data = served.json(many)
        assert data["more"] == MANY - len(data["rows"])
        page = served.page(f"/commit?at=rev:{MANY_AT}&limit=2000")
        assert "more keys" in page.text
        seen = pages_of(served, "/key.json?key=often&limit=1000", "versions", "following")
        assert len(seen) == OFTEN
        data = served.json("/key.json?key=big/small lines&tab=blame")
        following = served.json(f"/key.json?key=big/small lines&tab=blame&line={data['line']}")
        assert data["line"] == len(data["blame"]) + 1
        assert following["line"] == data["line"] + len(following["blame"])


def test_large_values_are_named_and_can_be_downloaded(hostile: str) -> None:
    with snapkv.open(hostile) as store, patient(store) as served:
        document = served.http.get("/key.json?key=big/controls&tab=value").json()
        assert document["data"]["value"] == {"left_out": document["data"]["size"]}
        assert document["data"]["size"] > MIB - 3
        assert document["command"].startswith("snapkv get big/controls")
        page = served.page("/key?key=big/controls&tab=value")
        (link,) = [each for each in page.links if each.startswith("/export")]
        assert len(served.http.get(link).content) > 6 * MIB, "a download is whole"
        page = served.page("/key?key=big/lines&tab=blame")
        assert (
            "The value is too large for this page: the command below shows its blame." in page.text
        )


def test_a_key_that_no_url_can_hold_is_said(store: snapkv.SnapshotKV) -> None:
    key = "k" * 30_000
    with snapkv.open("memory:") as store:
        store.save(key, b"1")
        with Served(store) as served:
            page = served.page("/keys")
            link = next(each for each in page.links if "unfit=key" in each)
            said = Page(served.http.get(link), link).text
            assert "key is too long for a URL of this page: use the command line" in said


def test_every_answer_of_a_fleet_is_at_most_the_bound(hostile: str) -> None:
    asked = {
        "/": [""],
        "/changes": ["from=2026-01-01&limit=2000", "from=2026-01-01&limit=2000&show=side-by-side"],
        "/key": [f"key=big/{name}" for name in HOSTILE],
    }
    assert asked.keys() == FLEET_VIEWS.keys()
    with snapkv.fleet.open({"one": hostile}) as fleet, FleetServed(FleetSite(fleet)) as served:
        for url in urls(asked, [f"key=often&prefix={DEEP}", f"key=often&prefix={WIDE}"]):
            url = url.replace("/commits.json", "/members.json")
            answer = served.http.get(url)
            assert answer.status_code in (200, 404), f"{url[:200]}: {answer.text[-2_000:]}"
            assert len(answer.content) <= PAGE_BYTES_MAX, f"{url[:200]}: {len(answer.content):,}"
