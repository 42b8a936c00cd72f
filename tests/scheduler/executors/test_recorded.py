"""Recorded tables answer as the source did: times, writers and notes are the original ones."""

import random

import pytest
from etcd_server import shared_pool

import snapkv
from cdcmeta.errors import SinkError
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors import recorded_sink as recording
from cdcmeta.scheduler.executors.recorded_sink import folder_name, recorded_sink, store_name
from cdcmeta.scheduler.runtime.changefeed_records import Changefeed
from cdcmeta.scheduler.runtime.stores_and_sinks import Stores, absolute, open_sink
from snapkv.errors import ArchiveError
from snapkv.layout import NAME_BYTES_MAX, Layout

from .driving import Driven
from .feeding import KINDS, TABLES, Place, Source, feed, feed_state

pytestmark = pytest.mark.slow


@pytest.fixture
def rng():
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    return random.Random(seed)


@pytest.fixture
def source(rng, tmp_path):
    source = Source(f"source of {tmp_path}", rng)
    yield source
    source.close()


@pytest.fixture(params=KINDS)
def place(request, tmp_path, source, monkeypatch):
    monkeypatch.setattr(recording, "PAUSE_S", 0.0)
    place = Place(request.param, tmp_path / "into", source)
    yield place
    place.close()


def versions(store, key, since):
    found = [version for version in store.history(key) if version.ts and version.ts > since]
    return [(v.ts, v.value, v.writer, v.note, v.meta) for v in found]


def test_each_moment_of_a_table_is_that_of_the_source(place, source, rng):
    source.fill(15)
    at = source.store.resolved()
    source.fill(25)
    moments = [commit.ts for commit in source.store.commits(since=at)]
    for number, table in enumerate(TABLES, 1):
        writer = place.writer(table, number)
        assert writer.begin(at - 1) == at - 1
        feed_state(source, writer, table, at)
        feed(source, writer, table, at, most=rng.randrange(1, 9))
        writer.close()
        assert place.log(table, at) == source.log(table, at)
        with place.open(table) as target:
            for moment in [at, *moments]:
                assert dict(target.at(moment).items()) == source.state(table, moment)
            assert dict(target.at().items()) == source.state(table, moments[-1])
            for key in (f"{table}{n}" for n in range(6)):
                assert versions(target, key, at) == versions(source.store, key, at)
            last = source.log(table, at)[-1][0]
            assert {c.key: (c.before, c.after) for c in target.diff(at, last)} == {
                c.key: (c.before, c.after) for c in source.store.diff(at, last, prefix=table)
            }


def test_without_a_state_a_record_begins_empty(place, source):
    source.fill(10)
    start = source.store.resolved()
    source.fill(20)
    table = TABLES[0]
    writer = place.writer(table, 1)
    assert writer.begin(start) == start
    feed(source, writer, table, start)
    writer.close()
    assert place.log(table) == source.log(table, start)
    written = {}
    with place.open(table) as target:
        for changes in source.changes(table, start):
            written.update((each.key, each.value) for each in changes)
            present = {key: value for key, value in written.items() if value is not None}
            assert dict(target.at(changes.commit.ts).items()) == present


def test_what_is_before_a_recorded_state_cannot_be_read(place, source):
    source.fill(15)
    at = source.store.resolved()
    table = TABLES[1]
    source.store.save(table + "1", b"present")
    at = source.store.resolved()
    writer = place.writer(table, 1)
    writer.begin(at - 1)
    feed_state(source, writer, table, at)
    writer.close()
    with place.open(table) as target:
        assert dict(target.at(at).items()) == source.state(table, at)
        if place.kind == "archive":
            with pytest.raises(snapkv.CompactedError):
                target.at(at - 1).load(table + "1")


def test_an_empty_state_and_repeated_writes(place, source):
    source.store.save("elsewhere", b"1")
    at, table = source.store.resolved(), TABLES[0]
    writer = place.writer(table, 1)
    writer.begin(at - 1)
    feed_state(source, writer, table, at)
    source.fill(20)
    for _ in range(2):
        feed(source, writer, table, at, most=3)
    writer.close()
    assert place.log(table) == source.log(table, at)


def test_a_closed_writer_writes_nothing(place, source):
    writer = place.writer("t/", 1)
    writer.begin(1)
    writer.close()
    with pytest.raises(SinkError, match="closed"):
        writer.write([], 5)


def test_two_changefeeds_cannot_share_a_place(place, source):
    start, table = source.store.resolved(), TABLES[0]
    source.fill(20)
    writer = place.writer(table, 1)
    writer.begin(start)
    feed(source, writer, table, start)
    other = Place(place.kind, place.folder, source, "another").writer(table, 2)
    with pytest.raises((SinkError, ArchiveError), match="another"):
        other.begin(start)
    source.fill(20)
    feed(source, writer, table, start)
    assert place.log(table) == source.log(table, start)
    writer.close()


