"""Batches over an archive are what the live store said before compaction."""

from functools import partial
from itertools import islice

import pytest
from archive.histories import recorder
from archives import Archived
from direct import Planned, new_worker, read, refused
from frames import load, together
from object_server import shared_server
from pyspark.errors import AnalysisException
from reading.tabled import SPACE
from sampling import some
from store.engines import START_MS, write_raw

import snapkv
from snapkv import ManualClock
from snapkv.archive import rows as row_groups
from snapkv.archive import state_rows, writer
from snapkv.engine import bulk_reads, version_columns
from snapkv.engine.contract import Put
from snapkv.engine.etcd import scan
from snapkv.engine.lmdb import columns
from snapkv.spark import (
    SourceError,
    native_parquet,
    read_changes,
    read_history,
    read_snapshot,
    read_tasks,
)

pytestmark = pytest.mark.slow

EMBEDDED = pytest.mark.parametrize("place", ["lmdb"], indirect=True)
SHORT = [
    (bulk_reads, "CHANGES_ROWS"),
    (version_columns, "BATCH_ROWS"),
    (scan, "PAGE_ROWS_FIRST"),
    (scan, "PAGE_ROWS_MAX"),
    (columns, "CHUNK_RECORDS"),
    (columns, "CHUNK_RECORDS_FIRST"),
]
"""What ends a page: the most rows of one."""
SNAPSHOT = "key,value,create_version,mod_version,key_version"


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 7)
    monkeypatch.setattr(state_rows, "CHUNK_ROWS", 9)
    monkeypatch.setattr(read_tasks, "ARCHIVED_TASK_ROWS", 5)


@pytest.fixture
def made(place, store, clock, tmp_path):
    return partial(Archived, place, store, clock, tmp_path)


MOMENTS = 5


def queries(archived: Archived) -> list[dict]:
    """Options of all views, at random moments that the archive has."""
    rng, first = archived.rng, archived.first
    moments = [archived.since, *(c.ts for c in rng.sample(archived.marks(), MOMENTS - 1))]
    versions = sorted(rng.randrange(first, archived.reached) for _ in range(2))
    feed = {"readChangeFeed": True, "startingVersion": first + 1}
    after_first = max(versions[0], first + 1)  # what the first revision changed is not known
    return [
        *({"timestampAsOf": ts} for ts in moments),
        *({"versionAsOf": v, "keyPrefix": rng.choice(("a/", "b/1", "zz"))} for v in versions),
        {"timestampAsOf": moments[1], "space": SPACE},
        {"timestampAsOf": moments[2], "columns": "key,mod_version"},
        feed | {"endingVersion": archived.reached},
        feed | {"endingTimestamp": moments[3], "keyPrefix": "a/", "ignoreDeletes": True},
        feed | {"startingVersion": after_first, "endingVersion": versions[1], "space": SPACE},
        feed | {"endingVersion": archived.reached, "preimages": True},
        {"view": "history", "startingVersion": first, "endingVersion": versions[1]},
        {"view": "commits", "startingVersion": first + 1, "endingVersion": archived.reached},
    ]


def recorded(archived: Archived, options: dict, rows: list[tuple]) -> list[tuple]:
    """Rows of histories without times of commits from before the archive, else the same."""
    if options.get("view") != "history":
        return rows
    return [(*row[:4], None if row[2] < archived.first else row[4], *row[5:]) for row in rows]


# --- the format ---


@pytest.mark.long_on("etcd")
@pytest.mark.parametrize("seed", some(range(2), one_in=2))
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.long)])
def test_all_views_at_any_moment(made, place, seed, is_whole):
    """In short: each view once, at one moment, after compaction."""
    archived = made(seed)
    archived.grow(5)
    asked = queries(archived)[0 if is_whole else MOMENTS - 1 :]
    expected = [read(place.url, **options) for options in asked]
    compactions = [None, archived.rng.choice(archived.marks()).revision, archived.reached]
    for compaction in compactions if is_whole else compactions[1:]:
        if compaction is not None:
            archived.compact(compaction)
        for options, rows in zip(asked, expected, strict=True):
            new_worker()
            for url, more in ((place.url, archived.options), (archived.alone, {})):
                found = recorded(archived, options, read(url, **options, **more))
                assert found == recorded(archived, options, rows), (compaction, options)


