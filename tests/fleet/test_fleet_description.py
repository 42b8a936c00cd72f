"""Who is in a fleet: TOML, JSON, mappings, open stores; and every input that is wrong."""

import codecs
import json
from datetime import UTC, datetime

import pytest

import snapkv
from snapkv import pack
from snapkv.errors import (
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    StoreClosedError,
    StoreNotFoundError,
)
from snapkv.fleet.description import members_of
from snapkv.times import TIMESTAMP_MAX, end_of_ms

MARCH = "2026-03-01T00:00:00Z"
MARCH_TS = end_of_ms(1_772_323_200_000)


def urls_of(fleet):
    return {name: fleet.member(name).url for name in fleet.members}


# --- forms ---


def test_a_mapping_of_urls_stores_and_descriptions(sites):
    _, _, ap = sites.add("eu", "us", "ap")
    observed = sites.keep(snapkv.observe(sites.urls["ap"], prefix="/r/", clock=sites.clock))
    fleet = sites.fleet(
        {
            "us": {"url": sites.urls["us"], "joined": MARCH, "left": MARCH_TS + 5},
            "eu": sites.urls["eu"],
            "open": ap,
            "seen": observed,
        }
    )
    assert fleet.members == ["eu", "open", "seen", "us"]
    assert fleet.member("eu") == snapkv.fleet.Member("eu", sites.urls["eu"])
    us = fleet.member("us")
    assert (us.joined, us.left, us.prefix) == (MARCH_TS, MARCH_TS + 5, None)
    assert fleet.member("open").opened is ap
    assert (fleet.member("seen").prefix, fleet.member("seen").url) == ("/r/", sites.urls["ap"])
    fleet.close()
    assert ap.load_with_prefix("") == ([], []), "a store that was given open stays open"
    assert observed.resolved() == 0


@pytest.mark.parametrize("form", ["toml", "json", "mapping", "mapping with tables"])
def test_each_form_describes_the_same(sites, form):
    members = {
        "eu-1": "memory:eu-1",
        "us-1": {"url": "memory:us-1", "name": "plans", "joined": MARCH, "left": str(MARCH_TS + 9)},
        "us-2": {"url": "memory:us-1", "prefix": "/other/"},
    }
    toml = f"""
        [defaults]
        prefix = "/registry/"
        [members]
        eu-1 = "memory:eu-1"
        us-1 = {{ url = "memory:us-1", name = "plans", joined = {MARCH}, left = {MARCH_TS + 9} }}
        us-2 = {{ url = "memory:us-1", prefix = "/other/" }}
    """
    tables = {"defaults": {"prefix": "/registry/"}, "members": members}
    full = {
        name: {"prefix": "/registry/"} | ({"url": each} if isinstance(each, str) else each)
        for name, each in members.items()
    }
    given = {
        "toml": lambda: sites.written(toml),
        "json": lambda: str(sites.written(json.dumps(tables), "fleet.json")),
        "mapping": lambda: full,
        "mapping with tables": lambda: tables,
    }[form]()
    fleet = sites.fleet(given)
    assert fleet.members == ["eu-1", "us-1", "us-2"]
    assert [fleet.member(name) for name in fleet.members] == [
        snapkv.fleet.Member("eu-1", "memory:eu-1", prefix="/registry/"),
        snapkv.fleet.Member(
            "us-1", "memory:us-1", "plans", "/registry/", joined=MARCH_TS, left=MARCH_TS + 9
        ),
        snapkv.fleet.Member("us-2", "memory:us-1", prefix="/other/"),
    ]
    assert repr(fleet) == "<Fleet of 3 members>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fleet.toml", '# größer\r\n[members]\r\na = "memory:a"\r\n'),
        ("fleet.json", '{"members": {"a": "memory:a"}}'),
    ],
    ids=["toml", "json"],
)
def test_a_byte_order_mark_before_a_file_does_not_count(sites, name, text):
    path = sites.folder / name
    path.write_bytes(text.encode("utf-8-sig"))
    assert path.read_bytes().startswith(codecs.BOM_UTF8)
    assert sites.fleet(path).members == ["a"]


