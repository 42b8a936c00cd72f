"""What goes wrong: a code, what to do, and no secrets; and never rows of another state."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from direct import Planned, columns, new_worker, read, refused
from etcd_server import EtcdServer, enable_auth
from frames import load
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.types import LongType
from store.engines import write_raw

import snapkv
from snapkv import ManualClock
from snapkv.engine.contract import Delete, Put
from snapkv.engine.etcd import cluster_client
from snapkv.spark import errors, read_tasks
from snapkv.spark.data_source import SnapKVDataSource
from snapkv.spark.errors import SourceError
from snapkv.spark.read_options import KNOWN
from snapkv.spark.source_options import canonical_names

pytestmark = pytest.mark.slow

EMBEDDED = pytest.mark.parametrize("place", ["lmdb"], indirect=True)
OF_STREAMS = {errors.CHECKPOINT_INVALID}
USER, PASSWORD, SECRET = "ann", "gehe1m", "r00t-gehe1m"
RETAINED_MS = 200_000


def fails(code: str, planned: Planned | None = None, *, reader=None) -> str:
    """Assert that reading what was planned fails for that reason; return the message."""
    with pytest.raises(SourceError) as caught:
        (reader or planned.reader()).rows()
    assert str(caught.value).startswith(f"[SNAPKV_{code}] "), caught.value
    return str(caught.value)


def test_an_option_in_two_spellings_is_given_twice():
    """Spark's Scala merges spellings itself; options that come from elsewhere are checked here."""
    for given in (
        {"keyPrefix": "a/", "keyprefix": "b/"},
        {"ca_cert": "a", "cacert": "b"},
        {"storage.region": "a", "storage.REGION": "b"},
    ):
        with pytest.raises(SourceError, match=r"INVALID_OPTION.* is given twice"):
            canonical_names(given, KNOWN)


# --- all codes ---


@EMBEDDED
def test_every_code_and_what_to_do(store, place, clock, monkeypatch):
    stamps = []
    for n in range(3):
        clock.advance(1_000)
        stamps.append(store.commit(puts={"k": b"%d" % n}))
    store.space("bytes").commit(puts={b"\xff": b""})
    clock.advance(RETAINED_MS)
    store.compact(stamps[1].ts)
    monkeypatch.setattr(cluster_client, "READ_TIMEOUT_S", 0.2)
    other = place.url + "-other"
    with snapkv.open(other) as damaged:
        write_raw(damaged.reader.engine, Put(b"default/sys/format", b"nonsense"))
    feed, field = {"readChangeFeed": True}, [("x", LongType())]
    nowhere = {"url": "etcd://127.0.0.1:1"}
    table = {  # options, what is wrong with them, and a word of what to do
        errors.TIMESTAMP_EARLIER_THAN_RETENTION: ({"timestampAsOf": stamps[0].ts}, "later moment"),
        errors.TIMESTAMP_INVALID: ({"timestampAsOf": "2026-01-01"}, "option timeZone"),
        errors.VERSION_NOT_FOUND: ({"versionAsOf": 99}, "versions are ["),
        errors.VERSION_COMPACTED: ({"versionAsOf": 1}, "earliest that remains"),
        errors.MULTIPLE_BOUNDARY: ({"versionAsOf": 9, "timestampAsOf": 9}, "not both"),
        errors.INVALID_RANGE: ({"startKey": "b", "endKey": "a"}, "before startKey"),
        errors.NO_START: (feed, "need startingVersion or"),
        errors.STORE_NOT_FOUND: ({"name": "no/such"}, "check the URL"),
        errors.UNKNOWN_OPTION: ({"versionsAsOf": 9}, "versionAsOf"),
        errors.MISSING_OPTION: ({"url": ""}, "name the store"),
        errors.INVALID_OPTION: ({"numPartitions": "many"}, "whole number above 0"),
        errors.INVALID_SCHEMA: ({"schema": field}, "its columns are: key STRING"),
        errors.KEY_NOT_TEXT: ({"space": "bytes", "keyFormat": "utf8"}, "keyFormat=binary"),
        errors.VALUE_MALFORMED: ({"schema": field, "valueFormat": "json"}, "mode=PERMISSIVE"),
        errors.NOT_OBSERVED: ({"observe": "/r/", "name": "new"}, "snapkv tick"),
        errors.UNAVAILABLE: (nowhere, "check that the server is up"),
        errors.ARCHIVE_UNREADABLE: ({"archive": other + "-none"}, "URL of the archive"),
        errors.FAILED: ({"url": other}, "invalid record"),
    }
    place.open(name="new", clock=clock)
    planned = Planned(place.url)
    for code, (options, word) in table.items():
        message = refused(code.removeprefix("SNAPKV_"), **{"url": place.url} | options)
        assert word in message, (code, message)
    store.close()
    write_raw(place.engine(), Delete(b"default/", b"default0"))
    place.open()
    assert "load the DataFrame anew" in fails("STORE_MISMATCH", planned)
    named = {value for name, value in vars(errors).items() if str(value).startswith("SNAPKV_")}
    # see the users below, test_archive_batch, test_fleet_batch, test_spark_connect, test_sink_once
    elsewhere = {errors.ACCESS_DENIED, errors.HISTORY_GAP, errors.NOT_PINNED, *OF_STREAMS}
    elsewhere |= {errors.CONFLICT, errors.DUPLICATE_KEY, errors.MEMBERS_BEHIND}
    assert named == {*table, errors.STORE_MISMATCH, *elsewhere}


