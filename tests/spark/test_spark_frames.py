"""DataFrames by a call: times in the session's zone, ends as in the store, differences."""

import random
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from direct import new_worker
from frames import together
from pyspark.errors import AnalysisException
from store.tabled import SPACE, Writing, changes_of, histories_of, moments

from snapkv import ManualClock, to_datetime
from snapkv.spark import SourceError, diff, read_changes, read_history, read_snapshot
from snapkv.spark.sessions import Times

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
        ("Asia/Kolkata", datetime(2026, 10, 25, 4, 30)): "23:00",
        ("Asia/Kolkata", datetime(2026, 10, 24, 23, tzinfo=UTC)): "23:00",
        ("Europe/Berlin", datetime(2026, 10, 25, 2, 30, fold=1)): "01:30",
        ("Europe/Berlin", hourly.resolved()): "02:30",
    }
    frames = []
    for zone, when in asked:
        with session_in(spark, zone):
            frames.append(read_snapshot(spark, place.url, when, columns="value"))
    assert dict(zip(asked, values(frames), strict=True)) == asked
    with session_in(spark, "Europe/Berlin"):
        for gap in ("2026-03-29 02:30", datetime(2026, 3, 29, 2, 0)):
            with pytest.raises(SourceError, match=r"\[SNAPKV_TIMESTAMP_INVALID\] .* jumped over"):
                read_snapshot(spark, place.url, gap)
        rows = read_changes(spark, place.url, "2026-10-25 01:30", "2026-10-25 03:00").collect()
    assert [row.value.decode() for row in rows] == ["00:00", "00:30", "01:00", "01:30", "02:00"]


@EMBEDDED
def test_times_of_a_session(spark, place):
    """Without a read: which timestamp is meant."""
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    with session_in(spark, "Europe/Berlin"):
        times = Times(spark)
        for same in (
            "2026-07-01 14:00",
            "2026-07-01T12:00Z",
            noon,
            noon.replace(tzinfo=None) + timedelta(hours=2),
        ):
            assert to_datetime(times.end(same)) == noon
        now = to_datetime(times.end("-0s"))
        assert to_datetime(times.end("-1h")) == now - timedelta(hours=1)
        assert times.end(7) == 7
        for wrong in ("soon", 1.5, None, True, noon.date(), b"2026-07-01"):
            with pytest.raises(SourceError, match=r"\[SNAPKV_TIMESTAMP_INVALID\]"):
                times.end(wrong)


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
        read_snapshot(spark, place.url, 5, versionAsOf=5)
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_INVALID_RANGE\]"):
        read_changes(spark, place.url, "-1h", "-2h").collect()
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_UNKNOWN_OPTION\]"):
        read_history(spark, place.url, prefixes="k")
