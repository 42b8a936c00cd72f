"""Tables that are removed at any time, calls that hang, and the end of an executor."""

import sys
import threading
from functools import partial
from time import monotonic

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta.errors import InvalidArgumentError, SinkError
from cdcmeta.scheduler import TableState, Token
from cdcmeta.scheduler.executors import pipeline
from cdcmeta.scheduler.executors.changefeed_executor import Workers
from cdcmeta.scheduler.executors.contracts import CalledWriter
from cdcmeta.scheduler.executors.json_lines_sink import JsonLinesWriter
from cdcmeta.scheduler.executors.pipeline import Pipeline
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter
from cdcmeta.scheduler.runtime.changefeed_records import check_prefixes
from snapkv import Change, Changes, Commit

from .driving import WAIT_S, Driven, Noting
from .driving import opened as opened_executor
from .sources import Hooked, below, commit, stopping

TABLES = ["a/", "b/"]
TOKEN = Token(1, 1)


@pytest.fixture
def source():
    with snapkv.open("memory:") as store:
        yield store


@pytest.fixture
def noting():
    return Noting()


@pytest.fixture
def driven(source, noting):
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    yield driven
    driven.close()


class Hanging:
    """Hangs calls for a table until it is let go."""

    def __init__(self, table):
        self.began, self.go_on, self._table = threading.Event(), threading.Event(), table

    def __call__(self, table, checkpoint):
        if table == self._table:
            self.began.set()
            assert self.go_on.wait(WAIT_S)


def test_a_removal_before_anything(driven):
    assert driven.executor.remove_table("a/")
    assert driven.executor.is_remove_finished("a/") == 0
    assert driven.state("a/") is TableState.ABSENT


def test_a_removal_while_it_is_prepared(source, noting):
    start = source.save("a/1", b"1")
    source.save("a/2", b"2")
    hooked, waits, go_on = Hooked(source), threading.Event(), threading.Event()

    def wait(since):
        if since is not None:
            waits.set()
            go_on.wait(WAIT_S)

    hooked.before = wait
    driven = Driven(hooked, partial(CalledWriter, noting), TABLES)
    driven.executor.add_table("a/", start, TOKEN, is_prepare=True)
    assert waits.wait(WAIT_S)
    assert driven.stop() == {"a/": start}
    go_on.set()
    driven.start(source.resolved(), tables=["b/"])
    driven.reach(source.save("b/1", b"1"), ["b/"])
    assert noting.commits("a/") == []
    driven.close()


def test_a_removal_during_a_hung_write_ends_with_it_and_others_go_on(source, driven, noting):
    noting.before = hanging = Hanging("a/")
    driven.start(source.resolved())
    first = source.save("a/1", b"1")
    assert hanging.began.wait(WAIT_S)
    source.save("a/2", b"2")
    driven.executor.remove_table("a/")
    driven.reach(source.save("b/1", b"1"), ["b/"])
    assert driven.executor.is_remove_finished("a/") is None
    assert driven.executor.busy_since() is not None
    hanging.go_on.set()
    assert driven.stop(["a/"]) == {"a/": first}
    assert noting.commits("a/") == [first]
    driven.start(first, owner=2, tables=["a/"])
    driven.reach(source.resolved(), ["a/"])
    assert len(noting.commits("a/")) == 2


def test_a_removal_while_it_may_not_write(source, noting):
    may = threading.Event()
    driven = Driven(source, partial(CalledWriter, noting), ["a/"], may_write=may.is_set)
    start = source.resolved()
    driven.executor.add_table("a/", start, TOKEN, is_prepare=True)
    driven.until(lambda: driven.is_done("a/", is_prepare=True), "a/ to be prepared")
    driven.executor.add_table("a/", start, TOKEN, is_prepare=False)
    source.save("a/1", b"1")
    assert not driven.is_done("a/", is_prepare=False)
    assert driven.stop() == {"a/": start}
    assert noting.calls == []
    driven.close()


def test_a_removal_during_the_pause_after_a_failure_does_not_wait(source, noting, monkeypatch):
    monkeypatch.setattr(pipeline, "RETRY_S_MIN", 1_000.0)
    monkeypatch.setattr(pipeline, "RETRY_S_MAX", 1_000.0)
    driven = Driven(source, partial(CalledWriter, noting), ["a/"])
    driven.start(source.resolved())
    noting.before = stopping([OSError("down")])
    source.save("a/1", b"1")
    driven.until(driven.executor.problems, "the failure")
    driven.stop()
    assert driven.executor.problems()["a/"].error == "OSError: down"
    driven.close()


