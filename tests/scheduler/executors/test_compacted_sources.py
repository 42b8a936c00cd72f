"""Sources remove what a table has not read: it ends with the reason, or goes on, and is alone."""

import threading
from functools import partial

import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.errors import LogTrimmedError
from cdcmeta.scheduler import TableState, Token
from cdcmeta.scheduler.executors import database_source, feed_reader
from cdcmeta.scheduler.executors.contracts import CalledWriter
from cdcmeta.scheduler.executors.database_sinks import DatabaseWriter
from cdcmeta.scheduler.executors.database_source import DatabasesSource
from cdcmeta.scheduler.executors.pipeline import Pipeline, QueueBudget, size_of
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource
from snapkv.errors import EngineUnavailableError

from .driving import WAIT_S, Driven, Noting
from .sources import Hooked, stopping

TABLES = ["a/", "b/"]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(feed_reader, "RETRY_S", 0.01)


@pytest.fixture
def store():
    with snapkv.open("memory:") as store:
        yield store


def test_trimmed_rows_end_live_tables_and_no_later_one(store):
    source, noting = Hooked(store), Noting()
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    driven.start(store.resolved(), tables=["a/"])
    trimmed = LogTrimmedError("f", "log", 5, 9, "create another changefeed")
    live, fetched = iter([trimmed]), stopping([trimmed])

    def before(since):
        if since is not None:
            fetched()
        elif (error := next(live, None)) is not None:
            store.save("a/1", b"1")  # the feed that fails has not brought it
            raise error

    source.before = before
    driven.until(lambda: driven.state("a/") is TableState.STOPPED, "the end of a/")
    assert "were trimmed" in driven.executor.problems()["a/"].error
    driven.executor.is_remove_finished("a/")
    driven.start(store.resolved(), owner=2)
    ts = store.save("b/1", b"1")
    driven.reach(ts)
    assert noting.commits("b/") == [ts]
    driven.close()


class Restarting:
    """A source that restarts, whose feeds and `now` fail as often as a test wants."""

    restarts = has_removals = True

    def __init__(self, store, tables, feed_errors, now_errors):
        self._inner = PrefixTableSource(store, {table: table for table in tables})
        self.feed_errors, self.now_errors = stopping(feed_errors), stopping(now_errors)
        self.feeds = 0

    def feed(self, since):
        self.feeds += 1
        if since is not None:
            self.feed_errors()
        return self._inner.feed(since)

    def state(self, table, since, at, kept=()):
        return self._inner.state(table, since, at, kept)

    def now(self):
        self.now_errors()
        return self._inner.now()


def test_a_source_that_does_not_answer_while_a_table_begins_anew(store):
    start = store.resolved()
    ts = store.save("a/1", b"1")
    source = Restarting(
        store, TABLES, [snapkv.CompactedError(start, None)], [EngineUnavailableError("down")] * 2
    )
    source.feed_errors = stopping([snapkv.CompactedError(start, None)] * 3)
    noting = Noting()
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    driven.start(start)
    driven.reach(ts)
    assert noting.content() == {"a/1": b"1"}
    driven.close()


def test_an_error_of_a_removed_table_leaves_the_one_that_is_back(store):
    driven = Driven(PrefixTableSource(store, {"a/": "a/"}), partial(CalledWriter, Noting()), ["a/"])
    reader, start = driven.executor._reader, store.resolved()
    old = Pipeline("a/", start, Token(1, 1), partial(CalledWriter, Noting()))
    driven.start(start, owner=2)
    reader._fail(old, OSError("late news"))
    ts = store.save("a/1", b"1")
    driven.reach(ts)
    driven.close()


@pytest.mark.parametrize(("queued", "refused"), [(1_000, 1_000), (1_000_000, 3_500_000)])
def test_a_queue_without_room_costs_no_feeds(store, monkeypatch, queued, refused):
    """The second commit finds no room: in all queues together, or in the table's own."""
    noting, go_on = Noting(), threading.Event()
    noting.before = lambda table, checkpoint: go_on.wait(WAIT_S)
    source = Restarting(store, ["a/"], [], [])
    driven = Driven(source, partial(CalledWriter, noting), ["a/"])
    if queued == 1_000:
        driven.executor._room = QueueBudget(bytes_max=1)
    driven.start(store.resolved())
    store.save("a/first", b"x")
    driven.until(lambda: driven.executor.busy_since() is not None, "the first write")
    store.save("a/queued", b"x" * queued)
    ts = store.save("a/refused", b"x" * refused)
    pipeline = driven.executor._pipelines["a/"]
    driven.until(lambda: pipeline._refused, "the refusal")
    before = source.feeds
    assert not go_on.wait(0.6)
    assert source.feeds - before <= 4  # one in each wait of the reader at most
    go_on.set()
    driven.reach(ts)
    driven.close()


def test_a_document_counts_with_its_leaves(store):
    db = ChangesDB(store, "users").create()
    last = db.put({"_id": "a"})
    for n in range(50):
        last = db.put({"_id": "a", "n": n}, rev=last.rev)
    source = DatabasesSource(store, ["users"])
    (page,) = source.state("users", 0, store.resolved())
    (change,) = page.changes
    assert size_of(change) > 50 * 32


def test_a_first_state_goes_on_after_a_compaction(store, monkeypatch):
    monkeypatch.setattr(database_source, "PAGE_DOCS", 2)
    db = ChangesDB(store, "users").create()
    for n in range(9):
        db.put({"_id": f"doc{n}"})
    at = store.resolved()
    source = DatabasesSource(store, ["users"])
    pages = source.state("users", 0, at)
    found = [change.key for change in next(pages).changes]
    db.put({"_id": "later"})
    store.reader.engine.compact(store.at().revision)
    found += [change.key for page in pages for change in page.changes]
    assert sorted(set(found)) == sorted([*(f"doc{n}" for n in range(9)), "later"])


def test_a_database_that_was_created_again_is_not_merged(store):
    db = ChangesDB(store, "users").create()
    db.put({"_id": "a"})
    start = store.resolved()
    with snapkv.open("memory:") as target:
        driven = Driven(
            DatabasesSource(store, ["users"]),
            partial(DatabaseWriter, target, "f"),
            ["users"],
            state_at=start,
        )
        driven.start(start - 1)
        driven.reach(start)
        reached = driven.stop()["users"]
        db.delete()
        ChangesDB(store, "users").create().put({"_id": "c"})
        store.reader.engine.compact(store.at().revision)
        driven.executor.add_table("users", reached, Token(2, 1), is_prepare=True)
        driven.until(lambda: driven.is_done("users", is_prepare=True), "it to be prepared")
        driven.executor.add_table("users", reached, Token(2, 1), is_prepare=False)
        driven.until(lambda: driven.state("users") is TableState.STOPPED, "its end")
        assert "created again" in driven.executor.problems()["users"].error
        assert [each.id for each in ChangesDB(target, "users").documents()] == ["a"]
        driven.close()
