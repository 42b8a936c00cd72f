"""What a stream shows: keys and values as options say, of stores and of keys that others write."""

import json
import random

import pytest
from pyspark.sql import types as T
from reading.tabled import FOREVER, SPACE, Writing, changes_of
from store.observed import PREFIX, Cluster, ticked
from stream_queries import LIMITS, Query, changes, inserted, needs_limits, refused_by

from snapkv import Ops, SpaceOps, to_datetime
from snapkv.spark import micro_batches

pytestmark = pytest.mark.slow

FOREVER_S = 60
LENIENT = {"failOnDataLoss": "false"}


# --- of a store ---


@pytest.mark.spark_since("4.2", "where a stream is, with the question")
def test_an_idle_stream_waits_for_a_commit(store, place, monkeypatch):
    """Spark asks a hundred times a second, which would keep a fifth of a processor busy."""
    store.save("a", b"1")
    query, paused = Query(place.url), []
    query.drained()
    at = query.checkpoint.offsets[-1]
    monkeypatch.setattr(micro_batches, "AGAIN_S", FOREVER_S)
    monkeypatch.setattr(micro_batches, "IDLE_S", 0)
    assert query.latest(at) == at

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 6:
            store.save("a", b"2")

    monkeypatch.setattr(micro_batches, "IDLE_S", FOREVER_S)
    monkeypatch.setattr(micro_batches, "pause", pause)
    assert query.latest(at) != at
    assert paused == [0.005, 0.01, 0.02, 0.04, 0.05, 0.05]


def test_deletes_may_be_ignored(store, place):
    first = store.commit(puts={"a": b"1", "b": b"1"})
    query = Query(place.url, ignoreDeletes="true")
    query.drained()
    store.commit(deletes=["a"])
    last = store.commit(puts={"a": b"2", "c": b"1"}, deletes=["b"])
    query.drained()
    rows = inserted(first, a=b"1", b=b"1") + changes((last, {"a": b"2", "b": None, "c": b"1"}))
    assert query.checkpoint.rows() == [row for row in rows if row[2] != "delete"]


def test_what_stood_before_may_be_shown(store, place):
    first = store.commit(puts={"a": b"1", "b": b"1"})
    query = Query(place.url, preimages="true")
    assert query.drained() == inserted(first, a=b"1", b=b"1"), "a snapshot has nothing before"
    last = store.commit(puts={"a": b"2", "c": b"1"}, deletes=["b"])
    at = to_datetime(last.ts)
    assert query.drained() == [
        ("a", b"1", "update_preimage", last.revision, 0, at),
        ("a", b"2", "update_postimage", last.revision, 0, at),
        ("b", b"1", "delete", last.revision, 1, at),
        ("c", b"1", "insert", last.revision, 2, at),
    ]


@pytest.mark.parametrize("name", ["preimages", "ignoreDeletes"])
def test_what_is_neither_true_nor_false(store, place, name):
    assert name in refused_by("INVALID_OPTION", lambda: Query(place.url, **{name: "perhaps"}))


@pytest.mark.parametrize("limit", LIMITS)
def test_a_space_with_keys_that_are_bytes(store, place, limit):
    def put(keys: dict[bytes, bytes]):
        ops = Ops({"a": b"data"}, spaces={SPACE: SpaceOps(keys)})
        return store.commit(lambda stamp: ops)

    first = put({b"\xff\x00": b"1", b"\xaa": b"2", b"\xff": b"3"})
    query = Query(place.url, space=SPACE, **limit)
    at = first.revision, None, to_datetime(first.ts)
    assert query.drained() == [
        (b"\xaa", b"2", "insert", *at),
        (b"\xff", b"3", "insert", *at),
        (b"\xff\x00", b"1", "insert", *at),
    ]
    second = put({b"\xff\x00": b"4"})
    at = second.revision, 0, to_datetime(second.ts)
    assert query.drained() == [(b"\xff\x00", b"4", "update_postimage", *at)]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("options", [{"keyPrefix": "b/"}, {"startKey": "b/", "endKey": "b0"}])
def test_a_part_of_the_keys(store, place, clock, options, limit):
    writing = Writing(store, clock, random.Random(5))
    writing.steps(15)
    query = Query(place.url, **options, **limit)
    query.drained()
    begun = writing.plain.rows[-1]
    plain = writing.steps(15)
    query.drained()
    at = begun.revision, None, to_datetime(begun.ts)
    state = plain.state(begun.ts).items()
    assert query.checkpoint.rows() == [
        *((k, v, "insert", *at) for k, v in state if k.startswith("b/")),
        *changes_of(plain, begun.ts, FOREVER, "b/"),
    ]


@pytest.mark.parametrize("name", ["maxRowsPerTrigger", "maxBytesPerTrigger"])
def test_limits_before_4_2(store, place, monkeypatch, name):
    monkeypatch.setattr(micro_batches, "LIMITS_KNOWN", False)
    assert "4.2" in refused_by("INVALID_OPTION", lambda: Query(place.url, **{name: 7}))
    assert Query(place.url).drained() == []


SCHEMA = T.StructType(
    [
        T.StructField("key", T.StringType()),
        T.StructField("_change_type", T.StringType()),
        T.StructField("name", T.StringType()),
        T.StructField("size", T.LongType()),
    ]
)


