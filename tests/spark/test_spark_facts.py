"""What PySpark's data sources do and do not: each of these was a bug of the obvious code."""

import subprocess
import sys

import pyarrow as pa
import pytest
from direct import Planned, read, refused
from frames import load, together
from pyspark.errors import AnalysisException
from pyspark.sql.types import StringType, StructType

from snapkv import format_time
from snapkv.spark import SnapKVDataSource, read_changes, read_snapshot, register
from snapkv.spark.read_tasks import BatchReader

# These are about Spark: one engine will do.
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", ["lmdb"], indirect=True)]

HUNDRED = {f"k{n:02}": b"%d" % n for n in range(100)}


def sql(spark, text: str) -> list[tuple]:
    return [tuple(row) for row in spark.sql(text).collect()]


def code_in(error) -> str:
    """The code in an error as Spark shows it."""
    return str(error.value).partition("[SNAPKV_")[2].partition("]")[0]


# --- 1, 2: filters ---


@pytest.mark.long_after(1)
@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_a_filter_does_not_leak_into_other_scans(spark, store, place, pushdown):
    store.commit(puts=HUNDRED)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = load(spark, place.url)
        one, other = frame.where("key = 'k07'"), frame.where("key = 'k08'")
        assert one.count() == 1
        assert frame.count() == 100
        assert sorted(row.key for row in one.union(other).collect()) == ["k07", "k08"]
        assert frame.where(frame.key.startswith("k0")).count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert "pushFilters" not in vars(BatchReader), "PySpark 4.1 to 4.3 spoil other scans with it"


# --- 3: what is not read ---


def test_columns_not_wanted_have_to_be_left_out_by_option(spark, store, place):
    store.commit(puts=HUNDRED)
    frame = load(spark, place.url, columns="key")
    assert frame.columns == ["key"]
    assert frame.where("key < 'k03'").limit(2).count() == 2


# --- 4, 5: SQL ---


def test_time_travel_in_sql_never_reaches_a_python_source(spark, store, place):
    store.commit(puts=HUNDRED)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING snapkv OPTIONS (store '{place.url}')")
    for clause in ("VERSION AS OF 3", "TIMESTAMP AS OF '2026-01-01'"):
        with pytest.raises(AnalysisException, match=r"(?i)time.travel"):
            spark.sql(f"SELECT * FROM v {clause}").collect()


def test_a_table_loses_its_options_and_is_told_so(spark, store, place):
    store.commit(puts=HUNDRED)
    options = f"OPTIONS (store '{place.url}', timestampAsOf '-1m')"
    made = f"CREATE TABLE lost USING snapkv {options} COMMENT 'c' TBLPROPERTIES ('a' = 'b')"
    try:
        spark.sql(made)
        with pytest.raises(AnalysisException) as caught:
            sql(spark, "SELECT * FROM lost")
        assert code_in(caught) == "MISSING_OPTION"
        assert "CREATE TEMPORARY VIEW v USING snapkv OPTIONS" in str(caught.value)
    finally:
        spark.sql("DROP TABLE IF EXISTS lost")


def test_what_spark_adds_to_a_tables_options_is_passed_over(store, place):
    store.commit(puts=HUNDRED)
    added = {"provider": "snapkv", "owner": "ann", "location": "file:/x", "comment": "c"}
    added |= {"a table's property": "b", "option.store": place.url}
    assert len(read(place.url, **added)) == 100
    assert len(read("file:/warehouse/lost", store=place.url, **added)) == 100
    refused("UNKNOWN_OPTION", place.url, **added, typo="1", **{"option.typo": "1"})
    for path in ("file:/warehouse/lost", "hdfs://n:8020/warehouse/lost", "lost", "./meta"):
        message = refused("MISSING_OPTION", path, **added)
        assert "TEMPORARY VIEW" in message
        assert repr(path) in message


def test_a_dataframe_is_of_one_store(spark, store, place):
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("snapkv").load([place.url, place.url])
    assert code_in(caught) == "INVALID_OPTION"
    assert "one path" in str(caught.value)
    store.commit(puts=HUNDRED)
    assert spark.read.format("snapkv").load([place.url]).count() == 100
    refused("INVALID_OPTION", place.url, store=place.url)


def test_a_temporary_view_keeps_its_options_and_its_pin(spark, store, place, clock):
    then = store.commit(puts=HUNDRED).ts
    clock.advance(1_000)
    store.remove("k00")
    view = "CREATE OR REPLACE TEMPORARY VIEW {} USING snapkv OPTIONS ({})"
    spark.sql(view.format("v", f"store '{place.url}'"))
    spark.sql(view.format("w", f"path '{place.url}', timestampAsOf '{format_time(then)}'"))
    spark.sql(view.format("x", f"path '{place.url}', versionAsOf {store.at().revision - 1}"))
    store.commit(delete_prefixes=["k1"])
    count = "SELECT count(*) FROM"
    assert sql(spark, f"{count} v UNION ALL {count} w UNION ALL {count} x") == [
        (99,),
        (100,),
        (100,),
    ]
    assert sql(spark, f"{count} v WHERE key LIKE 'k1%'") == [(10,)]


# --- 6: the pin ---


