"""Batches of fleets: one cut of all members, which is pinned and never another one."""

import pytest
from direct import Planned, forget_all, new_worker
from fleets import NAMES, FleetFrame, FleetQuery, Grown, fleet_file, items, read
from pyspark.sql import types as T
from reading.tabled import changes_of, commits_of, histories_of
from store.engines import write_raw

import snapkv
from snapkv.engine.contract import Put
from snapkv.spark import fleet_members, read_tasks, sessions
from snapkv.spark.data_source import SnapKVDataSource
from snapkv.spark.errors import SourceError
from snapkv.store.location import open_engine

pytestmark = pytest.mark.slow

NOWHERE = "etcd://127.0.0.1:1"


@pytest.fixture
def grown(tmp_path, clock):
    found = Grown(tmp_path, clock)
    yield found
    forget_all()
    found.close()


def refused(code: str, path: str, **options) -> str:
    """Assert that a batch of a fleet ends with that error; return its message."""
    with pytest.raises(SourceError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert message.startswith(f"[SNAPKV_{code}] "), message
    return message


def items_of(path: str, *at, **options) -> list[tuple]:
    """What `fleet.at` shows."""
    with snapkv.fleet.open(path) as fleet:
        return [(*key, value) for key, value in fleet.at(*at, **options).items()]


# --- one cut ---


@pytest.mark.long_after(1)
@pytest.mark.parametrize("seed", range(2))
def test_a_snapshot_is_the_moment_of_the_fleet(grown, monkeypatch, seed):
    monkeypatch.setattr(read_tasks, "PIECE_ROWS", 2)
    grown.rng.seed(seed)
    moments = []
    for _ in range(4):
        grown.steps(12)
        moments.append(grown.tick())
    for moment in moments:
        expected = items_of(grown.path, moment)
        assert items(grown.path, timestampAsOf=moment) == expected
        assert {member for member, _, _ in expected} <= set(NAMES)
    assert items(grown.path) == items_of(grown.path) == items_of(grown.path, moments[-1])
    reader = FleetFrame(grown.path, numPartitions=2).reader()
    tasks = [task.member for task in reader.tasks]
    assert tasks == sorted(tasks)
    assert max(tasks.count(name) for name in NAMES) == 2


def test_a_cut_stays_while_members_go_on(grown):
    grown.steps(20)
    grown.tick()
    planned, expected = FleetFrame(grown.path), read(grown.path)
    assert expected
    reader = planned.reader()
    for _ in range(3):
        grown.steps(10)
        grown.tick()
        new_worker()
        assert reader.rows() == planned.reader().rows() == expected
    assert read(grown.path) != expected


def test_only_the_chosen_members_are_opened(grown, monkeypatch):
    monkeypatch.setattr(fleet_members, "MEMBER_TIMEOUT_S", 0.5)
    grown.steps(20)
    grown.tick()
    path = fleet_file(grown.folder / "more.toml", grown.urls | {"away": NOWHERE, "gone": "lmdb:no"})
    expected = [row for row in items_of(grown.path) if row[0] in ("eu", "us")]
    assert items(path, members="eu,u*") == expected
    assert "away: " in refused("MEMBERS_BEHIND", path, members="eu,away")
    of_eu = [row for row in expected if row[0] == "eu"]
    assert items(path, members="eu,away", behind="leave out") == of_eu
    assert "'x*'" in refused("INVALID_OPTION", path, members="x*")


def test_what_is_done_about_members_that_are_behind(grown):
    grown.steps(20)
    grown.tick()
    grown.clock.advance(1_000)
    at = grown.stores["eu"].save("k", b"late")
    newest = items_of(grown.path, at, behind="stale")
    assert {member for member, _, _ in newest} == set(NAMES)
    assert items(grown.path, timestampAsOf=at, behind="stale") == newest
    of_eu = [row for row in newest if row[0] == "eu"]
    assert ("eu", "k", b"late") in of_eu
    assert items(grown.path, timestampAsOf=at, behind="leave out") == of_eu
    for options in ({}, {"behind": "error"}):
        message = refused("MEMBERS_BEHIND", grown.path, timestampAsOf=at, **options)
        assert "on 2 of the fleet's members: old, us: final up to" in message
    assert ("eu", "k", b"late") not in items(grown.path), "not final"


def test_members_at_times_at_which_they_do_not_belong_to_the_fleet(grown):
    grown.steps(20)
    first = grown.tick()
    grown.steps(20)
    second = grown.tick()
    for times in ({"joined": first + 1}, {"left": first}):
        members = {name: {"url": url} for name, url in grown.urls.items()}
        members["us"] |= times
        path = fleet_file(grown.folder / "members.toml", members)
        for moment in (first, second):
            expected = items_of(path, moment)
            assert items(path, timestampAsOf=moment) == expected
            assert bool([row for row in expected if row[0] == "us"]) == (
                (moment == second) == ("joined" in times)
            )


# --- restores ---


@pytest.mark.parametrize("planned", ["made", "planned"])
def test_a_member_that_is_restored_is_an_error(grown, planned):
    grown.steps(20)
    with grown.restored("us"):
        grown.steps(20)
        grown.save("eu", "k", b"1")
        grown.tick()
        made = FleetFrame(grown.path, numPartitions=1)
        reader = made.reader()
    new_worker()
    with pytest.raises(SourceError, match=r"\[SNAPKV_STORE_MISMATCH\] member us: ") as caught:
        reader.rows() if planned == "planned" else made.reader()
    assert "restored" in str(caught.value)
    assert {row[0] for row in reader.rows(0)} == {"eu"}, "the others are as they were"


def test_another_store_in_its_place_is_an_error(grown):
    grown.steps(20)
    grown.tick()
    reader = FleetFrame(grown.path).reader()
    grown.recreate("us")
    new_worker()
    with pytest.raises(SourceError, match=r"\[SNAPKV_STORE_MISMATCH\] member us: "):
        reader.rows()


# --- the other views ---


@pytest.mark.parametrize("seed", range(2))
def test_changes_histories_and_commits_are_those_of_each_member(grown, seed):
    grown.rng.seed(seed)
    moments = [grown.tick()]
    for _ in range(5):
        grown.steps(10)
        moments.append(grown.tick())
    low, high = moments[1], moments[4]
    ranged = {"startingTimestamp": low, "endingTimestamp": high}

    def of_members(rows_of) -> list[tuple]:
        return [(name, *row) for name in NAMES for row in rows_of(grown.writing[name].plain)]

    assert read(grown.path, readChangeFeed=True, **ranged) == of_members(
        lambda plain: changes_of(plain, low - 1, high)
    )
    found = read(grown.path, view="history", **ranged)
    assert sorted(found, key=lambda row: (row[0], row[1], row[3])) == of_members(
        lambda plain: histories_of(plain, low, high)
    )
    found = read(grown.path, view="commits", columns="member,version,timestamp", **ranged)
    assert found == of_members(lambda plain: [row[:2] for row in commits_of(plain, low - 1, high)])
    newest = read(grown.path, readChangeFeed=True, startingTimestamp=moments[-1])
    assert newest == [], "ticks change nothing"
    assert "ends before it starts" in refused(
        "INVALID_RANGE",
        grown.path,
        readChangeFeed=True,
        startingTimestamp=high,
        endingTimestamp=low,
    )


def test_changes_of_a_member_that_joined_or_left(grown):
    moments = []
    for _ in range(4):
        grown.steps(10)
        for name in NAMES:
            grown.save(name, "k", b"1")
        moments.append(grown.tick())
    members = {name: {"url": url} for name, url in grown.urls.items()}
    members["eu"]["joined"], members["us"]["left"] = moments[1] + 1, moments[2]
    path = fleet_file(grown.folder / "members.toml", members)
    start, end = moments[0], moments[3]
    times = {"eu": (moments[1], end), "old": (start, end), "us": (start, moments[2])}
    expected = [
        (name, *row)
        for name, (low, high) in times.items()
        for row in changes_of(grown.writing[name].plain, low, high)
    ]
    assert (
        read(path, readChangeFeed=True, startingTimestamp=start + 1, endingTimestamp=end)
        == expected
    )
    grown.stores["us"].close()
    (grown.folder / "us").rename(grown.folder / "gone")
    later = read(path, readChangeFeed=True, startingTimestamp=moments[2] + 1)
    assert {row[0] for row in later} == {"eu", "old"}
    assert {row[0] for row in items(path, timestampAsOf=end)} == {"eu", "old"}


# --- kinds of members ---


def test_a_member_with_an_archive_beside_its_engine(grown):
    """It answers what the engine has compacted, and everything if the engine is away."""
    first = grown.tick()
    grown.steps(30)
    for name in ("eu", "old"):
        grown.save(name, "k", b"1")
    members = {
        "eu": grown.urls["eu"],
        "old": {"url": f"lmdb:{grown.folder / 'old'}", "archive": str(grown.folder / "archive")},
    }
    path = fleet_file(grown.folder / "both.toml", members)
    then = grown.tick()
    ranged = {"readChangeFeed": True, "startingTimestamp": first + 1, "endingTimestamp": then}
    expected, changes = items_of(path, then), read(path, **ranged)
    assert {row[0] for row in expected} == {row[0] for row in changes} == {"eu", "old"}
    grown.steps(5)
    grown.tick()
    grown.compact("old")
    new_worker()
    assert items(path, timestampAsOf=then) == expected
    assert read(path, **ranged) == changes
    grown.stores["old"].close()
    (grown.folder / "old").rename(grown.folder / "away")
    new_worker()
    assert items(path, timestampAsOf=then) == expected
    assert read(path, **ranged) == changes


def test_members_that_are_observed(grown):
    """Two ticked by one ticker: the cut is that of their round, as in the moment of the fleet."""
    members = {name: {"url": f"lmdb:{grown.folder / name}", "prefix": "reg/"} for name in "ab"}
    path = fleet_file(grown.folder / "observed.toml", members)
    with snapkv.fleet.open(path) as fleet, fleet.ticker() as ticker:
        engines = [open_engine(each["url"], create=True, options={}) for each in members.values()]
        ticker.tick()
        for n, engine in enumerate(engines):
            write_raw(engine, Put(b"reg/k", b"%d" % n), Put(b"other", b"x"))
        rounds = [ticker.tick().timestamp for _ in range(3)]
        for engine in engines:
            engine.close()
        moment = fleet.at(rounds[2])
        assert moment.timestamp == rounds[1], "nothing shows the bounds of the last round"
    assert items(path) == [("a", "reg/k", b"0"), ("b", "reg/k", b"1")] == items_of(path, rounds[2])
    changes = read(
        path,
        readChangeFeed=True,
        startingTimestamp=0,
        columns="member,key,value,_change_type",
    )
    assert changes == [("a", "reg/k", b"0", "insert"), ("b", "reg/k", b"1", "insert")]


def test_values_are_decoded_and_errors_name_the_member(grown):
    grown.stores["eu"].save("k", b'{"n": 1}')
    grown.stores["us"].save("k", b'{"n": "x"}')
    grown.tick()
    schema = [("member", T.StringType()), ("n", T.LongType())]
    options = {"valueFormat": "json", "startKey": "k", "endKey": "l"}
    assert read(grown.path, schema, members="eu", **options) == [("eu", 1)]
    with pytest.raises(SourceError, match=r"\[SNAPKV_VALUE_MALFORMED\] member us: "):
        read(grown.path, schema, **options)


# --- what is not possible ---


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"store": "lmdb:x"}, "give fleet or store"),
        ({"name": "x"}, "describes each member"),
        ({"observe": "reg/"}, "by its prefix"),
        ({"archive": "x"}, "its archive"),
        ({"storage.region": "x"}, "describes each member"),
        ({"password": "x"}, "describes each member"),
        ({"space": "s"}, "text keys"),
        ({"keyFormat": "binary"}, "text keys"),
        ({"versionAsOf": 3}, "one member only"),
        ({"view": "history", "startingVersion": 3}, "one member only"),
        ({"view": "history", "startingVersion": "latest"}, "for a stream"),
        ({"view": "history", "endingVersion": 3}, "one member only"),
        ({"behind": "never"}, "behind is one of"),
        ({"resolved": "99%"}, "resolved is for changes"),
        ({"readChangeFeed": True, "resolved": "99%", "startingTimestamp": 0}, "for a stream"),
        ({"members": ""}, "no member is named ''"),
    ],
    ids=str,
)
def test_options_that_a_fleet_does_not_have(grown, options, part):
    assert part in refused("INVALID_OPTION", grown.path, **options)