def test_defaults_are_for_the_members_that_can_have_them(sites):
    path = sites.written(
        f"""
        [defaults]
        prefix = "/registry/"
        max_txn_ops = 64
        joined = {MARCH}
        storage = {{ region = "eu" }}
        [members]
        live = "etcd://127.0.0.1:1"
        kept = "s3://bucket/kept"
        older = "archive:older"
        [members.other]
        url = "s3://bucket/other"
        joined = {MARCH_TS + 5}
        storage = {{ region = "us" }}
        """,
    )
    fleet = sites.fleet(path, timeout=0.1)
    live, kept, older, other = map(fleet.member, ("live", "kept", "older", "other"))
    assert (live.prefix, live.options, live.storage) == ("/registry/", {"max_txn_ops": 64}, None)
    assert (kept.prefix, kept.options, kept.storage) == (None, {}, {"region": "eu"})
    assert (older.prefix, older.url) == (None, f"archive:{sites.folder}/older")
    assert (other.joined, other.storage) == (MARCH_TS + 5, {"region": "us"})
    assert {each.joined for each in (live, kept, older)} == {MARCH_TS}
    with pytest.raises(InvalidTypeError) as e:  # what a member says itself is for that one
        sites.fleet({"defaults": {}, "members": {"a": {"url": "archive:x", "max_txn_ops": 64}}})
    assert e.value.member == "a"


def test_a_member_without_the_prefix_of_the_defaults(sites):
    path = sites.written(
        """
        [defaults]
        prefix = "/registry/"
        [members]
        cluster = "etcd://127.0.0.1:1"
        plans = { url = "etcd://127.0.0.1:2", prefix = false, archive = "kept/plans" }
        """,
    )
    fleet = sites.fleet(path, timeout=0.1)
    assert fleet.member("cluster").prefix == "/registry/"
    assert fleet.member("plans").prefix is None
    assert fleet.member("plans").archive == f"{sites.folder}/kept/plans"


def test_members_are_sorted_and_chosen_by_patterns(sites):
    sites.add("us-1", "eu-2", "eu-1", "a.b/c")
    fleet = sites.fleet()
    assert fleet.members == ["a.b/c", "eu-1", "eu-2", "us-1"]
    sites.tick()
    seen = {
        "eu-*": ["eu-1", "eu-2"],
        "us-1, eu-1": ["eu-1", "us-1"],
        "*-1,eu-*": ["eu-1", "eu-2", "us-1"],
        "?u-1": ["eu-1"],
    }
    at = min(sites.tick().values()) - 1
    for pattern, names in seen.items():
        assert list(fleet.at(at, members=pattern, behind="stale").members) == names
        assert list(fleet.at(at, members=pattern.split(","), behind="stale").members) == names
    for bad in ("xx", "eu-1,xx", "EU-1", "", []):
        with pytest.raises(InvalidOptionError, match=r"a\.b/c|empty"):
            fleet.at(at, members=bad)
    for bad in (5, [5], [None], b"eu-1"):
        with pytest.raises(InvalidTypeError):
            fleet.at(at, members=bad)


def test_names_of_many_members_are_cut_in_messages(sites):
    fleet = sites.fleet({f"m{n:04}": f"memory:none-{n}" for n in range(1_000)})
    with pytest.raises(InvalidOptionError) as e:
        fleet.resolved(members="x")
    assert "1,000 members" in str(e.value)
    assert "m0009, ..." in str(e.value)
    assert "m0010" not in str(e.value)


# --- times of joining and leaving ---


@pytest.mark.parametrize(
    "given",
    [MARCH, "2026-03-01T01:00:00+01:00", datetime(2026, 3, 1, tzinfo=UTC), MARCH_TS, str(MARCH_TS)],
)
def test_times_of_a_member(sites, given):
    fleet = sites.fleet({"a": {"url": "memory:a", "joined": given, "left": "2027-01-01T00:00:00Z"}})
    assert fleet.member("a").joined == MARCH_TS
    assert not fleet.member("a").has(MARCH_TS - 1)
    assert fleet.member("a").has(MARCH_TS)
    left = fleet.member("a").left
    assert fleet.member("a").has(left)
    assert not fleet.member("a").has(left + 1)