@EMBEDDED
def test_a_range_over_archive_and_live(made, place, store):
    archived = made(7)
    archived.grow(3)
    archived.writing.steps(20)
    feed = {"readChangeFeed": True, "startingVersion": archived.first + 1}
    expected = read(place.url, **feed)
    at = archived.reached
    for compaction in (archived.first + 3, at):
        archived.compact(compaction)
        frame = Planned(place.url, **feed, **archived.options)
        kinds = {type(task).__name__ for task in frame.reader().tasks}
        assert kinds == {"ArchivedTask", "ChangesTask"}
        assert frame.reader().rows() == expected
    assert refused("VERSION_COMPACTED", place.url, **feed)


def batches_of(reader):
    for task in range(len(reader.tasks)):
        yield from reader.batches(task)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("batches_before", [0, 1, 3])
def test_compaction_between_planning_and_reading_and_between_two_batches(
    made, place, monkeypatch, batches_before
):
    """The reader of the process was opened before."""
    for module, name in SHORT:
        monkeypatch.setattr(module, name, 3)
    archived = made(11)
    archived.grow(4)
    archived.writing.steps(12)
    asked = queries(archived)
    expected = [read(place.url, **options) for options in asked]
    points = sorted(archived.rng.sample([c.revision for c in archived.marks()], len(asked)))
    for options, rows, point in zip(asked, expected, points, strict=True):
        begun = batches_of(Planned(place.url, **options, **archived.options).reader())
        found = list(islice(begun, batches_before))
        archived.compact(point)
        found = [tuple(row.values()) for batch in [*found, *begun] for row in batch.to_pylist()]
        assert recorded(archived, options, found) == recorded(archived, options, rows), options


