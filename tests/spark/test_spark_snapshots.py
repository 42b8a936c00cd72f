"""Snapshots through Spark: the same rows as every other way of reading a moment."""

import random
from datetime import timedelta

import pyarrow as pa
import pytest
from direct import Planned, columns, new_worker, read, refused
from frames import load, together
from pyspark.sql import functions as F
from reading.tabled import SPACE, Writing, moments
from store.engines import START_MS
from store.observed import Cluster

from snapkv import format_time, pack, to_datetime
from snapkv.clock import SystemClock
from snapkv.spark import read_tasks
from snapkv.timeline import Moment

pytestmark = pytest.mark.slow

# Written down once more: what the documentation promises, and what Spark compares batches with.
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("create_version", pa.int64()),
        ("mod_version", pa.int64()),
        ("key_version", pa.int64()),
    ]
)


def entries(snapshot, prefix=None) -> list[tuple]:
    """What a snapshot says by itself, as rows."""
    return [
        (key, entry.value, entry.created, entry.revision, entry.version)
        for key, entry in snapshot.entries(prefix)
    ]


def arrow_rows(table) -> list[tuple]:
    return [tuple(row.values()) for row in table.to_pylist()]


# --- random histories ---


@pytest.mark.long_on("etcd")
def test_any_moment_of_a_random_history(spark, store, place, clock):
    rng = random.Random(11)
    plain = Writing(store, clock, rng).steps(50)
    draw = moments(plain, rng)
    asked = [None, 0, plain.rows[0].ts - 1, plain.rows[-1].ts + 1, *(draw() for _ in range(4))]
    frames = [
        load(spark, place.url, **({} if ts is None else {"timestampAsOf": ts})) for ts in asked
    ]
    assert {frame.schema.json() for frame in frames} == {frames[0].schema.json()}
    for ts, rows in zip(asked, together(frames), strict=True):
        assert rows == entries(store.at(ts)) == arrow_rows(store.at(ts).to_arrow()), ts
        assert [row[:2] for row in rows] == list(plain.state(ts).items())
        assert [row[0] for row in rows] == store.load_with_prefix("", ts)[0]
    assert frames[0].toArrow().schema == SCHEMA


@pytest.mark.long_after(1)
@pytest.mark.parametrize("seed", range(3))
def test_any_moment_and_version_of_random_histories(store, place, clock, seed):
    rng = random.Random(seed)
    plain = Writing(store, clock, rng).steps(60)
    draw = moments(plain, rng)
    for ts in [0, *(draw() for _ in range(12))]:
        rows = read(place.url, timestampAsOf=ts)
        assert rows == entries(store.at(ts)) == arrow_rows(store.at(ts).to_arrow()), ts
        prefix = rng.choice(("a/", "b/1", "p/", "zz"))
        found = columns(place.url, "key", "value", timestampAsOf=ts, keyPrefix=prefix)
        assert found == list(zip(*store.load_with_prefix(prefix, ts), strict=True)), (ts, prefix)
        inside = store.space(SPACE).at(ts)
        assert read(place.url, timestampAsOf=ts, space=SPACE) == entries(inside)
    head = plain.rows[-1].revision
    for version in [1, head, *(rng.randrange(1, head) for _ in range(6))]:
        assert read(place.url, versionAsOf=version) == entries(store.at(revision=version)), version


@pytest.mark.parametrize("seed", range(3))
def test_many_small_pieces_over_several_tasks(store, place, clock, monkeypatch, seed):
    rng = random.Random(seed)
    writing = Writing(store, clock, rng)
    plain = writing.steps(20)
    more = {f"{rng.choice('abz')}/{rng.randrange(500):03}": b"x" for _ in range(150)}
    commit = store.commit(puts=more)
    plain.add(commit.ts, commit.revision, plain.effect(more))
    monkeypatch.setattr(read_tasks, "PIECE_ROWS", 7)
    for wanted in (1, 2, 5, 16, 10_000):
        planned = Planned(place.url, numPartitions=wanted).reader()
        assert min(wanted, 16) / 2 <= len(planned.tasks) <= wanted
        parts = []
        for task in range(len(planned.tasks)):
            new_worker()
            parts.append(planned.rows(task))
        assert all(parts), "a task without rows is a task too much"
        assert [row for part in parts for row in part] == entries(store.at())
        if wanted == 5:
            assert max(map(len, parts)) < len(more), "they share the work"
    for options in ({"keyPrefix": "a/1"}, {"startKey": "a/2", "endKey": "b/"}, {"keyPrefix": "no"}):
        found = columns(place.url, "key", numPartitions=3, **options)
        first, last = options.get("startKey", ""), options.get("endKey", "~")
        assert [key for (key,) in found] == [
            key
            for key in plain.state()
            if first <= key < last and key.startswith(options.get("keyPrefix", ""))
        ]


# --- which keys ---