def test_times_count_from_the_clock_of_the_fleet(sites):
    fleet = sites.fleet({"a": {"url": "memory:a", "joined": "-1h", "left": "+1h"}})
    now = sites.clock.now_ms()
    assert fleet.member("a").joined == end_of_ms(now - 3_600_000)
    assert fleet.member("a").left == end_of_ms(now + 3_600_000)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("2026-03-01T00:00:00", InvalidTimeError),
        ("2026-03-01", InvalidTimeError),
        ("yesterday", InvalidTimeError),
        ("rev:4", InvalidTimeError),
        (datetime(2026, 3, 1), InvalidTimeError),
        (-1, InvalidTimeError),
        (1 << 64, InvalidTimeError),
        (4, InvalidTimeError),  # a revision
        (1_772_323_200, InvalidTimeError),  # unix seconds
        (1_772_323_200_000, InvalidTimeError),  # unix milliseconds
        (True, InvalidTypeError),
        (1.5, InvalidTypeError),
        ([], InvalidTypeError),
    ],
)
@pytest.mark.parametrize("end", ["joined", "left"])
def test_times_that_are_none(sites, end, given, error):
    with pytest.raises(error) as e:
        sites.fleet({"b": "memory:b", "a": {"url": "memory:a", end: given}})
    assert e.value.member == "a"


@pytest.mark.parametrize("text", ["2026-03-01", "2026-03-01T00:00:00", "00:00:00"])
def test_local_times_of_a_file_are_none(sites, text):
    path = sites.written(f'[members.a]\nurl = "memory:a"\njoined = {text}\n')
    with pytest.raises(InvalidTimeError) as e:
        sites.fleet(path)
    assert e.value.member == "a"


def test_a_member_joins_before_it_leaves(sites):
    with pytest.raises(InvalidOptionError, match="joined") as e:
        sites.fleet({"a": {"url": "memory:a", "joined": MARCH, "left": MARCH_TS - 1}})
    assert e.value.member == "a"
    sites.fleet({"a": {"url": "memory:a", "joined": MARCH, "left": MARCH_TS}})


# --- paths ---


def test_paths_of_a_file_count_from_its_folder(sites, monkeypatch):
    (sites.folder / "conf").mkdir()
    path = sites.written(
        """
        [members]
        a = "lmdb:stores/a"
        b = "archive:../kept/b"
        c = { url = "lmdb:/abs/c", archive = "kept/c" }
        d = { url = "memory:d", archive = "archive:kept/d" }
        e = { url = "memory:e", archive = "s3://bucket/e" }
        f = "s3://bucket/f"
        """,
        "conf/fleet.toml",
    )
    conf = str(sites.folder / "conf")
    monkeypatch.chdir(sites.folder)
    for each in (path, "conf/fleet.toml"):
        fleet = sites.fleet(each)
        assert urls_of(fleet) == {
            "a": f"lmdb:{conf}/stores/a",
            "b": f"archive:{conf}/../kept/b",
            "c": "lmdb:/abs/c",
            "d": "memory:d",
            "e": "memory:e",
            "f": "archive:s3://bucket/f",
        }
        archives = [fleet.member(name).archive for name in "cde"]
        assert archives == [f"{conf}/kept/c", f"archive:{conf}/kept/d", "s3://bucket/e"]


def test_certificates_of_a_file_count_from_its_folder(sites):
    path = sites.written(
        """
        [defaults]
        ca_cert = "tls/ca.crt"
        [members]
        a = "etcd://127.0.0.1:1"
        b = { url = "etcd://127.0.0.1:1", name = "b", cert = "b.crt", key = "/keys/b.key" }
        """
    )
    members = {each.name: each.options for each in members_of(path, 0)}
    assert members == {
        "a": {"ca_cert": f"{sites.folder}/tls/ca.crt"},
        "b": {
            "ca_cert": f"{sites.folder}/tls/ca.crt",
            "cert": f"{sites.folder}/b.crt",
            "key": "/keys/b.key",
        },
    }


def test_a_fleet_from_a_file_is_read(sites):
    sites.add("a", kind="lmdb")
    ts = sites["a"].save("k", b"1")
    url = f"lmdb:{sites.urls['a'].rpartition('/')[2]}"
    path = sites.written(f'[defaults]\ndurability = "none"\n[members]\na = "{url}"\n')
    assert dict(sites.fleet(path).at(ts)) == {("a", "k"): b"1"}