def test_a_write_between_two_actions_is_not_seen(spark, store, place):
    store.commit(puts=HUNDRED)
    frame = load(spark, place.url)
    given = load(spark, place.url, "key STRING, value BINARY")
    changes = load(spark, place.url, readChangeFeed="true", startingVersion="1")
    assert frame.count() == given.count() == 100
    store.commit(puts={"new": b"1"}, delete_prefixes=["k0"])
    views = [each.select("key", "value") for each in (frame, frame, given, changes)]
    assert list(map(len, together(views))) == [100] * 4
    assert together([views[0], load(spark, place.url, columns="key,value")])[1][-1] == ("new", b"1")


def test_a_schema_as_an_option_is_pinned_by_load(spark, store, place):
    """With .schema() Spark does not even make the source before the first action."""
    store.commit(puts=HUNDRED)
    schema = StructType().add("key", "string", False, {"comment": "c"}).add("value", "binary")
    frames = [
        load(spark, place.url, SCHEMA=schema.json()),
        load(spark, place.url, SCHEMA="key STRING, value BINARY"),
        read_snapshot(spark, place.url, schema=schema),
        read_changes(spark, place.url, 0, schema="key STRING, value BINARY"),
    ]
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW v USING snapkv "
        f"OPTIONS (path '{place.url}', schema 'key STRING, value BINARY')"
    )
    store.commit(delete_prefixes=["k0"])
    assert [len(rows) for rows in together([*frames, spark.table("v")])] == [100] * 5
    for wrong in ("{}", '{"fields": 1}', "{key STRING}"):
        refused("INVALID_SCHEMA", place.url, SCHEMA=wrong)


def test_the_pin_is_made_with_the_source(store, place):
    """Before any action, and whether or not Spark asks for the schema."""
    store.commit(puts=HUNDRED)
    frames = [
        Planned(place.url),
        Planned(place.url, [("key", StringType())]),
        Planned(place.url, timestampAsOf="+1h"),
        Planned(place.url, readChangeFeed=True, startingVersion=1),
        Planned(place.url, view="history"),
        Planned(place.url, view="history", endingTimestamp="+1h"),
    ]
    log = Planned(place.url, view="commits")
    store.commit(puts={"new": b"1"}, delete_prefixes=["k0"])
    for _ in range(2):  # PySpark 4.0 plans for each action
        assert [len(frame.reader().rows()) for frame in frames] == [100] * len(frames)
        assert len(log.reader().rows()) == 1
        store.tick()


# --- 1.3: schemas ---


def test_batches_are_exactly_of_the_schema(spark, store, place):
    store.commit(puts={"a": b"1"}, note="n")
    utc, text, number = pa.timestamp("us", tz="UTC"), pa.string(), pa.int64()
    both = [("key", text), ("value", pa.binary())]
    expected = {
        (): [*both, *((f"{n}_version", number) for n in ("create", "mod", "key"))],
        ("readChangeFeed",): [
            *both,
            ("_change_type", text),
            ("_commit_version", number),
            ("_change_ordinal", pa.int32()),
            ("_commit_timestamp", utc),
        ],
        ("history",): [
            *both,
            ("_version_from", number),
            ("_version_to", number),
            ("_timestamp_from", utc),
            ("_timestamp_to", utc),
        ],
        ("commits",): [
            ("version", number),
            ("timestamp", utc),
            ("userName", text),
            ("operation", text),
            ("userMetadata", text),
            ("operationMetrics", pa.map_(text, text)),
            ("meta", text),
        ],
    }
    for view, fields in expected.items():
        options = {"view": view[0]} if view else {}
        if view == ("readChangeFeed",):
            options = {"readChangeFeed": True, "startingVersion": 1}
        assert len(read(place.url, **options)) == 1  # which checks each batch
        table = load(spark, place.url, **options).toArrow()
        assert table.schema == pa.schema(fields), view


# --- options ---


def test_options_in_any_case(spark, store, place):
    store.commit(puts=HUNDRED)
    reader = spark.read.format("snapkv").option("KEYPREFIX", "k0").option("Columns", "key")
    assert reader.load(place.url).count() == 10
    assert len(read(place.url, KeyPrefix="k1", NUMPARTITIONS=3, MODE="permissive")) == 10
    assert len(read("", STORE=place.url)) == 100


def test_an_unknown_option_lists_the_known(spark, store, place):
    with pytest.raises(AnalysisException) as caught:
        load(spark, place.url, timestampAsof="-1h", versionsAsOf="3")
    assert code_in(caught) == "UNKNOWN_OPTION"
    for known in ("timestampAsOf", "startingVersion", "keyPrefix", "password", "ca_cert"):
        assert known in str(caught.value)


# --- registering ---


def test_the_format_is_found_by_itself_and_by_registering(spark, store, place):
    import pyspark_snapkv

    assert pyspark_snapkv.DefaultSource is SnapKVDataSource
    store.commit(puts=HUNDRED)
    found = load(spark.newSession(), place.url)  # in which nothing was registered
    register(spark)
    register(spark)
    assert found.count() == load(spark, place.url).count() == 100


def test_the_module_that_spark_looks_into_is_light(place):
    """All such modules are imported, in a planner of its own, whether or not they are used."""
    heavy = "{'grpc', 'lmdb', 'typer', 'pandas'}"
    code = f"import sys, pyspark_snapkv; print(sorted({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert told.stdout.strip() == b"[]"
