"""SQL: the table functions show what the format shows; tables and views that stay."""

from datetime import timedelta

import pytest
from direct import handed_over, read
from frames import load
from pyspark.errors import AnalysisException
from pyspark.sql import types as T
from pyspark.sql.udtf import AnalyzeArgument
from test_spark_connect import on_connect as on_connect

from snapkv import to_datetime
from snapkv.spark import register
from snapkv.spark.errors import SourceError
from snapkv.spark.functions import AsOfFunction, ChangesFunction, CommitsFunction, HistoryFunction

pytestmark = pytest.mark.slow

KINDS = {str: T.StringType(), int: T.LongType(), bytes: T.BinaryType(), bool: T.BooleanType()}


def argument(value: object) -> AnalyzeArgument:
    kind = KINDS.get(type(value), T.NullType())
    return AnalyzeArgument(kind, value, isTable=False, isConstantExpression=True)


def called(function, url: str, *values, **options) -> list[tuple]:
    """The rows of a call, as Spark makes it: each step gets a copy of what the last one made."""
    named = {name: argument(value) for name, value in options.items()}
    planned = handed_over(function.analyze(argument(url), *map(argument, values), **named))
    return list(function(planned).eval(url, *values, **options))


def refused(code: str, function, *values, **options) -> str:
    with pytest.raises(SourceError) as caught:
        called(function, *values, **options)
    assert f"[SNAPKV_{code}]" in str(caught.value)
    return str(caught.value)


@pytest.fixture
def commits(store, clock):
    found = []
    for puts, deletes in (
        ({"a": b"1", "b/1": b"1"}, []),
        ({"a": b"2", "b/2": b"2"}, []),
        ({"ab": b"3"}, ["a"]),
        ({"a": b"4"}, ["b/1"]),
    ):
        found.append(store.commit(puts=puts, deletes=deletes, note=f"of {sorted(puts)}"))
        clock.advance(1_000)
    return found


# --- what a call shows ---


def test_moments(commits, place):
    url = place.url
    for commit in commits:
        rows = read(url, versionAsOf=commit.revision)
        iso = to_datetime(commit.ts).isoformat(timespec="milliseconds")
        for when in (commit.ts, str(commit.ts), f"rev:{commit.revision}", iso):
            assert called(AsOfFunction, url, when) == rows
    assert called(AsOfFunction, url) == called(AsOfFunction, url, None) == read(url)
    options = {"prefix": "b/", "valueFormat": "utf8", "columns": "key,value"}
    assert called(AsOfFunction, url, commits[1].ts, **options) == [("b/1", "1"), ("b/2", "2")]
    assert called(AsOfFunction, url, 0) == []


def test_naive_text_and_timestamps(commits, place):
    moment = to_datetime(commits[1].ts)
    naive = (moment + timedelta(hours=2)).strftime("%Y-%m-%d %H:%M:%S")
    assert "without an offset" in refused("TIMESTAMP_INVALID", AsOfFunction, place.url, naive)
    options = {"timeZone": "+02:00", "columns": "key"}
    assert called(AsOfFunction, place.url, naive, **options) == [("a",), ("b/1",), ("b/2",)]
    in_this_process = moment.astimezone().replace(tzinfo=None)
    timestamp = AnalyzeArgument(T.TimestampType(), in_this_process, False, True)
    planned = AsOfFunction.analyze(argument(place.url), timestamp)
    assert list(AsOfFunction(planned).eval()) == read(place.url, versionAsOf=commits[1].revision)


def test_times_without_a_zone(commits, place):
    """A TIMESTAMP_NTZ is no moment: it is as naive text."""
    naive = to_datetime(commits[1].ts).replace(tzinfo=None)
    timestamp = AnalyzeArgument(T.TimestampNTZType(), naive, False, True)
    with pytest.raises(SourceError, match="without an offset"):
        AsOfFunction.analyze(argument(place.url), timestamp)
    planned = AsOfFunction.analyze(argument(place.url), timestamp, timeZone=argument("UTC"))
    assert list(AsOfFunction(planned).eval()) == read(place.url, versionAsOf=commits[1].revision)


def test_changes_begin_after_their_start(commits, place):
    since, until = commits[0], commits[2]
    rows = read(
        place.url, readChangeFeed="true", preimages="true",
        startingVersion=since.revision + 1, endingVersion=until.revision,
    )  # fmt: skip
    assert len(rows) == 5
    assert called(ChangesFunction, place.url, since.ts, until.ts, preimages=True) == rows
    revisions = f"rev:{since.revision}", f"rev:{until.revision}"
    assert called(ChangesFunction, place.url, *revisions, preimages=True) == rows
    of_b = called(ChangesFunction, place.url, 0, prefix="b/", columns="key,_change_type")
    assert of_b == [("b/1", "insert"), ("b/2", "insert"), ("b/1", "delete")]


def test_histories_of_one_key(commits, place):
    columns = {"columns": "key,value,_version_from"}
    first, second, _, last = (commit.revision for commit in commits)
    assert called(HistoryFunction, place.url, "a", **columns) == [
        ("a", b"1", first), ("a", b"2", second), ("a", b"4", last),
    ]  # fmt: skip
    found = called(HistoryFunction, place.url, "a", commits[1].ts, commits[2].ts, **columns)
    assert found == [("a", b"2", second)]
    every = sorted(called(HistoryFunction, place.url, columns="key"))
    assert every == [("a",), ("a",), ("a",), ("ab",), ("b/1",), ("b/2",)]