def test_which_keys_are_read(spark, store, place):
    store.commit(
        puts={key: key.encode() for key in ("a", "a/", "a/1", "a/2", "ab", "b", "ü", "ü/1")}
    )
    store.space("s").commit(puts={b"\x00\xff": b"1", b"a": b"2", b"\xff": b"3"})
    store.space("t/u").commit(puts={b"x": b"4"})
    asked = {
        ("a/", "a/1", "a/2"): {"keyPrefix": "a/"},
        ("a", "a/", "a/1", "a/2", "ab"): {"keyPrefix": "a"},
        ("ü", "ü/1"): {"keyPrefix": "ü"},
        ("a/1", "a/2"): {"startKey": "a/1", "endKey": "ab"},
        ("b", "ü", "ü/1"): {"startKey": "b"},
        ("a", "a/"): {"endKey": "a/1"},
        (): {"startKey": "a/1", "endKey": "a/1"},
        ("x",): {"space": "t/u", "keyFormat": "utf8"},
        ("a", "a/", "a/1", "a/2", "ab", "b", "ü", "ü/1"): {"keyPrefix": ""},
    }
    hexed = {
        (b"\x00\xff", b"a", b"\xff"): {"space": "s"},
        (b"\xff",): {"space": "s", "keyPrefix": "ff"},
        (b"a", b"\xff"): {"space": "s", "startKey": "61"},
        (b"a/1", b"a/2"): {"keyFormat": "binary", "startKey": "612F31", "endKey": "6162"},
        ("ü".encode(), "ü/1".encode()): {"keyFormat": "BINARY", "keyPrefix": "c3 bc"},
    }
    for keys, options in [*asked.items(), *hexed.items()]:
        assert tuple(key for (key,) in columns(place.url, "key", **options)) == keys, options
    for kind in (asked, hexed) if place.kind.url else ():  # the options are the same on etcd
        frames = [load(spark, place.url, **options).select("key") for options in kind.values()]
        found = [tuple(key for (key,) in rows) for rows in together(frames)]
        assert found == list(kind)


def test_keys_that_are_no_text(store, place):
    store.space("s").commit(puts={b"ok": b"1", b"\xff\x00": b"2"})
    message = refused("KEY_NOT_TEXT", place.url, space="s", keyFormat="utf8")
    assert "keyFormat=binary" in message
    assert r"\xff" in message
    assert [key for key, *_ in read(place.url, space="s", keyFormat="utf8", keyPrefix="o")] == [
        "ok"
    ]


def test_an_empty_store_and_before_the_first_commit(spark, store, place):
    nothing = [load(spark, place.url), load(spark, place.url, timestampAsOf=0)]
    assert together(nothing) == [[], []]
    assert nothing[0].toArrow().schema == SCHEMA
    store.save("a", b"1")
    store.remove("a")
    asked = [
        {},
        {"timestampAsOf": pack(START_MS) - 1},
        {"timestampAsOf": "1970-01-01T00:00:00Z"},
        {"versionAsOf": 1},
    ]
    for options in [*asked, {"keyPrefix": "zz"}, {"space": "none"}]:
        assert read(place.url, **options) == []


# --- columns ---


def test_columns(spark, store, place, clock):
    stamps = {}
    for key in "abc":
        clock.advance(1_500)
        stamps[key] = store.commit(puts={key: b"old"}, note="first").ts
    clock.advance(1_500)
    stamps["b"] = store.save("b", b"new")
    asked = [
        ("key",),
        ("value", "key"),
        ("mod_timestamp", "key"),
        ("key_version", "mod_version", "create_version"),
    ]
    whole = read(place.url)
    names = [field.name for field in Planned(place.url).schema]
    assert names == ["key", "value", "create_version", "mod_version", "key_version"]
    times = {key: to_datetime(ts) for key, ts in stamps.items()}
    picked = [
        dict(zip(names, row, strict=True)) | {"mod_timestamp": times[row[0]]} for row in whole
    ]
    for some in asked:
        expected = [tuple(row[name] for name in some) for row in picked]
        assert columns(place.url, *some) == expected
    frame = load(spark, place.url, columns=" mod_timestamp ,key")
    assert frame.columns == ["mod_timestamp", "key"]
    assert frame.select("key", F.col("mod_timestamp").cast("string")).collect() == [
        (key, str(times[key].replace(tzinfo=None)).rstrip("0")) for key in "abc"
    ]
    for wrong in ("", "key,", "keys", "key,key", "_change_type"):
        message = refused("INVALID_OPTION", place.url, columns=wrong)
        assert "key_version, mod_timestamp" in message


def test_values_are_read_only_when_they_are_wanted(store, place, monkeypatch):
    store.commit(puts={"a": b"1"})
    seen = []
    method = Moment.pages

    def spied(self, *args, keys_only=False):
        seen.append(keys_only)
        return method(self, *args, keys_only=keys_only)

    monkeypatch.setattr(Moment, "pages", spied)
    for names, wanted in (("key", True), ("key,mod_version", True), ("key,value", False)):
        assert len(read(place.url, columns=names)) == 1
        assert seen.pop() == wanted, names