@EMBEDDED
def test_errors_as_spark_shows_them(spark, store, place, clock):
    """Classes do not survive, whoever raises: the code at the beginning does."""
    store.save("k", b"1")
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_TIMESTAMP_INVALID\] time without an"):
        load(spark, place.url, timestampAsOf="2026-01-01")
    frame = load(spark, place.url, "x LONG", valueFormat="json")
    with pytest.raises(PythonException, match=r"SourceError: \[SNAPKV_VALUE_MALFORMED\] the value"):
        frame.collect()
    frame = load(spark, place.url, "x LONG")
    with pytest.raises(
        AnalysisException, match=r"SourceError: \[SNAPKV_INVALID_SCHEMA\] this view has no column x"
    ):
        frame.collect()
    pinned = load(spark, place.url)
    store.save("k", b"2")
    newer = load(spark, place.url)
    clock.advance(RETAINED_MS)
    store.compact(store.tick().ts)
    with pytest.raises(
        AnalysisException, match=r"\[SNAPKV_VERSION_COMPACTED\] the history at 20.*Z \(\d+\) was"
    ):
        pinned.collect()
    assert [bytes(row.value) for row in newer.collect()] == [b"2"], "it is that state still"


def test_naive_and_impossible_times(store, place):
    store.save("k", b"1")
    for text in (
        "2026-01-01",
        "20260101",
        "2026-01-01 12:00",
        "2026-01-01T12:00:00.123456",
        "yesterday",
        "",
        "-1y",
        "1969-12-31T23:59:59Z",
        "-2000000h",
        "2026-02-30T00:00:00Z",
        str(2**64),
        "-5",
        "2026-01-01T00:00:00 Europe/Berlin",
    ):
        for view, name in (
            ({}, "timestampAsOf"),
            ({"readChangeFeed": True}, "startingTimestamp"),
            ({"view": "history"}, "endingTimestamp"),
        ):
            refused("TIMESTAMP_INVALID", place.url, **view, **{name: text})
    for number in (2026, 1_767_225_600, 1_767_225_600_000, snapkv.pack(946_684_800_000) - 1):
        message = refused("TIMESTAMP_INVALID", place.url, timestampAsOf=number)
        assert f"{number} is not a timestamp: " in message, "a year, seconds, milliseconds"
    assert columns(place.url, "key", timestampAsOf=snapkv.pack(946_684_800_000)) == []
    berlin = {"timeZone": "Europe/Berlin"}
    gap = refused("TIMESTAMP_INVALID", place.url, timestampAsOf="2026-03-29 02:30", **berlin)
    assert "clocks skipped it" in gap
    for first, zone in (("0001-01-01", "+14:00"), ("9999-12-31 23:00", "-02:00")):
        refused("TIMESTAMP_INVALID", place.url, timestampAsOf=first, timeZone=zone)
    for zone in ("", "Mars/Olympus", "+25:00", "+01:75", "../UTC", "Europe"):
        message = refused("INVALID_OPTION", place.url, timestampAsOf="2026-01-01", timeZone=zone)
        assert "Europe/Berlin" in message


@pytest.mark.parametrize(
    "options", [{"readChangeFeed": "true"}, {"view": "history"}, {"view": "commits"}]
)
def test_a_range_does_not_start_in_the_future(store, place, options):
    """It would be empty without a word: most often the year, or the zone, is wrong."""
    store.save("a", b"1")
    far = "2999-01-01T00:00:00Z"
    message = refused("TIMESTAMP_INVALID", place.url, **options, startingTimestamp=far)
    assert "startingTimestamp 2999-01-01T00:00:00Z is in the future" in message
    assert len(read(place.url, **options, startingVersion=1, endingTimestamp=far)) > 0


