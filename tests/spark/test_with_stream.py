"""A column of CDC streams: what each row's key and time come to, as one lookup after the other."""

import random
from datetime import UTC, datetime

import pytest

import snapkv
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations import GenerationLog, Sharding, Topology, murmur3_token
from cdcmeta.spark import with_stream
from snapkv import pack

pytestmark = pytest.mark.slow

TIMES = [pack(1_000_000), pack(2_000_000), pack(3_000_000)]
RNG = random.Random(5)
GENERATIONS = [
    (time, Topology.make({RNG.getrandbits(62): Sharding(1 + n) for n in range(4)}))
    for time in TIMES
]


def expected(key, ts):
    own = [topology for time, topology in GENERATIONS if ts is not None and time <= ts]
    return own[-1].stream_for(murmur3_token(key)).raw if own and key is not None else None


def rows_of(df):
    return [(row[0], None if row[-1] is None else bytes(row[-1])) for row in df.collect()]


def test_each_row_gets_the_stream_of_its_key_and_time(spark):
    keys = [RNG.randbytes(RNG.randrange(40)) for _ in range(900)]
    edges = [time + by for time in TIMES for by in (-1, 0, 1)]
    stamps = [RNG.choice([*edges, 0, pack(10**9)]) for _ in keys]
    rows = [(n, *pair) for n, pair in enumerate(zip(keys, stamps, strict=True))]
    rows += [(900, None, TIMES[0]), (901, b"k", None), (902, b"k", -1)]
    df = spark.createDataFrame(rows, "n INT, key BINARY, ts BIGINT").repartition(3)
    found = dict(rows_of(with_stream(df, "key", "ts", GENERATIONS)))
    assert found == {n: expected(key, None if ts is None else max(ts, 0)) for n, key, ts in rows}
    assert {None, 16} == {None if each is None else len(each) for each in found.values()}


def test_texts_and_dates(spark):
    times = [datetime.fromtimestamp(ms / 1_000, UTC) for ms in (999_999, 1_000_000, 2_500_000)]
    rows = [(n, "schlüssel", time) for n, time in enumerate(times)]
    df = spark.createDataFrame(rows, "n INT, key STRING, at TIMESTAMP")
    found = with_stream(df, "key", "at", reversed(GENERATIONS), column="to")
    assert found.columns == ["n", "key", "at", "to"]
    stamps = [pack(999_999), pack(1_000_000), pack(2_500_000)]
    assert rows_of(found) == [
        (n, expected("schlüssel".encode(), ts)) for n, ts in enumerate(stamps)
    ]


def test_dates_that_no_timestamp_reaches(spark):
    """Dates for "for ever" belong to the newest generation, those before 1970 to none."""
    dates = [datetime(1900, 1, 1), datetime(4199, 11, 24, 1, 22, 57, 664_000), datetime(9999, 1, 1)]
    rows = [(n, b"k", date.replace(tzinfo=UTC)) for n, date in enumerate(dates)]
    df = spark.createDataFrame(rows, "n INT, key BINARY, at TIMESTAMP")
    newest = expected(b"k", TIMES[-1])
    assert rows_of(with_stream(df, "key", "at", GENERATIONS)) == [
        (0, None),
        (1, newest),
        (2, newest),
    ]


def test_nothing_at_all(spark):
    df = spark.createDataFrame([], "n INT, key BINARY, ts BIGINT").repartition(2)
    assert rows_of(with_stream(df, "key", "ts", GENERATIONS)) == []
    nulls = spark.createDataFrame([(1, None, None), (2, b"", TIMES[0])], df.schema)
    assert rows_of(with_stream(nulls, "key", "ts", [])) == [(1, None), (2, None)]
    assert rows_of(with_stream(nulls, "key", "ts", GENERATIONS)) == [
        (1, None),
        (2, expected(b"", TIMES[0])),
    ]


def test_all_generations_of_a_log(spark):
    with snapkv.open("memory:") as store:
        log = GenerationLog(store, propagation_delay=0.0, leeway=0.0)
        made = [log.make({0: Sharding(2)}), log.make({0: Sharding(3)})]
        stamps = [made[0].time - 1, made[0].time, made[1].time]
        df = spark.createDataFrame(
            [(n, b"k", ts) for n, ts in enumerate(stamps)], "n INT, key BINARY, ts BIGINT"
        )
        streams = [log.topology(each).stream_for(murmur3_token(b"k")).raw for each in made]
        assert rows_of(with_stream(df, "key", "ts", log)) == list(enumerate([None, *streams]))


@pytest.mark.parametrize(
    ("key", "ts", "column", "why"),
    [
        ("nope", "ts", "stream", "'nope' must be binary or string"),
        ("ts", "ts", "stream", "'ts' must be binary or string"),
        ("key", "key", "stream", "'key' must be "),
        ("key", "ts", "n", "'n' exists already"),
    ],
)
def test_columns_that_do_not_fit(spark, key, ts, column, why):
    df = spark.createDataFrame([(1, b"k", 5)], "n INT, key BINARY, ts BIGINT")
    with pytest.raises(InvalidArgumentError, match=why):
        with_stream(df, key, ts, GENERATIONS, column=column)


def test_columns_that_are_there_twice_and_dates_without_a_zone(spark):
    df = spark.createDataFrame(
        [(b"k", 5, datetime(2026, 1, 1))], "key BINARY, ts BIGINT, at TIMESTAMP_NTZ"
    )
    with pytest.raises(InvalidArgumentError, match="several columns 'key'"):
        with_stream(df.select("key", "key", "ts"), "key", "ts", GENERATIONS)
    with pytest.raises(InvalidArgumentError, match="'at' must be"):
        with_stream(df, "key", "at", GENERATIONS)


@pytest.mark.parametrize(
    "generations",
    [[5], [(TIMES[0],)], [(-1, GENERATIONS[0][1])], [(1.5, GENERATIONS[0][1])], [(5, "x")], None],
)
def test_what_are_no_generations(spark, generations):
    df = spark.createDataFrame([(b"k", 5)], "key BINARY, ts BIGINT")
    with pytest.raises(InvalidArgumentError, match="pairs of a time and a topology"):
        with_stream(df, "key", "ts", generations)