# --- which moment ---


def test_forms_of_time(store, place, clock):
    stamps = []
    for hour in range(3):
        stamps.append(store.save("k", b"%d" % hour))
        clock.advance(3_600_000)
    noon = to_datetime(stamps[1])
    berlin, india = timedelta(hours=1), timedelta(hours=5, minutes=30)
    naive = noon.replace(tzinfo=None)
    ago_ms = SystemClock().now_ms() - int(noon.timestamp() * 1_000)
    forms = [
        {"timestampAsOf": stamps[1]},
        {"timestampAsOf": f"  {stamps[1]:024d} "},
        {"timestampAsOf": format_time(stamps[1])},
        {"timestampAsOf": noon.isoformat()},
        {"timestampAsOf": f"{(naive + india).isoformat()}+05:30"},
        {"timestampAsOf": f"{naive}Z"},
        {"timestampAsOf": f"{naive}", "timeZone": "UTC"},
        {"timestampAsOf": f"{naive}", "timeZone": "Z"},
        {"timestampAsOf": f"{naive + berlin}", "timeZone": "Europe/Berlin"},
        {"timestampAsOf": f"{naive + berlin}", "timeZone": "+01:00"},
        {"timestampAsOf": f"{naive + india}", "timeZone": "GMT+5:30"},
        {"timestampAsOf": f"{naive + berlin}+01:00", "timeZone": "Asia/Kolkata"},
        {"timestampAsOf": f"-{ago_ms}ms"},
        {"TIMESTAMPASOF": f"-{ago_ms / 3_600_000 - 0.001}h"},
        {"versionAsOf": store.at(stamps[1]).revision},
    ]
    for options in forms:
        assert columns(place.url, "value", **options) == [(b"1",)], options
    day = noon.date() + timedelta(days=2)
    for date in (day.isoformat(), day.strftime("%Y%m%d")):
        assert columns(place.url, "value", timestampAsOf=date, timeZone="UTC") == [(b"2",)]
    earlier = {"timestampAsOf": (noon.date()).isoformat(), "timeZone": "UTC"}
    assert columns(place.url, "value", **earlier) == []


def test_a_date_is_the_end_of_its_millisecond(store, place):
    """The clock stands still: all of these commits are displayed as the same time."""
    stamps = [store.save("k", b"%d" % n) for n in range(3)]
    assert len({format_time(ts) for ts in stamps}) == 1
    assert columns(place.url, "value", timestampAsOf=format_time(stamps[0])) == [(b"2",)]
    for n, ts in enumerate(stamps):
        assert columns(place.url, "value", timestampAsOf=ts) == [(b"%d" % n,)]


# --- keys that others write ---


def test_observed_keys(spark, place, clock):
    cluster = Cluster(place, clock)
    refused("NOT_OBSERVED", place.url, observe="/r/")
    cluster.write(a=b"1", b=b"1")
    first = cluster.tick()
    cluster.write(a=b"2", c=b"3")
    cluster.noise()
    options = {"observe": "/r/", "columns": "key,value"}
    assert read(place.url, **options) == [("/r/a", b"1"), ("/r/b", b"1")], "not yet ticked"
    second = cluster.tick()
    cluster.write(b=None)
    ticked = load(spark, place.url, timestampAsOf=second.ts, **options)
    frames = [
        load(spark, place.url, **options),
        load(spark, place.url, timestampAsOf=first.ts, **options),
    ]
    old, new = [("/r/a", b"1"), ("/r/b", b"1")], [("/r/a", b"2"), ("/r/b", b"1"), ("/r/c", b"3")]
    assert together([ticked, *frames]) == [new, new, old]
    with cluster.observe() as observed:
        assert read(place.url, observe="/r/", timestampAsOf=first.ts) == entries(
            observed.at(first.ts)
        )
        assert read(place.url, observe="/r/") == arrow_rows(observed.at().to_arrow())
    assert columns(place.url, "key", observe="/r/", startKey="/r/b") == [("/r/b",), ("/r/c",)]
    everything = columns(place.url, "key", observe="", keyFormat="binary")
    assert [key for (key,) in everything] == [
        b"/r/a", b"/r/b", b"/r/c", b"default/sys/format", b"default/sys/ts", b"elsewhere",
    ]  # fmt: skip
    written = columns(place.url, "key", "mod_timestamp", observe="/r/")
    assert written == [
        ("/r/a", to_datetime(second.ts)),
        ("/r/b", to_datetime(first.ts)),
        ("/r/c", to_datetime(second.ts)),
    ]
    message = refused("NOT_OBSERVED", place.url, observe="/r/", timestampAsOf=first.ts - 1)
    assert "snapkv tick" in message
    assert "outside" in refused("INVALID_OPTION", place.url, observe="/r/", keyPrefix="/s/")
    refused("INVALID_OPTION", place.url, observe="/r/", space="s")