def test_options_that_make_no_sense(store, place):
    store.save("k", b"1")
    for options in (
        {"view": "changes"},
        {"view": "snapshots"},
        {"view": "history", "readChangeFeed": True},
        {"readChangeFeed": "yes"},
        {"readChangeFeed": True, "startingVersion": 1, "preimages": "1"},
        {"preimages": True},
        {"startingVersion": 1},
        {"view": "history", "timestampAsOf": "-1h"},
        {"view": "commits", "keyPrefix": "a"},
        {"view": "commits", "space": "s"},
        {"keyPrefix": "a", "startKey": "a"},
        {"keyFormat": "hex"},
        {"keyFormat": "binary", "keyPrefix": "no hex"},
        {"keyFormat": "binary", "keyPrefix": "é"},
        {"space": ""},
        {"name": "a//b"},
        {"name": "a/sys"},
        {"mode": "DROPMALFORMED"},
        {"user": USER} if place.kind.url else {"ca_cert": "/no/such/file"},
        *(
            {"numPartitions": bad}
            for bad in ("0", "-1", "1.5", "٣", "", 2**63, "0" * 19 + "1" * 30)
        ),
        *({"versionAsOf": bad} for bad in ("0", "latest", "-1", 2**63)),
        {"readChangeFeed": True, "startingVersion": "latest"},
        {"mode": "x", "columns": "key"},
        {"view": "commits", "endingVersion": "x"},
        *(
            {"readChangeFeed": True, "startingVersion": 1, name: value}
            for name in ("failOnDataLoss", "maxRowsPerTrigger", "maxBytesPerTrigger")
            for value in ("true", "7", "banana", "-5")
        ),
    ):
        refused("INVALID_OPTION", place.url, **options)
    assert len(read(place.url, numPartitions=2**62)) == 1


def test_what_options_say_is_looked_at_when_they_are_given(store, place):
    """By load() already, and in a stream as in batch, whether or not a reader comes to ask."""
    for options in (
        {"numPartitions": "abc"},
        {"mode": "x"},
        {"valueFormat": "yaml", "schema": "n INT"},
        {"keyFormat": "hex", "columns": "value"},
        {"readChangeFeed": "true", "failOnDataLoss": "banana"},
        {"readChangeFeed": "true", "maxRowsPerTrigger": "-5"},
        {"readChangeFeed": "true", "endingVersion": "last"},
    ):
        with pytest.raises(SourceError, match=r"^\[SNAPKV_INVALID_OPTION\]") as caught:
            SnapKVDataSource({"path": place.url, **options}).schema()
        assert any(name in str(caught.value) for name in options)
    limited = {"readChangeFeed": True, "startingVersion": 1, "failOnDataLoss": True}
    assert "for a stream" in refused("INVALID_OPTION", place.url, **limited)


def test_advice_for_tables_is_given_to_tables():
    """Which hand over nothing when they are read; a URL that is mistyped is not theirs."""
    assert "CREATE" not in refused("MISSING_OPTION", "lmbd:./meta")
    for path, table in (("", {}), ("hdfs://n/t", {"provider": "snapkv"})):
        assert "CREATE TEMPORARY VIEW" in refused("MISSING_OPTION", path, **table)


def test_stores_in_memory_are_not_for_spark():
    for url in ("memory:", "memory:shared"):
        assert "to_arrow()" in refused("INVALID_OPTION", url)


def test_there_is_no_store(place, tmp_path):
    refused("STORE_NOT_FOUND", f"lmdb:{tmp_path}/none")
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "other").touch()
    refused("STORE_NOT_FOUND", f"lmdb:{tmp_path}/file")
    refused("STORE_NOT_FOUND", f"lmdb:{tmp_path}/full")
    place.engine()
    assert "no store named 'default'" in refused("STORE_NOT_FOUND", place.url)
    assert "snapkv tick" in refused("STORE_NOT_FOUND", place.url, observe="/r/")
    assert not Path(tmp_path, "none").exists(), "reading makes no store"


# --- compaction ---


