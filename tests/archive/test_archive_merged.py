"""Files that were merged, and deleted: a reader that has the older manifest finds the newer one."""

import random

import pytest

import snapkv
from snapkv.archive import state_rows, writer
from snapkv.archive.engine import open_archived
from snapkv.archive.manifest import existing
from snapkv.archive.writer import ArchiveWriter
from snapkv.engine.contract import ALL_KEYS_END
from snapkv.errors import ArchiveError, ArchiveTakenError
from snapkv.layout import FIRST_KEY

from .histories import Writing, answers, recorder

pytestmark = pytest.mark.parametrize("place", ["memory"], indirect=True)


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 7)
    monkeypatch.setattr(state_rows, "CHUNK_ROWS", 9)


@pytest.fixture
def recording(place, store, clock, tmp_path):
    """An archive of many small deltas."""
    writing = Writing(place, store, clock, random.Random(5))
    store.save("z", b"the first that is known")
    recording = recorder(store, tmp_path / "archive")
    for _ in range(12):
        recording.catch_up()
        writing.steps(6)
    recording.catch_up()
    return recording


def merge(recording) -> None:
    """Merge what can be merged, and delete what that replaced, as an hour later."""
    files = recording.writer.files
    while recording.writer.tidy():
        pass
    named = {file.path for file in existing(files).files}
    for folder in ("base", "delta", "log"):
        for entry in files.list(folder):
            if entry.name not in named:
                files.delete(entry.name)


def test_an_open_archive_goes_on_with_the_merged_files(store, recording, tmp_path):
    with snapkv.open_archive(str(tmp_path / "archive")) as alone:
        first = next(iter(alone.commits())).ts
        expected = answers(store, first)
        merge(recording)
        found = answers(alone, first)
    for what, each in expected.items():
        assert found[what] == each, what


def test_reads_under_way_go_on(store, recording, tmp_path):
    engine = open_archived(str(tmp_path / "archive"))
    whole = FIRST_KEY, ALL_KEYS_END
    high, since = engine.manifest.high, engine.manifest.since
    expected = list(engine.scan(*whole, revision=high))
    changes = [
        part.rows.table.to_pylist() for part in engine.delta_changes(*whole, since + 1, high)
    ]
    watch = engine.watch(*whole, start_revision=since + 1)
    events = [watch.next(0) for _ in range(9)]

    engine = open_archived(str(tmp_path / "archive"))
    scanning = engine.scan(*whole, revision=high)
    feed = engine.delta_changes(*whole, since + 1, high)
    watch = engine.watch(*whole, start_revision=since + 1)
    begun = [next(scanning)], [next(feed).rows.table.to_pylist()], [watch.next(0)]
    merge(recording)
    pages, rows, seen = begun
    pages += scanning
    rows += [part.rows.table.to_pylist() for part in feed]
    seen += [watch.next(0) for _ in range(8)]
    assert [kv for page in pages for kv in page] == [kv for page in expected for kv in page]
    assert [row for part in rows for row in part] == [row for part in changes for row in part]
    assert [each.events for each in seen] == [each.events for each in events]


def test_a_file_that_is_gone_without_a_successor(recording, tmp_path):
    engine = open_archived(str(tmp_path / "archive"))
    since, high = engine.manifest.since, engine.manifest.high
    whole = FIRST_KEY, ALL_KEYS_END
    feed, watch = (
        engine.delta_changes(*whole, since + 1, high),
        engine.watch(*whole, start_revision=since + 1),
    )
    for file in engine.manifest.of_kind("delta"):
        recording.writer.files.delete(file.path)
    reads = {
        "scan": lambda: list(engine.scan(*whole, revision=since + 1)),
        "get": lambda: engine.get(engine.layout.data.encode("z"), high),
        "feed": lambda: list(feed),
        "watch": lambda: [watch.next(0) for _ in range(9)],
        "writer": recording.writer.tidy,
    }
    for what, read in reads.items():
        with pytest.raises(ArchiveError) as caught:
            read()
        said = str(caught.value)
        assert said.startswith(f"a file of the archive {engine.url} is missing: "), what
        assert file.path.partition("/")[0] in said, what
        assert "run `snapkv archive verify`" in said, what


def test_a_writer_whose_files_another_one_merged_ends(recording, tmp_path):
    other = open_archived(str(tmp_path / "archive"))
    writer = ArchiveWriter(recording.writer.files, existing(recording.writer.files).source)
    merge(recording)
    with pytest.raises(ArchiveTakenError):
        writer.tidy()
    assert other.refresh() == recording.writer.manifest
