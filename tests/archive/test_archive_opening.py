"""Opening a store with its archive, and an archive alone."""

import random

import pytest
from store.engines import START_MS

import snapkv
from snapkv import CompactedError, format_time
from snapkv.archive.folder import Folder
from snapkv.errors import (
    ArchiveError,
    InvalidOptionError,
    InvalidTypeError,
    NotSupportedError,
    ReadOnlyError,
    StoreNotFoundError,
    StoreRestoredError,
)

from .histories import Writing, answers, recorder

embedded = pytest.mark.parametrize("place", ["memory"], indirect=True)


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "archive")


@pytest.mark.long_after(1)
@pytest.mark.parametrize("seed", range(2))
def test_alone_it_answers_what_the_store_answered(place, store, clock, folder, seed):
    print("seed", seed)
    writing = Writing(place, store, clock, random.Random(seed))
    since = store.save("z", b"the first that is known")
    for _ in range(3):
        recorder(store, folder).catch_up()
        writing.steps(15)
    recorder(store, folder).catch_up()
    expected = answers(store, since)
    with snapkv.open_archive(folder) as alone:
        found = answers(alone, since)
        assert alone.info()["store_id"] == store.info()["store_id"]
    for what, each in expected.items():
        assert found[what] == each, what


@embedded
def test_a_history_begins_where_the_archive_begins(store, clock, folder):
    store.save("a", b"1")
    stamp = store.commit(puts={"a": b"2"}, note="add")
    clock.advance(600_000)
    store.compact(stamp.ts)
    recorder(store, folder).catch_up()
    later = store.save("a", b"3")
    recorder(store, folder).catch_up()
    with snapkv.open_archive(folder) as alone:
        found = [(v.ts, v.value, v.writer, v.note) for v in alone.history("a")]
    assert found == [(stamp.ts, b"2", "ann@test", "add"), (later, b"3", "ann@test", None)]


@embedded
def test_without_it_the_error_names_it(place, store, clock, folder):
    early = store.save("a", b"1")
    recorder(store, folder).catch_up()
    second = store.save("a", b"2")
    clock.advance(600_000)
    store.compact(second, past_recordings=True)
    with pytest.raises(CompactedError, match="no archive= has it"):
        store.load("a", early)
    assert place.open(archive=folder, clock=clock).load("a", early) == b"1"


WRITES = {
    "save": lambda store: store.save("a", b""),
    "commit": lambda store: store.commit(deletes=["a"]),
    "tick": lambda store: store.tick(),
    "compact": lambda store: store.compact("-0s"),
    "space": lambda store: store.space("s").commit(puts={b"k": b""}),
    "session": lambda store: store.session(),
    "restore": lambda store: store.restore("-0s", prefix="a", note="x"),
    "final": lambda store: store.at("-0s", final=True),
}


@embedded
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_an_archive_takes_no_writes(place, store, clock, folder, write):
    store.save("a", b"1")
    recorder(store, folder).catch_up()
    clock.advance(600_000)
    with snapkv.open_archive(folder, clock=clock) as alone:
        with pytest.raises(ReadOnlyError, match="is an archive, which takes no writes"):
            write(alone)
        assert alone.load("a") == b"1"


@embedded
def test_a_watch_of_an_archive_brings_what_is_recorded_later(store, folder):
    since = store.save("a", b"1")
    recording = recorder(store, folder)
    recording.catch_up()
    with snapkv.open_archive(folder) as alone:
        watch = alone.watch(since=since, timeout=20)
        store.save("a", b"2")
        recording.catch_up()
        assert [(c.key, c.value) for c in next(watch)] == [("a", b"2")]


@embedded
def test_its_name_may_be_left_out(place, folder):
    other = place.open(name="plans")
    other.save("a", b"1")
    recorder(other, folder).catch_up()
    for names in ({}, {"name": "plans"}):
        with snapkv.open_archive(folder, **names) as alone:
            assert alone.load("a") == b"1"
    with pytest.raises(StoreNotFoundError, match="is the archive of 'plans', not of 'catalogue'"):
        snapkv.open_archive(folder, name="catalogue")


@embedded
def test_the_archive_of_another_store_is_refused(place, store, folder):
    other = place.open(name="other")
    other.save("a", b"1")
    recorder(other, folder).catch_up()
    with pytest.raises(InvalidOptionError, match="is of the store 'other' with the id"):
        place.open(archive=folder)
    assert store.resolved() == 0  # the engine was not closed with the one that failed


