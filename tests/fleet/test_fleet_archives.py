"""Archives as members: found in folders and buckets, and how far they reach by their names."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sampling import SOAK

import snapkv
from snapkv import MembersBehindError
from snapkv.archive import open_files
from snapkv.archive.storage import REQUEST_TIMEOUT_S
from snapkv.errors import (
    EngineUnavailableError,
    InvalidFileError,
    InvalidOptionError,
    InvalidTypeError,
    SnapKVError,
)
from snapkv.fleet import open_member
from snapkv.fleet.member_link import Silence

MANY = 1_000 if SOAK else 200


def recorded(sites, *names):
    """Commit to some stores, and record them; return the newest timestamps."""
    for name in names:
        if name not in sites.stores:
            sites.add(name)
        sites.later()
        sites[name].commit(puts={"k": name.encode(), f"only/{name}": b"1"})
    sites.later()
    stamps = sites.tick(*names)
    for name in names:
        sites.archive(name)
    return stamps


# --- folders ---


def test_each_archive_in_a_folder_is_a_member(sites):
    stamps = recorded(sites, "eu/1", "eu/2", "us")
    folder = sites.folder / "archives"
    (folder / "empty").mkdir()
    (folder / "a file").write_text("")
    for given in (
        {"archives": [str(folder)]},
        {"archives": (f"archive:{folder}",)},
        {"archives": [str(folder)], "members": {}},
        sites.written('archives = ["archives"]'),
        sites.written('archives = ["archive:archives/"]'),
    ):
        fleet = sites.fleet(given)
        assert fleet.members == ["eu/1", "eu/2", "us"]
        assert fleet.resolved() == min(stamps.values())
        moment = fleet.at()
        assert {seen.state for seen in moment.members.values()} == {"archive"}
        assert moment.everywhere("k") == {name: name.encode() for name in fleet.members}
        assert list(moment.keys("only/")) == [(name, f"only/{name}") for name in fleet.members]
    eu = sites.fleet({"archives": [str(folder / "eu")]})
    assert eu.members == ["1", "2"]
    one = sites.fleet({"archives": [str(folder / "us")]})
    assert one.members == ["us"], "the folder is an archive itself"


def test_archives_and_members_together(sites):
    recorded(sites, "eu", "us")
    sites.add("live")
    sites.tick("live")
    folder = f"{sites.folder}/archives"
    fleet = sites.fleet({"archives": [folder], "members": {"live": sites.urls["live"]}})
    assert fleet.members == ["eu", "live", "us"]
    assert fleet.at().final
    for given in (
        {"archives": [folder], "members": {"us": "memory:us"}},
        {"archives": [folder, folder]},
        {"archives": [folder, f"{folder}/us"]},
    ):
        with pytest.raises(InvalidOptionError, match=r"us|two archives"):
            sites.fleet(given)
    with pytest.raises(InvalidOptionError, match="needs a member"):
        sites.fleet({"archives": []})


def test_a_name_of_a_folder_that_no_member_can_have(sites):
    recorded(sites, "a b")
    with pytest.raises(InvalidOptionError) as e:
        sites.fleet({"archives": [f"{sites.folder}/archives"]})
    assert e.value.member == "a b"


def test_what_is_recorded_later_is_seen(sites):
    stamps = recorded(sites, "eu", "us")
    fleet = sites.fleet({"archives": [f"{sites.folder}/archives"]})
    first = fleet.at()
    assert first.timestamp == min(stamps.values())
    again = recorded(sites, "eu", "us")
    with_new = fleet.at()
    assert with_new.timestamp == fleet.resolved() == min(again.values())
    assert first.timestamp < with_new.timestamp
    newer = recorded(sites, "eu", "us")
    moment = fleet.at(min(newer.values()))  # nobody asked for `resolved`
    assert moment.final
    assert dict(first) == dict(fleet.at(first.timestamp))
    with pytest.raises(MembersBehindError, match="final up to"):
        fleet.at(max(newer.values()) + 1)


def test_an_archive_that_is_not_there_yet_is_missing(sites):
    ts = min(recorded(sites, "eu").values())
    folder = f"{sites.folder}/archives"
    fleet = sites.fleet({name: f"archive:{folder}/{name}" for name in ("eu", "us")})
    with pytest.raises(MembersBehindError, match="us: no archive in") as e:
        fleet.resolved()
    assert list(e.value.members) == ["us"]
    with pytest.raises(MembersBehindError, match="us: no archive in"):
        fleet.at(ts)
    moment = fleet.at(ts, behind="leave out")
    assert moment.members["us"].state == "missing"
    assert moment.everywhere("k") == {"eu": b"eu"}
    recorded(sites, "us")
    assert fleet.at(ts).members["us"] == open_member.ABSENT
    assert fleet.resolved() == ts


def test_a_damaged_archive_is_an_error_with_its_name(sites):
    recorded(sites, "eu", "us")
    stamps = recorded(sites, "eu", "us")
    for path in (sites.folder / "archives" / "us").rglob("*.parquet"):
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-20])
    fleet = sites.fleet({"archives": [f"{sites.folder}/archives"]})
    for read in (
        lambda: fleet.at(min(stamps.values()))["us", "k"],
        lambda: dict(fleet.at(min(stamps.values())).items()),
        lambda: fleet.at(min(stamps.values())).to_arrow(),
    ):
        with pytest.raises(SnapKVError) as e:
            read()
        assert e.value.member == "us"


def test_folders_that_cannot_be_listed(sites):
    sites.written("")
    with pytest.raises(InvalidFileError) as e:
        sites.fleet({"archives": [f"{sites.folder}/fleet.toml"]})
    assert "fleet.toml" in e.value.__notes__[0]
    for archives in ([5], [None], [b"x"]):
        with pytest.raises(InvalidTypeError):
            sites.fleet({"archives": archives})


# --- buckets ---


@pytest.mark.slow
def test_many_archives_take_one_listing(sites, s3, proxy):
    url = s3.new_url()
    files = open_files(url, s3.storage)
    stamps = {f"m{n:04}": (1_700_000_000_000 + n) << 18 for n in range(MANY)}
    with ThreadPoolExecutor(8) as pool:
        names = [f"{name}/_manifest/{'1':0>20}-{ts}" for name, ts in stamps.items()]
        assert all(pool.map(lambda name: files.put_new(name, b""), names))
    proxy.seen.clear()
    storage = proxy.storage | {"timeout": 20, "retry_timeout": 60}  # moto lists slowly
    fleet = sites.fleet({"archives": [url], "storage": storage})
    assert fleet.members == list(stamps)
    assert [method for method, _ in proxy.seen] == ["GET"]
    for of, index in (("all", 0), ("99%", MANY // 100), (1, MANY - 1)):
        proxy.seen.clear()
        assert fleet.resolved(of) == stamps[f"m{index:04}"]
        assert [method for method, _ in proxy.seen] == ["GET"]
    proxy.seen.clear()
    assert fleet.resolved(members="m00*") == stamps["m0000"]
    assert [method for method, _ in proxy.seen] == ["GET"]


@pytest.mark.slow
def test_archives_in_a_bucket(sites, s3, proxy):
    url, stamps = s3.new_url(), {}
    for name in ("eu/1", "eu/2", "us"):
        sites.add(name)
        sites.later()
        sites[name].save("k", name.encode())
        stamps[name] = sites.tick(name)[name]
        snapkv.record(
            sites.urls[name], into=f"{url}/{name}", clock=sites.clock, storage=s3.storage
        ).catch_up()
    storage = "".join(f"{key} = {json.dumps(each)}\n" for key, each in proxy.storage.items())
    for given in (
        {"archives": [url], "storage": proxy.storage},
        {name: {"url": f"{url}/{name}", "storage": proxy.storage} for name in stamps},
        sites.written(f'archives = ["{url}"]\n[storage]\n{storage}'),
    ):
        fleet = sites.fleet(given, timeout=3)
        assert fleet.members == sorted(stamps)
        proxy.seen.clear()
        assert fleet.resolved() == min(stamps.values())
        assert len(proxy.seen) == 1
        moment = fleet.at()
        assert moment.everywhere("k") == {"eu/1": b"eu/1"}
        late = fleet.at(max(stamps.values()), behind="stale")
        assert late.everywhere("k") == {name: name.encode() for name in stamps}
        assert not late.final


def test_an_archive_beside_an_engine_is_away_like_it(sites, servers, s3, proxy):
    """Calls wait for it once in `away_s`, as for an engine."""
    sites.add("eu", "us")
    stamps, url = sites.tick(), s3.new_url()
    with servers.passed():
        snapkv.record(sites.urls["us"], into=url, clock=sites.clock, storage=s3.storage).catch_up()
    storage = proxy.storage | {"max_retries": 0}
    us = sites.described_as("us", archive=url, storage=storage)
    servers.set(sites.urls["us"], "away")
    fleet = sites.fleet({"eu": sites.urls["eu"], "us": us}, timeout=2)
    fleet._members.by_name["us"].away_s = 60.0
    proxy.arm("close")
    asked = len(proxy.seen)
    moment = fleet.at(min(stamps.values()), behind="leave out")
    assert moment.members["us"].state == "missing"
    assert len(proxy.seen) > asked
    asked = len(proxy.seen)
    fleet.at(min(stamps.values()), behind="leave out")
    assert len(proxy.seen) == asked
    proxy.disarm()
    fleet._members.by_name["us"].archive_silence = Silence()  # as if the minute were over
    assert fleet.at(min(stamps.values())).members["us"].state == "archive"
    proxy.arm("close")  # also when it is open
    asked = len(proxy.seen)
    assert fleet.resolved(members="us") == stamps["us"], "as far as it was known"
    assert len(proxy.seen) > asked
    asked = len(proxy.seen)
    assert fleet.resolved(members="us") == stamps["us"]
    assert len(proxy.seen) == asked


@pytest.mark.slow
def test_a_bucket_that_hangs_holds_no_call_up(sites, s3, proxy):
    """A call takes the time of a member, whatever the bounds of an object store's requests are."""
    url = s3.new_url()
    sites.add("eu", "us", "live")
    stamps = sites.tick()
    for name in ("eu", "us"):
        into = f"{url}/{name}"
        snapkv.record(sites.urls[name], into=into, clock=sites.clock, storage=s3.storage).catch_up()
    storage = {k: v for k, v in proxy.storage.items() if "timeout" not in k}
    described = {name: {"url": f"{url}/{name}", "storage": storage} for name in ("eu", "us")}
    fleet = sites.fleet({**described, "live": sites.urls["live"]}, timeout=0.5)
    for name in ("eu", "us"):
        fleet._members.by_name[name].away_s = 60.0
    proxy.arm("hold")
    began = time.monotonic()
    with pytest.raises(MembersBehindError) as e:
        fleet.resolved()
    assert list(e.value.members) == ["eu", "us"]
    assert len(proxy.seen) == 1, "one listing of the bucket"
    assert fleet.resolved(1) == stamps["live"]
    assert fleet.at(behind="leave out").members["live"].state == "live"
    assert len(proxy.seen) == 1, "it counts as away"
    assert time.monotonic() - began < REQUEST_TIMEOUT_S / 2