def test_a_moment_that_is_gone(store, place, clock):
    stamps = []
    for n in range(5):
        clock.advance(1_000)
        stamps.append(store.commit(puts={"k": b"%d" % n}))
    clock.advance(RETAINED_MS)
    store.compact(stamps[2].ts)
    for gone in (0, stamps[0].ts, stamps[2].ts - 1, snapkv.format_time(stamps[1].ts)):
        message = refused("TIMESTAMP_EARLIER_THAN_RETENTION", place.url, timestampAsOf=gone)
        assert f"the earliest that remains is {snapkv.format_time(stamps[2].ts)}" in message
    message = refused("VERSION_COMPACTED", place.url, versionAsOf=stamps[1].revision)
    assert f"the earliest that remains is {stamps[2].revision}" in message
    for n in (2, 3, 4):
        when = {"timestampAsOf": snapkv.format_time(stamps[n].ts)}
        assert columns(place.url, "value", **when) == [(b"%d" % n,)]


FORTY = {f"k{n:02}": b"%d" % n for n in range(40)}


def begun(url: str) -> tuple[list[tuple], Iterator]:
    """A read of some pieces that stops after the first: its rows, and what is to come."""
    batches = Planned(url, numPartitions=1, columns="key,value").reader().batches(0)
    return [tuple(row.values()) for row in next(batches).to_pylist()], batches