def test_a_place_with_other_files_is_left_alone(source, tmp_path):
    place = Place("archive", tmp_path, source)
    other = tmp_path / folder_name("orders/") / "customers.parquet"
    other.parent.mkdir()
    other.write_bytes(b"not ours")
    with pytest.raises(ArchiveError, match="cannot become an archive"):
        place.writer("orders/", 1).begin(0)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [other]


def test_many_small_writes_leave_few_files(source, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "PAUSE_S", 0.0)
    start, table = source.store.resolved(), TABLES[0]
    for number in range(60):
        source.store.save(f"{table}{number % 7}", b"%d" % number)
    place = Place("archive", tmp_path / "into", source)
    writer = place.writer(table, 1)
    writer.begin(start)
    feed(source, writer, table, start, most=1)
    with place.open(table) as target:
        assert len(target._core.engine.manifest.files) < 4 * recording.TEND_WRITES
    assert place.log(table) == source.log(table, start)


def test_small_writes_in_a_row_are_apart(source, tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(recording, "pause", pauses.append)
    start, table = source.store.resolved(), TABLES[0]
    source.fill(40)
    writer = Place("archive", tmp_path / "into", source).writer(table, 1)
    writer.begin(start)
    feed(source, writer, table, start, most=1)
    assert pauses[0] == 0.0
    assert all(0.0 <= each <= recording.PAUSE_S for each in pauses[1:])
    assert max(pauses[1:]) > 0.0


def test_an_executor_records_its_tables_at_once(place, source):
    source.fill(20)
    at = source.store.resolved()
    driven = Driven(source.store, place.sink, TABLES, state_at=at)
    driven.start(at - 1)
    source.fill(30)
    driven.reach(source.store.resolved())
    driven.stop()
    driven.close()
    for table in TABLES:
        assert place.log(table, at) == source.log(table, at)


@pytest.mark.parametrize("kind", ["lmdb", "archive"])
def test_a_changefeed_names_the_sink_by_its_url(kind, source, tmp_path):
    sink = absolute(f"record+{kind}:{tmp_path / 'x' / '..' / 'into'}")
    assert sink == f"record+{kind}:{tmp_path / 'into'}"
    place = Place(kind, tmp_path / "into", source)
    stores = Stores(source.store, "memory:mine")
    changefeed = Changefeed("copy", "memory:mine", sink, ("",), 0, sink_name="main")
    writer = open_sink(changefeed, stores, {}, 1.0)("*", Token(7, 1))
    start = source.store.resolved()
    writer.begin(start)
    source.fill(10)
    changes = list(source.store.watch(since=start, timeout=0))
    writer.write(changes, changes[-1].commit.ts)
    writer.close()
    with place.open("*") as target:
        assert dict(target.at().items()) == dict(source.store.at().items())
    place.close()


def test_names_of_places():
    tables = [*TABLES, "*", "data", "main:x", "x y", "\x01", "я" * 200, "я" * 201, "!", "%21"]
    names = [store_name("main", table) for table in tables]
    assert len(set(names)) == len(tables)
    for name in names:
        assert Layout(name).name == name
        assert len(name.encode()) <= NAME_BYTES_MAX
    assert store_name("main", "заказы/") == "main:заказы%2F"
    assert [folder_name(table) for table in ("a/b", "*", ".")] == ["a%2Fb", "%2A", "%2E"]


def test_a_commit_of_many_keys_is_recorded_in_etcd(source, rng):
    """One that etcd takes in nested lists, and one that takes several transactions."""
    table, since = TABLES[0], source.store.resolved()
    puts = {f"{table}{n:06}": b"1" for n in range(300)}
    many = source.store.commit(puts=puts)
    large = source.store.commit(puts={key: bytes(8_000) for key in puts})
    gone = source.store.commit(delete_prefixes=[table], note="gone")
    with shared_pool().taken() as server:
        sink = recorded_sink(f"record+{server.url}", "main", "copy", source.store)
        for number in (1, 2):
            writer = sink(table, Token(7, number))
            feed(source, writer, table, writer.begin(since))
            writer.close()
        with snapkv.open(server.url, name=store_name("main", table)) as target:
            assert set(dict(target.at(many.ts).items()).values()) == {b"1"}
            assert set(dict(target.at(large.ts).items()).values()) == {bytes(8_000)}
            assert (target.at(many.ts).count(), target.at(gone.ts).count()) == (300, 0)
            assert target.check().problems == ()
