"""Moments: what a fleet shows at a time is what each member shows at it."""

import copy
import pickle
import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import snapkv
from snapkv import KeyNotFoundError, MembersBehindError, pack
from snapkv.errors import (
    InvalidKeyError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    SnapKVError,
)
from snapkv.reading.observed_prefix import Ticks
from snapkv.times import end_of_ms, format_time

from .histories import PREFIX, PREFIXES, Writing, own, state

pytestmark = pytest.mark.slow


@pytest.fixture
def two(sites):
    """A fleet of two members with a key each, and a moment at which both are final."""
    eu, us = sites.add("eu", "us")
    eu.commit(puts={"a": b"1", "b/1": b"2"})
    us.commit(puts={"a": b"3", "c": b"4"})
    fleet = sites.fleet()
    sites.later()
    return fleet, min(sites.tick().values())


# --- every read is the members' own ---


def check_moment(moment, reads, timestamp):
    """Compare all reads of a moment with those of the members' own snapshots."""
    owns = {name: own(each, timestamp) for name, each in reads.items()}
    everything = {
        (name, key): value
        for name, each in sorted(owns.items())
        for key, value in state(each).items()
    }
    for name, each in owns.items():
        seen = moment.members[name]
        if each is None:
            assert (seen.state, seen.timestamp, seen.revision) == ("absent", 0, 0)
            continue
        mark = reads[name].reader.timeline.at(timestamp).mark
        live = "archive" if reads[name].reader.url.startswith("archive:") else "live"
        final = timestamp <= reads[name].resolved()
        assert seen.state == (live if final else "behind")
        assert (seen.final, seen.timestamp, seen.revision) == (final, mark.timestamp, mark.revision)
        assert seen.newest == reads[name].resolved()
        assert seen.error is None
        assert dict(moment.of(name).items()) == state(each)
    assert moment.final == all(seen.final for seen in moment.members.values())
    assert list(moment.members) == sorted(reads)
    assert dict(moment.items()) == everything
    assert list(moment) == list(moment.keys()) == list(everything)
    assert list(moment.values()) == list(everything.values())
    assert len(moment) == moment.count() == len(everything)
    for key in everything:
        assert moment[key] == moment.get(key) == everything[key]
        assert key in moment
        assert moment.entry(key) == owns[key[0]].entry(key[1])
    for prefix in PREFIXES:
        wanted = {
            (name, key): value
            for name, each in sorted(owns.items())
            for key, value in state(each, prefix).items()
        }
        assert list(moment.items(prefix)) == list(wanted.items())
        assert list(moment.keys(prefix)) == list(wanted)
        assert list(moment.values(prefix)) == list(wanted.values())
        assert moment.count(prefix) == len(wanted)
        assert {key: entry.value for key, entry in moment.entries(prefix)} == wanted
        rows = moment.to_arrow(prefix).to_pylist()
        assert {(row["member"], row["key"]): row["value"] for row in rows} == wanted
    for key in ("a", "b/ü", "none", f"{PREFIX}a"):
        wanted = {name: value for (name, each), value in everything.items() if each == key}
        assert moment.everywhere(key) == wanted


@pytest.mark.long_after(2)
@pytest.mark.parametrize("first", ["fleet", "history"])
@pytest.mark.parametrize("seed", range(3))
def test_a_moment_is_that_of_each_member(sites, seed, first):
    print(f"seed {seed}")
    rng = random.Random(seed)
    sites.add("m1", "m2", "m3")
    sites.add("disk", kind="lmdb")
    described = sites.described() | {"seen": sites.described_as("m2", prefix=PREFIX)}
    writing = Writing(sites, rng)
    writing.steps(12, "m1", "disk")  # the others have no commit yet
    fleet = sites.fleet(described) if first == "fleet" else None
    writing.steps(60)
    sites.tick()
    described["kept"] = f"archive:{sites.archive('disk')}"
    reads = {**sites.stores}
    reads["seen"] = sites.keep(snapkv.observe(sites.urls["m2"], prefix=PREFIX, clock=sites.clock))
    del described["disk"], reads["disk"]
    reads["kept"] = sites.keep(snapkv.open(described["kept"], clock=sites.clock))
    if fleet is None:
        fleet = sites.fleet(described)
    else:
        reads["disk"] = sites["disk"]
        del reads["kept"]
    for timestamp in writing.times()[: 25 if first == "fleet" else 7]:  # archives take long
        moment = fleet.at(timestamp, behind="stale")
        assert moment.timestamp == timestamp
        check_moment(moment, reads, timestamp)
        if moment.final:
            check_moment(fleet.at(timestamp), reads, timestamp)
        else:
            with pytest.raises(MembersBehindError) as e:
                fleet.at(timestamp)
            late = {name for name, seen in moment.members.items() if not seen.final}
            assert set(e.value.members) == late
            assert e.value.timestamp == timestamp
    newest = fleet.at()
    assert newest.final
    assert newest.timestamp == fleet.resolved() == min(each.resolved() for each in reads.values())