@EMBEDDED
def test_files_that_are_merged_between_planning_and_reading(made, place):
    archived = made(3)
    archived.grow(4)
    marks = archived.marks()
    asked = [
        {"timestampAsOf": marks[len(marks) // 2].ts},
        {"readChangeFeed": True, "startingVersion": archived.first + 1},
        {"view": "history", "startingVersion": archived.first},
    ]
    archived.compact(archived.reached)
    frames = [Planned(place.url, **options, **archived.options) for options in asked]
    frames += [Planned(archived.alone, **options) for options in asked]
    expected = [frame.reader().rows() for frame in frames]
    planned = [frame.reader() for frame in frames]
    archived.grow(6)
    archived.merge()
    new_worker()
    assert [reader.rows() for reader in planned] == expected


@EMBEDDED
def test_an_archive_knows_the_name_of_its_store(place, clock, tmp_path):
    plans = place.open(name="plans", clock=clock)
    archived = Archived(place, plans, clock, tmp_path, 1)
    expected = [(key, entry.value) for key, entry in plans.at().entries()]
    assert read(archived.alone, columns="key,value") == expected
    assert read(archived.alone, columns="key,value", name="plans") == expected
    refused("STORE_NOT_FOUND", archived.alone, name="another")


@EMBEDDED
def test_what_another_program_wrote_between_two_commits(spark, made, place):
    """It belongs to the next commit, which only the slow way knows."""
    archived = made(4)
    archived.grow(1)
    write_raw(place.engine(), Put(b"default/data/a/0", b"raw"))
    write_raw(place.engine(), Put(b"default/data/a/0", b"raw again"))
    archived.store.save("b/0", b"and a commit")
    archived.reach()
    feed = {"readChangeFeed": True, "startingVersion": archived.first + 1}
    expected = read(place.url, **feed)
    assert read(archived.alone, **feed) == expected
    columns = "key,value,_change_type,_commit_version"
    frame = read_changes(spark, archived.alone, archived.since, columns=columns, native=True)
    assert "BatchScan" in plan_of(frame)
    assert [tuple(row) for row in frame.collect()] == [row[:4] for row in expected]


# --- Spark's own reader ---


def rows_of(frame) -> list[tuple]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.long
@EMBEDDED
def test_both_ways_give_the_same_rows(spark, made, place, store):
    """And the store says the same, before it is compacted."""
    archived = made(11)
    archived.grow(5)
    marks = archived.marks()
    asked = [archived.since, *(c.ts for c in archived.rng.sample(marks, 3))]
    expected = [[tuple(r.values()) for r in store.at(ts).to_arrow().to_pylist()] for ts in asked]
    before = read(place.url, readChangeFeed=True, startingVersion=archived.first + 1)
    archived.compact(archived.reached)
    call = partial(read_snapshot, spark, place.url, archive=archived.folder)
    ways = [[call(ts, native=native) for ts in asked] for native in (True, False, None)]
    alone = [read_snapshot(spark, archived.alone, ts, native=True) for ts in asked]
    assert len({frame.schema.json() for way in ways for frame in way}) == 1
    assert all("BatchScan" not in plan_of(frame) for frame in alone)
    for frames in (*ways, alone):
        assert [sorted(rows) for rows in together(frames)] == [sorted(rows) for rows in expected]

    ts, prefix = asked[1], "a/"
    some = [
        read_snapshot(
            spark, archived.alone, ts, prefix, native=native, columns="key,value,mod_timestamp"
        )
        for native in (True, False)
    ]
    assert some[0].schema == some[1].schema
    assert rows_of(some[0]) == rows_of(some[1])
    inside = [
        read_snapshot(spark, archived.alone, ts, space=SPACE, native=native)
        for native in (True, False)
    ]
    assert rows_of(inside[0]) == rows_of(inside[1])

    columns = "key,value,_change_type,_commit_version,_commit_timestamp"
    feed = [
        read_changes(spark, archived.alone, archived.since, native=native, columns=columns)
        for native in (True, False)
    ]
    assert feed[0].schema == feed[1].schema
    assert "BatchScan" not in plan_of(feed[0])
    assert rows_of(feed[0].drop("_commit_timestamp")) == sorted(
        (row[:4] for row in before), key=repr
    )
    assert rows_of(feed[0]) == rows_of(feed[1])


def plan_of(frame) -> str:
    """The physical plan; `BatchScan` is in that of the format."""
    return frame._jdf.queryExecution().simpleString()


@pytest.fixture
def ann(tmp_path, clock):
    """A store in LMDB with a key that is removed, and one that comes back."""
    with snapkv.open(f"lmdb:{tmp_path}/meta", clock=clock) as store:
        first = store.commit(puts={"back": b"1", "gone": b"1", "stays": b"1"})
        store._core.engine.compact(first.revision)  # an archive begins with what is left
        recording = recorder(store, tmp_path / "archive")
        recording.catch_up()
        store.commit(deletes=["back", "gone"])
        store.commit(puts={"back": b"2"})
        recording.catch_up()
        yield store, f"archive:{tmp_path}/archive", recording


@EMBEDDED
def test_spark_reads_what_is_asked_for(spark, made, store, monkeypatch):
    """Files by their keys; row groups by their statistics, for which filters are pushed down."""
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 2)
    monkeypatch.setattr(row_groups, "GROUP_ROWS_MAX", 2)
    monkeypatch.setattr(state_rows, "CHUNK_ROWS", 1)
    archived = made(12)
    store.commit(puts={f"k/{n:02}": b"" for n in range(60)})
    archived.reach()
    while archived.tidy():
        pass
    call = partial(read_snapshot, spark, archived.alone, native=True)
    whole, some = call(), call(prefix="k/1")
    assert len(some.inputFiles()) < len(whole.inputFiles())
    pushed = plan_of(some.select("value")).partition("PushedFilters: [")[2]
    for part in ("EqualTo(space,)", "GreaterThanOrEqual(key,"):
        assert part in pushed
    feed = read_changes(
        spark, archived.alone, f"rev:{archived.reached - 3}", native=True, columns="key"
    )
    assert "GreaterThan(revision," in plan_of(feed)


def test_removed_keys_do_not_come_back(spark, ann):
    store, url, _ = ann
    rows = rows_of(read_snapshot(spark, url, native=True))
    assert rows == [tuple(row.values()) for row in store.at().to_arrow().to_pylist()]
    assert [row[:2] for row in rows] == [("back", b"2"), ("stays", b"1")]


@pytest.mark.long
def test_a_dataframe_shows_the_same_after_commits_and_merges(spark, ann):
    store, url, recording = ann
    frames = [read_snapshot(spark, url, native=native) for native in (True, False)]
    feeds = [
        read_changes(spark, url, "rev:3", native=native, columns="key,_commit_version")
        for native in (True, False)
    ]
    expected = [rows_of(frame) for frame in (*frames, *feeds)]
    for n in range(9):
        store.commit(puts={"new": b"%d" % n}, deletes=["stays"])
        recording.catch_up()
    assert recording.writer.tidy()
    assert [rows_of(frame) for frame in (*frames, *feeds)] == expected
    assert rows_of(read_snapshot(spark, url)) != expected[0]


def test_the_faster_way_is_chosen(spark, ann, monkeypatch):
    _, url, _ = ann
    assert "BatchScan" in plan_of(read_snapshot(spark, url)), "three changes of three rows"
    monkeypatch.setattr(native_parquet, "DELTA_SHARE", 1)
    assert "BatchScan" not in plan_of(read_snapshot(spark, url))
    assert "BatchScan" not in plan_of(read_snapshot(spark, url, "rev:3"))
    assert "BatchScan" not in plan_of(read_changes(spark, url, "rev:3"))
    some = read_changes(spark, url, "rev:3", prefix="b")
    assert "BatchScan" in plan_of(some), "the files do not number the changes of some keys"
    decoded = read_snapshot(spark, url, schema="key STRING, value INT", valueFormat="json")
    assert "BatchScan" in plan_of(decoded)
    assert sorted(decoded.collect()) == [("back", 2), ("stays", 1)]
    texts = read_snapshot(spark, url, valueFormat="utf8", columns="value", native=True)
    assert sorted(texts.collect()) == [("1",), ("2",)]
    assert read_history(spark, url, "rev:3").count() == 4


def test_there_must_be_an_archive(spark, tmp_path):
    with pytest.raises(SourceError, match="native=True reads an archive: give archive, too"):
        read_snapshot(spark, f"lmdb:{tmp_path}/meta", native=True)


def test_keys_and_values_that_are_not_text(spark, tmp_path):
    with snapkv.open(f"lmdb:{tmp_path}/m", clock=ManualClock(START_MS)) as store:
        store.commit(puts={"k": b"\xff"})
        recorder(store, tmp_path / "a").catch_up()
    call = partial(read_snapshot, spark, f"archive:{tmp_path}/a", native=True, valueFormat="utf8")
    with pytest.raises(Exception, match=r"\[SNAPKV_VALUE_MALFORMED\]"):
        call().collect()
    assert call(mode="PERMISSIVE", columns="key,value").collect() == [("k", None)]


# --- object stores ---


def test_an_archive_in_an_object_store(spark, tmp_path, clock):
    server = shared_server()
    url, secret = server.new_url(), server.storage["secret_access_key"]
    live = f"lmdb:{tmp_path}/meta"
    with snapkv.open(live, clock=clock) as store:
        store.commit(puts={"a": b"1", "b": b"1"})
        snapkv.record(live, into=url, storage=server.storage, clock=clock).catch_up()
        expected = [tuple(row.values()) for row in store.at().to_arrow().to_pylist()]
    options = {f"storage.{name}": value for name, value in server.storage.items()}
    options |= {"storage.max_retries": 2, "storage.timeout": 7.5}
    alone = load(spark, f"archive:{url}", **options)
    joined = read_snapshot(spark, live, archive=url, storage=server.storage)
    assert [sorted(rows) for rows in together([alone, joined])] == [expected, expected]
    for frame in (alone, joined):
        assert "BatchScan" in plan_of(frame), "Spark has no library for object stores here"
        assert secret not in frame._jdf.queryExecution().toString()
    options["storage.timeout"] = "soon"
    assert "storage option 'timeout'" in refused("INVALID_OPTION", f"archive:{url}", **options)


# --- errors ---


def test_archives_that_cannot_be_read(spark, ann, tmp_path, clock):
    _, url, _ = ann
    live = f"lmdb:{tmp_path}/meta"
    assert "no archive in" in refused("ARCHIVE_UNREADABLE", live, archive=f"{tmp_path}/none")
    assert "no archive in" in refused("ARCHIVE_UNREADABLE", f"archive:{tmp_path}/none")
    with snapkv.open(f"lmdb:{tmp_path}/other", clock=clock) as other:
        other.save("a", b"1")
        recorder(other, tmp_path / "foreign").catch_up()
    message = refused("INVALID_OPTION", live, archive=f"{tmp_path}/foreign")
    assert "is of the store 'default' with the id" in message

    (base,) = (tmp_path / "archive" / "base").iterdir()
    whole = base.read_bytes()
    base.write_bytes(whole[: len(whole) // 2])
    assert base.name in refused("ARCHIVE_UNREADABLE", url)
    for native_ in (True, False):
        with pytest.raises(Exception, match=r"\[SNAPKV_ARCHIVE_UNREADABLE\].*is damaged"):
            read_snapshot(spark, url, native=native_).collect()
    (other_base,) = (tmp_path / "foreign" / "base").iterdir()
    base.write_bytes(other_base.read_bytes())
    with pytest.raises(Exception, match=r"\[SNAPKV_ARCHIVE_UNREADABLE\].*is damaged"):
        read_snapshot(spark, url, native=True)
    base.unlink()
    assert base.name in refused("ARCHIVE_UNREADABLE", url)
    base.write_bytes(whole)
    assert read_snapshot(spark, url, native=True).count() == 2
    at = whole.index(b"stays")
    base.write_bytes(whole[:at] + b"stayX" + whole[at + 5 :])
    with pytest.raises(Exception, match=r"(?i)checksum|crc|corrupt"):
        read_snapshot(spark, url, native=True).collect()


@pytest.mark.long
def test_moments_in_a_gap_and_changes_across_it(spark, ann, clock):
    store, url, recording = ann
    clock.advance(1_000)
    lost = store.commit(puts={"lost": b"1", "stays": b"2"})
    clock.advance(1_000)
    newest = store.commit(puts={"new": b"1"}, deletes=["lost"])
    store._core.engine.compact(newest.revision)
    recording.catch_up()
    assert "read one of these two moments" in refused("HISTORY_GAP", url, timestampAsOf=lost.ts)
    for native_ in (True, False):
        with pytest.raises(Exception, match=r"\[SNAPKV_HISTORY_GAP\]"):
            read_snapshot(spark, url, lost.ts, native=native_).collect()
    columns = "key,value,_change_type,_commit_version"
    expected = [
        ("new", b"1", "insert", newest.revision),
        ("stays", b"2", "update_postimage", newest.revision),
    ]
    since = f"rev:{lost.revision - 1}"
    for native_ in (True, False):
        feed = read_changes(spark, url, since, columns=columns, native=native_)
        assert rows_of(feed) == expected


def test_options_of_archives(tmp_path):
    url, secret = f"lmdb:{tmp_path}/meta", "hunter2"
    snapkv.open(url).close()
    for options in (
        {"archive": f"s3://user:{secret}@bucket/path"},
        {"archive": f"{tmp_path}/none", "storage.secret_access_key": secret},
        {"storage.secret_access_key": secret},
        {"storage.secret_access_key": secret, "unknown": "1"},
    ):
        with pytest.raises(Exception, match=r"^\[SNAPKV_") as caught:
            Planned(url, **options)
        assert secret not in str(caught.value)
    from snapkv.spark.read_options import parsed

    found = parsed({"path": url, "archive": "s3://bucket/a", "storage.Secret_Access_Key": secret})
    assert secret not in repr(found)
    assert dict(found.location.storage) == {"secret_access_key": secret}
    message = refused("INVALID_OPTION", url, **{"storage.endpoint": "x"})
    assert "storage.endpoint: only an archive has these options" in message
    assert "leave the option archive out" in refused("INVALID_OPTION", "archive:x", archive="y")
    message = refused("INVALID_OPTION", url, archive="x", observe="/registry/")
    assert "leave the option observe out" in message


def test_an_unknown_file_for_spark(spark, ann):
    with pytest.raises(AnalysisException, match=r"\[SNAPKV_ARCHIVE_UNREADABLE\] no archive in"):
        load(spark, ann[1] + "-none")
