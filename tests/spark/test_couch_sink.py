"""The sink of documents: rows are newest revisions, and each batch is there once."""

import json

import pytest
from drivers import ended
from pyspark.sql import types as T
from sinks import Sink, refused
from sinks import in_a_query as in_a_query

from cdcmeta import ChangesDB
from cdcmeta.changes.revisions import POSITION_MAX
from cdcmeta.spark import document_sink as sinks
from cdcmeta.spark.feed_source import ChangesDataSource
from snapkv import CommitTimeoutError, CommitUnknownError
from snapkv.spark.errors import SourceError
from snapkv.store.writes import Space

pytestmark = pytest.mark.slow

DOCS = "id STRING, doc STRING"
ARROW = pytest.mark.spark_since("4.1", "a stream's sink that takes Arrow")


class DocumentSink(Sink):
    format = ChangesDataSource


def sink(place, columns=DOCS, **options) -> DocumentSink:
    return DocumentSink(place.url, columns, **({"database": "cat"} | options))


@pytest.fixture
def db(store):
    return ChangesDB(store, "cat").create()


def documents(db) -> dict:
    """The newest documents, each with the position of its revision."""
    return {
        change.id: (
            {name: value for name, value in change.doc.items() if name[0] != "_"},
            int(change.rev.partition("-")[0]),
        )
        for change in db.changes(include_docs=True).rows
        if not change.deleted
    }


def test_documents_of_json(db, place):
    first = db.put({"_id": "a", "n": 0})
    into = sink(place, DOCS + ", deleted BOOLEAN", note="copied")
    doc = {"_id": "a", "_rev": first.rev, "n": 1, "tags": ["x"]}
    into.write(("a", json.dumps(doc), False), ("b", '{"n": 2}', None))
    assert documents(db) == {"a": ({"n": 1, "tags": ["x"]}, 2), "b": ({"n": 2}, 1)}
    into.write(("a", None, True), ("never", None, True))
    assert documents(db) == {"b": ({"n": 2}, 1)}
    into.write(("a", "{}", False))
    assert documents(db) == {"a": ({}, 4), "b": ({"n": 2}, 1)}
    assert {commit.note for commit in db.store.commits()} == {None, "copied"}


def test_documents_of_columns_and_a_new_database(store, place):
    schema = T.StructType().add("id", T.StringType()).add("owner", T.StringType())
    schema = schema.add("price", T.DoubleType()).add("deleted", T.BooleanType())
    sink(place, schema).write(("a", "ann", 1.5, None), ("b", "bob", None, False))
    db = ChangesDB(store, "cat")
    assert documents(db) == {"a": ({"owner": "ann", "price": 1.5}, 1), "b": ({"owner": "bob"}, 1)}


def test_conflicts_are_of_the_winner(db, place):
    db.replicate([{"_id": "a", "_rev": f"1-{letter * 32}", "n": letter} for letter in "ab"])
    sink(place).write(("a", '{"n": 1}'))
    assert documents(db) == {"a": ({"n": 1}, 2)}
    assert len(db.open_revs("a")) == 2


def test_a_feed_that_is_copied(db, store, place):
    other = ChangesDB(store, "other").create()
    columns = "id STRING, doc STRING, deleted BOOLEAN, seq STRING, rev STRING"
    first = db.put({"_id": "a", "n": 1})
    gone = db.put({"_id": "gone", "n": 1})
    rows = list(db.changes(include_docs=True).rows)
    db.put({"_id": "a", "n": 2}, first.rev)
    db.remove("gone", gone.rev)
    rows += db.changes(include_docs=True).rows
    cells = [(r.id, json.dumps(r.doc), r.deleted, str(r.seq), r.rev) for r in rows]
    sink(place, columns, database="other").write(*cells)
    assert documents(other) == {"a": ({"n": 2}, 1)}


@ARROW
def test_a_batch_that_is_repeated(db, place, in_a_query):
    into = sink(place, stream=True)
    into.micro_batch(0, ("a", '{"n": 1}'))
    into.micro_batch(0, ("a", '{"n": 1}'))
    into.micro_batch(1, ("a", '{"n": 2}'))
    sink(place, stream=True).micro_batch(0, ("a", '{"n": 1}'))
    assert documents(db) == {"a": ({"n": 2}, 2)}
    marker = db.local.get("spark-0eee7a21")
    assert (marker["batch"], marker["done"], marker["total"]) == (1, 1, 1)
    notes = [commit.note for commit in db.store.commits() if commit.note]
    assert notes == ["Spark query 0eee7a21, batch 0", "Spark query 0eee7a21, batch 1"]


ROWS = [(f"d{n:02}", f'{{"n":{n}}}') for n in range(25)]