def test_a_final_moment_never_changes(sites):
    """Moments stay as they were while members are written to, and read again they are the same."""
    rng = random.Random(7)
    sites.add("m1", "m2", "m3")
    writing, fleet, kept = Writing(sites, rng), sites.fleet(), []
    for _ in range(30):
        writing.steps(3)
        if all(each.resolved() for each in sites.stores.values()):
            moment = fleet.at()
            kept.append((moment, dict(moment.items())))
    assert len({moment.timestamp for moment, _ in kept}) > 5
    for moment, items in kept:
        assert dict(moment.items()) == items
        again = fleet.at(moment.timestamp)
        assert dict(again.items()) == items
        assert again.members.keys() == moment.members.keys()


def test_a_tick_that_comes_during_the_call_makes_nothing_final(sites, monkeypatch):
    sites.add("a")
    sites.tick()
    seen = sites.fleet({"a": sites.described_as("a", prefix=PREFIX)})
    seen.resolved()
    first, last = sites.later(), sites.later()
    timestamp, original = last - 1, Ticks.at

    def at(self, when):
        found = original(self, when)
        monkeypatch.setattr(Ticks, "at", original)
        sites.write_raw("a", f"{PREFIX}k", b"1")
        sites.clock.set(first >> 18)
        assert first <= sites["a"].tick().ts <= timestamp
        sites.later(5_000)
        assert sites["a"].tick().ts > timestamp
        self.tracker.head()  # as another thread's read would
        return found

    monkeypatch.setattr(Ticks, "at", at)
    moment = seen.at(timestamp, behind="stale")
    assert not moment.final or dict(moment) == {("a", f"{PREFIX}k"): b"1"}
    assert dict(seen.at(timestamp)) == {("a", f"{PREFIX}k"): b"1"}


# --- times ---


def test_forms_of_a_time(two, sites):
    fleet, ts = two
    sites.later()
    sites.tick()
    text, ms = format_time(ts), ts >> 18
    sites.later(1)
    sites.tick()
    for when in (text, datetime.fromtimestamp(ms / 1_000, UTC), end_of_ms(ms), str(end_of_ms(ms))):
        assert fleet.at(when).timestamp == fleet.timestamp_of(when) == end_of_ms(ms)
    assert fleet.at(ts).timestamp == ts
    assert fleet.at(0).final
    assert len(fleet.at(0)) == 0
    with pytest.raises(MembersBehindError):
        fleet.at("+1h")
    assert not fleet.at("+1h", behind="stale").final


@pytest.mark.parametrize(
    "when",
    [
        "rev:4",
        "rev:x",
        4,
        1_700_000_000,
        1_700_000_000_000,
        "1700000000000",
        1 << 63,
        -1,
        1 << 64,
        "2026-03-01T00:00:00",
        datetime(2026, 3, 1),
        "now",
        "",
    ],
)
def test_what_is_no_time(two, when):
    fleet, _ = two
    calls = (
        lambda: fleet.at(when),
        lambda: fleet.timestamp_of(when),
        lambda: fleet.diff(when),
        lambda: fleet.history("a", since=when),
        lambda: fleet.commits(until=when),
        lambda: fleet.watch(since=when),
    )
    for call in calls:
        with pytest.raises(InvalidTimeError):
            call()


