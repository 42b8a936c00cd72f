"""A batch that is written: which keys and values a store has then, and what is an error."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import msgpack
import pyarrow as pa
import pytest
from direct import read
from pyspark.sql import types as T
from sinks import Sink, refused
from sinks import small_commits as small_commits

from snapkv.spark import batch_commits
from snapkv.store.store import SnapshotKV

pytestmark = pytest.mark.slow

FEED = "key STRING, value STRING, _change_type STRING, _commit_version BIGINT, _change_ordinal INT"


def now(store, prefix="") -> dict:
    return dict(store.at().items(prefix))


def sink(place, *columns, **options) -> Sink:
    options = {"valueFormat": "utf8", "writer": "spark@test"} | options
    return Sink(place.url, *columns, **options)


def test_rows_are_one_commit(store, place):
    store.save("b", b"0")
    sink(place, note="a note").write(("a", "1"), ("b", "2"), ("c", "ü"))
    assert now(store) == {"a": b"1", "b": b"2", "c": "ü".encode()}
    *_, last = store.commits()
    assert (last.writer, last.note) == ("spark@test", "a note")
    assert len({store.entry(key).revision for key in "abc"}) == 1


def test_bytes_and_a_store_that_does_not_exist_yet(place):
    Sink(place.url, "value BINARY, key STRING", name="new").write((b"\xff", "k"))
    assert read(place.url, name="new", columns="key,value") == [("k", b"\xff")]


def test_no_rows_write_nothing(store, place):
    head = store.at().revision
    sink(place).write()
    sink(place, note="n").write(tasks=1)
    assert store.at().revision == head


def test_a_feed_can_be_written(store, place):
    store.commit(puts={"gone": b"1", "kept": b"1"})
    sink(place, FEED).write(
        ("kept", "1", "update_preimage", 7, 0),
        ("kept", "2", "update_postimage", 7, 0),
        ("twice", "old", "insert", 7, 1),
        ("gone", None, "delete", 8, 0),
        ("back", None, "delete", 8, 1),
        ("back", "b", "insert", 9, 0),
        ("twice", "new", "update_postimage", 8, 2),
    )
    assert now(store) == {"kept": b"2", "twice": b"new", "back": b"b"}


def test_what_was_read_can_be_written(store, place):
    store.commit(puts={"a": b"1", "b": b"2"})
    columns = (
        "key STRING, value BINARY, create_version BIGINT, mod_version BIGINT, key_version BIGINT"
    )
    Sink(place.url, columns, name="copy").write(*read(place.url))
    assert read(place.url, name="copy", columns="key,value") == [("a", b"1"), ("b", b"2")]


# --- values of columns ---

OBJECT = T.StructType([
    T.StructField("key", T.StringType()),
    T.StructField("owner", T.StringType()),
    T.StructField("size", T.LongType()),
    T.StructField("ratio", T.DoubleType()),
    T.StructField("ok", T.BooleanType()),
    T.StructField("price", T.DecimalType(20, 6)),
    T.StructField("raw", T.BinaryType()),
    T.StructField("day", T.DateType()),
    T.StructField("at", T.TimestampType()),
    T.StructField("naive", T.TimestampNTZType()),
    T.StructField("tags", T.ArrayType(T.StringType())),
    T.StructField("labels", T.MapType(T.StringType(), T.LongType())),
    T.StructField("inner", T.StructType().add("a", T.IntegerType()).add("b", T.StringType())),
])  # fmt: skip
ROW = (
    "k", 'a "name" ü', 1 << 60, 0.1, True, Decimal("12345678901234.500000"), b"\xff\x00",
    date(2026, 2, 28), datetime(2026, 2, 28, 12, 30, 0, 250_000, tzinfo=UTC),
    datetime(2026, 2, 28, 12, 30), ["x", None], [("n", 1), ("none", None)], {"a": 1, "b": None},
)  # fmt: skip


def test_json(store, place):
    sink(place, OBJECT, valueFormat="json").write(ROW, ("none", *[None] * 12))
    assert store.load("none") == b"{}"
    text = store.load("k").decode()
    assert '"price":12345678901234.500000' in text
    assert json.loads(text) == {
        "owner": 'a "name" ü', "size": 1 << 60, "ratio": 0.1, "ok": True, "raw": "/wA=",
        "price": 12345678901234.5, "day": "2026-02-28", "at": "2026-02-28T12:30:00.250000+00:00",
        "naive": "2026-02-28T12:30:00", "tags": ["x", None], "labels": {"n": 1, "none": None},
        "inner": {"a": 1},
    }  # fmt: skip


@pytest.mark.parametrize("format_", ["json", "msgpack"])
def test_what_is_written_is_read_again(store, place, format_):
    names = [name for name in OBJECT.names if format_ == "json" or name != "price"]
    schema = T.StructType([OBJECT[name] for name in names])
    row = tuple(ROW[OBJECT.names.index(name)] for name in names)
    sink(place, schema, valueFormat=format_).write(row)
    fields = [(field.name, field.dataType) for field in schema]
    assert read(place.url, fields, valueFormat=format_) == [row]


def test_a_whole_value(store, place):
    schema = T.StructType().add("key", T.StringType()).add("value", T.ArrayType(T.LongType()))
    sink(place, schema, valueFormat="json").write(("k", [1, 2]), ("none", None))
    assert now(store) == {"k": b"[1,2]", "none": b"null"}
    sink(place, schema, valueFormat="msgpack").write(("k", [1, 2]))
    assert msgpack.unpackb(store.load("k")) == [1, 2]


@pytest.mark.parametrize("format_", ["json", "msgpack"])
def test_a_binary_value_is_encoded_already(store, place, format_):
    """As it is read: with that schema the format gives the stored bytes."""
    columns = "key STRING, value BINARY"
    store.save("k", b'{"owner":"ann"}')
    schema = [("key", T.StringType()), ("value", T.BinaryType())]
    rows = read(place.url, schema, valueFormat=format_)
    sink(place, columns, valueFormat=format_, name="copy").write(*rows)
    assert read(place.url, name="copy", columns="key,value") == [("k", b'{"owner":"ann"}')]


@pytest.mark.parametrize("zone", ["GMT+8", "UTC+08:00", "Z", "Europe/Berlin"])
def test_times_in_any_zone_of_a_session(store, place, zone):
    schema = T.StructType().add("key", T.StringType()).add("at", T.TimestampType())
    schema = schema.add("all", T.ArrayType(T.StructType().add("at", T.TimestampType())))
    into = sink(place, schema, valueFormat="json")
    moment = datetime(2026, 2, 28, 12, 30, tzinfo=UTC)
    stamp = pa.timestamp("us", zone)
    micros = int(moment.timestamp()) * 1_000_000
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["k"]),
            pa.array([micros], pa.int64()).cast(stamp),
            pa.array([[{"at": micros}]], pa.list_(pa.struct([("at", pa.int64())]))).cast(
                pa.list_(pa.struct([("at", stamp)]))
            ),
        ],
        names=["key", "at", "all"],
    )
    into.writer.commit([into.writer.write(iter([batch]))])
    text = "2026-02-28T12:30:00+00:00"
    assert json.loads(store.load("k")) == {"at": text, "all": [{"at": text}]}


def test_values_that_python_does_not_have(store, place):
    schema = T.StructType().add("key", T.StringType()).add("day", T.DateType())
    into = sink(place, schema, valueFormat="json")
    days = pa.array([0, 3_000_000_000 // 1_000], pa.int32()).cast(pa.date32())
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), days], names=["key", "day"])
    message = refused("VALUE_MALFORMED", into.writer.write, iter([batch]))
    assert "key 'b' cannot be written" in message
    text = pa.array([b"\xff"]).view(pa.string())
    for arrays in ([text, pa.array(["1"])], [pa.array(["k"]), text]):
        batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
        message = refused("VALUE_MALFORMED", sink(place).writer.write, iter([batch]))
        assert "is not UTF-8" in message


def test_a_removal_has_no_value_to_encode(store, place):
    store.save("k", b"{}")
    schema = T.StructType().add("key", T.StringType()).add("n", T.DoubleType())
    schema = schema.add("_change_type", T.StringType())
    sink(place, schema, valueFormat="json").write(("k", float("nan"), "delete"))
    assert now(store) == {}


def test_numbers_that_json_has_not(store, place):
    schema = T.StructType().add("key", T.StringType()).add("n", T.DoubleType())
    json_sink = sink(place, schema, valueFormat="json")
    for number in (float("nan"), float("inf")):
        message = refused("VALUE_MALFORMED", json_sink.write, ("k", number))
        assert "'k'" in message
        assert "cast it to STRING" in message
    sink(place, schema, valueFormat="msgpack").write(("k", float("inf")))
    assert msgpack.unpackb(store.load("k")) == {"n": float("inf")}


# --- replacing ---


def test_replace_what_is_below_a_prefix(store, place):
    first = store.commit(puts={"a/1": b"1", "a/2": b"2", "b/1": b"1"})
    sink(place, overwrite=True, keyPrefix="a/").write(("a/1", "1"), ("a/3", "3"))
    assert now(store) == {"a/1": b"1", "a/3": b"3", "b/1": b"1"}
    assert store.entry("a/1").revision == first.revision  # the same value is not written again
    *_, last = store.commits()
    assert len(list(store.diff(first.ts, last.ts))) == 2
    sink(place, overwrite=True, keyPrefix="").write(("c", "1"))
    assert now(store) == {"c": b"1"}
    sink(place, overwrite=True, keyPrefix="").write()
    assert now(store) == {}


def test_replace_beside_writers_that_never_rest(store, place, monkeypatch):
    store.commit(puts={"a/1": b"1", "a/2": b"2"})
    replacing = sink(place, overwrite=True, keyPrefix="a/")
    messages = replacing.written(("a/2", "2"), ("a/3", "3"))
    differences = batch_commits._differences

    def beside(*arguments):
        store.save("b/n", b"%d" % store.at().revision)
        return differences(*arguments)

    monkeypatch.setattr(batch_commits, "_differences", beside)
    replacing.writer.commit(messages)
    assert now(store, "a/") == {"a/2": b"2", "a/3": b"3"}


def test_a_replacement_that_makes_progress_goes_on(store, place, small_commits, monkeypatch):
    """Another writer ticks before every third commit, as `snapkv tick` does beside a long one."""
    rows = [(f"a/{n:03}", "x" * 500) for n in range(150)]
    commit, calls = SnapshotKV.commit, []

    def beside(self, *arguments, **options):
        calls.append(None)
        if len(calls) % 3 == 0:
            self.tick()
        return commit(self, *arguments, **options)

    monkeypatch.setattr(SnapshotKV, "commit", beside)
    sink(place, overwrite=True, keyPrefix="a/").write(*rows)
    assert now(store) == {key: value.encode() for key, value in rows}
    assert len(calls) > 25


def test_a_replacement_in_parts(store, place, small_commits):
    store.commit(puts={f"a/{n}": b"old" * 100 for n in range(20)})
    rows = [(f"a/{n}", "new" * 100) for n in range(10, 30)]
    sink(place, overwrite=True, keyPrefix="a/").write(*rows)
    assert now(store) == {key: value.encode() for key, value in rows}
    notes = [commit.note for commit in store.commits()]
    assert len(notes) == 1 + 3
    assert notes[1].startswith("written by Spark, rows 1 to ")
    assert notes[3].endswith(" to 30 of 30")  # 20 are saved, and 10 removed


# --- keys of a space ---


def test_a_space(store, place):
    space = {"space": "s", "valueFormat": "bytes"}
    sink(place, "key BINARY, value BINARY", **space).write((b"\xff", b"1"), (b"a", b"2"))
    assert dict(store.space("s").at().items()) == {b"\xff": b"1", b"a": b"2"}
    sink(place, "key STRING, value BINARY", keyFormat="utf8", **space).write(("a", b"3"))
    options = space | {"keyPrefix": "ff", "overwrite": True}
    sink(place, "key BINARY, value BINARY", **options).write((b"\xffb", b"4"))
    assert dict(store.space("s").at().items()) == {b"\xffb": b"4", b"a": b"3"}
    assert now(store) == {}


# --- what is wrong, and writes nothing ---


@pytest.mark.parametrize(
    ("columns", "options", "code", "said"),
    [
        ("value STRING", {}, "INVALID_SCHEMA", "key must be STRING, and is missing"),
        ("key BINARY, value STRING", {}, "INVALID_SCHEMA", "key must be STRING, and is BINARY"),
        ("key STRING, value INT", {}, "INVALID_SCHEMA", "value must be STRING, and is INT"),
        ("key STRING, value BINARY", {}, "INVALID_SCHEMA", "or give valueFormat"),
        ("key STRING, value STRING, owner STRING", {}, "INVALID_SCHEMA", "keep owner: drop"),
        ("key STRING, value STRING, n INT", {"valueFormat": "json"}, "INVALID_SCHEMA", "whole"),
        ("key STRING, mod_version BIGINT", {"valueFormat": "json"}, "INVALID_SCHEMA", "no columns"),
        ("key STRING, value STRING, Value STRING", {}, "INVALID_SCHEMA", "two columns"),
        ("key STRING, value STRING", {"overwrite": True}, "MISSING_OPTION", "give keyPrefix"),
        ("key STRING, value STRING", {"timestampAsOf": 0}, "UNKNOWN_OPTION", "known are"),
        ("key STRING, value STRING", {"txnAppId": "a"}, "MISSING_OPTION", "txnVersion"),
        (
            "key STRING, value STRING",
            {"txnAppId": "a", "txnVersion": "-1"},
            "INVALID_OPTION",
            "0 or more",
        ),
        ("key STRING, value STRING", {"keyFormat": "binary"}, "INVALID_OPTION", "for a space"),
        ("key STRING, value STRING", {"writer": "w" * 300}, "INVALID_OPTION", "256 bytes"),
        (
            "key STRING, value STRING",
            {"txnAppId": "a" * 300, "txnVersion": 1},
            "INVALID_OPTION",
            "txnAppId has more than 200 bytes",
        ),
        ("key STRING, value STRING", {"space": ""}, "INVALID_OPTION", "needs a name"),
        ("key STRING, value STRING", {"space": "spark.sinks"}, "INVALID_OPTION", "batches"),
        (
            "key STRING, value STRING, _CHANGE_TYPE STRING",
            {"valueFormat": "json"},
            "INVALID_SCHEMA",
            "column _CHANGE_TYPE is written _change_type",
        ),
        (
            "key STRING, value STRING, _commit_version STRING",
            {},
            "INVALID_SCHEMA",
            "_commit_version must be BIGINT",
        ),
    ],
)
def test_what_a_sink_refuses(store, place, columns, options, code, said):
    assert said in refused(code, sink, place, columns, **options)
    assert now(store) == {}


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ([("a", "1"), (None, "2")], "INVALID_SCHEMA", "its key is NULL"),
        ([("a", "1"), ("b", None)], "VALUE_MALFORMED", "key 'b' is NULL: a removal is"),
        ([("a", "1"), ("b", "1"), ("a", "2")], "DUPLICATE_KEY", "key 'a' comes twice"),
        ([("a", "1"), ("", "1")], "VALUE_MALFORMED", "a key cannot be written"),
    ],
)
def test_rows_that_cannot_be_written(store, place, rows, code, said):
    assert said in refused(code, sink(place).write, *rows)
    assert now(store) == {}


def test_keys_outside_of_the_prefix(store, place):
    for overwrite in (False, True):
        into = sink(place, overwrite=overwrite, keyPrefix="a/")
        assert "keyPrefix 'a/'" in refused("INVALID_OPTION", into.write, ("a/b", "1"), ("b", "1"))
    assert now(store) == {}


def test_changes_of_no_known_kind(store, place):
    columns = "key STRING, value STRING, _change_type STRING"
    for change in ("upsert", None):
        message = refused("VALUE_MALFORMED", sink(place, columns).write, ("a", "1", change))
        assert f"{change!r}: it is one of insert" in message
    assert now(store) == {}


def test_a_value_larger_than_a_commit(place, store, small_commits):
    message = refused("FAILED", sink(place).write, ("a", "1"), ("b", "x" * 1_000_000))
    assert "'b'" in message
    assert now(store) == {}


def test_a_version_that_is_null(store, place):
    columns = "key STRING, value STRING, _commit_version BIGINT"
    rows = [("k", "old", None), ("k", "new", 9)]
    assert "is NULL" in refused("INVALID_SCHEMA", sink(place, columns).write, *rows)


def test_an_archive_and_a_reader_refuse(place, tmp_path, store):
    assert "name its store" in refused("INVALID_OPTION", Sink, f"archive:{tmp_path}")
    assert "known are" in refused("UNKNOWN_OPTION", read, place.url, txnAppId="a")
