"""The pages of a fleet have what the fleet says, in bounds, and go on without members that fail."""

import random
import re
from urllib.parse import quote

import httpx
import pytest

import snapkv
from snapkv.errors import MembersBehindError, SnapKVError, StoreRestoredError
from snapkv.fleet import member_link
from snapkv.fleet.open_member import OpenMember
from snapkv.times import format_time, physical_ms
from snapkv.ui import FleetSite, Redaction
from snapkv.web import Login

from .fleets import ANSWER, NOBODY, made_shop
from .served import WAIT_S, FleetServed, crawled

pytestmark = pytest.mark.slow

SEED = random.randrange(1 << 32)
AWAY = ["away"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    print(f"seed {SEED}")
    return made_shop(tmp_path_factory.mktemp("shop"), SEED)


@pytest.fixture(scope="module")
def fleet(shop):
    with shop.open() as fleet:
        yield fleet


@pytest.fixture(scope="module")
def served(fleet):
    with FleetServed(FleetSite(fleet, "shop", ("--fleet", "shop.toml"), extra_views=())) as served:
        yield served


def moments(shop):
    return [shop.stamps[0] - 1, *shop.stamps[:: len(shop.stamps) // 6], shop.stamps[-1] + 1]


# --- the members ---


def test_the_members_are_those_of_the_moment(served, fleet, shop):
    for at in moments(shop):
        data = served.json(f"/members.json?at={at}")
        moment = fleet.at(at, behind="stale")
        assert [each["name"] for each in data["members"]] == fleet.members
        for each in data["members"]:
            seen = moment.members[each["name"]]
            assert (each["state"], each["final"]) == (seen.state, seen.final)
            assert (each["timestamp"], each["revision"]) == (
                str(seen.timestamp) if seen.timestamp else None,
                seen.revision or None,
            )
            assert bool(each["error"]) == (seen.state == "missing")
        assert data["final"] == moment.final
        text = served.page(f"/?at={at}").text
        assert ("This moment is not final" in text) == (not moment.final)


def test_now_is_each_member_at_its_newest_commit(served, fleet, shop):
    data = served.json("/members.json")
    rows = {each["name"]: each for each in data["members"]}
    states = {name: each["state"] for name, each in rows.items()}
    assert states == {
        **dict.fromkeys(("eu", "us", "later"), "live"),
        **dict.fromkeys(("old", "kept"), "archive"),
        "away": "missing",
    }
    newest = fleet.at(shop.stamps[-1], behind="stale").members
    for name in (*ANSWER, "kept"):
        up_to = int(rows[name]["final_up_to"])
        assert up_to == newest[name].newest == int(rows[name]["timestamp"])
        assert rows[name]["lag_ms"] == shop.now_ms - physical_ms(up_to)
    known = [name for name in fleet.members if name not in AWAY]
    assert int(data["resolved"]) == fleet.resolved("all", members=known)
    assert list(data["unknown"]) == AWAY
    page = served.page("/")
    assert "All members but away are final up to" in page.text
    assert f"/?at={data['resolved']}" in page.links


def test_a_time_is_typed_as_on_other_pages(served, shop):
    at = format_time(shop.stamps[-1])
    assert served.json(f"/members.json?at={at}")["timestamp"] == str(shop.stamps[-1] | 0x3FFFF)
    hour_ago = served.json("/members.json?at=1h+ago")["timestamp"]
    assert physical_ms(int(hour_ago)) == physical_ms(shop.stamps[-1])
    for wrong, why in (
        *(("rev:3", "each member has its own"), ("sometime", "not a valid time")),
        *(("9" * 5_000, "from 0 to 2^64 - 1"), ("9" * 19, "is not a timestamp")),
    ):
        assert why in served.page(f"/?at={wrong}", 400).text


def test_many_members_are_on_many_pages(served, fleet, shop, monkeypatch):
    monkeypatch.setattr("snapkv.ui.fleet.site.MEMBERS_MAX", 2)
    first = f"/?at={shop.stamps[-1]}"
    url, found = first, []
    while url is not None:
        data = served.json(url.replace("/?", "/members.json?"))
        found.append([each["name"] for each in data["members"]])
        following = data["following"] and f"{first}&start={data['following']}"
        assert following is None or following in served.page(url).links
        url = following
    assert found == [fleet.members[n : n + 2] for n in (0, 2, 4)]


# --- the differences ---


def pages_of(served, url):
    """Yield the data of the pages of a view, each from where the one before ended."""
    start = ""
    for _ in range(200):
        data = served.json(url + start)
        yield data
        if data["following"] is None:
            return
        start = f"&start={quote(data['following'])}"
        if data.get("after") is not None:
            after = data["after"]
            start += f"&after={quote(after if isinstance(after, str) else '', safe='')}"
    raise AssertionError("the pages do not end")


def rows_of(pages):
    return [
        (each["member"], row["key"], row["before"], row["after"])
        for data in pages
        for each in data["members"]
        for row in each["rows"]
    ]


def wanted(fleet, a, b, prefix=None):
    return [
        (*found.key, *(each and each.decode() for each in (found.before, found.after)))
        for found in fleet.diff(a, b, prefix, behind="stale")
    ]


def test_the_changes_are_those_of_the_fleet(served, fleet, shop):
    rng = random.Random(SEED)
    spans = [rng.sample(shop.stamps, 2) for _ in range(6)]
    for a, b in [(0, shop.stamps[-1]), (shop.stamps[3], shop.stamps[3]), *spans]:
        for prefix in (None, "a/"):
            query = f"from={a}&at={b}" + (f"&prefix={prefix}" if prefix else "")
            (data,) = pages_of(served, f"/changes.json?{query}")
            assert rows_of([data]) == wanted(fleet, a, b, prefix), (SEED, query)
            found = fleet.diff(a, b, prefix, behind="stale")
            assert (data["joined"], data["left"]) == (found.joined, found.left)
            assert data["unknown"].keys() == found.unknown.keys()
            assert data["complete"]
            assert sum(data["counts"].values()) == len(wanted(fleet, a, b, prefix))


def test_pages_of_changes_go_on_where_the_one_before_ended(served, fleet, shop, monkeypatch):
    a, b = shop.stamps[2], shop.stamps[-3]
    everything = wanted(fleet, a, b)
    for members_max, budget_s in ((50, 10.0), (2, 10.0), (50, 0.0)):
        monkeypatch.setattr("snapkv.ui.fleet.site.MEMBERS_MAX", members_max)
        monkeypatch.setattr(served.fleet_site, "budget_s", budget_s)
        pages = list(pages_of(served, f"/changes.json?from={a}&at={b}&limit=3"))
        assert rows_of(pages) == everything, SEED
        assert all(sum(len(each["rows"]) for each in data["members"]) <= 3 for data in pages)
    page = served.page(f"/changes?from={a}&at={b}&limit=3")
    assert any("start=" in link for link in page.links) == (len(pages) > 1)


def test_members_that_joined_or_are_away_have_removed_nothing(served, shop):
    a, b = shop.stamps[0], shop.stamps[-1]
    for query in (f"from={a}&at={b}", f"from={b}&at={a}"):
        page = served.page(f"/changes?{query}")
        (data,) = pages_of(served, f"/changes.json?{query}")
        assert "later" in (data["joined"] if query.startswith(f"from={a}") else data["left"])
        assert {each["member"] for each in data["members"]} <= {"eu", "us", "old", "kept"}
        assert re.search(r"Not known, so not compared: ?away", page.text)
        assert ("Joined" if "later" in data["joined"] else "Left") + " in between: " in page.text
        for each in data["members"]:
            named = f"from={data['since']}&at={data['until']}&member={each['member']}"
            assert f"/changes?{named}" in page.links


def newest_version(served, member, key, at):
    """Return the newest version of a key on the page of one member."""
    versions = served.json(f"/key.json?key={quote(key)}&at={at}&member={member}")["versions"]
    return {name: versions[0][name] for name in ("timestamp", "revision", "writer", "size")}


def test_the_changes_say_when_and_by_which_writer(served, shop):
    a, b = shop.begun, shop.stamps[-1]
    (data,) = pages_of(served, f"/changes.json?from={a}&at={b}")
    assert {"eu", "us", "old"} <= {each["member"] for each in data["members"]}
    for each in data["members"]:
        for row in each["rows"]:
            wanted = newest_version(served, each["member"], row["key"], b)
            assert wanted.items() <= row["last"].items(), (SEED, each["member"], row["key"])
    page = served.page(f"/changes?from={a}&at={b}")
    rows = sum(len(each["rows"]) for each in data["members"])
    assert len(re.findall(r" ago ?, ann", page.text)) == rows
    links = [link for link in page.links if link.startswith("/commit?")]
    assert len(links) == rows
    assert all("member=" in link for link in links)


def test_one_key_says_when_and_by_which_writer(served, shop):
    at = shop.stamps[-1]
    data = served.json(f"/key.json?key=image&at={at}")
    assert {"eu", "us", "old", "kept"} <= data["last"].keys()
    for member, last in data["last"].items():
        assert newest_version(served, member, "image", at).items() <= last.items(), (SEED, member)
    page = served.page(f"/key?key=image&at={at}")
    assert re.search(r"eu \d+ (min|h) ago ?, ann", page.text)


# --- one key ---


def test_one_key_everywhere(served, fleet, shop):
    for at in moments(shop):
        moment = fleet.at(at, behind="stale")
        for key in ("image", "only/us", "a/1", "zwei/日本", "nowhere"):
            data = served.json(f"/key.json?key={quote(key)}&at={at}")
            found = {
                name: each["value"].encode() for each in data["values"] for name in each["members"]
            }
            assert found == moment.everywhere(key), (SEED, key, at)
            values = [each["value"] for each in data["values"]]
            assert len(set(values)) == len(values)
            sizes = [len(each["members"]) for each in data["values"]]
            assert sizes == sorted(sizes, reverse=True)
            away = {n for n, seen in moment.members.items() if seen.state == "missing"}
            assert data["unknown"].keys() == away
            named = {*found, *data["without"], *data["absent"], *data["unknown"]}
            assert named == set(fleet.members)
    page = served.page(f"/key?key=image&at={shop.stamps[-1]}")
    assert 'tag: "1.0" -> "1.1"' in page.text
    assert "No member has this key" in served.page("/key?key=nowhere").text


# --- one member ---


def test_each_view_is_of_the_member_that_the_url_names(served, shop):
    at = shop.stamps[-1]
    for name in ANSWER:
        store = served.fleet_site.site_of(name).source.store
        keys = served.json(f"/keys.json?member={name}&prefix=only/")["nodes"]
        assert [each["path"] for each in keys] == [f"only/{name}"]
        page = served.page(f"/?member={name}&at={at}")
        steps = served.json(f"/commits.json?member={name}&at={at}&ticks=1")["steps"]
        assert len(steps) == len(list(store.commits())), name
        assert all(f"member={name}" in link for link in page.links if link.startswith("/commit?"))
    stamp = served.fleet_site.site_of("us").source.store.at(revision=3).timestamp
    page = served.page("/commit?member=us&at=rev:3&prefix=only/")
    assert f"/commit?member=us&at={stamp}" in page.links  # the permanent link
    with served.http.stream("GET", "/live/events?member=eu") as events:
        assert events.status_code == 200


def test_links_lead_to_pages(fleet, shop):
    """From all pages of the fleet, and on from those of its members that answer."""
    answer = ",".join(ANSWER)
    site = FleetSite(fleet, members=answer, extra_views=(), writable=True)
    with FleetServed(site) as served:
        found = {}
        for first in (
            f"/?at={shop.stamps[-1]}",
            f"/changes?from={shop.stamps[1]}&at={shop.stamps[-2]}&limit=2",
            f"/key?key=image&at={shop.stamps[-1]}&show=words",
            f"/?at={shop.stamps[-1]}&member=eu",
        ):
            for page in crawled(served, first, 20):
                found[page.url.partition("?")[0]] = page
        assert found.keys() >= {"/", "/changes", "/key", "/keys", "/commit", "/restore"}
        assert [each["name"] for each in served.json("/members.json")["members"]] == sorted(ANSWER)


def test_a_switch_keeps_the_time_and_the_view(served):
    page = served.page("/keys?member=us&at=rev:4&prefix=a/&after=a/1&tz=local")
    stamp = served.fleet_site.site_of("us").source.store.at(revision=4).timestamp
    kept = f"prefix=a/&tz=local&at={stamp}"
    fields = [attrs["value"] for tag, attrs in page.tags if attrs.get("name") == "_"]
    assert fields[0] == kept
    answer = served.http.get("/keys", params={"_": kept, "member": "eu"})
    assert answer.headers["location"] == f"/keys?{kept}&member=eu"
    text = served.page("/keys?at=now", 400).text
    assert "/keys is of one member of the fleet" in text
    assert "no member of this fleet is named 'e*'" in served.page("/?member=e*", 400).text


# --- members that fail ---


def test_a_member_that_is_away_is_named_and_the_others_go_on(served, shop):
    page = served.page("/keys?member=away", 503)
    assert re.search(r"away: .*127\.0\.0\.1:1", page.text)
    assert any(attrs.get("name") == "member" for tag, attrs in page.tags if tag == "select")
    assert served.http.get("/keys.json?member=away").json()["error"].startswith("away: ")
    page = served.page("/keys?member=kept")
    assert "Its engine does not answer now: this is what its archive has." in page.text
    assert "only/" in page.text


def test_pages_do_not_ask_a_member_that_is_away_again_and_again(served, fleet, monkeypatch):
    served.page("/")
    opened, opening = [], member_link.open_to_read
    monkeypatch.setattr(
        member_link,
        "open_to_read",
        lambda *args, **said: opened.append(args) or opening(*args, **said),
    )
    monkeypatch.setattr(member_link, "monotonic", lambda: 0.0)
    for url in ("/", "/changes", "/key?key=image"):
        assert "away" in served.page(url).text
    served.page("/keys?member=away", 503)
    assert opened == []


@pytest.mark.parametrize("error", [StoreRestoredError("restored since"), SnapKVError("a surprise")])
def test_a_member_with_any_error_is_named_and_the_others_go_on(served, monkeypatch, error):
    pinned = OpenMember._pinned

    def broken(self, *args):
        if self.name == "us":
            raise error
        return pinned(self, *args)

    monkeypatch.setattr(OpenMember, "_pinned", broken)
    rows = {each["name"]: each for each in served.json("/members.json")["members"]}
    assert (rows["us"]["state"], rows["us"]["error"]) == ("missing", str(error))
    assert rows["eu"]["state"] == "live"
    (data,) = pages_of(served, "/changes.json?span=all")
    assert data["unknown"]["us"] == str(error)
    data = served.json("/key.json?key=image")
    assert data["unknown"]["us"] == str(error)
    assert data["values"][0]["members"] == ["kept", "later", "old"]


def test_a_fleet_without_any_answer_is_a_page(served, monkeypatch):
    def behind(*args, **options):
        raise MembersBehindError(0, dict.fromkeys(ANSWER, "away"), asked="none")

    def broken(self, *args):
        raise StoreRestoredError("restored since")

    monkeypatch.setattr(type(served.fleet_site.fleet), "resolved", behind)
    monkeypatch.setattr(OpenMember, "pin", lambda self, *args: self.missing("gone"))
    assert "No time is known to be final" in served.page("/").text
    monkeypatch.setattr(OpenMember, "ask", broken)
    for url in ("/", "/changes", "/key?key=image"):
        assert "eu" in served.page(url).text


# --- restoring, and guards ---


def test_only_stores_have_restores(fleet):
    with FleetServed(FleetSite(fleet, writable=True, extra_views=())) as served:
        for name in ("old", "kept"):
            assert "/restore" not in " ".join(served.page(f"/?member={name}").links)
            assert served.http.get(f"/restore?member={name}&at=rev:3").status_code == 400
        assert "/restore" not in " ".join(served.page("/").links)
        assert "/restore?member=eu" in served.page("/?member=eu").links


def test_a_restore_is_of_the_member_whose_preview_it_was(tmp_path):
    urls = {name: f"lmdb:{tmp_path / name}" for name in ("one", "two")}
    for url in urls.values():
        with snapkv.open(url, durability="none") as store:
            store.save("a/x", b"1")
            store.commit(deletes=["a/x"])
    with (
        snapkv.fleet.open(urls) as fleet,
        FleetServed(FleetSite(fleet, writable=True, writer="bo", extra_views=())) as served,
    ):
        page = served.page("/restore?member=two&at=rev:3&prefix=a/")
        fields = {**page.fields, "note": "undo", "confirm": "restore 1 key"}
        origin = {"Origin": served.url}
        stores = [served.fleet_site.site_of(name).source.store for name in urls]
        heads = [store.resolved() for store in stores]
        for wrong in ({"member": ""}, {"member": "nobody"}, {"token": "x"}):
            answer = served.http.post("/restore", data=fields | wrong, headers=origin)
            assert answer.status_code in (400, 403), wrong
        assert [store.resolved() for store in stores] == heads
        answer = served.http.post("/restore", data=fields, headers=origin)
        newest = next(stores[1].commits(newest_first=True, limit=1))
        assert answer.headers["location"] == f"/commit?at={newest.ts}&member=two"
        assert (newest.note, newest.writer) == ("undo", "bo")
        assert [store.get("a/x", None) for store in stores] == [None, b"1"]


def test_redacted_values_are_on_no_page(fleet, shop):
    site = FleetSite(fleet, redaction=Redaction(["image"]), extra_views=())
    with FleetServed(site) as served:
        with shop.store("eu") as store:
            first = next(store.commits()).ts
        for url in ("/key?key=image", f"/changes?from={first}"):
            for shown in (url, url.replace("?", ".json?", 1)):
                text = served.http.get(shown).text
                assert "image" in text
                assert "replicas" not in text
        data = served.json("/key.json?key=image")
        assert [each["size"] for each in data["values"]] == [29]
        assert served.json("/key.json?key=image&member=us")["value"] is None


def test_the_guards_of_the_page_hold(fleet):
    with FleetServed(FleetSite(fleet, extra_views=()), login=Login("ann", "secret")) as served:
        for url in ("/", "/changes", "/key?key=image", "/?member=eu", "/members.json"):
            assert served.http.get(url).status_code == 401
        answer = served.http.get("/", auth=httpx.BasicAuth("ann", "secret"))
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    with FleetServed(FleetSite(fleet, extra_views=())) as served:
        answer = served.http.get("/", headers={"Host": "evil.example"})
        assert answer.status_code in (400, 403, 421)
        assert NOBODY not in answer.text
        assert served.http.post("/changes", timeout=WAIT_S).status_code in (403, 405)
