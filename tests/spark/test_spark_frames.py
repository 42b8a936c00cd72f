"""DataFrames by a call: times in the session's zone, ends as in the store, differences."""

import random
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from direct import new_worker
from frames import together
from pyspark.errors import AnalysisException
from reading.tabled import SPACE, Writing, changes_of, histories_of, moments
from store.engines import START_MS

from snapkv import ManualClock, pack, to_datetime
from snapkv.spark import SourceError, diff, read_changes, read_history, read_snapshot
from snapkv.spark.sessions import Times
from snapkv.spark.timing import zone_of

pytestmark = pytest.mark.slow

EMBEDDED = pytest.mark.parametrize("place", ["lmdb"], indirect=True)
HOUR_MS = 3_600_000


@contextmanager
def session_in(spark, zone: str):
    """The session in a time zone, as a user sets it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def hourly(place):
    """A store with a commit each half hour around a change of Berlin's clocks back to winter."""
    begin = datetime(2026, 10, 24, 22, tzinfo=UTC)  # midnight there
    clock = ManualClock(int(begin.timestamp() * 1_000))
    store = place.open(clock=clock)
    stamps = {}
    for _ in range(10):
        at = to_datetime(
            store.save("k", f"{datetime.fromtimestamp(clock.now_ms() / 1e3, UTC):%H:%M}".encode())
        )
        stamps[at] = store.resolved()
        clock.advance(HOUR_MS // 2)
    return store


def values(frames) -> list[str]:
    return [
        rows[0][0].decode() if rows else None
        for rows in together([f.select("value") for f in frames])
    ]


@EMBEDDED
def test_naive_times_are_in_the_zone_of_the_session(spark, hourly, place):
    asked = {
        ("UTC", "2026-10-24 23:00"): "23:00",
        ("Europe/Berlin", "2026-10-25 01:59:59.999"): "23:30",
        ("Europe/Berlin", "2026-10-25T02:00"): "00:00",
        ("Europe/Berlin", "2026-10-25 02:30"): "00:30",  # the earlier of two
        ("Europe/Berlin", "2026-10-25 03:00"): "02:00",
        ("Europe/Berlin", "2026-10-25"): "22:00",
        ("Asia/Kolkata", "2026-10-25 04:30"): "23:00",
        ("+05:30", "2026-10-25 04:30"): "23:00",
        ("GMT-02:00", "2026-10-24 21:00"): "23:00",
        ("Asia/Kolkata", "2026-10-25T00:00:00Z"): "00:00",
        ("GMT+1", "2026-10-25 00:00"): "23:00",
        ("+01:00:00", "2026-10-25 00:00"): "23:00",
        ("JST", "2026-10-25 08:00"): "23:00",
        ("PST", "2026-10-24 16:00"): "23:00",
        ("Asia/Kolkata", datetime(2026, 10, 24, 23, tzinfo=UTC)): "23:00",
        ("Europe/Berlin", hourly.resolved()): "02:30",
        ("UTC", "1970-01-01T00:00Z"): None,  # old, but no number that is none by mistake
    }
    frames = []
    for zone, when in asked:
        with session_in(spark, zone):
            frames.append(read_snapshot(spark, place.url, when, columns="value"))
    assert dict(zip(asked, values(frames), strict=True)) == asked
    with session_in(spark, "Europe/Berlin"):
        with pytest.raises(SourceError, match=r"\[SNAPKV_TIMESTAMP_INVALID\] .* skipped it"):
            read_snapshot(spark, place.url, "2026-03-29 02:30")
        india = {"timeZone": "Asia/Kolkata", "columns": "value"}
        told = [read_snapshot(spark, place.url, "2026-10-25 04:30", **india)]
        assert values(told) == ["23:00"], "what a call says goes before the session"
        rows = read_changes(spark, place.url, "2026-10-25 01:30", "2026-10-25 03:00").collect()
    assert [row.value.decode() for row in rows] == ["00:00", "00:30", "01:00", "01:30", "02:00"]


@EMBEDDED
def test_times_of_a_session(spark, place):
    """Without a read: which timestamp is meant."""
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    with session_in(spark, "Europe/Berlin"):
        times = Times({}, spark)
        for same in ("2026-07-01 14:00", "2026-07-01T12:00Z", noon):
            assert to_datetime(times.end(same)) == noon
        assert to_datetime(Times({"timezone": "UTC"}, spark).end("2026-07-01 12:00")) == noon
        now = to_datetime(times.end("-0s"))
        assert to_datetime(times.end("-1h")) == now - timedelta(hours=1)
        stamp = pack(START_MS, 7)
        assert (times.end(stamp), times.end(str(stamp)), times.end(0)) == (stamp, stamp, 0)
        for wrong in ("soon", 1.5, None, True, noon.date(), b"2026-07-01"):
            with pytest.raises(SourceError, match=r"\[SNAPKV_TIMESTAMP_INVALID\]"):
                times.end(wrong)
        with pytest.raises(SourceError, match=r"\[SNAPKV_TIMESTAMP_INVALID\] .*astimezone\(\)"):
            times.end(noon.replace(tzinfo=None))  # in which zone, only who made it can tell
        assert (times.after(stamp), times.after(0)) == (stamp + 1, 1)
        with pytest.raises(SourceError, match=r"\[SNAPKV_TIMESTAMP_INVALID\] no time is after"):
            times.after("4199-11-24T01:22:57.663Z")
        for number in (4, 1_795_386_000, "1795386000000", 2**64 - 1):
            with pytest.raises(SourceError, match=f"INVALID\\] {number} is not a timestamp: "):
                times.end(number)


@EMBEDDED
def test_versions_by_a_call(spark, place, store):
    commits = [store.commit(puts={"k": b"%d" % n, f"k{n}": b""}) for n in range(3)]
    first, second = (f"rev:{commit.revision}" for commit in commits[:2])
    frame = read_snapshot(spark, place.url, second, "k", columns="key,value")
    assert [bytes(row.value) for row in frame.collect()] == [b"1", b"", b""]
    changes = read_changes(spark, place.url, first, second).collect()
    assert {row._commit_version for row in changes} == {commits[1].revision}
    history = read_history(spark, place.url, first, first).collect()
    assert sorted(row.key for row in history) == ["k", "k0"]
    with pytest.raises(SourceError, match="a parameter gives it"):
        read_snapshot(spark, place.url, first, versionAsOf=3)
    for wrong in ("rev:0", "rev:x"):
        with pytest.raises(SourceError, match="is not a revision: write rev:4"):
            read_snapshot(spark, place.url, wrong)


def test_a_zone_is_looked_up_where_one_is_needed(spark):
    """A session's may be one that is known to Java alone."""
    times = Times({"timeZone": "Mars/Olympus"}, spark)
    assert times.end("1970-01-01T00:00Z") == times.end(datetime(1970, 1, 1, tzinfo=UTC))
    assert times.end(pack(START_MS)) == pack(START_MS)
    with pytest.raises(SourceError, match=r"\[SNAPKV_INVALID_OPTION\] .* is not a time zone"):
        times.end("2026-07-01")


@pytest.mark.parametrize(
    ("name", "hours"),
    [("Z", 0), ("UT", 0), ("UTC+1", 1), ("GMT-02:30", -2.5), ("+01:00:36", 1.01), ("EST", -5)],
)
def test_zones_that_spark_takes(name, hours):
    assert zone_of(name).utcoffset(datetime(2026, 1, 1)) == timedelta(hours=hours)


@pytest.mark.long_on("etcd")
def test_random_histories(spark, store, place, clock):
    rng = random.Random(5)
    plain = Writing(store, clock, rng).steps(40)
    draw = moments(plain, rng)
    url, late = place.url, plain.rows[-1].ts
    cuts = [sorted((draw(), draw())) for _ in range(2)] + [(late, None)]
    prefixes = ("", "a/", "b/1")
    asked = [(since, until, rng.choice(prefixes)) for since, until in cuts]
    snapshots = [read_snapshot(spark, url, until, prefix) for _, until, prefix in asked]
    for rows, (_, until, prefix) in zip(together(snapshots), asked, strict=True):
        assert [row[:2] for row in rows] == list(store.at(until).items(prefix))
    # since is exclusive, until inclusive
    changes = [read_changes(spark, url, *one, preimages=True) for one in asked]
    for rows, (since, until, prefix) in zip(together(changes), asked, strict=True):
        expected = changes_of(
            plain, since, late if until is None else until, prefix, preimages=True
        )
        assert [row[:5] for row in rows] == [row[:5] for row in expected]
    histories = [read_history(spark, url, *one) for one in asked]
    for rows, (since, until, prefix) in zip(together(histories), asked, strict=True):
        expected = histories_of(plain, since, late if until is None else until, prefix)
        assert sorted(row[:4] for row in rows) == sorted(row[:4] for row in expected)
    asked = asked[:2]
    differences = [diff(spark, url, *one) for one in asked]
    for rows, (since, until, prefix) in zip(together(differences), asked, strict=True):
        expected = [(d.key, kind(d), d.before, d.after) for d in store.diff(since, until, prefix)]
        assert sorted(rows) == expected
    new_worker()


def kind(difference) -> str:
    if difference.before is None:
        return "added"
    return "changed" if difference.after is not None else "removed"


@EMBEDDED
def test_a_difference(spark, store, place, clock):
    store.commit(
        puts={"same": b"1", "changed": b"1", "back": b"1", "removed": b"", "emptied": b"1"}
    )
    then = store.resolved()
    clock.advance(1_000)
    store.commit(puts={"changed": b"2", "back": b"2", "added": b""}, deletes=["removed"])
    store.commit(puts={"back": b"1", "emptied": b""})
    frame = diff(spark, place.url, then)
    store.save("later", b"1")
    expected = [
        ("added", "added", None, b""),
        ("changed", "changed", b"1", b"2"),
        ("emptied", "changed", b"1", b""),
        ("removed", "removed", b"", None),
    ]
    assert frame.columns == ["key", "change", "before", "after"]
    assert sorted(map(tuple, frame.collect())) == expected
    back = diff(spark, place.url, "+1h", then, valueFormat="utf8").where("change = 'added'")
    assert [tuple(row) for row in back.collect()] == [("removed", "added", None, "")]


@EMBEDDED
def test_a_difference_of_values_that_are_null(spark, store, place, clock):
    """A key that came or went counts, whatever its value is decoded into."""
    store.commit(puts={"gone": b"null", "same": b"null", "n": b"1", "less": b"1"})
    then = store.resolved()
    clock.advance(1_000)
    store.commit(puts={"new": b"null", "n": b"2", "less": b"null"}, deletes=["gone"])
    json = {"valueFormat": "json", "schema": "value INT, key STRING"}
    assert sorted(map(tuple, diff(spark, place.url, then, **json).collect())) == [
        ("gone", "removed", None, None),
        ("less", "changed", 1, None),
        ("n", "changed", 1, 2),
        ("new", "added", None, None),
    ]
    for schema in ("key STRING", "key STRING, owner STRING", "key STRING, value INT, x INT"):
        with pytest.raises(SourceError, match=r"\[SNAPKV_INVALID_SCHEMA\] .* key and value"):
            diff(spark, place.url, then, valueFormat="json", schema=schema)


@EMBEDDED
def test_a_difference_of_maps(spark, store, place, clock):
    """Of maps the order of keys does not count; what they hold does, however deep."""
    value = '{{"m":{{"a":{},"b":null}},"l":[{{}},{{"x":{}}},null]}}'
    same, turned = value.format("{}", 1), '{"l":[{},{"x":1},null],"m":{"b":null,"a":{}}}'
    before = {"same": same, "turned": same, "other": same, "deep": same, "fewer": same}
    store.commit(puts={key: text.encode() for key, text in {**before, "none": "{}"}.items()})
    then = store.resolved()
    clock.advance(1_000)
    after = {
        "turned": turned,
        "other": value.format("{}", 2),
        "deep": value.format('{"y":1}', 1),
        "fewer": '{"m":{"a":{}},"l":[{},{"x":1},null]}',
        "none": '{"m":{}}',
    }
    store.commit(puts={key: text.encode() for key, text in after.items()})
    kind = "STRUCT<m: MAP<STRING, MAP<STRING, INT>>, l: ARRAY<MAP<STRING, INT>>>"
    found = diff(spark, place.url, then, valueFormat="json", schema=f"key STRING, value {kind}")
    rows = {row.key: row for row in found.collect()}
    assert {row.change for row in rows.values()} == {"changed"}
    assert sorted(rows) == ["deep", "fewer", "none", "other"]
    assert rows["other"].before.l == [{}, {"x": 1}, None]
    assert rows["other"].after.l == [{}, {"x": 2}, None]
    assert (rows["none"].before.m, rows["none"].after.m) == (None, {})


NOON = "2026-11-20T12:00Z"


@pytest.mark.parametrize(
    ("call", "given", "advice"),
    [
        (read_snapshot, {"keyPrefix": "a"}, "give prefix"),
        (read_snapshot, {"KEYPREFIX": "a"}, "give prefix"),
        (read_snapshot, {"timestampAsOf": NOON}, "give as_of"),
        (read_snapshot, {"view": "commits"}, "one view"),
        (read_snapshot, {"store": "lmdb:other"}, "give url"),
        (read_snapshot, {"path": "other"}, "give url"),
        (read_snapshot, {"Schema": "key STRING"}, "give schema"),
        (read_changes, {"readChangeFeed": False}, "read_changes"),
        (read_changes, {"startingVersion": 3}, "give since"),
        (read_changes, {"endingtimestamp": NOON}, "give until"),
        (read_history, {"view": "commits"}, "one view"),
        (read_history, {"startingTimestamp": NOON}, "give since"),
        (read_history, {"endingTimestamp": NOON}, "give until"),
        (diff, {"timestampAsOf": NOON}, "give t1 and t2"),
        (diff, {"versionAsOf": 3}, "give t1 and t2"),
        (diff, {"columns": "key"}, "a difference has its own"),
    ],
)
def test_what_a_call_says_is_no_option_of_it(call, given, advice):
    """It is told before there is a session to read with, rather than overruled or dropped."""
    (name,) = given
    with pytest.raises(SourceError, match=rf"(?i)^\[SNAPKV_INVALID_OPTION\] .*{name}.*{advice}"):
        call(None, "lmdb:none", NOON, **given)


@EMBEDDED
def test_prefixes_are_as_keys_are(spark, store, place):
    store.commit(puts={"ab": b"1", "61": b"2"})
    store.space(SPACE).commit(puts={b"ab": b"3", b"61": b"4"})
    right = [
        ("a", {}, b"1"),
        ("6", {"KEYFORMAT": "utf8"}, b"2"),
        (b"a", {"keyFormat": "Binary"}, b"1"),
        (b"6", {"space": SPACE}, b"4"),
        ("6", {"space": SPACE, "keyFormat": "utf8"}, b"4"),
    ]
    for prefix, options, _ in right:
        for wrong in (prefix.encode() if isinstance(prefix, str) else prefix.decode(), 6):
            with pytest.raises(SourceError, match=r"\[SNAPKV_INVALID_OPTION\] keys are "):
                read_snapshot(spark, place.url, prefix=wrong, **options)
    frames = [
        read_snapshot(spark, place.url, prefix=prefix, columns="value", **options)
        for prefix, options, _ in right
    ]
    assert together(frames) == [[(value,)] for *_, value in right]


@EMBEDDED
def test_changes_after_a_moment_until_the_same(spark, store, place, clock):
    first = store.save("k", b"1")
    clock.advance(1_000)
    last = store.save("k", b"2")
    head = store.at().revision
    for when in (first, last, to_datetime(first), "-0s", f"rev:{head - 1}", f"rev:{head}"):
        assert read_changes(spark, place.url, when, when).count() == 0
    assert read_changes(spark, place.url, first, last).count() == 1
    assert read_changes(spark, place.url, f"rev:{head - 1}", f"rev:{head}").count() == 1
    for since, until in ((last, first), (f"rev:{head}", f"rev:{head - 1}")):
        with pytest.raises(AnalysisException, match=r"\[SNAPKV_INVALID_RANGE\]"):
            read_changes(spark, place.url, since, until).count()


@EMBEDDED
def test_what_is_handed_on(spark, store, place, monkeypatch, tmp_path):
    store.save("k", b'{"n": 1}')
    store.space(SPACE).commit(puts={b"\xffk": b'{"n": 2}', b"k": b"{"})
    json = {"schema": "n INT", "valueFormat": "json"}
    frames = [
        read_snapshot(spark, place.url, **json),
        read_snapshot(spark, place.url, prefix=b"\xff", space=SPACE, **json),
        read_changes(spark, place.url, 0, prefix="k", **json),
        read_history(spark, place.url, **json),
    ]
    assert together(frames) == [[(1,)], [(2,)], [(1,)], [(1,)]]
    monkeypatch.chdir(tmp_path)
    path = place.url.removeprefix("lmdb:")
    (tmp_path / "here").symlink_to(path)
    assert read_snapshot(spark, "lmdb:here").count() == 1, "a path is the caller's"
    for url, code in (("memory:", "INVALID_OPTION"), (tmp_path, "INVALID_OPTION")):
        with pytest.raises(SourceError, match=rf"\[SNAPKV_{code}\]"):
            read_snapshot(spark, url)
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_MULTIPLE_BOUNDARY\]"):
        read_snapshot(spark, place.url, 0, versionAsOf=5)
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_INVALID_RANGE\]"):
        read_changes(spark, place.url, "-1h", "-2h").collect()
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_UNKNOWN_OPTION\]"):
        read_history(spark, place.url, prefixes="k")
