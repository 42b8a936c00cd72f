"""Archives whose logs were written before `meta` was a column of theirs."""

import json

import duckdb
import pytest

import snapkv
from snapkv.archive import rows, writer
from snapkv.archive.delta_lake import publish_delta
from snapkv.archive.iceberg import publish_iceberg
from snapkv.archive.verify import verify

from .histories import answers
from .test_archive_merged import merge
from .test_archive_published import WAYS, Published

pytestmark = [
    pytest.mark.parametrize("place", ["memory"], indirect=True),
    pytest.mark.parametrize("new_files", ["folder"], indirect=True),
    pytest.mark.filterwarnings("ignore::polars.exceptions.PerformanceWarning"),
]
LOG = rows.LOG
OLD_LOG = LOG.remove(LOG.names.index("meta"))


@pytest.fixture
def older(monkeypatch):
    """Write and publish as the code before did, until the test calls `older.undo()`."""
    add = rows.Encoding.add

    def added(self, table, keys):
        add(self, table.drop_columns("meta") if self.kind == "log" else table, keys)

    with monkeypatch.context() as patch:
        patch.setitem(rows.SCHEMAS, "log", OLD_LOG)
        patch.setattr(rows.Encoding, "add", added)
        patch.setattr(writer, "table_of", lambda *args: table_of(*args))
        patch.setattr(rows, "LOG", OLD_LOG)
        yield patch


def table_of(kind, columns):
    schema = LOG if kind == "log" else rows.SCHEMAS[kind]
    names = zip(columns, schema, strict=True)
    return rows.pa.table([rows.pa.array(found, each.type) for found, each in names], schema=schema)


@pytest.fixture
def published(store, place, clock, files, s3, monkeypatch):
    monkeypatch.setattr(writer, "MERGED_FILES", 4)
    return Published(store, place, clock, files, s3)


def log_columns(published) -> list:
    """Whether each log has the column, oldest first."""
    opened = published.recording.writer._files_open
    logs = published.recording.writer.manifest.of_kind("log")
    return ["meta" in opened._open_file(log).parquet.schema_arrow.names for log in logs]


def metas_of(store) -> list:
    return sorted((c.ts, c.meta and c.meta.to_json()) for c in store.commits())


def test_reads_and_merges(store, published, older, tmp_path):
    since = store.save("z", b"known")
    published.record(3)
    older.undo()
    published.record(4)
    assert log_columns(published)[:3] == [False] * 3
    assert True in log_columns(published)
    expected = answers(store, since)
    for step in ("as it is", "merged"):
        assert verify(published.files).problems == (), step
        with snapkv.open_archive(published.url) as alone:
            found = answers(alone, since)
        for what, each in expected.items():
            assert found[what] == each, (step, what)
        merge(published.recording)
    assert log_columns(published)[:2] == [False, True], "the log of the first base is not merged"
    logs = [
        f"{published.url}/{file.path}"
        for file in published.recording.writer.manifest.of_kind("log")
    ]
    query = "SELECT timestamp, meta FROM read_parquet($1, union_by_name = true)"
    found = duckdb.execute(query, [logs]).fetchall()
    assert sorted(row for row in found if row[0]) == metas_of(store), "of older logs, too"
    assert any(meta for _, meta in found)


@pytest.mark.parametrize(("publish", "read"), WAYS)
def test_published_before_and_after(store, published, older, publish, read):
    published.record(2)
    before = publish(published.url)[1]
    assert "meta" not in read(published, before).column_names
    older.undo()
    with_column = store.resolved()
    published.record(2)
    store.commit(puts={"a": b"1"}, meta={"request": "r-17"})
    published.record(1)
    commits = read(published, publish(published.url)[1])
    found = sorted((row["timestamp"], row["meta"]) for row in commits.to_pylist())
    known = [(ts, meta) for ts, meta in found if ts > with_column]
    assert known == [(ts, meta) for ts, meta in metas_of(store) if ts > with_column]
    assert {meta for ts, meta in found if ts <= with_column} == {None}
    assert json.loads(dict(found)[max(ts for ts, meta in known if meta and "r-17" in meta)]) == {
        "request": "r-17"
    }


def test_the_schema_is_published_once(published, older):
    published.record(1)
    publish_delta(published.url)
    older.undo()
    for _ in range(2):
        published.record(1)
        commits = publish_delta(published.url)[1]
    log = published.files.list("log/_delta_log")
    texts = [published.files.read(entry.name).decode() for entry in log]
    assert ["metaData" in text for text in texts] == [True, True, False]
    assert published.delta_table(commits).version() == 2
    publish_iceberg(published.url)