def test_an_end_with_a_hung_write_is_bounded_and_leaves_no_thread(source, noting):
    before = set(threading.enumerate())
    noting.before = hanging = Hanging("a/")
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    driven.start(source.resolved())
    source.save("a/1", b"1")
    assert hanging.began.wait(WAIT_S)
    since = monotonic()
    assert not driven.executor.close(0.1)
    assert monotonic() - since < 5
    assert not driven.executor.is_stopped
    assert driven.state("b/") is TableState.STOPPED
    hanging.go_on.set()
    eventually(lambda: driven.executor.is_stopped, "the hung table to stop", wait_s=WAIT_S)
    eventually(lambda: set(threading.enumerate()) <= before, "threads to end", wait_s=WAIT_S)


def test_no_table_comes_after_the_end(source, driven):
    driven.executor.stop()
    assert not driven.executor.add_table("a/", source.resolved(), TOKEN, is_prepare=True)
    assert driven.executor.is_stopped


def test_a_function_that_exits_counts_as_a_failure(source, driven, noting, monkeypatch):
    monkeypatch.setattr(pipeline, "RETRY_S_MIN", 0.01)
    driven.start(source.resolved())
    exits = iter([True, True])
    noting.before = lambda table, checkpoint: sys.exit(3) if next(exits, False) else None
    ts = source.save("a/1", b"1")
    driven.reach(ts)
    assert noting.commits("a/") == [ts]


def test_a_hung_call_leaves_no_table_without_a_thread(noting):
    """Two tables get work at once while one thread is idle: both calls are under way."""
    both = threading.Barrier(2)
    noting.before = lambda table, checkpoint: both.wait(WAIT_S)
    workers = Workers(lambda: True, 4)
    pipelines = [replicating(table, noting) for table in ("a/", "b/")]
    workers.submit(pipelines[0])
    eventually(lambda: pipelines[0].has_begun and workers._idle == 1, "an idle thread")
    pipelines[1]._writer = pipelines[0]._writer
    for each in pipelines:
        assert each.offer(commit(6, a=b"6"))
    with workers._condition:
        for each in pipelines:
            workers.submit(each)
    eventually(lambda: all(each.checkpoint == 6 for each in pipelines), "both", wait_s=WAIT_S)
    for each in pipelines:
        each.stop()
        workers.submit(each)
    assert workers.close(WAIT_S)


def replicating(table, noting):
    made = Pipeline(table, 5, TOKEN, partial(CalledWriter, noting))
    made.set_prepared()
    made.replicate(5)
    return made


def test_why_a_table_ends_is_kept_when_its_write_succeeds(noting):
    made = replicating("a/", noting)
    made.work()
    assert made.offer(commit(6, a=b"6"))
    noting.before = lambda table, checkpoint: made.fail(RuntimeError("compacted"))
    while made.state is not TableState.STOPPED:
        made.work()
    assert (made.checkpoint, made.problem.error) == (6, "RuntimeError: compacted")


def test_why_a_table_ends_is_kept_when_its_write_fails_too(noting):
    made = replicating("a/", noting)
    made.work()
    assert made.offer(commit(6, a=b"6"))

    def fail(table, checkpoint):
        made.fail(RuntimeError("compacted"))
        raise OSError("down")

    noting.before = fail
    while made.state is not TableState.STOPPED:
        made.work()
    assert made.problem.error == "RuntimeError: compacted"


def test_a_queue_is_bounded_in_commits_and_bytes(noting):
    made, head = replicating("a/", noting), Commit(1, 0, 1, None)
    for ts in range(6, 6 + pipeline.QUEUE_COMMITS):
        assert made.offer(commit(ts, a=b"1"))
    assert not made.offer(commit(10_000, a=b"1"))
    large = replicating("b/", noting)
    for ts in range(6, 10):
        assert large.offer(commit(ts, a=b"x" * 1_000_000))
    assert not large.offer(commit(10, a=b"x" * 1_000_000))
    huge = Changes(head, (Change("c/1", b"x" * 9_000_000, head),))
    alone = Pipeline("c/", 0, TOKEN, partial(CalledWriter, noting))
    assert alone.offer(huge)
    assert not alone.offer(commit(2, a=b""))