def test_a_store_with_a_codec_is_read_as_bytes(sites):
    (a,) = sites.add("a")
    ts = a.save("k", b"1")
    assert dict(sites.fleet({"a": a.with_codec(snapkv.codecs.json)}).at(ts)) == {("a", "k"): b"1"}


# --- one store under two names ---


def test_one_store_has_one_name(sites):
    sites.add("a")
    url = sites.urls["a"]
    for given in (
        {"a": url, "b": url},
        {"a": url, "b": sites["a"]},
        {"a": {"url": url, "prefix": "/r/"}, "b": {"url": url, "prefix": "/r/"}},
    ):
        with pytest.raises(InvalidOptionError, match="the same store") as e:
            sites.fleet(given)
        assert e.value.member in ("a", "b")
    prefixes = {"a": url, "b": {"url": url, "prefix": "/r/"}, "c": {"url": url, "prefix": "/r/s/"}}
    assert sites.fleet(prefixes).members == ["a", "b", "c"]


def test_a_member_that_was_renamed(sites):
    (a,) = sites.add("a")
    before = a.save("k", b"1")
    sites.later()
    after = a.save("k", b"2")
    sites.later()
    a.tick()
    members = {
        "old": sites.described_as("a", left=before),
        "new": sites.described_as("a", joined=before + 1),
    }
    fleet = sites.fleet(members)
    assert fleet.at(before).everywhere("k") == {"old": b"1"}
    assert fleet.at().everywhere("k") == {"new": b"2"}
    found = fleet.diff(before)
    assert (found.joined, found.left, list(found)) == (["new"], ["old"], [])
    both = [("old", before), ("new", after)]
    assert [(member, each.ts) for member, each in fleet.history("k")] == both
    with fleet.watch(since=before - 1, timeout=0) as watch:
        assert [(*item.members, item.timestamp) for item in watch] == both
    members["new"]["joined"] = before
    with pytest.raises(InvalidOptionError, match=r"the same store as the member '(new|old)'"):
        sites.fleet(members).at(before)


def test_archives_of_one_store_have_one_name_each_time(sites):
    sites.add("a")
    ts = sites["a"].save("k", b"1")
    x, y = (f"archive:{sites.archive('a', folder)}" for folder in ("one", "two"))
    fleet = sites.fleet({"x": x, "y": y})
    for _ in range(3):  # also after the first time, which opened it
        with pytest.raises(InvalidOptionError, match="the same store") as e:
            fleet.at(ts)
        assert e.value.member in ("x", "y")
        assert f"{'yx'['xy'.index(e.value.member)]!r}" in str(e.value)


# --- opening and closing ---


def test_members_that_do_not_exist_yet_are_no_error(sites):
    sites.add("a")
    fleet = sites.fleet(sites.urls | {"b": "memory:site-later"})
    ts = sites["a"].save("k", b"1")
    with pytest.raises(snapkv.MembersBehindError) as e:
        fleet.at(ts)
    assert list(e.value.members) == ["b"]
    sites.urls["b"] = "memory:site-later"
    store = sites.open("b")
    sites.later()
    at = store.save("k", b"2")
    sites.tick("a")
    assert dict(fleet.at(at)) == {("a", "k"): b"1", ("b", "k"): b"2"}


def test_a_fleet_reads_only(sites):
    fleet = sites.fleet({"a": "memory:site-nobody"})
    with pytest.raises(snapkv.MembersBehindError):
        fleet.at()
    with pytest.raises(StoreNotFoundError):
        snapkv.open("memory:site-nobody", create=False)


def test_a_closed_fleet_says_so(sites):
    sites.add("a")
    ts = sites["a"].save("k", b"1")
    fleet = sites.fleet(sites.urls)
    with fleet as same:
        assert same is fleet
    fleet.close()
    for use in (
        lambda: fleet.at(ts),
        lambda: fleet.resolved(),
        lambda: fleet.watch(),
        lambda: fleet.diff(ts, ts),
        lambda: fleet.history("k"),
        lambda: fleet.commits(),
        lambda: fleet.ticker(),
        lambda: fleet.__enter__(),
    ):
        with pytest.raises(StoreClosedError):
            use()
    assert fleet.members == ["a"]
    assert fleet.timestamp_of(pack(1_700_000_000_000)) == pack(1_700_000_000_000)
    assert fleet.member("a").left == TIMESTAMP_MAX
