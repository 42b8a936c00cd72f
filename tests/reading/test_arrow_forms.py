"""What tables look like: their columns, their batches, and what other libraries make of them."""

from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from store.engines import EMBEDDED, START_MS

from snapkv import to_datetime
from snapkv.errors import InvalidKeyError, InvalidTimeError, InvalidTypeError, StoreClosedError
from snapkv.reading import arrow, tables

from .tabled import rows

START = datetime.fromtimestamp(START_MS / 1_000, UTC)


@pytest.fixture
def commits(store, clock):
    """A minute apart: two keys, a change of one, the removal of the other, a tick."""
    done = [store.commit(puts={"a": b"1", "b": b"\0\xff"}, note="both")]
    for write in (
        lambda: store.commit(puts={"a": b"22"}),
        lambda: store.commit(deletes=["b"]),
        store.tick,
    ):
        clock.advance(60_000)
        done.append(write())
    return done


# --- columns ---


def test_the_columns_are_these(store, commits):
    """On record: who stored tables, or wrote queries, relies on names, types and order."""
    time = pa.timestamp("us", tz="UTC")
    moment = {
        "key": pa.string(),
        "value": pa.binary(),
        "create_version": pa.int64(),
        "mod_version": pa.int64(),
        "key_version": pa.int64(),
    }
    changes = {
        "key": pa.string(),
        "value": pa.binary(),
        "_change_type": pa.string(),
        "_commit_version": pa.int64(),
        "_change_ordinal": pa.int32(),
        "_commit_timestamp": time,
    }
    histories = {
        "key": pa.string(),
        "value": pa.binary(),
        "_version_from": pa.int64(),
        "_version_to": pa.int64(),
        "_timestamp_from": time,
        "_timestamp_to": time,
    }
    log = {
        "version": pa.int64(),
        "timestamp": time,
        "userName": pa.string(),
        "operation": pa.string(),
        "userMetadata": pa.string(),
        "operationMetrics": pa.map_(pa.string(), pa.string()),
        "meta": pa.string(),
    }
    space = store.space("s")
    for prefix in ("", "nothing has this"):
        for read, raw, expected in (
            (store.at().to_arrow, space.at().to_arrow, moment),
            (store.changes_to_arrow, space.changes_to_arrow, changes),
            (store.history_to_arrow, space.history_to_arrow, histories),
        ):
            assert read(prefix).schema == schema_of(expected)
            assert raw(prefix.encode()).schema == schema_of(expected | {"key": pa.binary()})
    assert store.commits_to_arrow().schema == schema_of(log)
    assert store.commits_to_arrow(until=0).schema == schema_of(log)
    assert schema_of(moment | {"mod_timestamp": time}) == arrow.SNAPSHOT_TIMED


def schema_of(columns: dict) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=True) for name, kind in columns.items()])


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
@pytest.mark.parametrize("limits", [(1, 1 << 20), (7, 1 << 20), (10_000, 1), (10_000, 1_000)])
def test_many_batches_are_one_table(store, clock, monkeypatch, limits):
    """Of rows, and of bytes: a column of more than 2 GiB would be no array."""
    for n in range(20):
        store.commit(puts={f"k{n}": bytes(300), f"k{n // 2}": b"%d" % n}, deletes=[f"k{n - 5}"])
    reads = (
        store.at().to_arrow,
        lambda: store.changes_to_arrow(preimages=True),
        store.history_to_arrow,
        store.commits_to_arrow,
    )
    usual = [read() for read in reads]
    assert usual[1]["value"].num_chunks == 1
    monkeypatch.setattr(arrow, "BATCH_ROWS", limits[0])
    monkeypatch.setattr(arrow, "BATCH_BYTES", limits[1])
    for table, read in zip(usual, reads, strict=True):
        assert read() == table
    assert store.changes_to_arrow()["value"].num_chunks > 3


def test_changes_without_removals(store, commits):
    core, span = store._core, tables.key_range_of(store._space, None)
    low, high = core.timeline.tracker.creation, core.timeline.head()
    for preimages in (False, True):
        found = tables.changes(core, span, low, high, preimages=preimages, deletes=False)
        everything = rows(store.changes_to_arrow(preimages=preimages))
        expected = [row for row in everything if row[2] != "delete"]
        assert rows(arrow.table(found, arrow.CHANGES)) == expected
        assert len(expected) == len(everything) - 1


