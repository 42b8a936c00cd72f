"""Keys, values, notes and writers that attack: shown, escaped, bounded."""

import re
import unicodedata
from http.client import HTTPConnection
from itertools import product

import pytest
from sampling import first_of

import snapkv
from snapkv.ui import Redaction
from snapkv.web import Login

from .served import WAIT_S, Served, crawled

pytestmark = pytest.mark.slow

SCRIPT = "<script>alert(1)</script>"
EVIL = (
    *(SCRIPT, f'"><img src=x onerror=alert(1)>{SCRIPT}', "javascript:alert(1)", "a' onclick='x"),
    *(
        "user\u202egnp.exe",
        "\u2066\u2069",
        "zero\u200bwidth",
        "nul\0nul",
        "two\r\nlines\n",
        "tab\t",
    ),
    *("/", "//", "///x", "a//b", "a/../b", "..", "%2F%00", "a?b=c&d#e", "{{7*7}}", "{% raw %}"),
    *("\u0301combining", "🙂/🙃", "\x1b[31mred", " leading", "trailing ", "+plus", "rev:1"),
)
CRAWLED_MAX = 150
FIRST_PAGES = ("/", "/keys?from=rev:3", "/changes?from=rev:4&show=words")


@pytest.fixture
def evil(place, clock):
    """A store whose keys, values, notes and writer are all of them."""
    store = place.open(clock=clock, writer=SCRIPT)
    for number, text in enumerate(EVIL):
        clock.advance(1_000)
        value = text.encode() if number % 3 else b'{"%d": "<script>\\u202e"}' % number
        store.commit(puts={text: value}, note=text)
    clock.advance(1_000)
    store.commit(puts={SCRIPT: b"\xff\xfe\x00<script>"}, deletes=[EVIL[4], EVIL[8]], note="<b>")
    return store


def assert_harmless(page):
    """Assert that nothing that was stored became markup, a script, or a control of text."""
    names = [tag for tag, _ in page.tags]
    assert "img" not in names
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert all(attrs.get("src", "").startswith("/assets/") for attrs in scripts)
    for _, attrs in page.tags:
        assert not any(name.startswith("on") or name == "style" for name in attrs)
        assert not (attrs.get("href") or "").startswith("javascript")
    shown = [char for char in page.html if unicodedata.category(char) in ("Cc", "Cf", "Cs")]
    assert set(shown) <= {"\n", "\t"}, sorted(set(shown))


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("first", "place"),
    first_of(product(FIRST_PAGES, ["memory", "lmdb", "etcd"]), one_in=3),
    indirect=["place"],
)
def test_every_page_that_a_link_leads_to_is_harmless(evil, first):
    with Served(evil, writable=True) as served:
        urls = []
        for page in crawled(served, first, CRAWLED_MAX):
            assert_harmless(page)
            urls.append(page.url)
    assert len(urls) > 100


def test_each_evil_key_has_a_page_of_its_own(evil):
    with Served(evil) as served:
        listed, levels, seen = {}, ["/keys"], set()
        for level in levels:  # which grows
            for link in served.page(level).links:
                if "at=" in link or "from=" in link or "tz=" in link or link in seen:
                    continue
                seen.add(link)
                if link.startswith("/key?"):
                    listed[served.json(link.replace("/key?", "/key.json?"))["key"]] = link
                elif link.startswith("/keys?prefix="):
                    levels.append(link)
        assert listed.keys() == set(evil.at().keys())
        for key, link in listed.items():
            page = served.page(f"{link}&tab=value")
            assert_harmless(page)
            data = served.json(f"{link}&tab=value".replace("/key?", "/key.json?"))
            value = evil.load(key)
            try:
                assert data["value"] == value.decode()
            except UnicodeDecodeError:
                assert data["value"].keys() == {"base64"}
            assert [each["timestamp"] for each in data["versions"]] == [
                str(each.ts) for each in evil.history(key)
            ][::-1]


def test_forms_keep_evil_prefixes(evil):
    """Browsers change line ends and NUL in the fields of forms: one field of ASCII has them."""
    with Served(evil) as served:
        for prefix in ("two\r\nlines\n", "nul\0nul", "user\u202egnp.exe"):
            page = served.page(
                str(served.http.build_request("GET", "/keys", params={"prefix": prefix}).url)
            )
            kept = page.fields["_"]
            assert kept.isascii()
            assert kept.isprintable()
            answer = served.http.get("/keys", params={"_": kept, "name": "x"})
            assert answer.status_code == 303
            data = served.page(answer.headers["location"])
            assert served.site.source.when("") is None
            assert "name=x" in data.url


def test_large_values_and_many_versions_are_bounded(store, clock):
    with store:
        for fill in (b"0", b"x"):
            for number in range(8):
                store.save(f"big/{number}", fill * (1 << 20))
        store.commit(puts={"json": b'{"a": "%s"}' % (b"\\u202e<" * 100_000)})
        for number in range(300):
            store.save("often", b"%d" % number)
        with Served(store) as served:
            for url in (
                *("/", "/keys", "/changes?from=0", "/changes?from=rev:10&show=side-by-side"),
                *("/key?key=big/1", "/key?key=big/1&tab=value", "/key?key=big/1&tab=blame"),
                *(
                    "/key?key=json&tab=value",
                    "/key?key=json&tab=blame",
                    "/search?q=x",
                    "/key?key=often",
                ),
                *("/commit?at=rev:4", "/keys?prefix=big/", "/key.json?key=often", "/commits.json"),
            ):
                answer = served.http.get(url)
                assert answer.status_code == 200, answer.text[:500]
                assert len(answer.content) < 2_000_000, url
            seen, url = [], "/key.json?key=often"
            while True:
                data = served.json(url)
                seen += [each["revision"] for each in data["versions"]]
                if data["following"] is None:
                    break
                url = f"/key.json?key=often&older={data['following']}"
            assert len(seen) == len(set(seen)) == 300