@pytest.mark.parametrize("when", [True, 1.5, b"x", [], (1, 2)])
def test_what_has_not_the_type_of_a_time(two, when):
    fleet, _ = two
    for call in (fleet.at, fleet.timestamp_of, lambda when: fleet.watch(since=when)):
        with pytest.raises(InvalidTypeError):
            call(when)


def test_times_of_members_with_old_clocks(sites):
    """A member that lives in 1971 has times of its own, which count as timestamps, too."""
    store = sites.keep(snapkv.open("memory:", clock=snapkv.ManualClock(86_400_000 * 400)))
    ts = store.save("k", b"1")
    fleet = sites.fleet({"old": store}, clock=snapkv.ManualClock(86_400_000 * 400))
    assert fleet.at(ts)["old", "k"] == b"1"


# --- keys ---


def test_keys_are_pairs(two):
    fleet, ts = two
    moment = fleet.at(ts)
    assert moment["eu", "a"] == b"1"
    for bad in ("a", ("eu",), ("eu", "a", "b"), ["eu", "a"], 5, None, (5, "a")):
        with pytest.raises(InvalidTypeError, match="member, key"):
            moment[bad]
        assert bad not in moment
        with pytest.raises(InvalidTypeError):
            moment.get(bad)
    for bad, error in ((5, InvalidTypeError), (b"a", InvalidTypeError), ("", InvalidKeyError)):
        for read in (lambda bad=bad: moment["eu", bad], lambda bad=bad: moment.everywhere(bad)):
            with pytest.raises(error):
                read()
        assert ("eu", bad) not in moment


def test_a_key_that_is_not_there(two):
    fleet, ts = two
    moment = fleet.at(ts)
    with pytest.raises(KeyNotFoundError) as e:
        moment["eu", "c"]
    assert (e.value.member, e.value.key, e.value.timestamp) == ("eu", "c", ts)
    assert moment.get(("eu", "c")) is None
    assert moment.get(("eu", "c"), b"-") == b"-"
    with pytest.raises(KeyNotFoundError, match="'ap', which is not a member of this moment"):
        moment["ap", "c"]
    assert ("ap", "c") not in moment


def test_errors_about_a_key_of_one_member_name_it(sites):
    before = sites.now
    sites.later()
    (eu,) = sites.add("eu")
    eu.save("k", b"1")
    url = sites.urls["eu"]
    fleet = sites.fleet({"eu": url, "k8s": {"url": url, "prefix": "reg/"}})
    ts = eu.tick().ts
    moment = fleet.at(ts)
    with pytest.raises(InvalidKeyError, match="'k' is outside of the observed prefix") as e:
        moment.get(("k8s", "k"))
    assert e.value.member == "k8s"
    assert moment.everywhere("k") == {"eu": b"1"}
    with pytest.raises(KeyNotFoundError, match="no key 'reg/k' of k8s, which is absent") as e:
        fleet.at(before)["k8s", "reg/k"]
    assert e.value.member == "k8s"


def test_some_members_of_a_moment(two):
    fleet, ts = two
    moment = fleet.at(ts)
    assert list(moment.items(members="us")) == [(("us", "a"), b"3"), (("us", "c"), b"4")]
    assert list(moment.items("a", members=["eu"])) == [(("eu", "a"), b"1")]
    assert list(moment.keys(members="u*")) == [("us", "a"), ("us", "c")]
    assert list(moment.values("b/", members="*")) == [b"2"]
    assert [key for key, _ in moment.entries(members="eu")] == [("eu", "a"), ("eu", "b/1")]
    assert moment.count("a", members="us") == 1
    assert moment.everywhere("a", "us") == {"us": b"3"}
    assert moment.to_arrow(members="us")["member"].to_pylist() == ["us", "us"]
    for read in (
        lambda: list(moment.items(members="x")),
        lambda: moment.count(members="x"),
        lambda: moment.everywhere("a", "x"),
        lambda: moment.to_arrow(members="x"),
        lambda: moment.of("x"),
    ):
        with pytest.raises(InvalidOptionError, match="no member is named 'x'"):
            read()
    part = fleet.at(ts, members="us")
    assert list(part.members) == ["us"]
    with pytest.raises(InvalidOptionError):
        part.of("eu")