def test_keys_of_a_space(store, place):
    store.space("s").commit(puts={b"\x00k": b"1", b"\x00kk": b"2"})
    columns = {"space": "s", "columns": "key,value"}
    assert called(HistoryFunction, place.url, b"\x00k", **columns) == [(b"\x00k", b"1")]
    assert called(AsOfFunction, place.url, None, b"\x00kk", **columns) == [(b"\x00kk", b"2")]
    assert "keys are bytes here, so key must be" in refused(
        "INVALID_OPTION", HistoryFunction, place.url, "k", **columns
    )
    text = called(HistoryFunction, place.url, "\x00k", keyFormat="utf8", **columns)
    assert text == [("\x00k", b"1")]


def test_the_log(commits, place):
    rows = called(CommitsFunction, place.url)
    assert sorted(row[0] for row in rows) == [commit.revision for commit in commits]
    assert {row[2] for row in rows} == {"ann@test"}
    assert rows[0][5] == {"numPuts": "1", "numDeletes": "1"}
    assert called(CommitsFunction, place.url, commits[1].ts, commits[2].ts, columns="version") == [
        (commits[2].revision,), (commits[1].revision,),
    ]  # fmt: skip


def test_what_is_wrong(commits, place):
    assert "known are" in refused("UNKNOWN_OPTION", AsOfFunction, place.url, nonsense=1)
    assert "this reads snapshot" in refused(
        "INVALID_OPTION", AsOfFunction, place.url, preimages=True
    )
    assert "JSON" in refused("INVALID_OPTION", AsOfFunction, place.url, schema="key STRING")
    assert "lmdb:./meta" in refused("INVALID_OPTION", AsOfFunction, "./meta")
    for options in ({"versionAsOf": 3}, {"KEYPREFIX": "a"}):
        message = refused("INVALID_OPTION", AsOfFunction, place.url, "rev:3", "b", **options)
        assert "an argument gives it" in message
    assert "url gives it" in refused("INVALID_OPTION", AsOfFunction, place.url, STORE=place.url)
    column = AnalyzeArgument(T.StringType(), None, isTable=False, isConstantExpression=False)
    with pytest.raises(SourceError, match="as_of must be a constant"):
        AsOfFunction.analyze(argument(place.url), column)


def test_on_connect_a_call_names_its_end(commits, place, on_connect):
    assert called(AsOfFunction, place.url, commits[0].ts) == read(
        place.url, timestampAsOf=commits[0].ts
    )
    for function, values in (
        (AsOfFunction, ()),
        (AsOfFunction, ("-1s",)),
        (ChangesFunction, (0,)),
        (HistoryFunction, ("a",)),
    ):
        refused("NOT_PINNED", function, place.url, *values)


# --- in Spark ---


def test_functions_in_statements(spark, commits, place, store):
    register(spark)
    url, then = place.url, commits[1]
    frame = spark.sql(
        f"SELECT now.key, then.value AS before, now.value AS after "
        f"FROM snapkv_as_of('{url}', {then.ts}, valueFormat => 'utf8') AS then "
        f"RIGHT JOIN snapkv_as_of(url => '{url}', valueFormat => 'utf8') AS now USING (key) "
        "ORDER BY key"
    )
    expected = [("a", "2", "4"), ("ab", None, "3"), ("b/2", "2", "2")]
    assert [tuple(row) for row in frame.collect()] == expected
    store.save("a", b"5")
    assert [tuple(row) for row in frame.collect()] == expected  # pinned when it was made
    rows = spark.sql(f"SELECT * FROM snapkv_as_of('{url}', TIMESTAMP '2020-01-01 00:00')").collect()
    assert rows == []
    feed = spark.sql(f"SELECT * FROM snapkv_changes('{url}', 0)")
    log = spark.sql(f"SELECT * FROM snapkv_commits('{url}') ORDER BY version DESC")
    history = spark.sql(f"SELECT * FROM snapkv_history('{url}', 'a')")
    for found, options in (
        (feed, {"readChangeFeed": "true", "startingVersion": 0}),
        (log, {"view": "commits"}),
        (history, {"view": "history", "startKey": "a", "endKey": "a\0"}),
    ):
        made = load(spark, url, **options)
        assert found.schema == made.schema
        assert found.collect() == made.collect()


def test_errors_of_statements(spark, place, store):
    register(spark)
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_STORE_NOT_FOUND\]"):
        spark.sql(f"SELECT * FROM snapkv_as_of('{place.url}', name => 'other')")
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_INVALID_OPTION\] as_of must be"):
        spark.sql(f"SELECT * FROM range(2) r, LATERAL snapkv_as_of('{place.url}', r.id)")


def test_a_table_and_a_view_that_stay(spark, commits, place):
    options = f"store '{place.url}', valueFormat 'utf8'"
    spark.sql(f"CREATE TABLE metadata USING snapkv OPTIONS ({options})")
    try:
        spark.sql(
            f"CREATE VIEW current AS SELECT key, value FROM metadata WITH ({options}) "
            "WHERE key LIKE 'b/%'"
        )
        other = spark.newSession()
        assert [tuple(row) for row in other.sql("SELECT * FROM current").collect()] == [
            ("b/2", "2")
        ]
        feed = f"store '{place.url}', readChangeFeed 'true', startingVersion '0'"
        spark.sql(f"CREATE TABLE feed USING snapkv OPTIONS ({feed})")
        assert other.sql(f"SELECT key FROM feed WITH ({feed}) WHERE key = 'a'").count() == 4
    finally:
        spark.sql("DROP VIEW IF EXISTS current")
        for table in ("metadata", "feed"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")