def test_values_that_are_json_become_columns(store, place):
    def value(**fields) -> bytes:
        return json.dumps(fields).encode()

    store.commit(puts={"t/1": value(name="one", size=1), "t/2": value(name="two")})
    query = Query(place.url, schema=SCHEMA, valueFormat="json")
    assert query.drained() == [("t/1", "insert", "one", 1), ("t/2", "insert", "two", None)]
    store.commit(puts={"t/2": value(size=2)}, deletes=["t/1"])
    assert query.drained() == [
        ("t/1", "delete", None, None),
        ("t/2", "update_postimage", None, 2),
    ]
    store.save("t/1", b"no json")
    query.log()
    assert "t/1" in refused_by("VALUE_MALFORMED", query.run)
    query = Query(place.url, query.checkpoint, schema=SCHEMA, valueFormat="json", mode="PERMISSIVE")
    assert query.drained() == [("t/1", "insert", None, None)]


def test_json_needs_a_schema(store, place):
    refused_by("MISSING_OPTION", lambda: Query(place.url, valueFormat="json"))


def test_only_some_columns(store, place):
    commit = store.commit(puts={"a": b"1", "b": b"2"})
    query = Query(place.url, columns="_commit_version,key")
    assert query.drained() == [(commit.revision, "a"), (commit.revision, "b")]


# --- of keys that others write ---


@pytest.fixture
def cluster(place, clock):
    return Cluster(place, clock)


def observing(cluster, checkpoint=None, **options) -> Query:
    return Query(cluster.place.url, checkpoint, observe=PREFIX, **options)


def told(rows: list[tuple]) -> list[tuple]:
    """Key, value, kind and the revision that wrote it."""
    return [(row[0].removeprefix(PREFIX), *row[1:4]) for row in rows]


def test_observed_keys_come_with_their_ticks(cluster):
    cluster.write(a=b"1", b=b"1")
    first = cluster.tick().revision
    one = cluster.write(a=b"unseen as yet")
    query = observing(cluster)
    assert told(query.drained()) == [("a", b"1", "insert", first), ("b", b"1", "insert", first)]
    two = cluster.write(b=None, c=b"1")
    three = cluster.write(c=b"2", d=b"soon gone")
    four = cluster.write(d=None)
    assert query.drained() == []
    cluster.tick()
    assert told(query.drained()) == [
        ("a", b"unseen as yet", "update_postimage", one),
        ("b", None, "delete", two),
        ("c", b"1", "insert", two),
        ("c", b"2", "update_postimage", three),
        ("d", b"soon gone", "insert", three),
        ("d", None, "delete", four),
    ]


@pytest.mark.parametrize("limit", LIMITS)
def test_observed_keys_across_drivers(cluster, limit):
    """Also while new keys come between the ticks, which belong to none of the batches yet."""
    query = observing(cluster, startingVersion=1, **limit)
    for n in range(4):
        cluster.write(a=b"%d" % n, **{f"k{n}": b"1"})
        cluster.tick()
        cluster.write(early=b"%d" % n)
        query = observing(cluster, query.checkpoint, startingVersion=1, **limit)
        query.drained()
    assert query.checkpoint.rows() == changes_of(ticked(cluster.model), 0, FOREVER)


@pytest.mark.parametrize("options", [{}, {"startingVersion": "latest"}], ids=str)
def test_nothing_begins_before_the_first_tick(cluster, options):
    cluster.write(a=b"1")
    query = observing(cluster, **options)
    refused_by("NOT_OBSERVED", query.initial)
    cluster.tick()
    assert len(query.drained()) == (0 if options else 1)


def test_what_an_observed_stream_lost(cluster, caplog):
    """Changes begin behind the first tick whose state is left, for its own are not all there."""
    cluster.write(a=b"0")
    cluster.tick()
    query = observing(cluster)
    query.drained()
    cluster.write(a=b"1")
    cluster.tick()
    cluster.write(a=b"2")
    cluster.write(b=b"2")
    cluster.compact(cluster.write(c=b"2"))
    refused_by("VERSION_COMPACTED", lambda: observing(cluster, query.checkpoint).drained())
    lenient = observing(cluster, query.checkpoint, **LENIENT)
    assert lenient.drained() == []
    third = cluster.tick()
    assert lenient.drained() == [], "some of what the third tick stamps is gone"
    fourth = cluster.write(a=b"4")
    cluster.tick()
    assert told(lenient.drained()) == [("a", b"4", "update_postimage", fourth)]
    assert "compacted unread" in caplog.text
    assert third.revision < fourth


@needs_limits
def test_an_observed_snapshot_that_is_gone(cluster):
    cluster.write_keys({f"{PREFIX}{n}": b"1" for n in range(4)})
    cluster.tick()
    query = observing(cluster, maxRowsPerTrigger=2)
    batches = query.batches()
    assert [len(batch) for batch in (next(batches), next(batches))] == [0, 1]
    cluster.compact(cluster.write(a=b"2"))
    rest = {"maxRowsPerTrigger": 2}
    refused_by("VERSION_COMPACTED", observing(cluster, query.checkpoint, **rest).drained)
    lenient = observing(cluster, query.checkpoint, **LENIENT, **rest)
    refused_by("VERSION_COMPACTED", lenient.drained)  # no tick is left that shows a state
    second = cluster.tick().revision
    assert told(lenient.drained()) == [
        (key, value, "insert", second) for key, value in (("2", b"1"), ("3", b"1"), ("a", b"2"))
    ]