@pytest.mark.parametrize("opened", [True, False])
def test_a_history_is_whole_or_an_error(sites, s3, proxy, opened):
    """The archive that has what the engine has compacted is away."""
    url = s3.new_url()
    sites.add("us")
    stamps = []
    for n in range(5):
        sites.later(400_000)
        stamps.append(sites["us"].save("k", b"%d" % n))
    snapkv.record(sites.urls["us"], into=url, clock=sites.clock, storage=s3.storage).catch_up()
    sites.later(2_000_000)
    sites["us"].compact(stamps[3], past_recordings=True)
    storage = proxy.storage | {"max_retries": 0}
    us = sites.described_as("us", archive=url, storage=storage)
    fleet = sites.fleet({"us": us}, timeout=2)
    connection = fleet._members.by_name["us"]
    connection.away_s = 60.0
    if opened:
        assert [each.version.ts for each in fleet.history("k")] == stamps
        connection.archive_silence.note(EngineUnavailableError("it was away"), 60.0)
    proxy.arm("close")
    for read in (lambda: fleet.history("k"), fleet.commits):
        if opened:  # what was read of it may be known
            with suppress(EngineUnavailableError):
                assert len(list(read())) == len(stamps)
            continue
        with pytest.raises(EngineUnavailableError) as e:
            list(read())
        assert e.value.member == "us"
    proxy.disarm()
    connection.archive_silence = Silence()  # as if the minute were over
    assert [each.version.ts for each in fleet.history("k")] == stamps


