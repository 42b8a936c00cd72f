"""The archive as tables of Delta Lake and Iceberg, read by deltalake, polars and pyiceberg."""

import json
import random

import deltalake
import duckdb
import polars
import pytest
from pyiceberg.table import StaticTable

from snapkv.archive import writer
from snapkv.archive.delta_lake import publish_delta
from snapkv.archive.iceberg import publish_iceberg
from snapkv.errors import ArchiveError, EngineUnavailableError, InvalidOptionError

from .histories import Recorder, Writing
from .test_archive_merged import merge

pytestmark = [
    pytest.mark.parametrize("place", ["memory"], indirect=True),
    # polars says that its own planner of Iceberg scans is not installed.
    pytest.mark.filterwarnings("ignore::polars.exceptions.PerformanceWarning"),
]

STATE = """
    SELECT key, value FROM changes WHERE timestamp <= $at AND space = ''
    QUALIFY row_number() OVER (PARTITION BY key ORDER BY revision DESC) = 1
        AND deleted IS NOT TRUE ORDER BY key
"""


class Published:
    """An archive of a store, recorded in small steps, and how readers open its tables."""

    def __init__(self, store, place, clock, files, s3):
        self.files, self.storage = files, s3.storage if "://" in files.url else None
        self.url = files.url
        self.writing = Writing(place, store, clock, random.Random(11))
        store.save("z", b"the first that is known")
        self.recording = Recorder(store, files)

    def record(self, parts):
        for _ in range(parts):
            self.recording.catch_up()
            self.writing.steps(6)
        self.recording.catch_up()

    def deltalake(self, table):
        return self.delta_table(table).to_pyarrow_table()

    def delta_table(self, table):
        return deltalake.DeltaTable(table.url, storage_options=self.delta_options)

    @property
    def delta_options(self):
        return None if self.storage is None else {**self.storage, "allow_http": "true"}

    def polars_delta(self, table):
        return polars.read_delta(table.url, storage_options=self.delta_options).to_arrow()

    def pyiceberg(self, table):
        options = {}
        if self.storage is not None:
            named = {
                "endpoint": "endpoint",
                "access_key_id": "access-key-id",
                "secret_access_key": "secret-access-key",
                "region": "region",
            }
            options = {f"s3.{named[k]}": v for k, v in self.storage.items() if k in named}
        return StaticTable.from_metadata(table.url, options).scan().to_arrow()


@pytest.fixture
def published(store, place, clock, files, s3, monkeypatch):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    return Published(store, place, clock, files, s3)


WAYS = [
    (publish_delta, Published.deltalake),
    (publish_iceberg, Published.pyiceberg),
    (publish_delta, Published.polars_delta),
]


@pytest.mark.parametrize(("publish", "read"), WAYS)
def test_each_moment_and_each_commit(store, published, publish, read):
    published.record(4)
    tables = publish(published.url, published.storage)
    assert [table.name for table in tables] == ["changes", "commits"]
    changes, commits = (read(published, table) for table in tables)
    assert [changes.num_rows, commits.num_rows] == [table.rows for table in tables]
    first, *others = store.commits()
    created, *found = sorted(
        (row["timestamp"], row["writer"], row["note"]) for row in commits.to_pylist()
    )
    assert created == (0, "ann@test", "created")
    assert found == [(c.ts, c.writer, c.note) for c in (first, *others)]
    for commit in (first, *others[::5], others[-1]):
        rows = duckdb.sql(STATE, params={"at": commit.ts}).fetchall()
        assert rows == raw_items(store, commit.ts)


def raw_items(store, ts):
    return [(key.encode(), value) for key, value in store.at(ts).items()]