def test_a_path_beside_a_fleet(grown):
    with pytest.raises(SourceError, match="give a path or the option fleet, not both"):
        Planned(grown.urls["eu"], fleet=grown.path)


def test_options_that_only_a_fleet_has(grown):
    for option in ("members", "behind"):
        with pytest.raises(SourceError, match=f"{option} is for a fleet"):
            Planned(grown.urls["eu"], **{option: "error"})


def test_descriptions_that_spark_cannot_use(grown, tmp_path):
    missing = str(tmp_path / "missing.toml")
    assert missing in refused("INVALID_OPTION", missing)
    path = fleet_file(tmp_path / "wrong.toml", {"a": "memory:x"})
    assert "member a: 'memory:x' lives in one process" in refused("INVALID_OPTION", path)
    nested = {"url": "s3://b/a", "storage": {"default_headers": {"a": "b"}}}
    path = fleet_file(tmp_path / "wrong.toml", {"a": nested})
    assert "member a: the option default_headers is a dict" in refused("INVALID_OPTION", path)
    assert "NO_START" in refused("NO_START", grown.path, readChangeFeed=True)


def test_a_fleet_is_not_written():
    source = SnapKVDataSource({"fleet": "fleet.toml", "valueformat": "utf8"})
    with pytest.raises(SourceError, match="a fleet only reads"):
        source.writer(T.StructType(), False)