@pytest.mark.long
def test_ten_thousand_versions_of_a_key_are_paged(tmp_path):
    with snapkv.open(f"lmdb:{tmp_path / 'meta'}", durability="none") as store:
        made = [store.save("often", b"%d" % number) for number in range(10_000)]
        with Served(store) as served:
            answer = served.http.get("/key?key=often")
            assert len(answer.content) < 200_000
            seen, older = [], ""
            for _ in range(10):
                data = served.json(f"/key.json?key=often&limit=1000{older}")
                seen += [int(each["timestamp"]) for each in data["versions"]]
                older = f"&older={data['following']}"
            assert seen == made[::-1]
            assert data["following"] is None
            assert "often" in served.page("/key?key=often&tab=blame").text


@pytest.fixture
def secret(store, clock):
    for number in range(3):
        clock.advance(1_000)
        puts = {"secrets/db": b"hunter%d" % number, "app": b"shown%d" % number}
        store.commit(puts=puts, note="rotate")
    return store


def test_redacted_values_are_nowhere(secret):
    with Served(secret, redaction=Redaction(["secrets/"])) as served:
        texts = [page.html for page in crawled(served, "/keys?from=0", 150)]
        for url in (
            *("/changes.json?from=0", "/key.json?key=secrets/db", "/commit.json?at=rev:4"),
            *("/search.json?q=hunter", "/search?q=hunter&in=values", "/keys.json?prefix=secrets/"),
            *("/export?format=json", "/export?format=csv", "/key?key=secrets/db&tab=blame"),
        ):
            answer = served.http.get(url)
            assert answer.status_code == 200
            texts.append(answer.text)
        assert not any(
            "hunter" in re.sub('q=hunter|value="hunter"|grep hunter', "", text) for text in texts
        )
        assert any("shown1" in text for text in texts)
        assert served.http.get("/export?format=dump").status_code == 400
        assert served.json("/search.json?q=hunter")["hits"] == []


def test_queries_that_are_not_valid_are_errors_of_the_client(store, clock):
    store.save("a", b"1")
    with Served(store) as served:
        for url in (
            *("/?at=sometime", "/?at=rev:0", "/?span=x", "/?span=1..y", "/changes?view=x"),
            *("/keys?limit=x", "/keys?limit=-1", "/key", "/search?q=a&in=x", "/export?format=x"),
            *("/?from=99", "/changes?show=x", "/commit?at=9", "/live/events?since=x", "/restore"),
            "/?" + "&".join(f"a{n}=1" for n in range(100)),
            "/?prefix=" + "a" * 30_000,
            *(f"/{field}{'9' * 5_000}" for field in ("?at=", "?from=", "keys?limit=")),
            *(f"/{field}{'9' * 5_000}" for field in ("?at=rev:", "?at=-", "live/events?since=")),
            *("/keys?at=rev:1&at=rev:2", "/keys?prefix=a&prefix=b", "/keys?_=at%3D1%26at%3D2"),
            *("/?at=%D9%A3", "/keys?limit=%D9%A3", "/keys?limit=1_0", "/live/events?since=1_0"),
        ):
            answer = served.http.get(url)
            assert answer.status_code == 400, f"{url}: {answer.status_code}"
            assert "bug" not in answer.text
        twice = served.http.get("/keys.json?prefix=a/&prefix=b/").json()
        assert "the URL has prefix= twice: 'a/' and 'b/'; give it once" in str(twice)
        assert served.http.get("/keys?prefix=&prefix=a").is_success
        for url in ("/nothing", "/assets/../app.py", "/assets/x", "/key?key=b", "/key?key=%FF"):
            assert served.http.get(url).status_code in (400, 404), url
        for url in ("/keys?_=%FF", "/keys?_=_%3D%2525FF", "/search?q=%FF", "/live/events"):
            assert served.http.head(url, follow_redirects=True).status_code < 500, url
        connection = HTTPConnection("127.0.0.1", served.server.port, timeout=WAIT_S)
        connection.request("GET", "//evil.example/?_=a")  # must not lead there
        assert connection.getresponse().status == 404
        connection.close()
        assert served.http.request("DELETE", "/keys").status_code in (403, 405)
        assert served.http.get("/commit?at=rev:999").status_code == 404


def test_every_answer_has_the_headers_that_keep_pages_harmless(store):
    store.save("a", b"1")
    with Served(store) as served:
        for url in ("/", "/keys.json", "/assets/bar.js", "/assets/style.css", "/nothing", "/?at=x"):
            headers = served.http.get(url).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            if not url.startswith("/assets"):
                assert headers["cache-control"] == "no-store"
        foreign = served.http.get("/", headers={"Host": "evil.example"})
        assert foreign.status_code == 403


def test_a_login_is_needed_where_one_is_set(store):
    login = Login("ann", "pass wörd")
    with Served(store, login=login) as served:
        for url in ("/", "/keys.json", "/live/events", "/export?format=csv"):
            assert served.http.get(url).status_code == 401
        answer = served.http.get("/", auth=("ann", "pass wörd".encode()))
        assert answer.status_code == 200