def test_one_member_is_named_not_chosen_by_a_pattern(two):
    fleet, ts = two
    moment = fleet.at(ts)
    assert dict(moment.of("eu")) == {"a": b"1", "b/1": b"2"}
    for name in ("?u", "*u*", "e*", "eu,us"):
        with pytest.raises(InvalidOptionError, match="no member is named"):
            moment.of(name)
        with pytest.raises(InvalidOptionError, match="no member is named"):
            fleet.member(name)
        with pytest.raises(InvalidOptionError, match="no member is named"):
            fleet.history((name, "a"))
    for name in (5, None, ["eu"]):
        for call in (moment.of, fleet.member, lambda name: fleet.history((name, "a"))):
            with pytest.raises(InvalidTypeError):
                call(name)


# --- forms of a moment ---


def test_a_moment_as_a_table(two):
    fleet, ts = two
    moment = fleet.at(ts)
    table = moment.to_arrow()
    assert table.column_names == [
        "member",
        *("key", "value", "create_version", "mod_version", "key_version"),
    ]
    rows = {(row["member"], row["key"]): row for row in table.to_pylist()}
    assert {key: row["value"] for key, row in rows.items()} == dict(moment.items())
    for key, entry in moment.entries():
        row = rows[key]
        assert (row["mod_version"], row["create_version"], row["key_version"]) == (
            *(entry.revision, entry.created, entry.version),
        )
    assert moment.to_arrow("b/")["key"].to_pylist() == ["b/1"]
    empty = fleet.at(0).to_arrow()
    assert empty.schema == table.schema
    assert empty.num_rows == moment.to_arrow("none").num_rows == 0
    assert not pa.schema(empty.schema).field("member").nullable


def test_a_moment_is_a_value(two):
    fleet, ts = two
    moment = fleet.at(ts)
    assert copy.copy(moment) is moment
    assert copy.deepcopy([moment]) == [moment]
    assert repr(moment) == f"<FleetMoment timestamp={ts} members=2 final>"
    assert "not final" in repr(fleet.at(pack(fleet._clock.now_ms() + 9), behind="stale"))
    with pytest.raises(InvalidTypeError, match="pickle its token"):
        pickle.dumps(moment)
    with pytest.raises(TypeError):
        moment.members["eu"] = None
    for seen in moment.members.values():
        assert pickle.loads(pickle.dumps(seen)) == seen


def test_arguments_of_at(two):
    fleet, ts = two
    for options in ({"behind": "late"}, {"behind": None}, {"behind": True}):
        with pytest.raises(InvalidOptionError, match="behind must be one of"):
            fleet.at(ts, **options)
    for final in (1, "yes", None):
        with pytest.raises(InvalidTypeError, match="final"):
            fleet.at(ts, final=final)
    for call in (
        lambda: fleet.at(ts, token="x"),
        lambda: fleet.at(members="eu", token="x"),
        lambda: fleet.at(final=True, token="x"),
    ):
        with pytest.raises(InvalidOptionError, match="alone"):
            call()


def test_errors_of_iteration_name_the_member(two, monkeypatch):
    fleet, ts = two
    moment = fleet.at(ts)

    def fails(self, *args, **options):
        raise SnapKVError("broken")
        yield

    from snapkv.timeline.moment import Moment

    for name in ("pages", "count"):
        monkeypatch.setattr(Moment, name, fails if name != "count" else lambda *_: next(fails(_)))
    for read in (
        lambda: list(moment.items()),
        lambda: list(moment.keys()),
        lambda: list(moment.entries()),
        lambda: list(moment.values()),
        lambda: moment.count(),
        lambda: len(moment),
        lambda: moment.to_arrow(),
    ):
        with pytest.raises(SnapKVError) as e:
            read()
        assert e.value.member == "eu"