def test_a_bucket_that_is_away(sites, s3, proxy):
    url = s3.new_url()
    sites.add("eu", "live")
    sites["eu"].save("k", b"1")
    sites.later()
    stamps = sites.tick()
    snapkv.record(
        sites.urls["eu"], into=f"{url}/eu", clock=sites.clock, storage=s3.storage
    ).catch_up()
    described = {
        "eu": {"url": f"{url}/eu", "storage": proxy.storage | {"max_retries": 0}},
        "live": sites.urls["live"],
    }
    fleet = sites.fleet(described, timeout=2)
    proxy.arm("close")
    with pytest.raises(MembersBehindError) as e:
        fleet.resolved()
    assert list(e.value.members) == ["eu"]
    assert fleet.resolved(1) == stamps["live"]
    asked = len(proxy.seen)
    moment = fleet.at(min(stamps.values()), behind="leave out")
    assert moment.members["eu"].state == "missing"
    asked = len(proxy.seen)
    fleet.at(min(stamps.values()), behind="leave out")
    assert len(proxy.seen) == asked, "it counts as away for a second"
    proxy.disarm()
    eu = fleet._members.by_name["eu"]
    eu.silence, eu.listing_silence = Silence(), Silence()  # as if the second were over
    assert fleet.resolved() == min(stamps.values())
    assert fleet.at(min(stamps.values()), behind="leave out")["eu", "k"] == b"1"
    proxy.arm("close")
    assert fleet.resolved() == min(stamps.values()), "as far as it was known"
    assert fleet.at()["eu", "k"] == b"1", "what was read is known"
    proxy.disarm()
    deadline = time.monotonic() + 20
    while not fleet.at(min(stamps.values()), behind="leave out").final:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert fleet.at(min(stamps.values()))["eu", "k"] == b"1"