class DiedError(Exception):
    """The driver was killed."""


def dies_after(call, calls: int):
    """A method that may be called so often."""
    done: list[None] = []

    def dies(self, *arguments, **options):
        if len(done) == calls:
            raise DiedError
        done.append(None)
        return call(self, *arguments, **options)

    return dies


@ARROW
@pytest.mark.parametrize("commits", range(4))
def test_a_batch_goes_on_where_it_was_killed(db, place, in_a_query, monkeypatch, commits):
    monkeypatch.setattr(sinks, "DOCS_MAX", 8)
    monkeypatch.setattr(sinks, "BESIDE_GUARDS", (db.store.guards_max or 8) - 8)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Space, "commit", dies_after(Space.commit, commits))
        with pytest.raises(DiedError):
            sink(place, stream=True).micro_batch(3, *ROWS)
    sink(place, stream=True).micro_batch(3, *reversed(ROWS))
    assert documents(db) == {id: (json.loads(doc), 1) for id, doc in ROWS}


@ARROW
@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_outcome_is_looked_up(db, place, in_a_query, monkeypatch, landed):
    commit, calls = Space.commit, []

    def unknown(self, *arguments, **options):
        calls.append(None)
        if len(calls) > 1:
            return commit(self, *arguments, **options)
        core = self._core
        made = commit(self, *arguments, **options) if landed else core.tick()
        nonce = core.timeline.stamp(core.timeline.head()).nonce if landed else b"n"
        raise CommitUnknownError(made.ts, nonce, may_still_land=True)

    monkeypatch.setattr(Space, "commit", unknown)
    sink(place, stream=True).micro_batch(3, ("a", '{"n": 1}'))
    assert documents(db) == {"a": ({"n": 1}, 1)}


@ARROW
def test_a_second_driver_is_stopped(db, place, in_a_query, monkeypatch):
    commit, calls = Space.commit, []

    def overtaken(self, *arguments, **options):
        calls.append(None)
        if len(calls) == 1:
            marker = {"batch": 2, "done": 1, "total": 2, "digest": ""}
            ChangesDB(place.open(writer="elsewhere"), "cat").local.put("spark-0eee7a21", marker)
        return commit(self, *arguments, **options)

    monkeypatch.setattr(Space, "commit", overtaken)
    message = refused("CONFLICT", sink(place, stream=True).micro_batch, 3, ("a", "{}"))
    assert "another run of 0eee7a21" in message
    assert documents(db) == {}


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_documents_too_large_for_one_commit(db, place):
    """They are parted until they fit."""
    limits = db.store._core.engine.limits
    size = limits.request_bytes // 6
    rows = [(f"d{n}", json.dumps({"text": "x" * size})) for n in range(12)]
    sink(place, note="large").write(*rows)
    assert sorted(documents(db)) == sorted(id for id, _ in rows)
    notes = [commit.note for commit in db.store.commits() if commit.note]
    assert len(notes) > 1
    assert notes[-1].endswith("to 12 of 12")


@pytest.mark.parametrize(
    ("columns", "options", "code", "said"),
    [
        (DOCS, {"database": "Upper"}, "INVALID_OPTION", "lower-case"),
        (DOCS, {"overwrite": True}, "INVALID_OPTION", "use mode append"),
        (DOCS, {"since": "0"}, "UNKNOWN_OPTION", "known are"),
        ("doc STRING", {}, "INVALID_SCHEMA", "id must be STRING, and is missing"),
        ("id STRING", {}, "INVALID_SCHEMA", "a document is the column doc"),
        ("id STRING, doc STRING, owner STRING", {}, "INVALID_SCHEMA", "give one of them"),
        ("id STRING, doc STRING, Deleted BOOLEAN", {}, "INVALID_SCHEMA", "is written deleted"),
        ("id STRING, doc STRING, seq BIGINT", {}, "INVALID_SCHEMA", "seq must be STRING"),
        ("id STRING, doc INT", {}, "INVALID_SCHEMA", "doc must be STRING, and is INT"),
        ("id STRING, doc STRING, deleted STRING", {}, "INVALID_SCHEMA", "deleted must be BOOLEAN"),
    ],
)
def test_what_a_sink_refuses(store, place, columns, options, code, said):
    assert said in refused(code, sink, place, columns, **options)


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ([("a", "{}"), (None, "{}")], "INVALID_SCHEMA", "its id is NULL"),
        ([("a", "{}"), ("b", "[1]")], "VALUE_MALFORMED", "'b' cannot be written: Document must"),
        ([("a", "{}"), ("b", "{")], "VALUE_MALFORMED", "document 'b'"),
        ([("a", "{}"), ("b", None)], "VALUE_MALFORMED", "document 'b'"),
        ([("a", "{}"), ("_b", "{}")], "VALUE_MALFORMED", "underscore"),
        ([("a", "{}"), ("b", '{"_x": 1}')], "VALUE_MALFORMED", "_x"),
        ([("a", "{}"), ("a", "{}")], "DUPLICATE_KEY", "'a' comes twice"),
    ],
)
def test_rows_that_cannot_be_written(db, place, rows, code, said):
    assert said in refused(code, sink(place).write, *rows)
    assert documents(db) == {}