def test_on_connect_a_fleet_needs_a_fixed_time(grown, monkeypatch):
    grown.steps(10)
    then = grown.tick()
    expected = items(grown.path)
    monkeypatch.setenv(sessions.ARTIFACTS, "a session of Connect")
    assert items(grown.path, timestampAsOf=then) == expected
    for options in ({}, {"timestampAsOf": "-1s"}, {"timestampAsOf": then, "behind": "stale"}):
        refused("NOT_PINNED", grown.path, **options)
    started = {"readChangeFeed": True, "startingTimestamp": 0}
    refused("NOT_PINNED", grown.path, **started)
    assert read(grown.path, endingTimestamp=then, **started)


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_two_stores_of_one_etcd(place, clock, tmp_path):
    """Their file names them, and a stream goes on where a batch has ended."""
    stores = {name: place.open(name=name, clock=clock) for name in ("a", "b")}
    stamps = {store.save("k", name.encode()) for name, store in stores.items()}
    assert len(stamps) == 1
    members = {name: {"url": place.url, "name": name} for name in stores}
    path = fleet_file(tmp_path / "fleet.toml", members)
    assert items(path) == [("a", "k", b"a"), ("b", "k", b"b")]
    query = FleetQuery(path)
    assert [row[:4] for row in query.drained()] == [
        ("a", "k", b"a", "insert"),
        ("b", "k", b"b", "insert"),
    ]
    clock.advance(1)
    for store in stores.values():
        store.save("k", b"2")
    assert [row[:3] for row in query.drained()] == [("a", "k", b"2"), ("b", "k", b"2")]