def test_every_key_there_can_be_in_order(store):
    keys = ["\0", "a\0b", "/", " ", "\n", "\uffff", "\U0010ffff", "z", "\u00e9" * 40, "%"]
    for key in keys:
        store.save(key, key.encode())
    for table in (store.at().to_arrow(), store.history_to_arrow()):
        found = table.select(["key", "value"]).to_pylist()
        assert found == [{"key": key, "value": key.encode()} for key in store.at()]
    assert store.changes_to_arrow()["key"].to_pylist() == keys


# --- other libraries ---


def test_pandas(store, commits):
    frame = store.changes_to_arrow().to_pandas()
    assert str(frame["_commit_timestamp"].dtype) == "datetime64[us, UTC]"
    last = frame.groupby("key").last()
    assert last.loc["b", "_change_type"] == "delete"
    assert frame["value"].tolist() == [b"1", b"\0\xff", b"22", None]
    assert frame["_commit_timestamp"].max() - frame["_commit_timestamp"].min() == timedelta(
        minutes=2
    )
    versions = store.history_to_arrow().to_pandas()
    assert versions[versions["_version_to"].isna()]["key"].tolist() == ["a"]
    log = store.commits_to_arrow().to_pandas()
    assert dict(log["operationMetrics"].iloc[-1]) == {"numPuts": "2", "numDeletes": "0"}


def test_polars(store, commits):
    frame = pl.from_arrow(store.history_to_arrow())
    assert frame.schema["_timestamp_from"] == pl.Datetime("us", "UTC")
    when = START + timedelta(seconds=90)
    stood = frame.filter(
        (pl.col("_timestamp_from") <= when)
        & (pl.col("_timestamp_to").is_null() | (pl.col("_timestamp_to") > when))
    )
    assert dict(stood.select("key", "value").rows()) == {"a": b"22", "b": b"\0\xff"}
    changes = pl.from_arrow(store.changes_to_arrow()).group_by("_change_type").len()
    assert dict(changes.rows()) == {"insert": 2, "update_postimage": 1, "delete": 1}
    log = pl.from_arrow(store.commits_to_arrow())
    assert log["operation"].to_list() == ["TICK", "WRITE", "WRITE", "WRITE"]
    assert log["userMetadata"].to_list() == [None, None, None, "both"]


def test_duckdb(store, commits):
    log, changes = store.commits_to_arrow(), store.changes_to_arrow()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("log", log)
        connection.register("changes", changes)
        answer = connection.execute(
            "SELECT timestamp, operationMetrics['numPuts'], userMetadata FROM log"
            " WHERE operation = 'WRITE' ORDER BY version"
        )
        assert answer.fetchall() == [
            (to_datetime(commit.ts), puts, note)
            for commit, puts, note in zip(commits, "210", ("both", None, None), strict=False)
        ]
        answer = connection.execute(
            "SELECT key, count(*), arg_max(value, _commit_version), max(_commit_timestamp)"
            " FROM changes GROUP BY key ORDER BY key"
        )
        assert answer.fetchall() == [
            ("a", 2, b"22", to_datetime(commits[1].ts)),
            ("b", 2, b"\0\xff", to_datetime(commits[2].ts)),
        ]


# --- bad input ---


def test_what_is_no_prefix_or_moment(store, commits):
    reads = (store.changes_to_arrow, store.history_to_arrow)
    for wrong, error in [
        ({"since": datetime(2026, 1, 1)}, InvalidTimeError),
        ({"until": "soon"}, InvalidTimeError),
        ({"since": 1.5}, InvalidTypeError),
        ({"until": -1}, InvalidTimeError),
    ]:
        for read in (*reads, store.commits_to_arrow):
            with pytest.raises(error):
                read(**wrong)
    for wrong, error in [
        (b"a", InvalidTypeError),
        (5, InvalidTypeError),
        ("\ud800", InvalidKeyError),
    ]:
        for read in (*reads, store.at().to_arrow):
            with pytest.raises(error):
                read(wrong)


def test_a_closed_store_says_so(place, clock):
    store = place.open(clock=clock)
    store.save("a", b"1")
    space = store.space("s")
    store.close()
    for read in (
        store.changes_to_arrow,
        store.history_to_arrow,
        store.commits_to_arrow,
        space.changes_to_arrow,
    ):
        with pytest.raises(StoreClosedError):
            read()