def test_what_is_no_sequence(db, place):
    into = sink(place, "id STRING, doc STRING, seq STRING")
    for seq in ("9-x", "", None):
        assert "sequence" in refused("VALUE_MALFORMED", into.write, ("a", "{}", seq))


def test_no_decimals(place):
    schema = T.StructType().add("id", T.StringType()).add("n", T.DecimalType(38, 10))
    assert "cast it to DOUBLE" in refused("INVALID_SCHEMA", sink, place, schema)


@ARROW
def test_nothing_is_written_if_one_document_cannot_be(db, place, in_a_query):
    last = f"{POSITION_MAX}-{'a' * 32}"
    db.replicate([{"_id": "b", "_rev": last}])
    rows = [("a", "{}"), ("b", '{"n": 1}'), ("c", "{}")]
    for _ in range(2):  # a driver, and the next one
        message = refused("INVALID_OPTION", sink(place, stream=True).micro_batch, 0, *rows)
        assert "no revision can follow" in message
    assert list(documents(db)) == ["b"]


@ARROW
def test_a_driver_that_was_replaced_between_two_commits(db, place, in_a_query, monkeypatch):
    """Its successor committed the second part, and died, before it looks at its own first one."""
    monkeypatch.setattr(sinks, "DOCS_MAX", 2)
    monkeypatch.setattr(sinks, "BESIDE_GUARDS", (db.store.guards_max or 2) - 2)
    rows = [(f"d{n}", "{}") for n in range(6)]
    edited, calls = ChangesDB.edit, []

    def overtaken(self, *arguments):
        calls.append(None)
        found = edited(self, *arguments)
        if len(calls) == 1:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(ChangesDB, "edit", dies_after(edited, 1))
                with pytest.raises(DiedError):
                    sink(place, stream=True).micro_batch(0, *rows)
        return found

    monkeypatch.setattr(ChangesDB, "edit", overtaken)
    message = refused("CONFLICT", sink(place, stream=True).micro_batch, 0, *rows)
    assert "another run" in message
    assert documents(db) == {f"d{n}": ({}, 1) for n in range(4)}
    sink(place, stream=True).micro_batch(0, *rows)
    assert documents(db) == {f"d{n}": ({}, 1) for n in range(6)}


@ARROW
def test_beside_a_writer_of_one_document(db, place, in_a_query, monkeypatch):
    """Parts become smaller until they win."""
    rows = [(f"d{n:03}", "{}") for n in range(64)]
    edited = ChangesDB.edit

    def late(self, edits, beside):
        if len(edits) > 10:
            raise CommitTimeoutError("other writers committed first")
        return edited(self, edits, beside)

    monkeypatch.setattr(ChangesDB, "edit", late)
    sink(place, stream=True).micro_batch(0, *rows)
    assert documents(db) == {id: ({}, 1) for id, _ in rows}


def test_a_sink_without_a_database(place):
    with pytest.raises(SourceError, match="name the database"):
        DocumentSink(place.url, DOCS)


@ARROW
def test_in_spark(spark, db, place, tmp_path):
    db.put({"_id": "a", "n": 1})
    db.put({"_id": "b", "n": 1})

    def follow() -> None:
        feed = spark.readStream.format("cdcmeta.changes").option("database", "cat").load(place.url)
        written = feed.writeStream.format("cdcmeta.changes").option("database", "copy")
        written = written.option("checkpointLocation", str(tmp_path / "ck"))
        ended(lambda: written.trigger(availableNow=True).start(place.url))

    follow()
    db.put({"_id": "a", "n": 2}, db.get("a")["_rev"])
    db.remove("b", db.get("b")["_rev"])
    follow()
    assert documents(ChangesDB(db.store, "copy")) == {"a": ({"n": 2}, 2)}
    rows = spark.sql("SELECT 'c' AS id, 'ann' AS owner, array(1, 2) AS sizes")
    rows.write.format("cdcmeta.changes").option("database", "copy").mode("append").save(place.url)
    assert documents(ChangesDB(db.store, "copy"))["c"] == ({"owner": "ann", "sizes": [1, 2]}, 1)