@pytest.mark.long_on("memory s3")
@pytest.mark.long_after(2)
@pytest.mark.long_after(2)
@pytest.mark.parametrize(("publish", "read"), WAYS)
def test_again_after_more_was_recorded_and_merged(store, published, publish, read):
    published.record(12)
    publish(published.url, published.storage)
    before = publish(published.url, published.storage)
    assert publish(published.url, published.storage) == before
    published.record(2)
    merge(published.recording)
    after = publish(published.url, published.storage)
    assert after[0].rows > before[0].rows
    assert after[0].files < before[0].files  # merged
    changes = read(published, after[0])
    assert changes.num_rows == after[0].rows
    for commit in list(store.commits())[::9]:
        assert duckdb.sql(STATE, params={"at": commit.ts}).fetchall() == raw_items(store, commit.ts)


def test_nothing_is_published_twice(published):
    published.record(2)
    changes, commits = publish_delta(published.url, published.storage)
    publish_delta(published.url, published.storage)
    assert published.delta_table(changes).version() == published.delta_table(commits).version() == 0
    published.record(1)
    publish_delta(published.url, published.storage)
    assert published.delta_table(changes).version() == 1


@pytest.mark.long_after(1)
@pytest.mark.parametrize("full", [True, False])
def test_no_vacuum_deletes_the_archive(published, full):
    """It would delete the files that the table does not name: logs, bases, manifests."""
    published.record(12)
    publish_delta(published.url, published.storage)
    while published.recording.writer.tidy():
        pass
    changes, _ = publish_delta(published.url, published.storage)
    table = published.delta_table(changes)
    assert table.version() == 1, "some files were replaced"
    before = published.files.list("")
    with pytest.raises(deltalake.exceptions.DeltaError, match="snapkvArchiveIsReadOnly"):
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
    assert published.files.list("") == before


def test_no_writer_of_delta_changes_an_archive(published):
    published.record(2)
    changes, _ = publish_delta(published.url, published.storage)
    table = published.delta_table(changes)
    for write in (table.delete, table.optimize.compact):
        with pytest.raises(deltalake.exceptions.DeltaError, match="snapkvArchiveIsReadOnly"):
            write()
    published.record(1)


def test_a_log_of_another_program(published):
    published.record(1)
    publish_delta(published.url, published.storage)
    published.files.put_new("_delta_log/00000000000000000007.json", b"{}")
    with pytest.raises(ArchiveError, match="has files of another program"):
        publish_delta(published.url, published.storage)


@pytest.mark.parametrize("new_files", ["folder"], indirect=True)
def test_where_there_is_no_archive(published, tmp_path):
    for publish in (publish_delta, publish_iceberg):
        with pytest.raises(ArchiveError, match="no archive"):
            publish(str(tmp_path / "none"))
    with pytest.raises(InvalidOptionError, match="not in gs://"):
        publish_iceberg("gs://bucket/path")


@pytest.mark.parametrize("new_files", ["folder"], indirect=True)
def test_iceberg_in_a_folder_that_cannot_be_written(published, tmp_path):
    published.record(1)
    (tmp_path / "archive-0" / "_iceberg").write_text("a file")
    with pytest.raises(EngineUnavailableError, match="could not be written"):
        publish_iceberg(published.url)


@pytest.mark.parametrize("new_files", ["folder"], indirect=True)
def test_an_archive_that_was_moved(published, tmp_path, store):
    published.record(1)
    publish_delta(published.url)
    publish_iceberg(published.url)
    moved = tmp_path / "archive 2"
    (tmp_path / "archive-0").rename(moved)
    changes = publish_iceberg(str(moved))[0]
    assert published.pyiceberg(changes).num_rows == changes.rows
    assert deltalake.DeltaTable(str(moved)).to_pyarrow_table().num_rows == changes.rows


@pytest.mark.parametrize("new_files", ["folder"], indirect=True)
def test_facts_of_the_source(published, tmp_path):
    published.record(1)
    publish_delta(published.url)
    first = (tmp_path / "archive-0/_delta_log/00000000000000000000.json").read_text().splitlines()
    metadata = next(a["metaData"] for a in map(json.loads, first) if "metaData" in a)
    assert metadata["configuration"]["snapkv.store"] == "default"