def test_batches_are_bounded(source, driven, noting):
    noting.before = hanging = Hanging("a/")
    driven.start(source.resolved())
    source.save("a/first", b"1")
    assert hanging.began.wait(WAIT_S)
    for n in range(300):
        source.save(f"a/{n}", b"1")
    for n in range(3):
        source.save(f"a/{n}", b"x" * 700_000)
    hanging.go_on.set()
    driven.reach(source.resolved())
    for _, _, commits, _ in noting.calls:
        size = sum(len(change.value) for each in commits for change in each)
        assert len(commits) <= pipeline.WRITE_COMMITS
        assert size <= pipeline.WRITE_BYTES


def test_what_is_shown_may_be_asked_by_any_thread(source, driven):
    """Another thread asks while tables come and go."""
    executor, over, errors = driven.executor, threading.Event(), []

    def ask():
        try:
            while not over.is_set():
                executor.busy_since(), executor.problems(), executor.written()
                executor.laggards(), executor.all_tables()
        except Exception as e:
            errors.append(e)

    thread = threading.Thread(target=ask)
    thread.start()
    start = source.resolved()
    for number in range(40):
        for table in TABLES:
            executor.add_table(table, start, Token(1, number), is_prepare=True)
        driven.stop()
    over.set()
    thread.join(WAIT_S)
    assert errors == []


def test_a_problem_is_over_when_the_table_replicates_again(source, driven, noting):
    driven.start(source.resolved(), tables=["a/"])
    noting.before = stopping([SinkError("a later one", "fenced")])
    ts = source.save("a/1", b"1")
    driven.until(lambda: driven.state("a/") is TableState.STOPPED, "the end of a/")
    checkpoint = driven.stop(["a/"])["a/"]
    assert "a later one" in driven.executor.problems()["a/"].error
    driven.start(checkpoint, owner=2, tables=["a/"])
    driven.reach(ts, ["a/"])
    assert driven.executor.problems() == {}


NAMES = ["a/b/", "../", "..", "ü\n/", "語" * 60, "x" * 250, "%2F", "c d\\"]


@pytest.mark.parametrize("kind", ["store", "lines"])
def test_tables_of_any_name(source, tmp_path, kind):
    with snapkv.open("memory:") as target:
        stores = kind == "store"
        sink = (
            partial(StoreTableWriter, target, "f")
            if stores
            else partial(JsonLinesWriter, tmp_path / "out")
        )
        names = [name for name in NAMES if name != "../"]  # ".." is its beginning
        driven = Driven(source, sink, names)
        driven.start(source.resolved())
        for name in names:
            source.save(name + "1", name.encode())
        source.save("of no table", b"1")
        source.commit(puts={"of no table": b"2", "a/b/2": b"2"})
        driven.reach(source.resolved())
        driven.close()
        if stores:
            assert below(target, [""]) == below(source, names)
        else:
            files = list((tmp_path / "out").iterdir())
            assert len(files) == len(names)
            assert all('"of no table"' not in file.read_text() for file in files)
    assert [each.name for each in tmp_path.iterdir()] in ([], ["out"])


@pytest.mark.parametrize(
    "prefixes", [("a", "a"), ("a/", "a/b/"), ("b", "a", "ba"), ("", "x"), ("a", "a\U0010ffff")]
)
def test_prefixes_that_overlap_are_rejected(prefixes):
    for given in (prefixes, prefixes[::-1]):
        with pytest.raises(InvalidArgumentError, match="belongs to one table"):
            check_prefixes(given)


def test_a_commit_goes_to_each_of_its_tables_in_parts(source, driven, noting):
    driven.start(source.resolved())
    ts = source.commit(puts={"a/1": b"1", "b/1": b"2", "c/1": b"3"}).ts
    driven.reach(ts)
    parts = {call[0]: [c.key for each in call[2] for c in each] for call in noting.calls}
    assert parts == {"a/": ["a/1"], "b/": ["b/1"]}


def test_an_executor_that_was_never_used_ends_at_once(source, noting):
    executor = opened_executor(
        PrefixTableSource(source, {"a/": "a/"}), partial(CalledWriter, noting), ["a/"]
    )
    executor.stop()
    assert executor.close(0)