def test_compaction_that_leaves_the_state(store, place, monkeypatch):
    """The engine goes on where the store stands still: a newer revision shows the same."""
    monkeypatch.setattr(read_tasks, "PIECE_ROWS", 5)
    store.commit(puts=FORTY)
    beside = place.open(name="beside")

    def forget() -> None:
        for _ in range(3):
            beside.tick()
        place.engine().compact(place.revision() - 1)

    made = Planned(place.url, columns="key,value", numPartitions=3)
    forget()
    reader = made.reader()
    assert reader.rows() == list(FORTY.items())
    forget()
    for again in (new_worker, lambda: None):
        again()
        assert reader.rows() == list(FORTY.items())
    rows, batches = begun(place.url)
    forget()
    rows += [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert rows == list(FORTY.items())


def test_compaction_that_does_not(store, place, monkeypatch):
    monkeypatch.setattr(read_tasks, "PIECE_ROWS", 5)
    store.commit(puts=FORTY)
    made = Planned(place.url)
    timed = Planned(place.url, timestampAsOf="+1h")
    reader = made.reader()
    rows, batches = begun(place.url)
    assert 0 < len(rows) < 40
    store.save("k00", b"new")
    store.tick()
    place.engine().compact(place.revision())
    with pytest.raises(SourceError, match=r"^\[SNAPKV_VERSION_COMPACTED\] .* read a later moment"):
        list(batches)
    fails("VERSION_COMPACTED", made)
    fails("TIMESTAMP_EARLIER_THAN_RETENTION", timed)
    for again in (new_worker, lambda: None):
        again()
        assert "read a later moment" in fails("VERSION_COMPACTED", reader=reader)
    assert columns(place.url, "value", keyPrefix="k00") == [(b"new",)]


def test_compaction_in_the_middle_of_changes(store, place):
    for n in range(10):
        store.save("k", b"%d" % n)
    options = [
        {"readChangeFeed": True, "startingVersion": 1},
        {"view": "history"},
        {"view": "commits"},
    ]
    made = [Planned(place.url, **each) for each in options]
    readers = [each.reader() for each in made]
    store.save("k", b"new")
    place.engine().compact(place.revision())
    for planned in made:
        fails("VERSION_COMPACTED", planned)
    for reader in readers:
        assert "read a later moment" in fails("VERSION_COMPACTED", reader=reader)


# --- another store in its place ---


def views(url: str) -> list[Planned]:
    options = [
        {},
        {"readChangeFeed": True, "startingVersion": 1},
        {"view": "history"},
        {"view": "commits"},
    ]
    return [Planned(url, **each) for each in options]


def assert_another(made: list[Planned], readers: list, *codes: str) -> None:
    """All that was planned with another store says so, in old workers and in new ones."""
    for begin in (lambda: None, new_worker, lambda: None):
        begin()
        for read_all in (*(each.reader for each in made), *(reader.rows for reader in readers)):
            with pytest.raises(SourceError) as caught:
                read_all()
            assert caught.value.code.removeprefix("SNAPKV_") in (codes or ("STORE_MISMATCH",))
            assert codes or "load the DataFrame anew" in str(caught.value)


def test_a_store_that_was_removed_and_recreated(store, place):
    store.save("k", b"old")
    made = views(place.url)
    readers = [each.reader() for each in made]
    assert all(reader.rows() for reader in readers)
    store.close()
    write_raw(place.engine(), Delete(b"default/", b"default0"))
    for reader in readers:
        fails("STORE_NOT_FOUND", reader=reader)
    place.open().save("k", b"new")
    assert_another(made, readers)
    assert columns(place.url, "value") == [(b"new",)]


@EMBEDDED
@pytest.mark.parametrize("after", ["nothing", "as much", "more", "compacted"])
def test_a_folder_that_was_put_back(store, place, clock, tmp_path, after):
    folder, backup = Path(place.url.removeprefix("lmdb:")), tmp_path / "backup"
    store.save("k", b"0")
    store.close()
    shutil.copytree(folder, backup)
    with snapkv.open(place.url, clock=clock) as store:
        for n in range(3):
            store.save("k", b"%d" % n)
    made = views(place.url)
    readers = [each.reader() for each in made]
    before = [reader.rows() for reader in readers]
    shutil.move(folder, tmp_path / "old")
    shutil.copytree(backup, folder)
    with snapkv.open(place.url, clock=ManualClock(clock.now_ms() + 1)) as store:
        for n in range({"nothing": 0, "as much": 3}.get(after, 7)):
            store.save("k", b"other%d" % n)
        if after == "compacted":
            store.reader.engine.compact(store.at().revision - 1)
    compacted = ("STORE_MISMATCH", "VERSION_COMPACTED", "TIMESTAMP_EARLIER_THAN_RETENTION")
    assert_another(made, readers, *(compacted if after == "compacted" else ()))
    new_worker()
    shutil.rmtree(folder)
    for reader in readers:
        fails("STORE_NOT_FOUND", reader=reader)
    shutil.move(tmp_path / "old", folder)
    assert [reader.rows() for reader in readers] == before, "it is the same store again"


def test_a_server_that_was_put_back(etcd, tmp_path):
    """Also where a worker had the old one open."""
    with snapkv.open(etcd.url) as store:
        store.save("k", b"0")
    etcd.stop()
    etcd.copy_data(tmp_path / "backup")
    etcd.start()
    with snapkv.open(etcd.url) as store:
        for n in range(3):
            store.save("k", b"%d" % n)
    made = views(etcd.url)
    readers = [each.reader() for each in made]
    assert all(reader.rows() for reader in readers)
    etcd.put_back_data(tmp_path / "backup")
    with snapkv.open(etcd.url) as store:
        for n in range(5):
            store.save("k", b"other%d" % n)
    assert_another(made, readers)
    assert columns(etcd.url, "value") == [(b"other4",)]
    new_worker()


# --- secrets ---


@pytest.fixture
def guarded(etcd: EtcdServer):
    """A server with users."""
    with snapkv.open(etcd.url) as store:
        store.save("k", b"1")
    users = {"root": (SECRET, None), USER: (PASSWORD, [("default/", "read")]), "bob": ("b", [])}
    enable_auth(etcd, users)
    yield etcd
    new_worker()


def test_users_and_passwords(spark, guarded, capfd):
    user = {"user": USER, "password": PASSWORD}
    planned = Planned(guarded.url, **user)
    reader = planned.reader()
    assert [row[:2] for row in reader.rows()] == [("k", b"1")]
    options = planned.source._read().options
    shown = [planned.source, reader._reader, *reader.tasks, options, options.location]
    wrong = [{"user": USER, "password": PASSWORD + "!"}, {"user": "bob", "password": "b"}, {}]
    told = [refused("ACCESS_DENIED", guarded.url, **each) for each in wrong]
    told += [
        refused("INVALID_OPTION", f"etcd://{USER}:{PASSWORD}@{guarded.endpoint}"),
        refused("MISSING_OPTION", f"http://{USER}:{PASSWORD}@{guarded.endpoint}"),
        refused("INVALID_OPTION", "", store=f"http://{USER}:{PASSWORD}@{guarded.endpoint}"),
        refused("UNKNOWN_OPTION", guarded.url, passwort=PASSWORD, **user),
        refused("VERSION_NOT_FOUND", guarded.url, versionAsOf=99, **user),
        refused("STORE_NOT_FOUND", guarded.url, name="default/other", **user),
        refused("INVALID_OPTION", "lmdb:x", **user),
    ]
    frame = load(spark, guarded.url, **user)
    assert frame.count() == 1
    capfd.readouterr()
    for mode in ("extended", "formatted", "codegen", "cost"):
        frame.explain(mode=mode)
    told += [capfd.readouterr().out, repr(frame), *map(repr, shown), *map(str, shown)]
    with pytest.raises(AnalysisException) as caught:
        load(spark, guarded.url, versionAsOf="99", **user)
    told.append(str(caught.value))
    assert not [text for text in told if PASSWORD in text]
    assert "RelationV2" in "".join(told)