def test_a_restored_engine_is_refused(tmp_path, clock, folder):
    """The archive has commits that the engine lost: reading across would mix two histories."""
    path = tmp_path / "lmdb"
    with snapkv.open(f"lmdb:{path}", clock=clock) as store:
        store.save("a", b"1")
        store.backup(tmp_path / "backup")
        store.save("a", b"2")
        recorder(store, folder).catch_up()
    restored = f"lmdb:{tmp_path / 'backup'}"
    with pytest.raises(StoreRestoredError, match="it was restored since"):
        snapkv.open(restored, archive=folder, clock=clock)
    clock.advance(5)
    with snapkv.open(restored, clock=clock) as store:
        store.save("a", b"another")
        store.save("a", b"yet another")
    with pytest.raises(StoreRestoredError, match="it was restored since"):
        snapkv.open(restored, archive=folder, clock=clock)


def test_a_store_with_an_archive_can_be_backed_up(tmp_path, clock, folder):
    url = f"lmdb:{tmp_path / 'lmdb'}"
    with snapkv.open(url, clock=clock) as store:
        early = store.save("a", b"1")
        recorder(store, folder).catch_up()
        later = store.save("a", b"2")
        clock.advance(600_000)
        store.compact(later, past_recordings=True)
    with snapkv.open(url, archive=folder, clock=clock) as store:
        store.backup(tmp_path / "backup")
    copied = f"lmdb:{tmp_path / 'backup'}"
    with snapkv.open(copied, create=False, archive=folder, clock=clock) as copy:
        assert [copy.load("a", each) for each in (early, later)] == [b"1", b"2"]
    with (
        snapkv.open(copied, create=False, clock=clock) as copy,
        pytest.raises(CompactedError),  # the archive was not copied
    ):
        copy.load("a", early)


def test_other_engines_with_an_archive_have_no_backup(tmp_path, clock, folder):
    with snapkv.open("memory:joined", clock=clock) as store:
        store.save("a", b"1")
        recorder(store, folder).catch_up()
        with (
            snapkv.open("memory:joined", archive=folder, clock=clock) as joined,
            pytest.raises(NotSupportedError, match="only lmdb stores can"),
        ):
            joined.backup(tmp_path / "backup")


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"archive": 5}, InvalidTypeError, "archive"),
        ({"archive": ""}, ArchiveError, "no archive in"),
        ({"archive": "/nowhere/archive"}, ArchiveError, "no archive in /nowhere/archive"),
        ({"storage": {}}, InvalidTypeError, "unknown option 'storage'"),
        ({"archive": "/nowhere", "storage": "x"}, InvalidTypeError, "storage"),
    ],
)
def test_bad_options(how, error, message):
    with pytest.raises(error, match=message):
        snapkv.open("memory:", **how)


def test_there_must_be_an_archive(tmp_path):
    for url in (str(tmp_path), f"{tmp_path}/none"):
        with pytest.raises(ArchiveError, match="no archive in"):
            snapkv.open_archive(url)
    with pytest.raises(InvalidTypeError, match="url"):
        snapkv.open_archive(5)


def test_moments_of_an_archive_need_no_clock(tmp_path, clock, folder):
    with snapkv.open("memory:", clock=clock) as store:
        store.save("a", b"1")
        recorder(store, folder).catch_up()
    with snapkv.open_archive(folder) as alone:
        assert alone.load("a", "2023-11-14T23:00:00Z") == b"1"
        assert alone.at().timestamp == START_MS << 18


@embedded
def test_a_row_group_is_one_request(store, folder, monkeypatch):
    """Each costs money where an object store has the files."""
    for n in range(3):
        store.commit(puts={f"k{i}": b"%d" % n for i in range(50)})
        recorder(store, folder).catch_up()
    parts, plain = [], Folder.read_part
    monkeypatch.setattr(
        Folder,
        "read_part",
        lambda self, name, start, size: parts.append(name) or plain(self, name, start, size),
    )
    with snapkv.open_archive(str(folder)) as alone:
        opened = alone._core.engine._files_open
        opened._cache_bytes = 0
        assert dict(alone.at().items()) == {f"k{i}": b"2" for i in range(50)}
        parts.clear()  # now the files are open
        before = opened.groups_read
        assert alone.at().count() == 50
        assert len(parts) == opened.groups_read - before > 1


@embedded
def test_a_time_before_an_archive_begins_is_not_called_compacted(place, store, clock, folder):
    early = store.save("a", b"1")
    clock.advance(600_000)
    second = store.save("a", b"2")
    clock.advance(600_000)
    store.compact(second)
    recorder(store, folder).catch_up()
    with snapkv.open_archive(folder) as alone:
        for read in (lambda: alone.load("a", early), lambda: list(alone.commits(since=early))):
            with pytest.raises(CompactedError, match=r"is not kept, and the archive \S+ ") as e:
                read()
            assert "compacted" not in str(e.value)
            assert format_time(second) in str(e.value)
